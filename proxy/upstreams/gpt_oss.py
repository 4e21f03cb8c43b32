"""gpt-oss behind GMI Cloud, and servers like it (vLLM, SGLang)."""

from proxy.loop.forcing import AnswerStep
from proxy.upstreams.profile import Profile

GPT_OSS = Profile(
    name="gpt_oss",
    # Its prompt format knows low, medium and high; vLLM answers 400 to others.
    efforts={
        "none": {"reasoning_effort": "low"},
        "minimal": {"reasoning_effort": "low"},
        "xhigh": {"reasoning_effort": "high"},
        "max": {"reasoning_effort": "high"},
    },
    # vLLM ignores it and keeps the tools in the prompt (PR 30867 and a flag change that).
    honours_no_tools=False,
    # vLLM reads thoughts under this name only, and the model needs them back during a tool loop. Servers that know them
    # as reasoning_content find that too: it is added, not renamed.
    reasoning_field="reasoning",
    # Without its tools in the middle of a conversation that used them, it writes the arguments of the browser that it
    # was trained with, {"cursor": 2, "id": 2}: so they are never withdrawn; the results are retold instead.
    answer_steps=(AnswerStep.NOTICE, AnswerStep.NOTICE, AnswerStep.RETELL),
)
