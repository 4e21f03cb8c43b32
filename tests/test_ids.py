import os
import re

from proxy.ids import new_id


def test_ids_are_32_hexadecimal_digits_and_no_two_are_the_same():
    ids = [new_id() for _ in range(1000)]
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in ids)
    assert len(set(ids)) == 1000


def test_a_forked_process_has_ids_of_its_own():
    new_id()  # there are more where this one came from
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, "".join(new_id() for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read()
    assert len(theirs) == 3200
    ours = {new_id() for _ in range(100)}
    assert not ours & {theirs[at : at + 32] for at in range(0, 3200, 32)}
