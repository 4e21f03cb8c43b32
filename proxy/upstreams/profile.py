"""The quirks of each kind of upstream, as data, with what they are known from beside them.

To add a quirk: give `Profile` a field with OpenAI's behaviour as its default, set it in the profile of the upstream,
and apply it in `request_body.prepare` if it concerns requests, in `answers.mend` if it concerns answers.
`docs/upstreams.md` lists the quirks for readers, each with its test.

To add a kind of upstream: another `Profile` here and among `PROFILES`, and its name in `config.UpstreamConfig.profile`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.loop.chat import Json
from proxy.loop.forcing import DEFAULT_ANSWER_STEPS, AnswerStep, AnswerSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of upstream. Each default is OpenAI's behaviour.

    Attributes:
        name: the profile's name in the configuration.
        roles: roles that the upstream does not know -> the nearest that it knows.
        fields: OpenAI's names of request fields -> the upstream's.
        ranges: fields with a narrower range than OpenAI's; values beyond it are moved to its edge.
        lists: fields that have to be a list, where OpenAI also takes a single value.
        efforts: values of `reasoning_effort` that the upstream refuses -> the fields that replace it; a field that the
            request has already keeps its value.
        unsupported: fields that ask for what the upstream cannot do -> the value that is harmless; the proxy answers
            any other with 400.
        tool_choices: the only values of `tool_choice` that the upstream accepts; None: all of OpenAI's.
        honours_no_tools: whether `tool_choice: none` keeps the models from calling tools; if not, tools are removed.
        json_schema: whether the upstream enforces `response_format: json_schema`.
        whole_functions: whether each function needs a description and parameters.
        string_tool_content: whether the content of a tool message has to be a string that is not empty.
        reasoning_field: the field in which the upstream reads earlier reasoning; None: it reads none.
        native_search: whether the upstream has a web search, `{"type": "web_search", "web_search": {...}}`.
        thinking: values of the `type` in GLM's field `thinking` -> the fields that replace it; None: it stays as it is.
        thinking_switch: whether that field, or what replaces it, keeps the models from thinking.
        top_k: whether the upstream takes `top_k`, which OpenAI refuses; a Messages request may have it.
        retelling: fields that the step RETELL adds to its request.
        finish_reasons: the upstream's own finish reasons -> OpenAI's; `answers` translates any other unknown one.
        failures: finish reasons that stand for a failure.
        answer_steps: the steps by which the models are made to answer, one for each attempt.
        key_plans: the paths of the upstream's base URLs -> the keys that each takes, where they take different ones.
    """

    name: str
    roles: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    efforts: Mapping[str, Json] = field(default_factory=dict)
    unsupported: Mapping[str, Any] = field(default_factory=dict)
    tool_choices: frozenset[str] | None = None
    honours_no_tools: bool = True
    json_schema: bool = True
    whole_functions: bool = False
    string_tool_content: bool = False
    reasoning_field: str | None = None
    native_search: bool = False
    thinking: Mapping[str, Json] | None = None
    thinking_switch: bool = False
    top_k: bool = False
    retelling: Json = field(default_factory=dict)
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    failures: frozenset[str] = frozenset()
    answer_steps: AnswerSteps = DEFAULT_ANSWER_STEPS
    key_plans: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_messages(self) -> bool:
        """Whether messages may have to be changed, each by itself."""
        return bool(self.roles or self.string_tool_content or self.reasoning_field)


OPENAI = Profile(name="openai")

# Z.AI and bigmodel: from their specification, their SDKs, reports of users, and recordings.
GLM = Profile(
    name="glm",
    # The specification's roles are system, user, assistant and tool.
    roles={"developer": "system"},
    # Not in the specification; max_tokens is.
    fields={"max_completion_tokens": "max_tokens"},
    # temperature [0, 1] in the specification; for top_p the Python SDK keeps to 0.01 ... 0.99.
    ranges={"temperature": (0, 1), "top_p": (0.01, 0.99)},
    # A list in the specification.
    lists=frozenset({"stop"}),
    # GLM-5.3 takes low, high and max; models before 5.2 know no effort but thinking or none.
    efforts={
        "none": {"thinking": {"type": "disabled"}},
        "minimal": {"thinking": {"type": "disabled"}},
        "medium": {"reasoning_effort": "high"},
        "xhigh": {"reasoning_effort": "max"},
    },
    # Not in the specification, and nothing that a proxy could do instead.
    unsupported={"n": 1, "logprobs": False, "top_logprobs": 0},
    # Anything else is refused: 400 "Tool choice must be auto".
    tool_choices=frozenset({"auto"}),
    honours_no_tools=False,
    # text and json_object only.
    json_schema=False,
    # name, description and parameters are required.
    whole_functions=True,
    # An empty result makes a conversation fail (1213, 1214).
    string_tool_content=True,
    # Interleaved thinking needs it back unchanged; GLM-5 loops when it is dropped.
    reasoning_field="reasoning_content",
    native_search=True,
    thinking_switch=True,
    # A blank answer after a tool result: without thinking it has been seen to come.
    retelling={"thinking": {"type": "disabled"}},
    finish_reasons={"sensitive": "content_filter", "model_context_window_exceeded": "length"},
    # Seen with empty content and an orderly [DONE].
    failures=frozenset({"network_error"}),
    # The wrong endpoint says that the key is wrong, or has no credit, and no more.
    key_plans={"/api/coding/paas/v4": "coding-plan keys", "/api/paas/v4": "pay-as-you-go keys"},
)

# gpt-oss behind GMI Cloud and servers like it (vLLM, SGLang).
GPT_OSS = Profile(
    name="gpt_oss",
    # Its prompt format knows low, medium and high; vLLM answers 400 to others.
    efforts={
        "none": {"reasoning_effort": "low"},
        "minimal": {"reasoning_effort": "low"},
        "xhigh": {"reasoning_effort": "high"},
        "max": {"reasoning_effort": "high"},
    },
    # It thinks always, and least with the lowest effort.
    thinking={"disabled": {"reasoning_effort": "low"}, "enabled": {}},
    thinking_switch=True,
    # A sampling parameter of vLLM's and SGLang's.
    top_k=True,
    # vLLM ignores it and keeps the tools in the prompt (PR 30867 and a flag change that).
    honours_no_tools=False,
    # vLLM reads thoughts under this name only, and the model needs them back during a tool loop. Servers that know them
    # as reasoning_content find that too: it is added, not renamed.
    reasoning_field="reasoning",
    # Without its tools in the middle of a conversation that used them, it writes the arguments of the browser that it
    # was trained with, {"cursor": 2, "id": 2}: so they are never withdrawn; the results are retold instead.
    answer_steps=(AnswerStep.NOTICE, AnswerStep.NOTICE, AnswerStep.RETELL),
)

PROFILES = {profile.name: profile for profile in (GLM, GPT_OSS, OPENAI)}
