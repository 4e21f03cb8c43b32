"""Commas before a closing bracket in the streamed input of a client's call."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.messages.commas import CommaFilter
from tests.api.messages.asking import DOOR, ask
from tests.fakes import chunk, stream
from tests.serving import proxy_of

VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(st.sampled_from('a,]}"\\ \n')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('a,}"\\')), inner),
)


def filtered(pieces):
    commas = CommaFilter()
    return "".join([*map(commas.feed, pieces), commas.close()])


def cut(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


@given(VALUES, st.integers(1, 9), st.booleans())
def test_json_stays_as_it_is_however_it_is_cut(value, size, indented):
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indented else 0).decode()
    assert filtered(cut(text, size)) == text


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1, 2, ], "b": "x,}",}', '{"a": [1, 2 ], "b": "x,}"}'),
        ('{"a": "\\",}" , }', '{"a": "\\",}"  }'),
        ('{"a": 1,', '{"a": 1,'),
        ('{"a": 1, \n', '{"a": 1, \n'),
        ('{"a": 1,,}', '{"a": 1,}'),
    ],
)
def test_a_comma_before_a_closing_bracket_is_taken_out(text, expected, size):
    assert filtered(cut(text, size)) == expected


def test_blanks_without_end_are_not_held_back_without_end():
    commas = CommaFilter()
    assert len(commas.feed('{"a": 1,' + " " * 5_000)) > 5_000


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_a_stream_with_such_a_comma_can_be_read(upstream, size):
    def piece(arguments, **more):
        return chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments, **more}}]})

    pieces = map(piece, cut('{"door": 1, "names": ["a", ], }', size))
    opening = chunk({"tool_calls": [{"index": 0, "id": "u", "function": {"name": "open_door", "arguments": ""}}]})
    upstream.replies = [stream(opening, *pieces, chunk({}, "tool_calls"))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=[DOOR])
    assert message["content"][-1]["input"] == {"door": 1, "names": ["a"]}
