"""Ids that nobody can guess."""

import os

# A system call for each would cost more than all the rest of it.
_AT_ONCE = 64
_BYTES = 16
_waiting: list[str] = []
os.register_at_fork(after_in_child=_waiting.clear)  # or the child would use its parent's


def new_id() -> str:
    """32 hexadecimal digits from the system's source of randomness."""
    if not _waiting:
        digits = os.urandom(_BYTES * _AT_ONCE).hex()
        _waiting.extend(digits[at : at + 2 * _BYTES] for at in range(0, len(digits), 2 * _BYTES))
    return _waiting.pop()
