"""The output of a run: the order of its events, and that folding them gives the items."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.responses.output import OutputBuilder, OutputOptions
from proxy.api.responses.tools import read_tools
from proxy.loop.actions import Respond, Stop
from proxy.loop.results import ToolResult, failure
from proxy.loop.run_events import CallBegan, CallEnded, TurnBegan
from proxy.loop.tally import Tally
from proxy.turn.citations import CITATIONS
from proxy.wire.chat import ToolCall, Turn
from tests.api.responses.folding import fold

RUN = "a" * 32
SEARCHING = OutputOptions(
    read_tools([{"type": "web_search"}], None), lambda call: orjson.loads(call.arguments), sources=True
)
FOUND = {"https://a.example/": "A page"}


def delta(*, logprobs=None, **delta):
    return {"choices": [{"delta": delta, "logprobs": logprobs}]}


def started(call_id="u1", tool="web_search", turn=1):
    return CallBegan(turn, ToolCall(call_id, tool, '{"query":"q"}'), None)


def ended(*, failed=False, **event):
    begun = started(**event)
    result = failure("no") if failed else ToolResult("found", sources=FOUND)
    return CallEnded(begun.turn, begun.call, result, 0.1)


def built(*steps, options=None, broken_off=False, carried=None):
    """The short names of the events, and the items; folding the events has to give the items."""
    output = OutputBuilder(RUN, options or OutputOptions(), {})
    reason = "length" if broken_off else "stop"
    answer = Respond(Turn({}, reason), {}, reason, Stop.ANSWER, Tally())
    events = [event for step in steps for event in step(output)] + output.finish(answer, carried=carried)
    assert fold(events) == output.items
    return [event["type"].removeprefix("response.") for event in events], output.items


def turn():
    return lambda output: output.take_event(TurnBegan(1))


def show(**fields):
    return lambda output: output.take(delta(**fields))


def tool(event):
    return lambda output: output.take_event(event)


def kinds(items):
    return [item["type"] for item in items]


MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
SEARCH = [
    "output_item.added",
    "web_search_call.in_progress",
    "web_search_call.searching",
    "web_search_call.completed",
    "output_item.done",
]


def test_text_is_a_message():
    events, (item,) = built(turn(), show(content="Hi"))
    assert events == MESSAGE
    assert item == {
        "id": f"msg_{RUN}_0",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
    }


def test_a_search_stands_between_the_text_before_it_and_the_answer_that_cites_it():
    events, items = built(
        turn(),
        show(content="Let me."),
        tool(started()),
        tool(ended()),
        turn(),
        show(content="\n\nSee https://a.example/"),
        options=SEARCHING,
    )
    cited = [*MESSAGE[:3], "output_text.annotation.added", *MESSAGE[3:]]
    assert events == [*MESSAGE, *SEARCH, *cited]
    assert items[1]["action"] == {
        "type": "search",
        "query": "q",
        "queries": ["q"],
        "sources": [{"type": "url", "url": "https://a.example/"}],
    }
    assert items[2]["content"][0]["text"] == "See https://a.example/"
    assert items[2]["content"][0]["annotations"] == [
        {"type": "url_citation", "start_index": 4, "end_index": 22, "title": "A page", "url": "https://a.example/"}
    ]


def test_a_search_that_fails_says_so_by_its_status():
    events, (item,) = built(tool(started()), tool(ended(failed=True)), options=SEARCHING)
    assert events == [event for event in SEARCH if event != "web_search_call.completed"]
    assert (item["status"], item["action"]["sources"]) == ("failed", [])


def test_a_search_that_nobody_asked_for_and_other_tools_are_hidden():
    assert built(tool(started()), tool(ended())) == ([], [])
    assert built(tool(started(tool="clock")), tool(ended(tool="clock")), options=SEARCHING) == ([], [])


def test_who_wants_to_see_them_sees_them_as_calls_of_our_own_server():
    events, (item,) = built(tool(started()), tool(ended()), options=OutputOptions(server_calls=True))
    assert events == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert (item["server_label"], item["name"], item["arguments"]) == ("toolproxy", "web_search", '{"query":"q"}')
    events, (item,) = built(tool(started()), tool(ended(failed=True)), options=OutputOptions(server_calls=True))
    assert events[-2] == "mcp_call.failed"
    assert item["error"]["content"] == [{"type": "text", "text": failure("no").content}]


def test_thoughts_are_reasoning_and_a_summary_too_where_it_is_asked():
    events, items = built(turn(), show(reasoning_content="H"), show(reasoning="m"), show(content="Hi"))
    assert events[:6] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
    ]
    assert (items[0]["content"], items[0]["summary"]) == ([{"type": "reasoning_text", "text": "Hm"}], [])
    assert "encrypted_content" not in items[0]
    events, items = built(show(reasoning="Hm"), options=OutputOptions(summary=True, seal=lambda text: f"<{text}>"))
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Hm"}]
    assert items[0]["encrypted_content"] == "<Hm>"
    assert "reasoning_summary_text.delta" in events


def opening(index, call_id, name, arguments=""):
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def more(index, arguments):
    return {"index": index, "function": {"arguments": arguments}}


def test_calls_of_the_clients_are_items_of_their_own_that_may_interleave():
    events, items = built(
        show(content="Now.", tool_calls=[opening(0, "c0", "f")]),
        show(tool_calls=[more(0, '{"a"'), opening(1, "c1", "g", "{}")]),
        show(tool_calls=[more(0, ":1}")]),
    )
    assert [(item.get("call_id"), item.get("arguments")) for item in items] == [
        (None, None),
        ("c0", '{"a":1}'),
        ("c1", "{}"),
    ]
    assert events.index("output_item.done") < events.index("function_call_arguments.delta")
    assert items[1]["id"] != "c0"


def test_a_call_without_arguments_has_an_empty_object():
    events, (item,) = built(show(tool_calls=[opening(0, "c0", "f")]))
    assert item["arguments"] == "{}"
    assert events == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


PATCH = OutputOptions(
    read_tools([{"type": "namespace", "name": "ns", "tools": [{"type": "custom", "name": "patch"}]}], None)
)


def test_a_custom_tool_gets_its_input_raw():
    events, (item,) = built(show(tool_calls=[opening(0, "c0", "ns__patch", '{"input":"a\\nb"}')]), options=PATCH)
    assert (item["type"], item["input"], item["name"], item["namespace"]) == (
        "custom_tool_call",
        "a\nb",
        "patch",
        "ns",
    )
    assert events[1:3] == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]


def test_a_custom_tool_whose_input_is_not_where_it_should_be_gets_what_the_model_wrote():
    for written in ("a patch", '{"patch":"a"}', "[1]"):
        _, (item,) = built(show(tool_calls=[opening(0, "c0", "ns__patch", written)]), options=PATCH)
        assert item["input"] == written


def test_a_mark_behind_late_thoughts_is_a_citation_at_its_place_in_its_own_message():
    late = show(content="It rains", **{CITATIONS: [(8, "https://a.example/")]})
    first, more = show(content="A moment."), show(content=" and rains and rains")
    _, items = built(turn(), tool(started()), tool(ended()), first, show(reasoning="Hm."), late, more)
    [cited] = items[-1]["content"][0]["annotations"]
    assert (cited["url"], cited["end_index"]) == ("https://a.example/", 8)


def test_a_refusal_is_a_part_of_its_own():
    events, (item,) = built(show(content="Well."), show(refusal="I "), show(refusal="will not."))
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]
    assert item["content"][1]["refusal"] == "I will not."
    assert "refusal.done" in events


def test_what_is_broken_off_is_incomplete_and_only_the_last():
    _, items = built(show(tool_calls=[opening(0, "c0", "f", "{}"), opening(1, "c1", "g", '{"a')]), broken_off=True)
    assert [item["status"] for item in items] == ["completed", "incomplete"]
    assert items[1]["arguments"] == '{"a'


def test_a_tool_of_a_turn_that_was_asked_for_again_has_failed():
    _, items = built(tool(started()), turn(), tool(started()), tool(ended()), options=SEARCHING)
    assert sorted(item["status"] for item in items) == ["completed", "failed"]


def test_what_a_client_has_to_carry_is_an_item_that_says_nothing():
    _, (item,) = built(carried="sealed")
    assert item == {
        "id": f"rs_{RUN}_0",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [],
        "encrypted_content": "sealed",
    }


def test_log_probabilities_have_every_key():
    entry = {"token": "Hi", "logprob": -0.1, "top_logprobs": [{"token": "Ho", "logprob": -2.0, "bytes": None}]}

    def with_logprobs(output):
        return output.take(delta(content="Hi", logprobs={"content": [entry]}))

    _, (item,) = built(with_logprobs)
    top = [{"token": "Ho", "logprob": -2.0, "bytes": []}]
    assert item["content"][0]["logprobs"] == [{"token": "Hi", "logprob": -0.1, "bytes": [], "top_logprobs": top}]


@pytest.mark.parametrize("content", [5, [5], [{"top_logprobs": 5}], [{"top_logprobs": [5]}]])
def test_log_probabilities_that_are_none_are_left_out(content):
    def with_logprobs(output):
        return output.take(delta(content="Hi", logprobs={"content": content}))

    _, (item,) = built(with_logprobs)
    assert [entry["top_logprobs"] for entry in item["content"][0]["logprobs"]] in ([], [[]])


STEPS = st.lists(
    st.one_of(
        st.just(turn()),
        st.text(min_size=1).map(lambda text: show(content=text)),
        st.text(min_size=1).map(lambda text: show(reasoning_content=text)),
        st.text(min_size=1).map(lambda text: show(refusal=text)),
        st.integers(0, 2).map(lambda at: show(tool_calls=[opening(at, f"c{at}", "f", "{")])),
        st.sampled_from(["u1", "u2"]).map(lambda call_id: tool(started(call_id))),
        st.sampled_from(["u1", "u2"]).map(lambda call_id: tool(ended(call_id=call_id))),
        st.sampled_from(["u1", "u2"]).map(lambda call_id: tool(ended(failed=True, call_id=call_id))),
    )
)


@given(STEPS, st.booleans())
def test_whatever_happens_folding_the_events_gives_the_items(steps, broken_off):
    options = OutputOptions(
        read_tools([{"type": "web_search"}], None), sources=True, summary=True, seal=lambda text: text[::-1]
    )
    _, items = built(*steps, options=options, broken_off=broken_off)
    assert len({item["id"] for item in items}) == len(items)
    assert not any(item["status"] == "in_progress" for item in items)


def event_of(data):
    """The event in its bytes, without the number that it has in a stream."""
    event = orjson.loads(data.partition(b"data: ")[2])
    del event["sequence_number"]
    return event


def test_only_text_that_follows_text_is_added_by_the_short_way():
    output = OutputBuilder(RUN, OutputOptions(), {})
    assert output.grow(delta(content="nothing is open")) is None
    steps = [*output.take_event(TurnBegan(1)), *output.take(delta(content="One"))]
    grown = [event_of(output.grow(delta(content=" two")))]
    refused = list(output.take(delta(refusal="No.")))
    assert output.grow(delta(content="behind a refusal")) is None
    again = list(output.take(delta(content="Three")))
    grown_again = [event_of(output.grow(delta(content=" four")))]
    ended = output.finish(Respond(Turn({}, "stop"), {}, "stop", Stop.ANSWER, Tally()))
    assert fold([*steps, *grown, *refused, *again, *grown_again, *ended]) == output.items
    assert [part.get("text") for part in output.items[0]["content"]] == ["One two", None, "Three four"]
    assert output.grow(delta(content="after the end")) is None
