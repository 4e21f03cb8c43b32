"""A chunk that an upstream's stream repeats with another text is written as one that is encoded from the start."""

import asyncio
import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.api.chat_completions import Completion, CompletionStream
from proxy.loop.shown import CallBegan, TurnBegan
from proxy.turn.citations import CITATIONS
from proxy.wire.chat import ToolCall

DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, st.text()),
    st.builds(lambda text: {"reasoning_content": text}, st.text()),
    st.just({"content": "a", CITATIONS: [(1, "https://a.example")]}),
    st.just({"annotations": [{"type": "url_citation"}]}),
    st.just({"content": None}),
    st.just({"content": "a", "reasoning_content": "b"}),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.booleans(),
        st.sampled_from([None, TurnBegan(1), CallBegan(1, ToolCall("u1", "web_search", "{}"), "glm")]),
        DELTAS,
    ),
    max_size=8,
)


class Written:
    """Takes what a stream would send."""

    def __init__(self):
        self.chunks = []

    async def write(self, data):
        self.chunks.append(data)


async def written(steps, *, include_usage, apart):
    """The bytes of these steps; `apart`: each chunk is an object of its own."""
    out = Written()
    completion = Completion("chatcmpl-1", ["1", "2"], 1_700_000_000, "glm", tool_events="calls")
    writer = CompletionStream(out, completion, include_usage=include_usage)
    latest = {}
    for index, is_new, told, delta in steps:
        if told:
            await writer.hear(told)
        if is_new or index not in latest:
            latest[index] = {"id": "up", "model": "glm", "choices": [{"index": 0, "delta": {}, "content": "x"}]}
        shown = copy.deepcopy(latest[index]) if apart else latest[index]
        shown["choices"][0]["delta"] = copy.deepcopy(delta)
        await writer.show(index, shown)
        if apart:
            latest[index] = shown
    return out.chunks


@settings(max_examples=300)
@given(STEPS, st.booleans())
def test_a_repeated_chunk_is_written_as_any_other(steps, include_usage):
    alike = asyncio.run(written(steps, include_usage=include_usage, apart=False))
    apart = asyncio.run(written(steps, include_usage=include_usage, apart=True))
    assert alike == apart
