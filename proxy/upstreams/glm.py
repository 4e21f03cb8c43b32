"""GLM at Z.AI and bigmodel."""

from proxy.core.actions import Rung
from proxy.upstreams.profile import Profile

GLM = Profile(
    name="glm",
    # The specification's roles are system, user, assistant and tool.
    roles={"developer": "system"},
    # Not in the specification; max_tokens is.
    fields={"max_completion_tokens": "max_tokens"},
    # Anything else is refused: 400 "Tool choice must be auto".
    tool_choices=frozenset({"auto"}),
    finish_reasons={"sensitive": "content_filter", "model_context_window_exceeded": "length"},
    # Seen with empty content and an orderly [DONE].
    failures=frozenset({"network_error"}),
    ladder=(Rung.NOTICE, Rung.WITHDRAW, Rung.RETELL),
)
