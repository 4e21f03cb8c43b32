"""Every surface passes the pieces of a text on as they are written, with tools in play and whatever the profile."""

import httpx
import orjson
import pytest

from tests.fakes import Reply, chunk
from tests.prose import PAGES, joined_and_split, tokens
from tests.serving import CONFIG, proxy_of

END = chunk({"content": "."}, "stop")
QUESTION = [{"role": "user", "content": "Go on."}]
REQUESTS = {
    "chat": ("/v1/chat/completions", {"messages": QUESTION}),
    "responses": ("/v1/responses", {"input": QUESTION}),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 9000, "thinking": {"type": "adaptive"}}),
}


def text_of(event):
    """The text or the thoughts in an event of any surface; None: it has none."""
    if choices := event.get("choices"):
        delta = choices[0]["delta"]
        return delta.get("content") or delta.get("reasoning_content")
    match event.get("type"):
        case "response.output_text.delta" | "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
            return event["delta"]
        case "content_block_delta":
            return event["delta"].get("text") or event["delta"].get("thinking")
    return None


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
@pytest.mark.parametrize("profile", ["glm", "gpt_oss", "openai"])
@pytest.mark.parametrize("surface", REQUESTS)
async def test_of_a_page_of_prose_one_piece_in_a_hundred_is_joined_at_most(upstream, surface, profile, field):
    path, request = REQUESTS[surface]
    total = joined = 0
    config = CONFIG.replace("profile: openai", f"profile: {profile}")
    async with proxy_of(upstream, config=config) as url, httpx.AsyncClient(timeout=30) as client:
        for page in ("english", "markdown", "chinese"):
            given = tokens(PAGES[page], seed=1)
            events = [*(chunk({field: piece}) for piece in given), END, b"data: [DONE]\n\n"]
            upstream.replies = [Reply([b"".join(events)], content_type="text/event-stream")]
            answer = await client.post(f"{url}{path}", json={"model": "m", "stream": True, **request})
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            shown = [text for line in lines if (text := text_of(orjson.loads(line)))]
            given.append(".")
            waited, split = joined_and_split(given, shown)
            assert split == 0
            total, joined = total + len(given), joined + waited
    assert joined <= total / 100
