"""Sealed texts that somebody has forged who knows a placeholder key: ignored, or refused with a fault; never a 500."""

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.api.access import Caller
from proxy.api.sealed import Sealer, SealingKeys
from proxy.config.model import Config, UpstreamConfig
from proxy.kit.secrets import Secrets
from tests import hostile
from tests.api.messages.asking import SEARCH
from tests.api.responses.asking import HOSTED
from tests.fakes import streamed, whole
from tests.serving import proxy_of

PLACEHOLDER = "none"
CONFIG = """
upstreams:
  openai: {{base_url: {upstream}/v1, api_key: none, profile: openai, retries: 0, breaker: {{failures: 1000000}}}}
  glm: {{base_url: {upstream}/v1, api_key: none, profile: glm, retries: 0, breaker: {{failures: 1000000}}}}
models:
  m: {{upstream: openai}}
  glm: {{upstream: glm, vision_model: m}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}}}
{more}
"""
UPSTREAM = UpstreamConfig(base_url="http://up", api_key=PLACEHOLDER)
CONFIG_OF_KEYS = Config(upstreams={"openai": UPSTREAM, "glm": UPSTREAM})
KEYS = SealingKeys(Secrets, CONFIG_OF_KEYS, now=float).for_caller(Caller())
RUN = "a" * 32
CALL = {
    "id": "u1",
    "type": "function",
    "index": 0,
    "function": {"name": "f", "arguments": "{}", "thought": 1},
    "extra_content": {"google": {"thought_signature": "s"}},
}
HIDDEN = {
    "before": [
        {"role": "assistant", "content": "Hm.", "tool_calls": [CALL], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "u1", "content": "found"},
    ],
    "message": {"role": "assistant", "content": None, "tool_calls": [CALL, CALL], "reasoning_details": [{"text": "s"}]},
    "results": {"0": "found"},
    "client_ids": {f"call_{RUN}_1": 1},
    "sources": {"https://a.example/": "A"},
}
CARRIED = {
    "message": {"reasoning_details": [{"text": "s"}], "content": "x", "tool_calls": [CALL], "role": "assistant"},
    "calls": {f"call_{RUN}_0": {"extra_content": {"google": {}}, "function": {"thought": 1}, "type": "function"}},
}
DOCUMENTS = st.sampled_from([
    {"run": RUN, "hidden": HIDDEN},
    {"run": RUN, "hidden": {"carried": [CARRIED]}},
    {"thoughts": "Hm."},
    {"text": "Hm.", "carried": CARRIED},
    {"text": "Hm.", "carried": CARRIED, "run": RUN, "hidden": HIDDEN, "thoughts": "Hm."},
])  # fmt: skip


def items(sealed):
    call = f"call_{RUN}_1"
    return [
        {"role": "user", "content": "?"},
        {"type": "reasoning", "summary": [], "encrypted_content": sealed},
        {"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call, "output": "1"},
        {"role": "user", "content": "?"},
    ]


def messages(sealed, prefix):
    page = {"type": "web_search_result", "url": "https://a.example/", "title": "A", "encrypted_content": sealed}
    call = f"toolu_{RUN}_0_1"
    blocks = [
        {"type": "thinking", "thinking": "", "signature": prefix + sealed},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page]},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": [], "encrypted_content": sealed},
        {"type": "thinking", "thinking": "shown", "signature": prefix + sealed},
        {"type": "tool_use", "id": call, "name": "f", "input": {}},
    ]
    result = {"type": "tool_result", "tool_use_id": call, "content": "1"}
    asked = {"role": "user", "content": "?"}
    said = [blocks[0], {"type": "text", "text": "Hm."}]
    return [
        asked,
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": said},
        asked,
    ]


@pytest.fixture
async def proxy(upstream):
    async with proxy_of(upstream, config=CONFIG) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(held=hostile.mutated(DOCUMENTS, most=2), model=st.sampled_from(["m", "glm"]), streaming=st.booleans())
@example(held={"text": "a", "carried": {"message": {"tool_calls": 5}}}, model="m", streaming=False)
async def test_a_forged_text_is_never_a_500(proxy, upstream, held, model, streaming):
    upstream.restart([(streamed if streaming else whole)("See https://a.example/ .")])
    sealed = Sealer(KEYS, Caller().scope).seal_bytes(hostile.written(held))
    requests = [("/v1/responses", {"input": items(sealed), "tools": [HOSTED], "store": False})]
    requests += [
        ("/v1/messages", {"messages": messages(sealed, prefix), "tools": [SEARCH], "max_tokens": 9})
        for prefix in ("", "carried-")
    ]
    for path, fields in requests:
        response = await proxy.post(path, json={"model": model, "stream": streaming, **fields})
        assert response.status_code in (200, 400), (path, response.text)
        assert "internal_error" not in response.text
        if response.status_code == 200:
            orjson.loads(upstream.bodies[-1])
