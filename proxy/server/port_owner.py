"""Finds the process that listens at an address, from /proc on Linux."""

from collections.abc import Iterator
from pathlib import Path

_LISTENING = "0A"
_LONGEST_COMMAND = 100  # characters
_OURS = ("toolproxy", "proxy")


def port_owner_of(port: int) -> str | None:
    """A sentence about the process that listens at a port: its id, its command, and how to reload a proxy."""
    pids = sorted(_pids_with({inode for inode, _ in _listening(port)}))
    if not pids:
        return None
    pid = pids[0]  # of a supervisor and its workers the supervisor, which started first
    words = _command(pid)
    said = f"process {pid} ({' '.join(words)[:_LONGEST_COMMAND]}) listens there"
    is_ours = "serve" in words and any(Path(word).name in _OURS for word in words)
    return f"{said}; to reload its configuration: kill -HUP {pid}" if is_ours else said


def is_all_of_user(port: int, user: int) -> bool:
    """Whether all listeners at a port belong to this user, and there is at least one."""
    return {owner for _, owner in _listening(port)} == {user}


def _listening(port: int) -> Iterator[tuple[str, int]]:
    """The sockets that listen at a port, of any address: their inodes and their users (proc(5), /proc/net/tcp)."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTENING:
                yield fields[9], int(fields[7])


def _pids_with(inodes: set[str]) -> Iterator[int]:
    """The visible processes that have one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted.intersection(str(link.readlink()) for link in (folder / "fd").iterdir()):
                yield int(folder.name)
        except OSError:  # it has ended, or is another user's
            continue


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []
