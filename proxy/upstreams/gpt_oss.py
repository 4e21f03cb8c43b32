"""gpt-oss behind GMI Cloud, and servers like it (vLLM, SGLang)."""

from proxy.core.actions import Rung
from proxy.upstreams.profile import Profile

GPT_OSS = Profile(
    name="gpt_oss",
    # Without its tools in the middle of a conversation that used them, it writes the arguments of the browser that it
    # was trained with, {"cursor": 2, "id": 2}: so they are never withdrawn; the results are retold instead.
    ladder=(Rung.NOTICE, Rung.NOTICE, Rung.RETELL),
)
