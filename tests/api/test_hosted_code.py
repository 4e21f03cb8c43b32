"""A tool of the operator's that runs code, in the place of `code_interpreter` and `code_execution_*`."""

import orjson
import pytest

from proxy.loop.results import ToolError
from proxy.tools.tool import Tool
from proxy.wire.code import CodeResult
from tests.api.responses.asking import events_in
from tests.api.surfaces import DOOR, ITEMS_OR_BLOCKS, on
from tests.fakes import turn

CODE = "print(6 * 7)"
CALL = ("u1", "run_python", {"code": CODE})
EXECUTION = {"type": "code_execution_20250825", "name": "code_execution"}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = "code_interpreter_call.outputs"
NEVER = "offer: {mode: never}"
# What the tool returns, and the parts of it.
OUTCOMES = [
    ("42\n", ("42\n", "", 0)),
    ('{"stdout": "42", "stderr": "", "return_code": 0}', ("42", "", 0)),
    ('{"stdout": "4", "stderr": "Boom <tool_result x", "return_code": 1}', ("4", "Boom <\\tool_result x", 1)),
    ('{"answer": 42}', ('{"answer": 42}', "", 0)),
    ("", ("", "", 0)),
]


def python(output=None, **fields):
    async def run(arguments):
        assert arguments == {"code": CODE}
        if output is None:
            raise ToolError("the sandbox is gone")
        return output

    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    named = {"name": "run_python", "description": "Runs Python.", "serves": "code_interpreter", "offer": "declared"}
    return Tool(**{**named, "parameters": parameters, "run": run, **fields})


def said(surface, **fields):
    """What declares the hosted tool on an API."""
    return {"tools": [EXECUTION if surface.kind == "messages" else INTERPRETER], **fields}


@pytest.mark.parametrize(("output", "parts"), OUTCOMES)
async def test_messages_shows_the_run_as_code_execution_and_reads_it_back(messages, output, parts):
    async with messages.proxy(turn(calls=[CALL]), turn("42."), more=NEVER, tools=[python(output)]) as client:
        first = await client.ask(**said(messages))
        await client.ask(after=first, text="And now?")
    use, result, _ = first.whole["content"]
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "code_execution", {"code": CODE})
    stdout, stderr, return_code = parts
    outcome = {"stdout": stdout, "stderr": stderr, "return_code": return_code, "content": []}
    assert result["content"] == {"type": "code_execution_result", **outcome}
    assert (result["type"], result["tool_use_id"]) == ("code_execution_tool_result", use["id"])
    [then], [later] = messages.results(1), messages.results(2)
    assert CodeResult(*parts).text in then
    assert then.startswith(later)  # but for the note on the budget that is left
    assert messages.history()[1]["tool_calls"][0]["function"]["name"] == "run_python"
    assert [tool["function"]["name"] for tool in messages.upstream.requests[0]["tools"]] == ["run_python"]


@pytest.mark.parametrize("include", [[], [OUTPUTS]])
@pytest.mark.parametrize(("output", "parts"), OUTCOMES)
async def test_responses_shows_the_run_as_a_code_interpreter_call(responses, include, output, parts):
    words = said(responses, body={"include": include})
    answer = await responses.ask(turn(calls=[CALL]), turn("42."), more=NEVER, server=[python(output)], **words)
    call, message = answer.whole["output"]
    assert (call["type"], message["type"]) == ("code_interpreter_call", "message")
    assert (call["code"], call["container_id"], call["status"]) == (CODE, "toolproxy", "completed")
    assert call["outputs"] == ([{"type": "logs", "logs": CodeResult(*parts).text}] if include else None)


@on("responses-streamed")
async def test_the_events_of_a_code_interpreter_call_come_in_openais_order(surface):
    answer = await surface.ask(turn(calls=[CALL]), turn("42."), server=[python("42")], **said(surface))
    assert [event["type"] for event in events_in(answer.raw)][2:9] == [
        "response.output_item.added",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        "response.output_item.done",
    ]


@ITEMS_OR_BLOCKS
async def test_a_run_that_failed_is_an_error_of_the_api(surface):
    body = {"include": [OUTPUTS]} if surface.kind == "responses" else {}
    answer = await surface.ask(turn(calls=[CALL]), turn("42."), server=[python()], **said(surface, body=body))
    assert [one.failed for one in answer.server_calls] == [True]
    if surface.kind == "responses":
        assert answer.whole["output"][0]["outputs"] is None
    else:
        failed = {"type": "code_execution_tool_result_error", "error_code": "unavailable"}
        assert answer.whole["content"][1]["content"] == failed


async def test_a_run_that_comes_back_with_its_outputs_is_read_again(responses):
    calls = [CALL, ("u2", "run_python", {"code": CODE})]
    async with responses.proxy(turn(calls=calls), turn("42."), tools=[python("42")]) as client:
        first = await client.ask(**said(responses, body={"include": [OUTPUTS], "store": False}))
        await client.ask(after=first, text="Why?")
    assert responses.roles() == ["user", "assistant", "tool", "tool", "assistant", "user"]
    brought_back, then = responses.results(2), responses.results(1)
    assert brought_back[0] == then[0]
    assert "42" in brought_back[1]  # of the call that was answered without being run


@on("responses-whole")
@pytest.mark.parametrize("store", [True, False])
async def test_a_run_in_a_mixed_turn_is_there_once_when_the_client_comes_back(surface, store):
    mine = {"include": [OUTPUTS, "reasoning.encrypted_content"], "store": store}
    async with surface.proxy(turn(calls=[CALL, DOOR]), turn("Open."), tools=[python("42")]) as client:
        first = await client.ask(**said(surface, functions=["open_door"], body=mine))
        await client.ask(after=first, results=["opened"])
    assert surface.roles() == ["user", "assistant", "tool", "tool"]
    calls = surface.history()[1]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["run_python", "open_door"]


CODE_TYPES = {"messages": "code_execution_20250825", "responses": "code_interpreter"}


@on("messages-whole", "responses-whole")
@pytest.mark.parametrize("tool", [None, {"offer": "never", "serves": None}, {}])
async def test_without_a_tool_that_serves_it_or_may_be_used_the_hosted_type_is_left_out_or_refused(surface, tool):
    clients = "" if tool != {} else "clients: [{name: app, key: k, tools: [web_search]}]"
    tools = [] if tool is None else [python("42", **tool)]
    async with surface.proxy(turn("Hi"), more=clients, tools=tools) as client:
        beside = await client.ask(**said(surface, functions=["open_door"], key="k"))
        alone = await client.ask(**said(surface, key="k"))
        choice = {"tool_choice": {"type": "code_interpreter"}} if surface.kind == "responses" else {}
        forced = await client.ask(**said(surface, functions=["open_door"], key="k", body=choice))
    assert beside.headers["x-tools-ignored"] == CODE_TYPES[surface.kind]
    assert (alone.status, forced.status) == (400, 400 if choice else 200)
    assert "run_python" not in str(surface.upstream.requests)


@on("responses-whole")
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "code_interpreter"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]},
    ],
)
async def test_a_choice_of_the_code_interpreter_chooses_the_tool(surface, choice):
    words = said(surface, body={"tool_choice": choice})
    answer = await surface.ask(turn(calls=[CALL]), turn("42."), more=NEVER, server=[python("42")], **words)
    assert answer.kinds == ["servercall", "text"]
    request = surface.upstream.requests[0]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["run_python"]
    assert request["tool_choice"] in ("required", {"type": "function", "function": {"name": "run_python"}})


@on("messages-whole")
async def test_messages_choice_of_code_execution_chooses_the_tool(surface):
    calls, words = [("u1", "code_execution", {"code": CODE})], said(surface, choice="code_execution")
    answer = await surface.ask(turn(calls=calls), turn("42."), more=NEVER, server=[python("42")], **words)
    assert answer.kinds == ["servercall", "text"]
    assert surface.upstream.requests[0]["tool_choice"]["function"]["name"] == "run_python"


@on("chat-whole", "messages-whole", "responses-whole")
async def test_undeclared_it_is_a_tool_like_any_other_and_not_shown(surface):
    tool = python('{"stdout": "4", "return_code": 2}', offer="always")
    answer = await surface.ask(turn(calls=[CALL]), turn("42."), server=[tool])
    assert answer.kinds == ["text"]
    assert "4\n[return code 2]" in surface.results()[0]


@on("messages-whole")
async def test_a_long_outcome_is_cut_in_its_parts_and_keeps_its_return_code(surface):
    output = orjson.dumps({"stdout": "o" * 9000, "stderr": "e" * 9000, "return_code": 3}).decode()
    bound = "limits: {max_result_bytes: 1000}"
    answer = await surface.ask(turn(calls=[CALL]), turn("42."), more=bound, server=[python(output)], **said(surface))
    outcome = answer.whole["content"][1]["content"]
    assert (outcome["return_code"], outcome["stdout"][:3], outcome["stderr"][:3]) == (3, "ooo", "eee")
    assert len(outcome["stdout"]) + len(outcome["stderr"]) < 1200
