"""A recorded day: each request of an agent and what it was answered, one a line, in a compressed file.

The long texts of an agent's makers, its instructions and the descriptions of its tools, are theirs: their words are
replaced by made-up ones of the same length, the same ones in every request.
"""

import lzma
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tests.agents import days

FOLDER = Path(__file__).parent / "days"
_HERE = str(Path(__file__).parent.parent.parent).encode()
_LONG = 160  # characters of a text that an agent's makers have written
_WORD = re.compile(r"[A-Za-z]{3,}")
# The words by which the script knows what it is asked.
_KEPT = {
    *[
        "summary",
        "summarize",
        "summarise",
        "handoff",
        "title",
        "continue",
        "if",
        "you",
        "have",
        "next",
        "steps",
        "subagent",
        "look",
        "into",
        "the",
        "folder",
    ]
}
_KEPT |= {word.lower() for said in (days.MORNING, days.AFTERNOON, days.EVENING) for word in _WORD.findall(said)}
_TAG = re.compile(r"(</?[\w-]+>)")
_LOREM = "loremipsumdolorsitametconsecteturadipiscingelitseddoeiusmodtemporincididuntutlaboreetdolore"
_HEADERS = re.compile(
    r"anthropic-|x-claude-|x-app$|user-agent$|session-id$|thread-id$|originator$|version$|x-session", re.IGNORECASE
)
_SURFACES = {"/v1/messages": "messages", "/v1/responses": "responses", "/v1/chat/completions": "chat"}


def surface_of(path: str) -> str | None:
    """The surface of a path that takes a conversation."""
    return _SURFACES.get(path.partition("?")[0])


def read(agent: str) -> Iterator[dict[str, Any]]:
    """The exchanges of an agent's day: `path`, `headers`, `body`, `answer`."""
    with lzma.open(FOLDER / f"{agent}.jsonl.xz") as lines:
        yield from map(orjson.loads, lines)


def write(agent: str, exchanges: Iterable[dict[str, Any]]) -> None:
    """Keep the conversations among exchanges, which a recording proxy has written down."""
    FOLDER.mkdir(exist_ok=True)
    with lzma.open(FOLDER / f"{agent}.jsonl.xz", "wb", preset=9 | lzma.PRESET_EXTREME) as lines:
        for one in exchanges:
            if surface_of(one["path"]):
                headers = {name: value for name, value in one["headers"].items() if _HEADERS.match(name)}
                body = {key: _without_words(value, key) for key, value in one["body"].items()}
                kept = {"path": one["path"], "headers": headers, "body": body, "answer": one["answer"]}
                lines.write(orjson.dumps(kept).replace(_HERE, b"/home/user/toolproxy") + b"\n")


def _without_words(value: Any, key: str) -> Any:
    """A value with the words of its makers' texts replaced, whatever it is in."""
    match value:
        case dict():
            if value.get("role") == "assistant" or value.get("type") in ("function_call_output", "tool_result"):
                return value
            return {name: _without_words(inner, name) for name, inner in value.items()}
        case list():
            return [_without_words(inner, key) for inner in value]
        case str() if len(value) > _LONG and not value.startswith("data:") and key not in ("data", "encrypted_content"):
            return "".join(part if _TAG.fullmatch(part) else _WORD.sub(_made_up, part) for part in _TAG.split(value))
        case _:
            return value


def _made_up(word: re.Match[str]) -> str:
    if word[0].lower() in _KEPT:
        return word[0]
    start = sum(word[0].encode()) % 40
    return (_LOREM[start:] + _LOREM * (len(word[0]) // len(_LOREM) + 1))[: len(word[0])]
