r"""The secrets of a case, masked wherever they stand: in texts, in JSON and in streams.

The masking is that of all output (`config.redaction`), so an error in which the proxy has masked a key itself is the
same when the case is played again. A secret that several events of a stream share is found in their joined texts:

    data: {"delta":"The key is sk-A1"}         data: {"delta":"The key is ***."}
    data: {"delta":"b2C3d4."}                  data: {"delta":""}
"""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from proxy.config.keys import SHORTEST_SECRET
from proxy.config.redaction import piece_redactor, redactor

_DATA: Final = "data:"
_MOST_LEVELS: Final = 200  # orjson writes 254, and a case has its own around those of a body


class Masker:
    """Masks secrets, and parts of secrets, as they are and as base64.

    Args:
        secrets: the secrets; one of fewer than eight characters is a placeholder, and is not masked.
        names: words of the configuration, such as the names of tools. A part of a secret that is also a part of a name
            stays, because it says nothing, and without its name a tool would be missing.
    """

    def __init__(self, secrets: Iterable[str], *, names: Iterable[str] = ()) -> None:
        secrets = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
        self._redact = redactor([*secrets, *(form for secret in secrets for form in _base64_forms(secret))])
        self._without_pieces = piece_redactor(secrets, spared=names)

    def text(self, text: str) -> str:
        """The text with every secret masked."""
        return self._without_pieces(self._redact(text))

    def value(self, value: Any, *, keys: bool = True, levels: int = _MOST_LEVELS) -> Any:
        """A JSON value with every secret masked in its texts and, unless `keys` is false, the names of its fields.

        Raises:
            RecursionError: it is nested too deep for a case.
        """
        if not levels:
            raise RecursionError
        match value:
            case str():
                return self.text(value)
            case dict():
                return {
                    self.text(str(key)) if keys else key: self.value(held, keys=keys, levels=levels - 1)
                    for key, held in value.items()
                }
            case list() | tuple():
                return [self.value(held, keys=keys, levels=levels - 1) for held in value]
        return value

    def stream(self, pieces: Sequence[bytes]) -> list[bytes]:
        """The pieces of a stream of events: as they came if no secret is in them, otherwise as one masked piece."""
        lines = b"".join(pieces).decode("utf-8", "surrogateescape").split("\n")
        try:
            masked = self._lines(lines)
        except RecursionError:
            masked = [*map(self.text, lines)]
        return [*pieces] if masked == lines else ["\n".join(masked).encode("utf-8", "surrogateescape")]

    def _lines(self, lines: Sequence[str]) -> list[str]:
        """The lines of a stream with masked secrets."""
        events = {at: event for at, line in enumerate(lines) if (event := _event_in(line)) is not None}
        self._mask_texts(events.values())
        masked = [line if at in events else self.text(line) for at, line in enumerate(lines)]
        for at, event in events.items():
            named = self.value(event)  # masks the names of fields
            if named != _event_in(lines[at]):
                masked[at] = _line_of(named, lines[at])
        return masked

    def _mask_texts(self, events: Iterable[Any]) -> None:
        """Mask the texts of events, and put one whose secret several events share into the first of them."""
        shared: dict[tuple[Any, ...], list[tuple[Any, Any]]] = defaultdict(list)
        for event in events:
            for where, holder, key in _texts_in(event, (event.get("type"),)):
                shared[where].append((holder, key))
        for places in shared.values():
            texts = [holder[key] for holder, key in places]
            masked = [*map(self.text, texts)]
            if (joined := self.text("".join(texts))) != "".join(masked):
                masked = [joined, *[""] * (len(texts) - 1)]
            for (holder, key), text in zip(places, masked, strict=True):
                holder[key] = text


def _base64_forms(secret: str) -> Iterator[str]:
    """A secret as it reads within base64, whichever of three bytes it begins at: `Basic` has a user before a key."""
    content = secret.encode("utf-8", "replace")
    for before in range(3):
        coded = b64encode(bytes(before) + content).decode()
        # Only what follows from the secret alone, and not from its neighbours.
        form = coded[-(-before * 8 // 6) : (before + len(content)) * 8 // 6]
        yield form
        yield form.translate({ord("+"): "-", ord("/"): "_"})


def _event_in(line: str) -> Any:
    """The JSON object in a line of a stream; None: it has none."""
    if not line.startswith(_DATA):
        return None
    try:
        event = orjson.loads(line.removeprefix(_DATA))
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None
    return event if isinstance(event, dict) else None


def _line_of(event: Any, line: str) -> str:
    return f"{_DATA} {orjson.dumps(event).decode()}" + ("\r" if line.endswith("\r") else "")


def _texts_in(value: Any, where: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """The texts in an event: the place that they share with those of other events, their holder, and their key."""
    match value:
        case dict():
            indices = [held for name, held in value.items() if name.endswith("index") and isinstance(held, int)]
            children = [((*where, *indices, name), name, held) for name, held in value.items()]
        case list():
            own = [() if isinstance(held, dict) and "index" in held else (at,) for at, held in enumerate(value)]
            children = [((*where, *own[at]), at, held) for at, held in enumerate(value)]
        case _:
            children = []
    for place, key, held in children:
        if isinstance(held, str):
            yield place, value, key
        else:
            yield from _texts_in(held, place)
