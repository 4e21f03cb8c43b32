"""What is particular about an upstream, as data, and the two pure functions that apply it.

`prepare` makes a request fit the upstream; `mend` makes what it answers a proper completion or chunk. The facts and
where they were seen stand beside each profile: `glm`, `gpt_oss`; `docs/upstreams.md` is the list for readers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.loop.assembler import as_text
from proxy.loop.chat import Json
from proxy.loop.endings import inferred_reason
from proxy.loop.errors import InvalidJson, RequestError, UpstreamError
from proxy.loop.forcing import DEFAULT_ANSWER_STEPS, AnswerSteps
from proxy.loop.offer import narrowed
from proxy.loop.prompts import with_guidance
from proxy.upstreams import failures

# The values that typed OpenAI SDKs accept.
FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# Reasons that servers of any profile have been seen to send: DeepSeek at Azure, and OpenRouter beside an error.
_OTHER_REASONS = {"tool_call": "tool_calls"}
_FAILED = "error"

COMPLETION, CHUNK = "chat.completion", "chat.completion.chunk"
_PARTS = ("message", "delta")
_EFFORT = "reasoning_effort"
_OF_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})

# The names under which thoughts go round; an upstream that reads one is sent it under that one.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of upstream. What is left at its default is as at OpenAI.

    Attributes:
        name: as in the configuration.
        roles: roles that it does not know -> the nearest that it does.
        fields: request fields under OpenAI's name -> under its own.
        ranges: fields with a narrower range than OpenAI's; values beyond it are moved to its edge.
        lists: fields that have to be a list, where OpenAI also takes a single value.
        efforts: values of `reasoning_effort` that it does not take -> the fields that say it there; those that the
            request has already stay as they are.
        refused: fields that ask for what it cannot do, unless they have the value given here: 400 for the client.
        tool_choices: the only values of `tool_choice` that it takes; None: all of OpenAI's.
        honours_no_tools: whether `tool_choice: none` keeps its models from calling; if not, they are not shown any.
        json_schema: whether it knows `response_format: json_schema`.
        whole_functions: whether each function needs a description and parameters.
        string_tool_content: whether the content of a tool message has to be a string that is not empty.
        reasoning_field: the name under which it reads thoughts in the history; None: it reads none.
        native_search: whether it has a web search of its own, `{"type": "web_search", "web_search": {...}}`.
        retelling: fields for a turn in which everything is retold, the last means of getting an answer.
        finish_reasons: its own reasons -> OpenAI's. Any other unknown reason becomes `stop`.
        failures: finish reasons that are no end but a failure.
        answer_steps: by which its models are made to answer, one for each attempt.
    """

    name: str
    roles: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    efforts: Mapping[str, Json] = field(default_factory=dict)
    refused: Mapping[str, Any] = field(default_factory=dict)
    tool_choices: frozenset[str] | None = None
    honours_no_tools: bool = True
    json_schema: bool = True
    whole_functions: bool = False
    string_tool_content: bool = False
    reasoning_field: str | None = None
    native_search: bool = False
    retelling: Json = field(default_factory=dict)
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    failures: frozenset[str] = frozenset()
    answer_steps: AnswerSteps = DEFAULT_ANSWER_STEPS


OPENAI = Profile(name="openai")


def prepare(body: Json, profile: Profile) -> Json:
    """The request as this upstream takes it; `body` itself, untouched, where nothing has to change.

    Raises:
        RequestError: it asks for what the upstream cannot do.
    """
    if profile is OPENAI:
        return _without_tools(body) if body.get("tools") == [] else body
    _refuse(body, profile)
    for fit in (_fit_messages, _fit_fields, _fit_effort, _fit_tools, _fit_response_format):
        body = fit(body, profile)
    return body


def _without_tools(body: Json) -> Json:
    """The request without its fields about tools: OpenAI and vLLM answer 400 to an empty list of them."""
    return {key: value for key, value in body.items() if key not in _OF_TOOLS}


def _refuse(body: Json, profile: Profile) -> None:
    for name, harmless in profile.refused.items():
        if body.get(name) not in (None, False, harmless):
            message = f"'{name}' is not supported by the upstream of this model."
            raise RequestError(message, param=name)


def fit_messages(messages: Sequence[Json], profile: Profile) -> Sequence[Json]:
    """Messages as this upstream takes them, each for itself; `messages` itself where none has to change."""
    if not (profile.roles or profile.string_tool_content or profile.reasoning_field):
        return messages
    fitted = [_fit_message(message, profile) for message in messages]
    return messages if all(after is before for after, before in zip(fitted, messages, strict=True)) else fitted


def _fit_messages(body: Json, profile: Profile) -> Json:
    fitted = fit_messages(body["messages"], profile)
    return body if fitted is body["messages"] else {**body, "messages": fitted}


def _fit_message(message: Json, profile: Profile) -> Json:
    changes: Json = {}
    role = message.get("role")
    if isinstance(role, str) and role in profile.roles:
        changes["role"] = profile.roles[role]
    if role == "tool" and profile.string_tool_content:
        content = _as_string(message.get("content"))
        if content != message.get("content"):
            changes["content"] = content
    if role == "assistant" and profile.reasoning_field and not message.get(profile.reasoning_field):
        thoughts = next((message[name] for name in _REASONING_FIELDS if message.get(name)), None)
        if thoughts is not None:
            changes[profile.reasoning_field] = thoughts
    return {**message, **changes} if changes else message


def _as_string(content: Any) -> str:
    """The content of a tool message as text; a model that is given nothing at all answers with nothing."""
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) and content else "(nothing)"


def _fit_fields(body: Json, profile: Profile) -> Json:
    if not (profile.fields or profile.ranges or profile.lists):
        return body
    changes: Json = {}
    for ours, theirs in profile.fields.items():
        if body.get(ours) is not None and body.get(theirs) is None:
            changes[theirs] = body[ours]
    for name, (least, most) in profile.ranges.items():
        value = body.get(name)
        if isinstance(value, (int, float)) and not least <= value <= most:
            changes[name] = min(max(value, least), most)
    for name in profile.lists:
        if isinstance(body.get(name), str):
            changes[name] = [body[name]]
    return _changed(body, changes, dropped={name for name in profile.fields if body.get(name) is not None})


def _fit_effort(body: Json, profile: Profile) -> Json:
    effort = body.get(_EFFORT)
    if not isinstance(effort, str) or effort not in profile.efforts:
        return body
    said = {name: value for name, value in profile.efforts[effort].items() if name == _EFFORT or not body.get(name)}
    return _changed(body, said, dropped={_EFFORT} - said.keys())


def _fit_tools(body: Json, profile: Profile) -> Json:
    if "tools" not in body and "tool_choice" not in body:
        return body
    dropped: set[str] = set()
    tools, choice, allowed_names = narrowed(body.get("tools") or (), body.get("tool_choice"))
    if allowed_names is not None and profile.tool_choices is not None:
        body = {**body, "tools": tools, "tool_choice": choice}
    choice = body.get("tool_choice")
    if body.get("tools") == [] or (choice == "none" and not profile.honours_no_tools):
        return _without_tools(body)
    if choice is not None and profile.tool_choices is not None:
        allowed = isinstance(choice, str) and choice in profile.tool_choices
        dropped |= set() if allowed else {"tool_choice"}
        if not allowed and body.get("tools"):
            body = _say_choice(body, choice)
    changes: Json = {}
    if profile.whole_functions and "tools" not in dropped:
        completed = [_complete_function(tool) for tool in body.get("tools") or ()]
        if any(after is not before for after, before in zip(completed, body.get("tools") or (), strict=True)):
            changes["tools"] = completed
    return _changed(body, changes, dropped=dropped & body.keys())


def _complete_function(tool: Json) -> Json:
    """A function with every field that a strict upstream wants."""
    function = tool.get("function")
    if not isinstance(function, dict) or ("description" in function and "parameters" in function):
        return tool
    defaults = {"description": function.get("name") or "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**defaults, **function}}


def _say_choice(body: Json, choice: Any) -> Json:
    """A choice that the upstream takes no field for, said by what it is offered and told."""
    detail = choice.get(choice.get("type")) if isinstance(choice, dict) else None
    name = detail.get("name") if isinstance(detail, dict) else None
    if name is None:
        return {
            **body,
            "messages": with_guidance(body["messages"], "Call one of your tools now; do not answer in text."),
        }
    offered = [tool for tool in body["tools"] if (tool.get("function") or {}).get("name") == name]
    told = f"Call the tool {name} now; do not answer in text."
    return {**body, "tools": offered or body["tools"], "messages": with_guidance(body["messages"], told)}


def _fit_response_format(body: Json, profile: Profile) -> Json:
    """A schema that the upstream does not know how to enforce, asked for in words."""
    wanted = body.get("response_format")
    if profile.json_schema or not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        return body
    schema = (wanted.get("json_schema") or {}).get("schema") or {}
    try:
        written = orjson.dumps(schema).decode()
    except orjson.JSONEncodeError as exc:
        raise InvalidJson("The request body is nested too deep.") from exc
    told = f"Answer with one JSON object that fits this JSON Schema, and nothing else: {written}"
    messages = with_guidance(body["messages"], told)
    return {**body, "response_format": {"type": "json_object"}, "messages": messages}


def _changed(body: Json, changes: Json, *, dropped: set[str]) -> Json:
    if not changes and not dropped:
        return body
    return {key: value for key, value in {**body, **changes}.items() if key not in dropped}


def mend(answer: Json, profile: Profile, *, kind: str) -> bool:
    """Make a completion or chunk one that an OpenAI SDK reads, in place; whether anything had to change.

    Args:
        answer: the upstream's JSON.
        profile: whose answer it is.
        kind: the `object` that it should be, `chat.completion` or `chat.completion.chunk`.

    Raises:
        UpstreamError: it is no completion, or the model's server gave up and said so as a finish_reason.
    """
    changed = False
    if answer.get("object") != kind:
        answer["object"] = kind
        changed = True
    if answer.get("choices") is None:
        answer["choices"] = []
        changed = True
    if (usage := answer.get("usage")) is not None and not isinstance(usage, dict):
        answer["usage"] = None
        changed = True
    choices = answer["choices"]
    if choices.__class__ is not list or len(choices) != 1 or choices[0].__class__ is not dict:
        choices = _objects(choices)
    for choice in choices:
        changed = _mend_choice(choice, profile) or changed
    return changed


def _mend_choice(choice: Json, profile: Profile) -> bool:
    if choice.get("error"):
        raise failures.from_choice(choice["error"])
    changed = choice.get("finish_reason") is not None and _mend_reason(choice, profile)
    for key in _PARTS:
        if key in choice:
            part = choice[key]
            if not isinstance(part, dict) or "tool_calls" in part:  # most say something and call nothing
                changed = _mend_message(choice, key) or changed
    return changed


def _mend_reason(choice: Json, profile: Profile) -> bool:
    reason = choice.get("finish_reason")
    if reason is None or (isinstance(reason, str) and reason in FINISH_REASONS):
        return False
    known = reason if isinstance(reason, str) else ""
    if known in profile.failures or known == _FAILED:
        raise UpstreamError(f"The upstream broke off its answer: {known}.")
    choice["finish_reason"] = (
        (profile.finish_reasons.get(known) or _OTHER_REASONS.get(known, "stop")) if reason else None
    )
    return True


def complete(answer: Json, request: Json) -> bool:
    """Fill in what a whole answer lacks, in place, where that is beyond doubt; whether anything was missing.

    Args:
        answer: mended.
        request: what was asked.

    Raises:
        UpstreamError: it is no completion.
    """
    if not answer["choices"]:
        raise UpstreamError("The upstream's answer is no completion.")
    changed = False
    for choice in answer["choices"]:
        if "message" not in choice:
            # Azure's filter leaves nothing of an answer but the reason why.
            if choice.get("finish_reason") != "content_filter":
                raise UpstreamError("The upstream's answer holds no message.")
            choice["message"] = {"role": "assistant", "content": ""}
            changed = True
        if not choice.get("finish_reason"):
            usage = answer.get("usage") if len(answer["choices"]) == 1 else None
            reason = inferred_reason(choice["message"], request, usage)
            choice["finish_reason"] = reason
            changed = changed or reason is not None
    return changed


def _mend_message(choice: Json, key: str) -> bool:
    """What stands where an object should be, and arguments that are an object where a string should be."""
    part = choice[key]
    if part is None:
        choice[key] = {}
        return True
    if not isinstance(part, dict):
        raise UpstreamError(f"The upstream sent something else than an object as '{key}'.")
    changed = False
    for call in _objects(part.get("tool_calls") or []):
        if not _is_usual(call):
            changed = _mend_call(call) or changed
    return changed


# A union is made anew each time that it is written in a call.
_NAME = (str, type(None))
_NAME_OR_NUMBER = (int, *_NAME)


def _is_usual(call: Json) -> bool:
    """Whether a call is written as OpenAI writes it, as nearly always: that is seen sooner than what is not."""
    function = call.get("function")
    return (
        function.__class__ is dict
        and call.get("id").__class__ is str
        and call.get("type") == "function"
        and function.get("name").__class__ is str
        and function.get("arguments").__class__ is str
    )


def _mend_call(call: Json) -> bool:
    # An id that is a number has its meaning; names are looked up by the others.
    if not isinstance(call.get("id"), _NAME_OR_NUMBER) or not isinstance(call.get("type"), _NAME):
        raise UpstreamError("The upstream sent a tool call whose id or type cannot be read.")
    function = call.get("function")
    if function is not None and not isinstance(function, dict):
        raise UpstreamError("The upstream sent something else than an object as 'function'.")
    if not function:
        return False
    if not isinstance(function.get("name"), _NAME):
        raise UpstreamError("The upstream sent something else than text as the name of a function.")
    changed = _mend_type(call, function)
    if isinstance(function.get("arguments"), _NAME):
        return changed
    function["arguments"] = as_text(function["arguments"])
    return True


def _mend_type(call: Json, function: Json) -> bool:
    """Give a call its type. Mistral leaves it out, and at AtlasCloud the later pieces of a call have an empty one."""
    if call.get("type"):
        return False
    if function.get("name"):
        call["type"] = "function"
        return True
    return call.pop("type", None) is not None


def _objects(items: Any) -> list[Json]:
    if isinstance(items, list):
        for item in items:
            if not isinstance(item, dict):
                break
        else:
            return items
    raise UpstreamError("The upstream's answer is no completion.")
