"""Pictures, files and other parts of a conversation that no model can be shown.

An app sends its history with every request, and cannot remove anything from it. So a part that no model can be shown
becomes a note in the history. It is refused only if a person has just sent it, and can send another one.
"""

import re
from base64 import b64decode
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from proxy.kit.pdf import text_of_pdf
from proxy.loop.fence import INVISIBLE
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError


class NotShown(RequestError):
    """A part that is well formed, and that a model cannot be shown."""


Forgiven: TypeAlias = tuple[type[RequestError], ...]
"""The faults for which a part is replaced by a note. For other faults, the request is refused."""

ALL_FAULTS: Final = (RequestError,)
NO_FAULTS: Final[Forgiven] = ()

_PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")  # those that OpenAI and Anthropic take
_ALSO_KNOWN_AS = {"image/jpg": "image/jpeg"}
_TEXTS = ("text/", "application/json", "application/xml", "application/yaml")
_PDF = "application/pdf"
_LONGEST_TYPE = 100  # characters
_MOST_TYPES = 20  # in the log; clients choose the names
_NOT_SHOWN = "[{what} that cannot be shown here]"
_DATA_URL = re.compile(r"data:(?P<media>[^,;]*)(?P<more>[^,]{0,1000}),")


class Unshown(Struct):
    """The types of the parts and items of a request that became notes or were left out, and their number."""

    types: dict[str, None] = {}
    count: int = 0

    def add(self, kind: str) -> None:
        """Count a part or an item of a type."""
        self.count += 1
        if len(self.types) < _MOST_TYPES:
            self.types[kind] = None


def type_of(part: Any) -> str:
    """The type of a part or an item for a note and for the log."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind[:_LONGEST_TYPE] if isinstance(kind, str) else ""


def note(kind: str) -> Json:
    """The part in the place of one of that type; an empty type: it has none."""
    return text_part(_NOT_SHOWN.format(what=f"content of type {kind}" if kind else "content"))


def text_part(text: str) -> Json:
    """A part with a text."""
    return {"type": "text", "text": text}


def picture_part(url: str, where: str, **more: Any) -> Json:
    """The part with the picture at a URL, which may hold the picture itself. Raises `NotShown`."""
    if (found := _DATA_URL.match(url)) is not None and (given := found["media"].strip().lower()):
        media = _ALSO_KNOWN_AS.get(given, given)
        if media not in _PICTURES:
            raise NotShown(f"{where}: a picture must be one of {', '.join(_PICTURES)}", param=where)
        if media != found["media"]:
            url = f"data:{media}{url[found.end('media') :]}"
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text_of_file(media: str, data: str, where: str) -> str:
    """The text of a file that is given in base64. Raises `NotShown`, `RequestError`."""
    if media != _PDF and not media.startswith(_TEXTS):
        raise NotShown(f"{where}: a file must hold text, or be a PDF", param=where)
    try:
        content = b64decode(data, validate=True)
        text = INVISIBLE.sub("", text_of_pdf(content)) if media == _PDF else content.decode()
    except ValueError as exc:
        raise NotShown(f"{where}: the file does not hold text", param=where) from exc
    if media == _PDF and not text:
        raise NotShown(f"{where}: the text of this PDF cannot be read here; send it as text", param=where)
    return text


def text_at(url: str, where: str) -> str:
    """The text of a file in a data URL. Raises `NotShown`."""
    found = _DATA_URL.match(url)
    if found is None:
        raise NotShown(f"{where}: a file must hold text and come along as a data URL", param=where)
    media, data = found["media"].strip().lower(), url[found.end() :]
    if found["more"].endswith(";base64"):
        return text_of_file(media, data, where)
    try:
        if media.startswith(_TEXTS):
            return unquote_to_bytes(data).decode()
    except ValueError:
        pass
    raise NotShown(f"{where}: the file does not hold text", param=where)


def may_hold_files(body: bytes) -> bool:
    """Whether a body may hold a PDF, which takes long to read."""
    # From behind, because CPython then finds three times as fast that there is none.
    return body.rfind(_PDF.encode()) >= 0 or body.rfind(_PDF.replace("/", "\\/").encode()) >= 0
