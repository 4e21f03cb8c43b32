"""A tool of the operator's that runs code, in the place of `code_interpreter` and `code_execution_*`."""

import orjson
import pytest

from proxy.loop.results import ToolError
from proxy.tools.tool import Tool
from proxy.wire.code import CodeResult
from tests.api.messages import asking as messages
from tests.api.responses import asking as responses
from tests.fakes import streamed, whole
from tests.serving import proxy_of

CODE = "print(6 * 7)"
CALL = ("u1", "run_python", {"code": CODE})
EXECUTION = {"type": "code_execution_20250825", "name": "code_execution"}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = "code_interpreter_call.outputs"
NEVER = "offer: {mode: never}"
BOTH = pytest.mark.parametrize("streaming", [False, True])
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


def answers(streaming, *calls, text="42."):
    reply = streamed if streaming else whole
    return [reply(calls=[*calls]), reply(text)]


@BOTH
@pytest.mark.parametrize(("output", "parts"), OUTCOMES)
async def test_messages_shows_the_run_as_code_execution_and_reads_it_back(upstream, streaming, output, parts):
    upstream.replies = [*answers(streaming, CALL), *answers(streaming)[1:]]
    async with proxy_of(upstream, more=NEVER, tools=[python(output)]) as url:
        message = await messages.ask(url, streaming=streaming, tools=[EXECUTION])
        said = messages.follow_up(message, {"type": "text", "text": "And now?"})
        await messages.ask(url, streaming=streaming, tools=[EXECUTION], messages=said)
    use, result, _ = message["content"]
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "code_execution", {"code": CODE})
    stdout, stderr, return_code = parts
    outcome = {"stdout": stdout, "stderr": stderr, "return_code": return_code, "content": []}
    assert result["content"] == {"type": "code_execution_result", **outcome}
    assert (result["type"], result["tool_use_id"]) == ("code_execution_tool_result", use["id"])
    _, then, later = (request["messages"] for request in upstream.requests)
    assert CodeResult(*parts).text in then[-1]["content"]
    assert then[-1]["content"].startswith(later[3]["content"])  # but for the note on the budget that is left
    assert later[2]["tool_calls"][0]["function"]["name"] == "run_python"
    assert [tool["function"]["name"] for tool in upstream.requests[0]["tools"]] == ["run_python"]


@BOTH
@pytest.mark.parametrize("include", [[], [OUTPUTS]])
@pytest.mark.parametrize(("output", "parts"), OUTCOMES)
async def test_responses_shows_the_run_as_a_code_interpreter_call(upstream, streaming, include, output, parts):
    upstream.replies = answers(streaming, CALL)
    async with proxy_of(upstream, more=NEVER, tools=[python(output)]) as url:
        response = await responses.ask(url, {"tools": [INTERPRETER], "include": include}, streaming=streaming)
    assert responses.kinds(response) == ["code_interpreter_call", "message"]
    call = response["output"][0]
    assert (call["code"], call["container_id"], call["status"]) == (CODE, "toolproxy", "completed")
    assert call["outputs"] == ([{"type": "logs", "logs": CodeResult(*parts).text}] if include else None)


async def test_the_events_of_a_code_interpreter_call_come_in_openais_order(upstream):
    upstream.replies = answers(True, CALL)
    async with proxy_of(upstream, tools=[python("42")]) as url:
        streamed_response = await responses.raw(url, {**responses.ASK, "tools": [INTERPRETER], "stream": True})
    events = [event["type"] for event in responses.events_in(streamed_response.text)]
    assert events[2:9] == [
        "response.output_item.added",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        "response.output_item.done",
    ]


@BOTH
async def test_a_run_that_failed_is_an_error_of_the_surface(upstream, streaming):
    upstream.replies = [*answers(streaming, CALL), *answers(streaming, CALL)]
    async with proxy_of(upstream, tools=[python()]) as url:
        message = await messages.ask(url, streaming=streaming, tools=[EXECUTION])
        response = await responses.ask(url, {"tools": [INTERPRETER], "include": [OUTPUTS]}, streaming=streaming)
    failed = {"type": "code_execution_tool_result_error", "error_code": "unavailable"}
    assert message["content"][1]["content"] == failed
    call = response["output"][0]
    assert (call["status"], call["outputs"]) == ("failed", None)


@BOTH
async def test_a_run_that_comes_back_with_its_outputs_is_read_again(upstream, streaming):
    upstream.replies = [*answers(streaming, CALL, ("u2", "run_python", {"code": CODE})), *answers(streaming)[1:]]
    async with proxy_of(upstream, tools=[python("42")]) as url:
        body = {"tools": [INTERPRETER], "include": [OUTPUTS], "store": False}
        response = await responses.ask(url, body, streaming=streaming)
        items = [{"role": "user", "content": "?"}, *response["output"], {"role": "user", "content": "Why?"}]
        await responses.ask(url, {**body, "input": items}, streaming=streaming)
    _, then, later = (request["messages"] for request in upstream.requests)
    roles = [message["role"] for message in later if message["role"] != "system"]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    result = next(message["content"] for message in later if message["role"] == "tool")
    assert then[-2]["content"] == result or then[-1]["content"].startswith(result)


async def test_a_run_in_a_mixed_turn_is_there_once_when_the_client_comes_back(upstream):
    door = ("u2", "open_door", {"door": 1})
    for store in (True, False):
        upstream.replies = [whole(calls=[CALL, door]), whole("Open.")]
        upstream.requests.clear()
        async with proxy_of(upstream, tools=[python("42")]) as url:
            body = {
                "tools": [INTERPRETER, responses.DOOR],
                "include": [OUTPUTS, "reasoning.encrypted_content"],
                "store": store,
            }
            response = await responses.ask(url, body, streaming=False)
            mine = next(item for item in response["output"] if item["type"] == "function_call")
            answer = {"type": "function_call_output", "call_id": mine["call_id"], "output": "opened"}
            items = [{"role": "user", "content": "?"}, *response["output"], answer]
            await responses.ask(url, {**body, "input": items}, streaming=False)
        roles = [message["role"] for message in upstream.requests[1]["messages"] if message["role"] != "system"]
        assert roles == ["user", "assistant", "tool", "tool"], store
        calls = upstream.requests[1]["messages"][-3]["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["run_python", "open_door"]


@pytest.mark.parametrize("tool", [None, {"offer": "never", "serves": None}])
async def test_without_a_tool_that_serves_it_the_hosted_type_is_left_out_or_refused(upstream, tool):
    upstream.replies = [whole("Hi"), whole("Hi")]
    tools = [python("42", **tool)] if tool else []
    async with proxy_of(upstream, tools=tools) as url:
        body = {**messages.ASK, "tools": [EXECUTION, messages.DOOR]}
        beside = [await messages.raw(url, body)]
        beside.append(await responses.raw(url, {**responses.ASK, "tools": [INTERPRETER, responses.DOOR]}))
        alone = [await messages.raw(url, {**messages.ASK, "tools": [EXECUTION]})]
        alone.append(await responses.raw(url, {**responses.ASK, "tools": [INTERPRETER]}))
    assert [one.headers["x-tools-ignored"] for one in beside] == ["code_execution_20250825", "code_interpreter"]
    assert [one.status_code for one in alone] == [400, 400]


async def test_a_client_that_may_not_use_the_tool_has_no_hosted_one(upstream):
    clients = "clients: [{name: app, key: k, tools: [web_search]}]"
    upstream.replies = [whole("Hi"), whole("Hi")]
    async with proxy_of(upstream, more=clients, tools=[python("42")]) as url:
        said = {**messages.ASK, "tools": [EXECUTION, messages.DOOR]}
        asked = {**responses.ASK, "tools": [INTERPRETER, responses.DOOR]}
        found = [await messages.raw(url, said, **{"x-api-key": "k"})]
        found.append(await responses.raw(url, asked, authorization="Bearer k"))
        refused = await responses.raw(url, {**asked, "tools": [INTERPRETER]}, authorization="Bearer k")
        forced = await responses.raw(
            url, {**asked, "tool_choice": {"type": "code_interpreter"}}, authorization="Bearer k"
        )
    assert [one.headers["x-tools-ignored"] for one in found] == ["code_execution_20250825", "code_interpreter"]
    assert [refused.status_code, forced.status_code] == [400, 400]
    offered = [[tool["function"]["name"] for tool in request["tools"]] for request in upstream.requests]
    assert all("run_python" not in names for names in offered)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "code_interpreter"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]},
    ],
)
async def test_a_choice_of_the_code_interpreter_chooses_the_tool(upstream, choice):
    upstream.replies = answers(False, CALL)
    async with proxy_of(upstream, more=NEVER, tools=[python("42")]) as url:
        response = await responses.ask(url, {"tools": [INTERPRETER], "tool_choice": choice}, streaming=False)
    assert responses.kinds(response) == ["code_interpreter_call", "message"]
    request = upstream.requests[0]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["run_python"]
    assert request["tool_choice"] in ("required", {"type": "function", "function": {"name": "run_python"}})


async def test_messages_choice_of_code_execution_chooses_the_tool(upstream):
    upstream.replies = answers(False, ("u1", "code_execution", {"code": CODE}))
    async with proxy_of(upstream, more=NEVER, tools=[python("42")]) as url:
        choice = {"type": "tool", "name": "code_execution"}
        message = await messages.ask(url, streaming=False, tools=[EXECUTION], tool_choice=choice)
    assert messages.kinds(message) == ["server_tool_use", "code_execution_tool_result", "text"]
    assert upstream.requests[0]["tool_choice"]["function"]["name"] == "run_python"


async def test_undeclared_it_is_a_tool_like_any_other_and_not_shown(upstream):
    upstream.replies = [*answers(False, CALL), *answers(False, CALL)]
    async with proxy_of(upstream, tools=[python('{"stdout": "4", "return_code": 2}', offer="always")]) as url:
        message = await messages.ask(url, streaming=False)
        response = await responses.ask(url, {}, streaming=False)
    assert (messages.kinds(message), responses.kinds(response)) == (["text"], ["message"])
    assert "4\n[return code 2]" in upstream.requests[1]["messages"][-1]["content"]


async def test_a_long_outcome_is_cut_in_its_parts_and_keeps_its_return_code(upstream):
    upstream.replies = answers(False, CALL)
    output = orjson.dumps({"stdout": "o" * 9000, "stderr": "e" * 9000, "return_code": 3}).decode()
    async with proxy_of(upstream, more="limits: {max_result_bytes: 1000}", tools=[python(output)]) as url:
        message = await messages.ask(url, streaming=False, tools=[EXECUTION])
    outcome = message["content"][1]["content"]
    assert outcome["return_code"] == 3
    assert outcome["stdout"].startswith("ooo")
    assert outcome["stderr"].startswith("eee")
    assert len(outcome["stdout"]) + len(outcome["stderr"]) < 1200
