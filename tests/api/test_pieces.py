"""Every surface passes the pieces of a text on as they are written, with tools in play and whatever the profile."""

import httpx
import orjson
import pytest

from tests.fakes import Reply, chunk
from tests.prose import PAGES, joined_and_split, tokens
from tests.serving import CONFIG, proxy_of

QUESTION = [{"role": "user", "content": "Go on."}]
REQUESTS = {
    "chat": ("/v1/chat/completions", {"messages": QUESTION}),
    "responses": ("/v1/responses", {"input": QUESTION}),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 9000}),
}


def text_of(event):
    """The text in an event of any surface; None: it has none."""
    if choices := event.get("choices"):
        return choices[0]["delta"].get("content")
    match event.get("type"):
        case "response.output_text.delta":
            return event["delta"]
        case "content_block_delta":
            return event["delta"].get("text")
    return None


@pytest.mark.parametrize("profile", ["glm", "gpt_oss", "openai"])
@pytest.mark.parametrize("surface", REQUESTS)
async def test_of_a_page_of_prose_one_piece_in_a_hundred_is_joined_at_most(upstream, surface, profile):
    path, request = REQUESTS[surface]
    total = joined = 0
    config = CONFIG.replace("profile: openai", f"profile: {profile}")
    async with proxy_of(upstream, config=config) as url, httpx.AsyncClient(timeout=30) as client:
        for page in ("english", "markdown", "chinese"):
            given = tokens(PAGES[page], seed=1)
            events = [*(chunk({"content": piece}) for piece in given), chunk({}, "stop"), b"data: [DONE]\n\n"]
            upstream.replies = [Reply([b"".join(events)], content_type="text/event-stream")]
            answer = await client.post(f"{url}{path}", json={"model": "m", "stream": True, **request})
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            shown = [text for line in lines if (text := text_of(orjson.loads(line)))]
            waited, split = joined_and_split(given, shown)
            assert split == 0
            total, joined = total + len(given), joined + waited
    assert joined <= total / 100
