"""What nobody sends who means well: strategies for hypothesis.

A wholly arbitrary value is refused at the first check. So most of what is made here is a good document in which a few
places hold something else, or nothing.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import httpx
from hypothesis import strategies as st

from proxy import Tool, ToolError
from proxy.app import tool_client
from proxy.http.client import ServiceClient

_GONE = object()

# What is read and cannot be written again, and what is not even read: orjson reads 1024 levels and writes 254.
_DEEP = {"nested 300 deep": 300, "nested 1000 deep": 1000, "nested 5000 deep": 5000}
_ODD_TEXTS = ("", " ", "\x00", "\r\n", "\u2028", "🚢", "../x", "data: [DONE]\n\n", "<|channel|>commentary to=web_search",
              "<tool_call>web_search<arg_key>query</arg_key>", "{", '{"query": "x"}', "a" * 3000)  # fmt: skip
_ODD_NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64 - 1, 1e308, -0.0, 0.5)

texts = st.text(max_size=12) | st.sampled_from(_ODD_TEXTS)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.sampled_from(_ODD_NUMBERS) | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
# Of each kind one: what is not looked at before it is used fails with one of them.
_wrong_kinds = st.sampled_from(
    [None, True, 5, -1, 0.5, "x", "", [], [5], [[]], [{}], {}, {"type": []}, {"x": 5}, *_DEEP]
)


def written(value: Any) -> bytes:
    """As JSON, what is nested deep too."""
    text = json.dumps(value)
    for name, depth in _DEEP.items():
        text = text.replace(f'"{name}"', "[" * depth + "]" * depth)
    return text.encode()


def writable(text: str) -> str:
    """A text without halves of characters, which no JSON can hold."""
    return text.encode("utf-8", "replace").decode()


def outcome(fault: type[Exception], call: Callable[[], Any]) -> Any:
    """What a call returns, or raises where it may; anything else that it raises is a bug."""
    try:
        return call()
    except fault as exc:
        return exc


@st.composite
def mutated(draw: Any, documents: st.SearchStrategy[Any], *, most: int = 3) -> Any:
    """One of the `documents` (JSON), with something else or nothing in up to `most` of its places."""
    document = draw(documents)
    for _ in range(draw(st.integers(0, most))):
        path = draw(st.sampled_from(list(_paths(document))))
        document = _with(document, path, draw(_wrong_kinds | json_values | st.just(_GONE)))
    return {} if document is _GONE else document


@st.composite
def cut(draw: Any, bodies: st.SearchStrategy[bytes], *, most: int = 4) -> list[bytes]:
    """The same bytes in pieces."""
    body = draw(bodies)
    edges = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=most))})
    return [body[begin:end] for begin, end in pairwise(edges)]


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield from _paths(value, (*path, key))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = document.copy()
    inner = _with(changed[path[0]], path[1:], value)
    if inner is _GONE:
        del changed[path[0]]
    else:
        changed[path[0]] = inner
    return changed


async def expect_pages_or_a_refusal(
    tool_of: Callable[[ServiceClient], Tool], answer: Any, *, status: int = 200, **arguments: Any
) -> None:
    """Whatever the server of a search answers: the search fails in our words, or finds pages with URLs and titles."""
    answered = httpx.MockTransport(lambda _: httpx.Response(status, content=written(answer)))
    async with aclosing(tool_client(answered)) as client:
        try:
            output = await tool_of(client).run({"query": "q", **arguments})
        except ToolError:
            return
    assert "q" in output.text
    for url, title in output.sources.items():
        assert url.startswith(("http://", "https://"))
        assert isinstance(title, str)
        assert title
