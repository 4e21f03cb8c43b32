"""Requests as an upstream accepts them, and as JSON.

`prepare` applies the profile, and `serialize` serializes the request of each turn.
"""

from collections.abc import Mapping
from typing import Any

from proxy.loop.actions import CallUpstream
from proxy.loop.forcing import AnswerStep
from proxy.loop.offer import is_native_search, narrowed
from proxy.loop.pictures import with_pictures_after_results
from proxy.loop.prompts import ANSWER_AS_JSON, CALL_A_TOOL, CALL_THE_TOOL, NOTHING_RETURNED, with_system_text
from proxy.upstreams.names import ToolNames
from proxy.upstreams.profile import OPENAI, Profile
from proxy.wire import rawjson
from proxy.wire.chat import Json, drop_tools
from proxy.wire.errors import RequestError

_LENGTH, _LONG_LENGTH = "max_tokens", "max_completion_tokens"
# The fields in which servers send a model's reasoning.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


def serialize(call: CallUpstream, profile: Profile, model: str) -> tuple[bytes, ToolNames | None]:
    """A turn's request as the upstream accepts it, and the names that were replaced in it; None: all are valid.

    Raises:
        RequestError: the request needs a feature that the upstream does not have, or is nested too deep.
    """
    names = ToolNames.replaced_in(call.body)  # first, so that a demand in words names the tool likewise
    body = {**prepare(call.body if names is None else names.replace(call.body), profile), "model": model}
    if call.step is AnswerStep.RETELL:
        body |= profile.retelling
    if body.get("stream"):
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    refuses_length = profile.without_max_tokens is not None and profile.without_max_tokens.fullmatch(model)
    if refuses_length and _LENGTH in body and _LONG_LENGTH not in body:
        body[_LONG_LENGTH] = body.pop(_LENGTH)
    return rawjson.dumps(body), names


def prepare(request: Json, profile: Profile) -> Json:
    """The request as the upstream accepts it; `request` itself if nothing has to change.

    Raises:
        RequestError: the request needs a feature that the upstream does not have.
    """
    tools = request.get("tools")
    fits_openai = tools is None or (
        tools and not any(is_native_search(tool) or _lacks_properties(tool) for tool in tools)
    )
    if profile is OPENAI and fits_openai:
        return request
    for name, harmless in profile.unsupported.items():
        if request.get(name) not in (None, False, harmless):
            raise RequestError(f"'{name}' is not supported by the upstream of this model.", param=name)
    body = dict(request)
    if profile.roles or profile.string_tool_content or profile.reasoning_field:
        messages = request["messages"]
        if profile.string_tool_content:
            messages = with_pictures_after_results(messages)
        body["messages"] = [_fit_message(message, profile) for message in messages]
    _fit_fields(body, profile)
    _fit_tools(body, profile)
    _fit_response_format(body, profile)
    return request if body == request else body


def _fit_message(message: Json, profile: Profile) -> Json:
    """A message as the upstream accepts it; `message` itself if nothing has to change."""
    changes: Json = {}
    role = message.get("role")
    if isinstance(role, str) and role in profile.roles:
        changes["role"] = profile.roles[role]
    if role == "tool" and profile.string_tool_content:
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        # After an empty result, a model gives a blank answer.
        changes["content"] = content if isinstance(content, str) and content else NOTHING_RETURNED
    if role == "assistant" and profile.reasoning_field and not message.get(profile.reasoning_field):
        reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name)), None)
        if reasoning is not None:
            changes[profile.reasoning_field] = reasoning
    return {**message, **changes} if changes else message


def _fit_fields(body: Json, profile: Profile) -> None:
    """Rename, limit and replace the fields for sampling and length."""
    for ours, theirs in profile.fields.items():
        if body.get(ours) is not None:
            value = body.pop(ours)
            if body.get(theirs) is None:
                body[theirs] = value
    for name, (least, most) in profile.ranges.items():
        value = body.get(name)
        if isinstance(value, (int, float)) and not least <= value <= most:
            body[name] = min(max(value, least), most)
    for name in profile.lists:
        if isinstance(body.get(name), str):
            body[name] = [body[name]]
    effort, thinking = body.get("reasoning_effort"), body.get("thinking")
    _replace(body, "reasoning_effort", effort, profile.efforts)
    _replace(body, "thinking", thinking.get("type") if isinstance(thinking, dict) else None, profile.thinking)


def _replace(body: Json, name: str, value: Any, replacements: Mapping[str, Json]) -> None:
    """Replace a field with this value by other fields; one that the request has already keeps its value."""
    if isinstance(value, str) and value in replacements:
        del body[name]
        for other, harmless in replacements[value].items():
            body[other] = body.get(other) or harmless


def _fit_tools(body: Json, profile: Profile) -> None:
    """Adapt `tools` and `tool_choice`; a choice that the upstream does not accept is made in words, in a message."""
    if not profile.native_search and any(map(is_native_search, body.get("tools") or ())):
        body["tools"] = [tool for tool in body["tools"] if not is_native_search(tool)]
    if not profile.allowed_tools:
        tools, choice, allowed_names = narrowed(body.get("tools") or (), body.get("tool_choice"))
        if allowed_names is not None:
            body["tools"], body["tool_choice"] = tools, choice
    choice = body.get("tool_choice")
    # OpenAI and vLLM answer 400 to an empty list of tools.
    if body.get("tools") == [] or (choice == "none" and not profile.honours_no_tools):
        drop_tools(body)
        return
    accepted = profile.tool_choices is None or (isinstance(choice, str) and choice in profile.tool_choices)
    if choice is not None and not accepted:
        del body["tool_choice"]
        if body.get("tools"):
            _demand_call(body, choice)
    if profile.object_properties and body.get("tools"):
        body["tools"] = [_with_properties(tool) if _lacks_properties(tool) else tool for tool in body["tools"]]
    if profile.whole_functions and body.get("tools"):
        body["tools"] = [_complete_function(tool) for tool in body["tools"]]


def _lacks_properties(tool: Json) -> bool:
    """Whether a function takes an object without saying what is in it."""
    function = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    return isinstance(parameters, dict) and parameters.get("type") == "object" and "properties" not in parameters


def _with_properties(tool: Json) -> Json:
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": {**function["parameters"], "properties": {}}}}


def _demand_call(body: Json, choice: Any) -> None:
    """Demand a call in words. If `choice` names a tool, the demand names it, and it is the only tool offered."""
    detail = choice.get(choice.get("type")) if isinstance(choice, dict) else None
    name = detail.get("name") if isinstance(detail, dict) else None
    demand = CALL_A_TOOL
    if name is not None:
        demand = CALL_THE_TOOL.format(name=name)
        named = [tool for tool in body["tools"] if (tool.get("function") or {}).get("name") == name]
        body["tools"] = named or body["tools"]
    body["messages"] = with_system_text(body["messages"], demand)


def _complete_function(tool: Json) -> Json:
    """A function with every field that a strict upstream needs."""
    function = tool.get("function")
    if not isinstance(function, dict) or ("description" in function and "parameters" in function):
        return tool
    defaults = {"description": function.get("name") or "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**defaults, **function}}


def _fit_response_format(body: Json, profile: Profile) -> None:
    """Ask in words for a JSON Schema that the upstream does not enforce."""
    wanted = body.get("response_format")
    if profile.json_schema or not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        return
    schema = rawjson.dumps((wanted.get("json_schema") or {}).get("schema") or {}).decode()
    body["messages"] = with_system_text(body["messages"], ANSWER_AS_JSON.format(schema=schema))
    body["response_format"] = {"type": "json_object"}
