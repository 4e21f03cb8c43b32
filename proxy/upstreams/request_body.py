"""Requests as an upstream accepts them, and as JSON.

`prepare` applies the profile, and `serialize` serializes the request of each turn. From one turn to the next, usually
only messages are added, and `max_tokens` falls. Then the bytes of the earlier turn are extended instead of serialized
again, which saves, with 1,000 messages of history, 4 % of the instructions with the profile `openai` and 25 % with
`glm`.
"""

from typing import Any, TypeAlias

from msgspec import Struct

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

# Larger requests are serialized again in each turn: one is kept for each choice of a request, which may have 128.
MOST_KEPT = 256 * 1024
_BEFORE_MESSAGES = len(b'{"messages":[')
_LENGTH = "max_tokens"  # becomes smaller from turn to turn if it limits the whole run
_LONG_LENGTH = "max_completion_tokens"
_LAST_FIELDS = ("messages", _LENGTH)  # at the end, so that more messages can be added
_EFFORT = "reasoning_effort"
# The fields in which servers send a model's reasoning.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class SerializedRequest(Struct, eq=False):
    """A request as it was sent.

    Attributes:
        profile: the profile of the upstream.
        model: the upstream's name for the model.
        step: the step by which the model was made to answer; None: it was not made to.
        body: the request before the profile was applied.
        start: the JSON of the request, to the end of the last message.
        end: the rest of the JSON.
        length: the field that bounds the answer.
    """

    profile: Profile
    model: str
    step: str | None
    body: Json
    start: bytes
    end: bytes
    length: str = _LENGTH

    def extend(self, call: CallUpstream, profile: Profile, model: str) -> bool:
        """Extend this request to that of `call`; False: they differ otherwise, or a name has to be replaced."""
        if profile is not self.profile or model != self.model or call.step is not self.step:
            return False
        messages = call.body["messages"]
        count = len(self.body["messages"])
        earlier = {**call.body, "messages": messages[:count]}
        more: Json = {"messages": messages[count:]}
        if _LENGTH in call.body and _LENGTH in self.body:
            earlier[_LENGTH], more[_LENGTH] = self.body[_LENGTH], call.body[_LENGTH]
        # The turns of a run share their objects, so this compares little more than identities.
        if earlier != self.body:
            return False
        added = prepare(more, profile)
        if ToolNames.replaced_in(added) is not None:
            return False
        if _LENGTH in added:
            self.end = _end_of({self.length: added[_LENGTH]}, self.length)
        if added["messages"]:
            written = rawjson.dumps({"messages": added["messages"]})
            self.start = b"".join((self.start, b",", written[_BEFORE_MESSAGES:-2]))
        self.body = call.body
        return True


LatestRequests: TypeAlias = dict[str, SerializedRequest]
"""The latest request of each run of one client request, by the run's id."""


def serialize(
    call: CallUpstream,
    profile: Profile,
    model: str,
    latest: LatestRequests,
) -> tuple[bytes, ToolNames | None]:
    """A turn's request as the upstream accepts it, and the names that were replaced in it; None: all are valid.

    Raises:
        RequestError: the request needs a feature that the upstream does not have, or is nested too deep.
    """
    request = latest.pop(call.run_id, None)
    if request is None or not request.extend(call, profile, model):
        names = ToolNames.replaced_in(call.body)  # first, so that a demand in words names the tool likewise
        body = {**prepare(call.body if names is None else names.replace(call.body), profile), "model": model}
        if call.step is AnswerStep.RETELL:
            body |= profile.retelling
        if body.get("stream"):
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        for name in _LAST_FIELDS:
            if name in body:
                body[name] = body.pop(name)
        length = _LENGTH
        if _LENGTH in body and profile.without_max_tokens is not None and _LONG_LENGTH not in body:
            length = _LONG_LENGTH if profile.without_max_tokens.fullmatch(model) else _LENGTH
            body[length] = body.pop(_LENGTH)
        if names is not None:
            return rawjson.dumps(body), names
        written, end = rawjson.dumps(body), _end_of(body, length)
        if len(written) > MOST_KEPT:
            return written, None
        request = SerializedRequest(profile, model, call.step, call.body, written.removesuffix(end), end, length)
    if len(request.start) <= MOST_KEPT:
        latest[call.run_id] = request
    return request.start + request.end, None


def _end_of(body: Json, length: str) -> bytes:
    """The bytes after the last message of a request; `length`: the field that bounds the answer, if it has one."""
    return b'],"%s":%s}' % (length.encode(), rawjson.dumps(body[length])) if length in body else b"]}"


def prepare(request: Json, profile: Profile) -> Json:
    """The request as the upstream accepts it; `request` itself if nothing has to change.

    It is also called with only `max_tokens` and the messages that a later turn adds, so a profile has to change
    messages one by one.

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
    if profile.changes_messages:
        messages = request["messages"]
        if profile.string_tool_content:
            messages = with_pictures_after_results(messages)
        body["messages"] = [_fit_message(message, profile) for message in messages]
    _fit_fields(body, profile)
    _fit_thinking(body, profile)
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
    effort = body.get(_EFFORT)
    if isinstance(effort, str) and effort in profile.efforts:
        del body[_EFFORT]
        for name, value in profile.efforts[effort].items():
            body[name] = body.get(name) or value


def _fit_thinking(body: Json, profile: Profile) -> None:
    """Replace GLM's field `thinking` if the upstream has other fields for it."""
    wanted = body.get("thinking")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if profile.thinking is None or not isinstance(kind, str) or kind not in profile.thinking:
        return
    del body["thinking"]
    for name, value in profile.thinking[kind].items():
        body[name] = body.get(name) or value


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
