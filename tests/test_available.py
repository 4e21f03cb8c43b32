"""How much memory there is, by what Linux says of it."""

import pytest

from proxy.available import available_memory

MIB = 2**20


@pytest.fixture
def machine(tmp_path):
    """A file system with these files in it."""

    def made(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return made


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * MIB}\n"},
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{64 * MIB}\n",
         "sys/fs/cgroup/a/b/memory.max": "max\n"},
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{65 * MIB}\n",
         "sys/fs/cgroup/a/b/memory.max": f"{64 * MIB}\n"},
        {"proc/self/cgroup": "4:memory:/docker/1\n0::/\n",  # as seen from inside
         "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n"},
    ],
    ids=["container", "of a group around", "the smallest", "version 1"],
)  # fmt: skip
def test_the_limit_of_a_container_holds(machine, files):
    assert available_memory(machine(files)) == 64 * MIB


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}])
def test_without_one_it_is_the_memory_of_the_machine(machine, files):
    assert available_memory(machine(files)) > 128 * MIB
