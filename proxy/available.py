"""How much memory this process may use: the smallest of what the machine has and what its container is permitted."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_memory(root: Path = Path("/")) -> int:
    """Bytes.

    Args:
        root: of the file system, for tests.
    """
    return min(_bounds(root))


def _bounds(root: Path) -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    of_process, _ = resource.getrlimit(resource.RLIMIT_AS)
    if of_process != resource.RLIM_INFINITY:
        yield of_process
    for path in _limit_files(root):
        try:
            yield int(path.read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue


def _limit_files(root: Path) -> Iterator[Path]:
    """Where Linux says what a control group, or one that it belongs to, may use (cgroups(7), version 2 and 1)."""
    mounts = {"": (root / "sys/fs/cgroup", "memory.max")}
    mounts["memory"] = (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes")
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for group in groups:
        _, controllers, where = group.split(":", 2)
        if controllers in mounts:
            mount, name = mounts[controllers]
            inner = PurePosixPath(where.lstrip("/"))
            # In a container `where` may be the host's name for it, of which nothing is seen but the mount itself.
            for place in (inner, *inner.parents):
                yield mount / place / name
