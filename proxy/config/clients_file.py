"""The text of `clients_file`, which `toolproxy key` writes: a list of clients.

    - name: app-one
      key_sha256: 4bf5...

A file may also be a mapping with `clients` as its only key. A change rewrites the file as a list, and keeps only the
comments at its beginning.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from proxy.wire.errors import ConfigurationError

KEY: Final = "clients"

_HEAD: Final = "# Written by `toolproxy key`. Comments below this line are lost with the next change.\n"
_COMMENTS: Final = re.compile(r"(?:[ \t]*#.*\n)*")


class NoClients(ConfigurationError):
    """The text is no list of clients."""


def entries_in(text: str) -> list[Any]:
    """The entries of a text as they are written. Raises `NoClients`."""
    try:
        held = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise NoClients(["it is not YAML"]) from exc
    if isinstance(held, dict) and held.keys() == {KEY}:
        held = held[KEY]
    if held is not None and not isinstance(held, list):
        raise NoClients(["it is not a list of clients"])
    return held or []


def text_of(entries: Sequence[Any], before: str) -> str:
    """The text with these entries, and with the comments at the beginning of the text `before` the change."""
    head = _COMMENTS.match(before)
    written = yaml.safe_dump([*entries], sort_keys=False, allow_unicode=True, width=10**6)
    return f"{(head and head[0]) or _HEAD}{written}"
