"""The quirks of each kind of upstream as data, each with its source in a comment.

To add a quirk, give `Profile` a field with OpenAI's behaviour as its default, set it in the profile of the upstream,
and apply it in `request_body.prepare` if it concerns requests, or in `answers.mend` if it concerns answers.
`docs/upstreams.md` lists the quirks for users, and `tests/PROMISES.md` their tests.

To add a kind of upstream, add a `Profile` here and to `PROFILES`, and its name to `config.UpstreamConfig.profile`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, timezone
from typing import Any

from proxy.keys.reset_times import CHINA
from proxy.loop.forcing import DEFAULT_ANSWER_STEPS, AnswerStep, AnswerSteps
from proxy.wire.chat import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of upstream. Each default is OpenAI's behaviour.

    Attributes:
        name: the profile's name in the configuration.
        roles: roles that the upstream does not know -> the nearest role that it knows.
        fields: OpenAI's names of request fields -> the upstream's names.
        without_max_tokens: models that refuse `max_tokens` and take `max_completion_tokens`; None: none does.
        ranges: fields with a narrower range than OpenAI's; other values are moved to the limit of the range.
        lists: fields that have to be a list, where OpenAI also accepts a single value.
        efforts: values of `reasoning_effort` that the upstream refuses -> the fields that replace it; a field that the
            request has already keeps its value.
        unsupported: fields for features that the upstream does not have -> the harmless value; the proxy answers a
            request with any other value with 400.
        tool_choices: the values of `tool_choice` that the upstream accepts; None: all of OpenAI's.
        allowed_tools: whether it accepts `allowed_tools` as the choice; if not, only the allowed tools are offered.
        honours_no_tools: whether `tool_choice: none` keeps the models from calling tools; if not, tools are removed.
        json_schema: whether the upstream enforces `response_format: json_schema`.
        object_properties: whether the parameters of a function need `properties`, if only empty ones.
        whole_functions: whether each function needs a description and parameters.
        string_tool_content: whether the content of a tool message has to be a non-empty string.
        reasoning_field: the field in which the upstream reads earlier reasoning; None: it reads none.
        native_search: whether the upstream has a web search, `{"type": "web_search", "web_search": {...}}`.
        thinking: the `type` in GLM's field `thinking` -> the fields that replace `thinking`.
        thinking_switch: whether that field, or its replacement, keeps the models from thinking.
        cache_marks: whether the upstream is sent the marks of caches in texts, which the configuration says of each.
        top_k: whether the upstream accepts `top_k`, which a Messages request may have and OpenAI refuses.
        retelling: fields that the step RETELL adds to the request.
        thoughts_in_text: whether a text may begin with thoughts that are marked by `<think>`, `</think>`, or both.
        finishes_each_call: whether the chunk of each call may have a finish reason, with further calls behind it.
        finish_reasons: the upstream's own finish reasons -> OpenAI's; `answers` translates any other unknown one.
        answer_steps: the steps by which the models are made to answer, one for each attempt.
        key_plans: the paths of the upstream's base URLs -> the kind of keys for each, if the kinds differ.
        zone: of the times in its errors that name none.
    """

    name: str
    roles: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    without_max_tokens: re.Pattern[str] | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    efforts: Mapping[str, Json] = field(default_factory=dict)
    unsupported: Mapping[str, Any] = field(default_factory=dict)
    tool_choices: frozenset[str] | None = None
    allowed_tools: bool = True
    honours_no_tools: bool = True
    json_schema: bool = True
    object_properties: bool = False
    whole_functions: bool = False
    string_tool_content: bool = False
    reasoning_field: str | None = None
    native_search: bool = False
    thinking: Mapping[str, Json] = field(default_factory=dict)
    thinking_switch: bool = False
    cache_marks: bool = False
    top_k: bool = False
    retelling: Json = field(default_factory=dict)
    thoughts_in_text: bool = False
    finishes_each_call: bool = False
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    answer_steps: AnswerSteps = DEFAULT_ANSWER_STEPS
    zone: timezone = UTC
    key_plans: Mapping[str, str] = field(default_factory=dict)


OPENAI = Profile(
    name="openai",
    # OpenAI's reasoning models, also behind Azure and gateways: 400 "Use 'max_completion_tokens' instead". Servers of
    # other models may know only max_tokens.
    without_max_tokens=re.compile(r"(?:.*/)?(?:o[1-9]|gpt-5)(?:[-.].*)?"),
    # 400 "object schema missing properties".
    object_properties=True,
)

# Z.AI and bigmodel: from their specification, their SDKs, reports of users, and recordings.
GLM = Profile(
    name="glm",
    zone=CHINA,
    # The specification's roles are system, user, assistant and tool.
    roles={"developer": "system"},
    # Not in the specification; max_tokens is.
    fields={"max_completion_tokens": "max_tokens"},
    # temperature [0, 1] in the specification; for top_p the Python SDK keeps to 0.01 ... 0.99.
    ranges={"temperature": (0, 1), "top_p": (0.01, 0.99)},
    # A list in the specification.
    lists=frozenset({"stop"}),
    # GLM-5.3 accepts low, high and max; models before 5.2 only turn thinking on or off.
    efforts={
        "none": {"thinking": {"type": "disabled"}},
        "minimal": {"thinking": {"type": "disabled"}},
        "medium": {"reasoning_effort": "high"},
        "xhigh": {"reasoning_effort": "max"},
    },
    # Not in the specification, and the proxy cannot do it instead.
    unsupported={"n": 1, "logprobs": False, "top_logprobs": 0},
    # Other values are refused: 400 "Tool choice must be auto".
    tool_choices=frozenset({"auto"}),
    allowed_tools=False,
    honours_no_tools=False,
    # Only text and json_object.
    json_schema=False,
    # name, description and parameters are required.
    whole_functions=True,
    # An empty result makes a conversation fail (1213, 1214).
    string_tool_content=True,
    # Interleaved thinking needs the reasoning back unchanged; GLM-5 loops when it is dropped.
    reasoning_field="reasoning_content",
    native_search=True,
    thinking_switch=True,
    # A blank answer after a tool result has been seen to become a real one without thinking.
    retelling={"thinking": {"type": "disabled"}},
    # Servers without a parser of GLM's thoughts, and some with one.
    thoughts_in_text=True,
    # GLM-4.5 in recordings: `tool_calls` with each of two calls, and once more at the end.
    finishes_each_call=True,
    finish_reasons={"sensitive": "content_filter", "model_context_window_exceeded": "length"},
    # The wrong endpoint only reports that the key is wrong, or that it has no credit.
    key_plans={"/api/coding/paas/v4": "coding-plan keys", "/api/paas/v4": "pay-as-you-go keys"},
)

# gpt-oss behind GMI Cloud and servers like it (vLLM, SGLang).
GPT_OSS = Profile(
    name="gpt_oss",
    # The prompt format has low, medium and high; vLLM answers 400 to other values.
    efforts={
        "none": {"reasoning_effort": "low"},
        "minimal": {"reasoning_effort": "low"},
        "xhigh": {"reasoning_effort": "high"},
        "max": {"reasoning_effort": "high"},
    },
    # The model always thinks, and least with the lowest effort.
    thinking={"disabled": {"reasoning_effort": "low"}, "enabled": {}},
    thinking_switch=True,
    # A sampling parameter of vLLM and SGLang.
    top_k=True,
    # vLLM and SGLang know no such choice.
    allowed_tools=False,
    # vLLM ignores `none` and keeps the tools in the prompt (PR 30867 and a flag change that).
    honours_no_tools=False,
    # vLLM reads thoughts only under this name, and the model needs them back during a tool loop. The field is added, so
    # that servers that read reasoning_content still find it.
    reasoning_field="reasoning",
    # If its tools are withdrawn in the middle of a conversation that used them, the model writes arguments of the
    # browser that it was trained with, {"cursor": 2, "id": 2}. So tools are never withdrawn; the results are retold
    # instead.
    answer_steps=(AnswerStep.NOTICE, AnswerStep.NOTICE, AnswerStep.RETELL),
)

PROFILES = {profile.name: profile for profile in (GLM, GPT_OSS, OPENAI)}
