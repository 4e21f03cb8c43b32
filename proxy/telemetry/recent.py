"""The records of the last requests, for the debug pages; bounded in number and bytes.

Every request is kept, and few are ever looked at, so a record is kept as it is, encoded and without secrets. It gets
the form of the debug pages when somebody reads it.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.config.redaction import Redact
from proxy.kit.last_entries import Folder, Memory
from proxy.telemetry.events import Content, level_of
from proxy.telemetry.records import Note, RequestRecord, Step, short
from proxy.wire.chat import Json

MOST_REQUESTS: Final = 500
MOST_BYTES: Final = 8 * 1024 * 1024
# Clients and upstreams choose some of the texts in a record; in a longer one they are shortened.
_LONGEST_ENTRY: Final = 64 * 1024
# A traceback is for the log only; a step has its outcome and its time itself.
_NOT_SHOWN: Final = frozenset({"exc_info", "outcome", "seconds"})
# Of one worker's file, of which there are two; all of them are read for one page.
_PART_BYTES: Final = 1024 * 1024


class Recent:
    """Implements `records.RecordSink` and `ports.RecentRequests`.

    Args:
        directory: where several workers share their records; None: there is only one worker.
        redact: masks secrets in a text.
        most_requests: the number of requests that are kept.
        most_bytes: the bytes of all of them together.
    """

    ignored: Final[frozenset[str]] = frozenset()

    def __init__(
        self,
        directory: str | None = None,
        *,
        redact: Redact = str,
        most_requests: int = MOST_REQUESTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._redact = redact
        self._most_requests = most_requests
        self._open: dict[int, RequestRecord] = {}
        self._kept: Memory[bytes] | Folder = (
            Folder(Path(directory), "recent", part_bytes=_PART_BYTES)
            if directory
            else Memory(most_requests, most_bytes)
        )

    def started(self, record: RequestRecord) -> None:
        """Show an open request; those for the debug pages themselves are left out."""
        if not str(record.fields.get("path")).startswith("/debug"):
            self._open[id(record)] = record

    def completed(self, record: RequestRecord) -> None:
        """Keep the record, and drop the oldest ones beyond the bounds."""
        if self._open.pop(id(record), None) is not None:
            self._kept.add(self._encoded(record))

    def latest(self) -> list[Json]:
        """Open requests and the last ones that were answered, the newest first."""
        return [_shown(record) for record in self._records()]

    def find(self, request_id: str) -> Json | None:
        """The newest request of that id, if it is still kept."""
        return next((_shown(record) for record in self._records() if record.request_id == request_id), None)

    def _records(self) -> list[RequestRecord]:
        """Open requests and the last ones that were answered, the newest first."""
        records = []
        for entry in chain(map(self._encoded, self._open.values()), self._kept):
            with suppress(msgspec.DecodeError):  # a line that is just being written
                records.append(_decode(entry))
        return sorted(records, key=lambda record: -record.began_at)[: self._most_requests]

    def _encoded(self, record: RequestRecord) -> bytes:
        """A record as JSON without secrets."""
        entry = _encode(record)
        if len(entry) > _LONGEST_ENTRY:
            entry = _encode(_shortened(record))
        return self._redact(entry.decode()).encode()


def _as_text(value: object) -> str:
    """The text that stands in an entry for a value that JSON does not have, such as an exception."""
    return value.text() if isinstance(value, Content) else str(value)


_encode: Final = msgspec.json.Encoder(enc_hook=_as_text).encode
_decode: Final = msgspec.json.Decoder(RequestRecord).decode


def _shortened(record: RequestRecord) -> RequestRecord:
    """A record with bounded texts."""
    steps = [
        msgspec.structs.replace(step, fields=_bounded(step.fields), notes=[_short_note(note) for note in step.notes])
        for step in record.steps
    ]
    notes = [_short_note(note) for note in record.notes]
    return msgspec.structs.replace(record, fields=_bounded(record.fields), steps=steps, notes=notes)


def _short_note(note: Note) -> Note:
    return msgspec.structs.replace(note, fields=_bounded(note.fields))


def _bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: short(value) if isinstance(value, str) else value for name, value in fields.items()}


def _shown(record: RequestRecord) -> Json:
    """A record as the debug pages have it; fields without a value are left out."""
    return {
        "request_id": record.request_id,
        "trace_id": record.span.trace.hex(),
        "began_at": record.began_at,
        "seconds": _rounded(record.seconds),
        **_given(record.fields),
        "notes": [_note_shown(note) for note in record.notes],
        "steps": [_step_shown(step) for step in record.steps],
        "left_out": record.left_out,
    }


def _step_shown(step: Step) -> Json:
    return {
        "kind": step.kind,
        "at": _rounded(step.at),
        "seconds": _rounded(step.seconds),
        "outcome": step.outcome,
        "span_id": step.span.hex(),
        **_given({name: value for name, value in step.fields.items() if name not in _NOT_SHOWN}),
        "notes": [_note_shown(note) for note in step.notes],
    }


def _note_shown(note: Note) -> Json:
    level = logging.getLevelName(level_of(note.event)).lower()
    return {"at": _rounded(note.at), "event": note.event, "level": level, **_given(note.fields)}


def _given(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
