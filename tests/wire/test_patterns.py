import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.loop.actions import CallUpstream
from proxy.turn.assembler import Assembler
from proxy.turn.request import Buffering, TurnView
from proxy.wire.patterns import only_text_field, pattern_of
from proxy.wire.sse import SseEvent


def event(data, kind="message"):
    return SseEvent(data=data, raw=data, type=kind)


TOOLS = {"search": {"properties": {"q": {}}, "required": ["q"]}}


def chunk(delta, choice=None, **rest):
    return {"id": "up", "choices": [{"index": 0, "delta": delta, **(choice or {})}], **rest}


# As GLM, vLLM and OpenAI write their chunks.
@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":"%b"}}]}',
        b'{"id":"1","choices":[{"index":0,"delta":{"content":"%b","refusal":null},"logprobs":null}],"usage":null}',
        b'{"id": "1", "choices": [{"index": 0, "delta": {"content": "%b"}, "finish_reason": null}]}',
    ],
)
def test_another_text_between_the_same_bytes_is_read(data):
    pattern = pattern_of(data % b"It", only_text_field(orjson.loads(data % b"It")))
    assert pattern.text_in(event(data % b" is")) == " is"
    assert pattern.text_in(event(data % rb"\"a\" \u00e4 \\")) == '"a" ä \\'
    assert pattern.text_in(event(data % "日本".encode())) == "日本"
    assert pattern.text_in(event(data % rb"\"content\":\"x\"")) == '"content":"x"'


DATA = b'{"id":"1","choices":[{"index":0,"delta":{"content":"%b"}}]}'


def test_a_chunk_is_written_with_another_text_between_the_same_bytes():
    pattern = pattern_of(DATA % b"It", "content")
    assert pattern.with_text('"ä" \\') == DATA % rb"\"%b\" \\" % "ä".encode()
    assert pattern.text_in(event(pattern.with_text("7 %"))) == "7 %"


def test_an_error_that_looks_like_the_chunk_before_it_is_none():
    assert pattern_of(DATA % b"It", "content").text_in(event(DATA % b"overloaded", "error")) is None


@pytest.mark.parametrize(
    "other",
    [
        DATA % b"",
        DATA % b'a","role":"assistant","content":"b',
        DATA % b'a"},"finish_reason":"stop","x":{"y":"b',
        DATA % b"a\n",
        DATA % rb"\ud83d",
        DATA % b"\\",
        DATA.replace(b'"%b"', b"null"),
        DATA.replace(b'"%b"', b'["a"]'),
        (DATA % b"a").replace(b'"1"', b'"2"'),
        (DATA % b"a")[:-3],
        b'{"id":"1","choices":[{"index":0,"delta":{"content":"}}]}',
    ],
)
def test_whatever_else_differs_is_left_to_the_parser(other):
    assert pattern_of(DATA % b"It", "content").text_in(event(other)) is None


@pytest.mark.parametrize(
    "held",
    [
        chunk({}),
        chunk({"content": ""}),
        chunk({"content": ["a"]}),
        chunk({"content": "a", "reasoning": "b"}),
        chunk({"content": "a", "mood": "calm"}),
        chunk({"content": "a", "tool_calls": [{}]}),
        chunk({"tool_calls": [{}]}),
        chunk({"content": "a"}, {"index": 1}),
        chunk({"content": "a"}, {"finish_reason": "stop"}),
        chunk({"content": "a"}, {"logprobs": {"content": []}}),
        chunk({"content": "a"}, usage={"total_tokens": 1}),
        {**chunk({"content": "a"}), "choices": []},
        {**chunk({"content": "a"}), "choices": [*chunk({"content": "a"})["choices"] * 2]},
        {"id": "up"},
    ],
)
def test_a_chunk_that_holds_something_else_than_one_text_has_no_pattern(held):
    assert only_text_field(held) == ""
    assert pattern_of(orjson.dumps(held), "") is None


def test_a_key_that_stands_in_a_chunk_twice_has_no_pattern():
    assert pattern_of(b'{"content":"a","choices":[{"delta":{"content":"b"}}]}', "content") is None
    assert pattern_of(b'{"choices":[{"delta":{"content":"a","content"\t:\n"b"}}]}', "content") is None
    assert pattern_of(b'{"choices":[{"delta":{"content":"cut off', "content") is None


def read(field, *texts, tools=TOOLS):
    """The texts that are shown of a stream whose first chunk has the first text, and the others by its pattern."""
    assembler = Assembler(CallUpstream({}, number=1, view=TurnView(tools=tools)))
    shown = [one["choices"][0]["delta"][field] for one in assembler.feed(chunk({field: texts[0]}))]
    for text in texts[1:]:
        shown += [one["choices"][0]["delta"][field] for one in assembler.feed_text(text)]
    return shown


def test_where_nothing_can_be_called_every_text_is_shown_at_once():
    assert read("content", "It", " is", "<tool_call>", tools={}) == ["It", " is", "<tool_call>"]


def test_what_may_be_a_leak_waits_in_thoughts_as_in_text():
    assert read("reasoning", "Hm", "<tool_call>", "x") == ["Hm"]
    assert read("content", "Hm", " ", "<tool_call>", "x") == ["Hm", " "]


def test_blanks_of_other_scripts_wait_as_spaces_do():
    assert read("content", "Hm", "\n\n\n ") == read("content", "Hm", "\n\n\n\u3000") == ["Hm", "\n\n"]


DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["It", " is ", "", "\n", None, " a", "<tool_call>search", "{"]),
        "reasoning_content": st.sampled_from(["Hm", ", yes", "", None]),
        "role": st.just("assistant"),
        "x": st.sampled_from([None, [1]]),
    },
)
TEXTS = st.sampled_from(
    ["It", " is", " a", "\n", "  ", "\n\n\n\u3000", '"b"', "ä\u2028", "<tool", "_call>search", "【0†", "L1】"]
)
WORDS = st.builds(lambda field, text: {field: text}, st.sampled_from(["content", "content", "reasoning"]), TEXTS)
CHUNKS = st.builds(
    lambda delta, choice, rest: chunk(delta, choice, **rest),
    st.one_of(WORDS, WORDS, DELTAS),
    st.sampled_from([{}, {}, {}, {"logprobs": None}, {"logprobs": {"content": []}}, {"index": 1}, {"new_field": 1}]),
    st.sampled_from([{}, {}, {}, {"usage": None}, {"usage": {"n": 1}}, {"web_search": [1]}]),
)


@settings(max_examples=400)
@given(st.lists(CHUNKS, min_size=2, max_size=12), st.sampled_from(list(Buffering)), st.booleans())
def test_a_stream_read_by_patterns_is_the_stream_that_a_parser_reads(chunks, buffering, is_spaced):
    view = TurnView(tools=TOOLS, buffering=buffering, cite=lambda *_: "https://a.example")
    call = CallUpstream({}, number=3, run_id="r", view=view)
    by_patterns, parsed = Assembler(call), Assembler(call)
    pattern = None
    for one in [*chunks, chunk({}, {"finish_reason": "stop"})]:
        data = json.dumps(one, ensure_ascii=False).encode() if is_spaced else orjson.dumps(one)
        text = None if pattern is None else pattern.text_in(event(data))
        if text is not None:
            shown = by_patterns.feed_text(text)
        else:
            shown = by_patterns.feed(orjson.loads(data))
            pattern = pattern_of(data, by_patterns.text_field)
        assert plainly(shown) == plainly(parsed.feed(orjson.loads(data)))
    assert by_patterns.close() == parsed.close()
    assert by_patterns.finish() == parsed.finish()


def plainly(shown):
    """What a client reads of chunks: fields without a value say nothing."""
    return [
        {
            **one,
            "choices": [
                {**choice, "delta": {key: value for key, value in choice["delta"].items() if value}}
                for choice in one["choices"]
            ],
        }
        for one in shown
    ]
