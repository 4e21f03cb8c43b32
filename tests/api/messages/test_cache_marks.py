"""`cache_control` in texts, which goes to the upstreams that take it (`upstreams.NAME.cache_marks`)."""

import pytest
from httpx import AsyncClient

from tests.fakes import Reply, whole
from tests.serving import proxy_of

CONFIG = """
upstreams:
  takes: {{base_url: '{upstream}/v1', api_key: k1234567, profile: glm, retries: 0, cache_marks: true}}
  refuses: {{base_url: '{upstream}/v1', api_key: k1234567, retries: 0}}
models:
  marked: {{upstream: takes}}
  falls-back: {{upstream: takes, fallbacks: [plain]}}
  plain: {{upstream: refuses}}
{more}
"""
MARK = {"cache_control": {"type": "ephemeral"}}
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def text(text, **fields):
    return {"type": "text", "text": text, **fields}


def body(model, *said):
    system = [text("x-anthropic-billing-header: 7"), text("Be brief."), text("Be kind.", **MARK)]
    messages = [{"role": "user", "content": [*said, text("More.", **MARK)]}]
    return {"model": model, "max_tokens": 50, "system": system, "messages": messages}


async def asked(upstream, model, *said, replies=1):
    """The messages that the upstream got in the last call."""
    async with proxy_of(upstream, config=CONFIG) as url, AsyncClient(base_url=url) as http:
        assert (await http.post("/v1/messages", json=body(model, *said))).status_code == 200
    assert len(upstream.requests) == replies
    return [(message["role"], message["content"]) for message in upstream.requests[-1]["messages"]]


@pytest.mark.parametrize("model", ["marked", "falls-back"])
async def test_marks_of_texts_go_to_an_upstream_that_takes_them(upstream, model):
    upstream.replies = [whole("Yes.")]
    assert await asked(upstream, model, text("Hello.")) == [
        ("system", [text("Be brief."), text("\n\nBe kind.", **MARK)]),
        ("user", [text("Hello."), text("\n\nMore.", **MARK)]),
    ]


async def test_marks_are_left_out_for_any_other_upstream(upstream):
    upstream.replies = [whole("Yes.")]
    assert await asked(upstream, "plain", text("Hello.")) == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "Hello.\n\nMore."),
    ]


async def test_marks_are_left_out_for_a_fallback_that_does_not_take_them(upstream):
    upstream.replies = [Reply([b"{}"], status=500), whole("Yes.")]
    _, (_, content) = await asked(upstream, "falls-back", PICTURE, replies=2)
    assert content == [{"type": "image_url", "image_url": {"url": PICTURE["source"]["url"]}}, text("More.")]
