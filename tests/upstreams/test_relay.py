import asyncio

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.loop.errors import UpstreamError
from proxy.upstreams.profile import OPENAI
from proxy.upstreams.relay import RelayReader

DELTAS = st.sampled_from(
    [
        {"content": "It"},
        {"content": " is"},
        {"content": " is"},
        {"content": ""},
        {"reasoning_content": "Hm"},
        {"refusal": "No"},
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "content": "a"},
        {},
    ]
)
CHUNKS = st.builds(
    lambda delta, choice, rest: {
        "id": "up",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, **choice}],
        **rest,
    },
    DELTAS,
    st.sampled_from([{}, {}, {}, {"index": 1}, {"finish_reason": "stop"}, {"finish_reason": "eos"}]),
    st.sampled_from([{}, {}, {}, {"usage": {"total_tokens": 1}}]),
)


async def relayed(chunks, *, by_patterns):
    """What a client reads of a stream, and what its end is judged by."""
    written = []

    async def write(data):
        written.append(data)

    reader = RelayReader(OPENAI, None, {}, write)
    for one in chunks:
        if not by_patterns:
            reader.pattern = None
        await reader.take(b"data: %b\n\n" % orjson.dumps(one))
    try:
        await reader.take(b"data: [DONE]\n\n")
    except UpstreamError as exc:
        reader.ending = str(exc).encode()
    choices = {index: choice.message for index, choice in reader.choices.items()}
    return b"".join(written), reader.ending, reader.written, reader.usage, reader.finished, choices


@settings(max_examples=300)
@given(st.lists(CHUNKS, min_size=1, max_size=12))
def test_a_stream_relayed_by_patterns_is_the_stream_that_a_parser_relays(chunks):
    assert asyncio.run(relayed(chunks, by_patterns=True)) == asyncio.run(relayed(chunks, by_patterns=False))


def test_the_reason_of_a_choice_without_calls_is_not_that_of_another_one():
    call = {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    choices = [(0, call, None), (1, {"content": "Hi"}, None), (0, {}, "eos"), (1, {}, "eos")]
    chunks = [
        {"id": "up", "choices": [{"index": at, "delta": delta, "finish_reason": reason}]}
        for at, delta, reason in choices
    ]
    written, *_ = asyncio.run(relayed(chunks, by_patterns=True))
    ends = [
        orjson.loads(event[6:])["choices"][0] for event in written.split(b"\n\n") if b'"eos"' not in event and event
    ]
    assert [(end["index"], end["finish_reason"]) for end in ends[2:]] == [(0, "tool_calls"), (1, "stop")]
