"""GLM at Z.AI and bigmodel: what its specification, its SDKs, its users' reports and recordings say of it."""

from proxy.loop.forcing import AnswerStep
from proxy.upstreams.profile import Profile

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
    refused={"n": 1, "logprobs": False, "top_logprobs": 0},
    # Anything else is refused: 400 "Tool choice must be auto".
    tool_choices=frozenset({"auto"}),
    honours_no_tools=False,
    # text and json_object only.
    json_schema=False,
    # name, description and parameters are required.
    whole_functions=True,
    # An empty result makes a conversation fail (1213, 1214).
    string_tool_content=True,
    # Interleaved thinking wants it back unchanged; GLM-5 loops when it is dropped.
    reasoning_field="reasoning_content",
    native_search=True,
    # A blank answer after a tool result: without thinking it has been seen to come.
    retelling={"thinking": {"type": "disabled"}},
    finish_reasons={"sensitive": "content_filter", "model_context_window_exceeded": "length"},
    # Seen with empty content and an orderly [DONE].
    failures=frozenset({"network_error"}),
    answer_steps=(AnswerStep.NOTICE, AnswerStep.WITHDRAW, AnswerStep.RETELL),
)
