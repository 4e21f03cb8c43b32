"""One change to a JSON text that leaves every other byte as it was: the value of its top-level `model`."""

import re

import orjson

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)
_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')


def replace_model(body: bytes, name: str) -> bytes:
    """`body` with `name` as its top-level `model`.

    `body` must be a JSON object that has the key and a string for it. Where the key stands more than once every one is
    replaced: parsers disagree on which of them counts, and the one that an upstream reads has to be ours.
    """
    value = orjson.dumps(name)
    if body.count(b'"model"') == 1 and b"\\u" not in body and (match := _MODEL.search(body)):
        if match[1] == value:
            return body
        return body[: match.start(1)] + value + body[match.end(1) :]
    parts: list[bytes] = []
    kept = 0
    for start, end in _top_level_models(body):
        parts += (body[kept:start], value)
        kept = end
    return b"".join((*parts, body[kept:]))


def _top_level_models(body: bytes) -> list[tuple[int, int]]:
    """Where the values of top-level `model` keys begin and end."""
    spans: list[tuple[int, int]] = []
    depth = 0
    expect_key = False
    is_model = False
    for match in _TOKEN.finditer(body):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
            expect_key = depth == 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif token == b",":
            expect_key = depth == 1
        elif token == b":":
            continue
        elif depth == 1 and expect_key:
            expect_key = False
            is_model = orjson.loads(token) == "model"
        elif depth == 1 and is_model:
            spans.append(match.span())
            is_model = False
    return spans
