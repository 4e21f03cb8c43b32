"""What system messages within a conversation change, and blocks of types that nobody knows yet."""

from itertools import pairwise

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.messages.history import HistoryChanges, OfferedTools, changes_in, offered_tools
from proxy.wire.chat import name_of
from tests import hostile
from tests.api.messages.asking import ASK, DOOR, SEARCH, ask, client, raw
from tests.fakes import streamed, whole
from tests.serving import CONFIG, proxy_of

USER = ASK["messages"][0]
REMINDER = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
LAMP = {"name": "lamp", "description": "Lights.", "input_schema": {"type": "object"}}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "open_door", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "open"}


def system(*blocks, **fields):
    return {"role": "system", "content": list(blocks), **fields}


def adds(tool):
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}


def refers(kind, name, ref="tool_reference"):
    return {"type": f"tool_{kind}", "tool": {"type": ref, "name": name, "server_name": "s"}}


def offered(*messages, tools=(DOOR, LAMP)):
    found = offered_tools(tools, changes_in([USER, *messages]).tools)
    return [tool["name"] for _, tool in (*found.declared, *found.late)]


def test_tools_of_the_history_come_at_the_end_and_in_the_order_of_their_coming():
    bell = {**LAMP, "name": "bell"}
    assert offered() == ["open_door", "lamp"]
    assert offered(system(adds(bell)), system(adds(SEARCH))) == ["open_door", "lamp", "bell", "web_search"]
    assert offered(system(refers("removal", "open_door"), adds(bell))) == ["lamp", "bell"]
    back = [system(refers("removal", "open_door")), system(adds(bell), refers("addition", "open_door"))]
    assert offered(*back) == ["lamp", "bell", "open_door"]
    assert offered(system(refers("addition", "lamp"))) == ["open_door", "lamp"]
    assert offered(system(adds(bell)), system(refers("removal", "bell"))) == ["open_door", "lamp"]
    changed = changes_in([USER, system(adds({**DOOR, "description": "New."}))]).tools
    assert offered_tools([DOOR, LAMP], changed) == OfferedTools(
        [("tools.1", LAMP)], [("messages.1.content.0.tool.definition", {**DOOR, "description": "New."})]
    )


@pytest.mark.parametrize(
    "block",
    [
        refers("addition", "nobody"),
        refers("removal", "nobody"),
        refers("removal", "lamp", "mcp_tool_reference"),
        refers("removal", "lamp", "mcp_toolset_reference"),
        {"type": "tool_removal"},
        {"type": "tool_addition", "tool": {"type": "tool_definition"}},
        {"type": "tool_addition", "tool": "lamp"},
    ],
)
def test_a_change_of_no_known_tool_is_ignored(block):
    assert offered(system(block)) == ["open_door", "lamp"]


@pytest.mark.parametrize(
    ("later", "left_out"),
    [
        ([], set()),
        ([USE, {"role": "user", "content": [RESULT]}], set()),
        ([USE, {"role": "user", "content": [RESULT, {"type": "text", "text": "And?"}]}], {1}),
        ([{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}, REMINDER], {1}),
        ([{"role": "user", "content": ""}, {"role": "user", "content": []}], set()),
    ],
)
def test_a_reminder_is_left_out_once_the_user_has_spoken_again(later, left_out):
    assert changes_in([USER, REMINDER, *later]).left_out == left_out
    assert changes_in([USER, {**REMINDER, "clear_at": "never"}, *later]).left_out <= {len(later) + 1} - {1}


def test_the_effort_that_was_asked_for_last_holds():
    low, high = ({"role": "system", "output_config": {"effort": effort}} for effort in ("low", "high"))
    assert changes_in([USER, high, low]).effort == "low"
    assert changes_in([USER, high, {**low, "clear_at": "next_user_message"}, USER]).effort == "high"
    assert changes_in([USER, high, {"role": "system", "content": "x", "output_config": {"effort": 3}}]).effort == "high"


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_history_need_not_be_well_formed(messages):
    assert isinstance(changes_in(messages), HistoryChanges)


@given(hostile.mutated(st.just({"m": [USER, REMINDER, system(adds(LAMP), refers("removal", "lamp")), USER]})))
def test_a_history_that_is_nearly_well_formed_is_read_all_the_same(request_):
    changes = changes_in(request_.get("m") if isinstance(request_, dict) else request_)
    assert isinstance(offered_tools([DOOR], changes.tools), OfferedTools)


@pytest.mark.parametrize("streaming", [False, True])
async def test_system_messages_stay_in_their_places_and_never_between_calls_and_results(upstream, streaming):
    upstream.replies = [(streamed if streaming else whole)("Fine.")]
    history = [
        USER,
        {"role": "system", "content": "First."},
        REMINDER,
        USE,
        system({"type": "text", "text": "Second."}, refers("removal", "open_door"), {"type": "hologram"}),
        {"role": "user", "content": [{"type": "text", "text": "And now?"}, RESULT]},
        {"role": "system", "output_config": {"effort": "low"}},
        system(adds(LAMP)),
    ]
    config = CONFIG.replace("profile: openai", "profile: gpt_oss")
    async with proxy_of(upstream, config=config, more="limits: {guidance: false}") as url:
        options = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
        await ask(url, streaming=streaming, messages=history, tools=[DOOR], **options)
    [request] = upstream.requests
    assert [(message["role"], message["content"]) for message in request["messages"]] == [
        ("user", USER["content"]),
        ("system", "First."),
        ("assistant", None),
        ("tool", "open"),
        ("system", "Second."),
        ("user", "And now?"),
    ]
    assert [name_of(tool) for tool in request["tools"]][-1] == "lamp"
    assert "open_door" not in [name_of(tool) for tool in request["tools"]]
    assert request["reasoning_effort"] == "low"


async def test_a_whole_number_may_be_written_with_a_fraction(upstream):
    upstream.replies = [whole("Fine.")]
    fields = {"max_tokens": 4000.0, "thinking": {"type": "enabled", "budget_tokens": 2000.0}, "max_tool_calls": 1.0}
    async with proxy_of(upstream) as url:
        answer = await raw(url, {**ASK, **fields, "tools": [{**SEARCH, "max_uses": 1.0}]})
        refused = await raw(url, {**ASK, "max_tokens": 10.5})
    assert (answer.status_code, refused.status_code) == (200, 400)


async def test_a_tool_of_the_history_that_is_not_well_formed_is_refused_with_its_place(upstream):
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "messages": [USER, system(adds({"name": "lamp"}))]})
    assert response.status_code == 400
    place = "messages.1.content.0.tool.definition.input_schema"
    assert response.json()["error"]["message"].startswith(place)


async def test_blocks_of_unknown_types_are_never_refused_and_the_log_names_them(upstream, logged):
    upstream.replies = [whole("Fine.")]
    unknown = {"type": "hologram", "data": "x"}
    result = {**RESULT, "content": [unknown, {**unknown, "type": "scent", "text": "Roses."}]}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, unknown, {"type": "aura", "text": "Blue."}]},
        {"role": "assistant", "content": [{"type": "fallback", "from": "x"}, *USE["content"]]},
        {"role": "user", "content": [result]},
        system({"type": "text", "text": "Be brief."}, {"type": "rune", "text": "Hidden."}),
    ]
    prompt = [{"type": "rune"}, {"type": "text", "text": "You help."}]
    async with proxy_of(upstream, more="limits: {guidance: false}") as url:
        response = await raw(url, {**ASK, "messages": history, "system": prompt, "tools": [DOOR]})
    assert response.status_code == 200, response.text
    note = "[content of type hologram that cannot be shown here]"
    assert [message["content"] for message in upstream.requests[0]["messages"]] == [
        "You help.",
        f"Look.\n\n{note}\n\nBlue.",
        None,
        f"{note}\n\nRoses.",
        "Be brief.",
    ]
    [line] = [line for line in logged() if line["event"] == "request.completed"]
    assert line["blocks_ignored"] == ["rune", "hologram", "aura", "fallback", "scent"]


async def test_the_summary_of_a_compacted_conversation_is_text(upstream):
    upstream.replies = [whole("Fine.")]
    blocks = [{"type": "compaction", "content": content} for content in ("We spoke of doors.", None, 5)]
    history = [USER, {"role": "assistant", "content": [*blocks, {"type": "text", "text": "Yes."}]}, USER]
    async with proxy_of(upstream, more="limits: {guidance: false}") as url:
        await ask(url, streaming=False, messages=history)
    assert upstream.requests[0]["messages"][1]["content"] == "We spoke of doors.\n\nYes."


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_sdks_tool_runner_goes_on_without_a_thread(upstream, streaming):
    @anthropic.beta_async_tool
    async def open_door(door: int) -> str:
        """Open a door."""
        return f"door {door} is open"

    reply = streamed if streaming else whole
    upstream.replies = [reply("Let me.", calls=[("u1", "open_door", {"door": 1})]), reply("It is open.")]
    async with proxy_of(upstream) as url, client(url) as sdk:
        runner = sdk.beta.messages.tool_runner(**ASK, tools=[open_door], stream=streaming)
        if streaming:
            async for turn in runner:
                await turn.get_final_message()
        else:
            [_, last] = [message async for message in runner]
            assert last.content[0].text == "It is open."
    roles = [message["role"] for message in upstream.requests[1]["messages"] if message["role"] != "system"]
    assert roles == ["user", "assistant", "tool"]
    assert upstream.requests[1]["messages"][-1]["content"] == "door 1 is open"


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_sdks_tool_runner_adds_and_removes_tools_in_the_middle(upstream, streaming):
    @anthropic.beta_async_tool
    async def open_door(door: int) -> str:
        """Open a door."""
        return f"door {door} is open"

    @anthropic.beta_async_tool
    async def lamp() -> str:
        """Light the lamp."""
        return "it is light"

    reply = streamed if streaming else whole
    upstream.replies = [
        reply("Let me.", calls=[("u1", "open_door", {"door": 1})]),
        reply("It is dark.", calls=[("u2", "lamp", {})]),
        reply(calls=[("u3", "web_search", {"query": "doors"})]),
        reply("", calls=[("u4", "open_door", {"door": 2})]),
        reply("Nobody."),
    ]
    async with proxy_of(upstream, more="limits: {guidance: false}") as url, client(url) as sdk:
        runner = sdk.beta.messages.tool_runner(**ASK, tools=[open_door], stream=streaming)
        turns = []
        async for turn in runner:
            turns.append(await turn.get_final_message() if streaming else turn)
            match len(turns):
                case 1:
                    runner.add_tools(lamp)
                case 2:
                    runner.add_tools(SEARCH)
                    runner.remove_tools(open_door)
    assert [block.type for block in turns[2].content] == ["server_tool_use", "web_search_tool_result", "text"]
    assert turns[2].content[-1].text == "Nobody."
    named = [[name_of(tool) for tool in request["tools"]] for request in upstream.requests]
    first = ["open_door", "web_search"]
    assert named == [first, [*first, "lamp"], *[["lamp", "web_search"]] * 3]
    for earlier, later in pairwise(upstream.requests):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    assert "no tool" in upstream.requests[-1]["messages"][-1]["content"]  # to the call of the tool that is gone
