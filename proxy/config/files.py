"""The reading of a configuration's files: regular ones of a sensible size, so that no read waits or has no end."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

_MOST_MEBIBYTES: Final = 16  # a configuration has some kilobytes, and 100,000 clients have ten mebibytes
_MOST_BYTES: Final = _MOST_MEBIBYTES * 1024 * 1024


def read_file(path: Path) -> bytes:
    """The content of a regular file, or of one that a symbolic link leads to.

    Raises:
        OSError: the file cannot be read, has more than 16 MiB, or is a pipe or a device; `strerror` says which.
    """
    with open(path, "rb", opener=_opened) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_MEBIBYTES} MiB")
    return data


def _opened(path: str, flags: int) -> int:
    # Otherwise opening a FIFO would already wait, for somebody who writes into it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
