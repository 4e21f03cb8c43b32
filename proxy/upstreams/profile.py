"""What is particular about an upstream, as data, and the two pure functions that apply it.

`prepare` makes a request fit the upstream; `mend` makes what it answers a proper completion or chunk. The facts and
where they were seen stand beside each profile: `glm`, `gpt_oss`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.actions import Rung
from proxy.core.chat import Json
from proxy.core.errors import UpstreamError
from proxy.core.run import DEFAULT_LADDER

# The values that typed OpenAI SDKs accept.
FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of upstream.

    Attributes:
        name: as in the configuration.
        roles: roles that it does not know -> the nearest that it does.
        fields: request fields under OpenAI's name -> under its own.
        tool_choices: the only values of `tool_choice` that it takes; None: all of OpenAI's.
        finish_reasons: its own reasons -> OpenAI's. Any other unknown reason becomes `stop`.
        failures: finish reasons that are no end but a failure.
        ladder: the means of making its models answer, mildest first.
    """

    name: str
    roles: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    tool_choices: frozenset[str] | None = None
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    failures: frozenset[str] = frozenset()
    ladder: Sequence[Rung] = DEFAULT_LADDER


OPENAI = Profile(name="openai")


def prepare(body: Json, profile: Profile) -> Json:
    """The request as this upstream takes it; `body` itself, untouched, where nothing has to change."""
    changes: Json = {}
    if any(message.get("role") in profile.roles for message in body["messages"]):
        changes["messages"] = [_with_role(message, profile.roles) for message in body["messages"]]
    renamed = {ours: theirs for ours, theirs in profile.fields.items() if ours in body}
    changes |= {theirs: body[ours] for ours, theirs in renamed.items() if theirs not in body}
    dropped = set(renamed) | _refused_choice(body.get("tool_choice"), profile)
    if not changes and not dropped:
        return body
    return {key: value for key, value in {**body, **changes}.items() if key not in dropped}


def _refused_choice(choice: Any, profile: Profile) -> set[str]:
    """The fields to leave out because of a `tool_choice` that the upstream does not take.

    `none` is said by offering no tools; what other choices demand, the upstream cannot be told.
    """
    if choice is None or profile.tool_choices is None:
        return set()
    if isinstance(choice, str) and choice in profile.tool_choices:
        return set()
    return {"tool_choice", "tools", "parallel_tool_calls"} if choice == "none" else {"tool_choice"}


def _with_role(message: Json, roles: Mapping[str, str]) -> Json:
    known_as = roles.get(str(message.get("role")))
    return {**message, "role": known_as} if known_as else message


def mend(answer: Json, profile: Profile, *, kind: str) -> bool:
    """Make a completion or chunk one that an OpenAI SDK reads, in place; whether anything had to change.

    Args:
        answer: the upstream's JSON.
        profile: whose answer it is.
        kind: the `object` that it should be, `chat.completion` or `chat.completion.chunk`.

    Raises:
        UpstreamError: the model's server gave up, and said so as a finish_reason.
    """
    changed = False
    if answer.get("object") != kind:
        answer["object"] = kind
        changed = True
    if answer.get("choices") is None:
        answer["choices"] = []
        changed = True
    for choice in answer["choices"]:
        reason = choice.get("finish_reason")
        if reason is None or reason in FINISH_REASONS:
            continue
        if reason in profile.failures:
            raise UpstreamError(f"the upstream broke off its answer: {reason}")
        choice["finish_reason"] = profile.finish_reasons.get(reason) or ("stop" if reason else None)
        changed = True
    return changed
