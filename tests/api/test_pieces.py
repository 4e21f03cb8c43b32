"""Every API passes the pieces of a text on as they are written, with tools in play and whatever the profile."""

import orjson
import pytest

from tests.api.surfaces import STREAMS
from tests.fakes import Reply, chunk
from tests.prose import PAGES, joined_and_split, tokens

END = chunk({"content": "."}, "stop")


def text_of(event):
    """The text or the thoughts in an event of any API; None: it has none."""
    if choices := event.get("choices"):
        delta = choices[0]["delta"]
        return delta.get("content") or delta.get("reasoning_content")
    match event.get("type"):
        case "response.output_text.delta" | "response.reasoning_text.delta":
            return event["delta"]
        case "content_block_delta":
            return event["delta"].get("text") or event["delta"].get("thinking")
    return None


@STREAMS
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
@pytest.mark.parametrize("profile", ["glm", "gpt_oss", "openai"])
async def test_of_a_page_of_prose_one_piece_in_a_hundred_is_joined_at_most(surface, profile, field):
    total = joined = 0
    thinking = {"thinking": {"type": "adaptive"}} if surface.kind == "messages" else {}
    async with surface.proxy(profile=profile) as client:
        for page in ("english", "markdown", "chinese"):
            given = tokens(PAGES[page], seed=1)
            events = [*(chunk({field: piece}) for piece in given), END, b"data: [DONE]\n\n"]
            surface.upstream.restart([Reply([b"".join(events)], content_type="text/event-stream")])
            raw = "".join([part async for part in client.read(body=thinking, most=9000)])
            lines = [line[6:] for line in raw.splitlines() if line.startswith("data: {")]
            shown = [text for line in lines if (text := text_of(orjson.loads(line)))]
            given.append(".")
            waited, split = joined_and_split(given, shown)
            assert split == 0
            total, joined = total + len(given), joined + waited
    assert joined <= total / 100
