"""A chunk that an upstream's stream repeats with another text is written as one that is encoded from the start."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.api.chat.completion import CompletionReply
from proxy.loop.run_events import CallBegan, TurnBegan
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


def written(steps, *, include_usage, apart):
    """The bytes of these steps; `apart`: each chunk is an object of its own."""
    reply = CompletionReply(["1", "2"], 1_700_000_000, "glm", "calls", include_usage=include_usage)
    out, latest = [], {}
    for index, is_new, told, delta in steps:
        fold = reply.folds[index]
        if told:
            out.append(reply.encode(fold.take_event(told)))
        if is_new or index not in latest:
            latest[index] = {"id": "up", "model": "glm", "choices": [{"index": 0, "delta": {}, "content": "x"}]}
        shown = copy.deepcopy(latest[index]) if apart else latest[index]
        shown["choices"][0]["delta"] = copy.deepcopy(delta)
        grown = fold.grow(shown)
        out.append(reply.encode(fold.take(shown)) if grown is None else grown)
        if apart:
            latest[index] = shown
    return out


@settings(max_examples=300)
@given(STEPS, st.booleans())
def test_a_repeated_chunk_is_written_as_any_other(steps, include_usage):
    alike = written(steps, include_usage=include_usage, apart=False)
    apart = written(steps, include_usage=include_usage, apart=True)
    assert alike == apart
