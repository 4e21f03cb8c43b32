import asyncio
import os
import threading

import pytest

from proxy.telemetry.log import LineStream


class Writes:
    """A stream that remembers each write; one that is `broken` takes none."""

    def __init__(self, broken=None):
        self.seen = []
        self.broken = broken

    def write(self, text):
        if self.broken:
            raise self.broken
        self.seen.append(text)

    def flush(self):
        self.seen[-1] += "|"


def say(stream, *lines):
    for line in lines:
        stream.write(line)
        stream.flush()


def test_where_no_event_loop_runs_a_line_is_there_at_once():
    writes = Writes()
    say(LineStream(writes), "a\n", "b\n")
    assert writes.seen == ["a\n|", "b\n|"]


async def test_the_lines_of_one_turn_go_out_together_at_its_end():
    writes = Writes()
    stream = LineStream(writes)
    say(stream, "a\n", "b\n")
    assert writes.seen == []
    await asyncio.sleep(0)
    assert writes.seen == ["a\nb\n|"]
    say(stream, "c\n")
    await asyncio.sleep(0)
    assert writes.seen == ["a\nb\n|", "c\n|"]


async def test_what_must_not_be_seen_is_taken_out_of_all_lines_of_a_turn_at_once():
    writes, masked = Writes(), []

    def mask(text):
        masked.append(text)
        return text.replace("key", "***")

    stream = LineStream(writes, mask)
    say(stream, "a key\n", "b\n", "another key\n")
    await asyncio.sleep(0)
    assert masked == ["a key\nb\nanother key\n"]
    assert writes.seen == ["a ***\nb\nanother ***\n|"]


async def test_half_of_an_emoji_is_left_to_the_stream():
    writes = Writes()
    say(LineStream(writes), "half of an emoji: \ud83d\n", "c\n")
    await asyncio.sleep(0)
    assert writes.seen == ["half of an emoji: \ud83d\nc\n|"]


@pytest.mark.parametrize(("letter", "together"), [("x", 4), ("é", 2)])
async def test_no_more_is_written_at_once_than_a_pipe_keeps_in_one_piece(letter, together):
    writes = Writes()
    line = letter * 999 + "\n"
    say(LineStream(writes), *[line] * 8)
    await asyncio.sleep(0)
    assert writes.seen == [line * together + "|"] * (8 // together)


async def test_a_file_takes_the_lines_of_a_turn_in_one_piece_however_many(tmp_path):
    path, pieces = tmp_path / "log", []
    lines = [f"{number} {'é' * 999}\n" for number in range(50)]
    with path.open("a") as file:
        say(LineStream(file, lambda text: pieces.append(text) or text), *lines)
        assert path.read_text() == ""
        await asyncio.sleep(0)
        assert path.read_text() == "".join(lines)
    assert pieces == ["".join(lines)]


async def test_a_pipe_takes_as_much_as_it_keeps_in_one_piece():
    reading, writing = os.pipe()
    pieces, line = [], "x" * 999 + "\n"
    with os.fdopen(reading, "rb") as there, os.fdopen(writing, "w") as here:
        say(LineStream(here, lambda text: pieces.append(text) or text), *[line] * 8)
        await asyncio.sleep(0)
        assert there.read(8000) == line.encode() * 8
    assert pieces == [line * 4] * 2


async def test_a_line_that_is_longer_than_that_is_written_all_the_same():
    writes = Writes()
    say(LineStream(writes), "a\n", "x" * 10_000, "b\n")
    await asyncio.sleep(0)
    assert writes.seen == ["a\n|", "x" * 10_000 + "|", "b\n|"]


def test_what_an_event_loop_left_behind_is_written_by_the_next():
    writes = Writes()
    stream = LineStream(writes)
    loop = asyncio.new_event_loop()
    loop.call_soon(lambda: (say(stream, "a\n"), loop.stop()))
    loop.run_forever()
    assert writes.seen == []
    say(stream, "b\n")
    assert writes.seen == ["a\nb\n|"]
    loop.close()


async def test_a_thread_has_its_lines_written_too():
    writes = Writes()
    stream = LineStream(writes)
    say(stream, "ours\n")
    await asyncio.to_thread(say, stream, "theirs\n")
    await asyncio.sleep(0)
    assert "".join(writes.seen).replace("|", "") == "ours\ntheirs\n"


def test_threads_lose_no_line():
    writes = Writes()
    stream = LineStream(writes)
    threads = [threading.Thread(target=say, args=(stream, *[f"{number}\n"] * 500)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = "".join(writes.seen).replace("|", "").splitlines()
    assert {number: lines.count(str(number)) for number in range(8)} == dict.fromkeys(range(8), 500)


@pytest.mark.parametrize("broken", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")])
def test_what_cannot_be_written_is_lost_and_nobody_suffers(broken):
    writes = Writes(broken)
    stream = LineStream(writes)
    say(stream, "a\n")
    writes.broken = None
    say(stream, "b\n")
    assert writes.seen == ["b\n|"]
