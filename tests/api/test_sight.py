"""A picture in a conversation with a model that sees none: the model gets a note, and the session goes on."""

import orjson
import pytest

from proxy.loop.prompts import PICTURE_UNSEEN
from proxy.upstreams.sight import KNOWN_SECONDS
from tests.api.surfaces import RELAY_TOO
from tests.fakes import FakeClock, Reply, turn

LOOK = [{"role": "user", "text": "What is on it?", "picture": "data"}]
BLIND = "this model does not support image input"


def text_only(message=BLIND, status=400):
    """A model that refuses pictures, and answers otherwise."""

    def reply(request):
        if "image_url" not in str(request["messages"]):
            return turn("I cannot see it.")(request)
        return Reply([orjson.dumps({"error": {"message": message, "code": "1210"}})], status=status)

    return reply


def pictures(surface):
    """Of each request to the upstream whether it has the picture, the note, or neither."""
    sent = [body.decode() for body in surface.upstream.bodies]
    return ["picture" if "image_url" in one else "note" if PICTURE_UNSEEN in one else "" for one in sent]


@RELAY_TOO
@pytest.mark.parametrize("profile", ["openai", "glm"])
async def test_a_model_that_refuses_a_picture_is_asked_again_with_a_note(surface, profile):
    clock = FakeClock()
    async with surface.proxy(text_only(), profile=profile, clock=clock) as client:
        answer = await client.ask(messages=LOOK)
        assert (answer.text, answer.error) == ("I cannot see it.", None)
        assert pictures(surface) == ["picture", "note"]
        await client.ask(messages=LOOK)
        assert pictures(surface) == ["picture", "note", "note"]
        clock.now += KNOWN_SECONDS
        await client.ask(messages=LOOK)
        assert pictures(surface)[3:] == ["picture", "note"]


@RELAY_TOO
@pytest.mark.parametrize("status", [404, 500])
async def test_a_refusal_of_a_picture_with_another_status_is_understood(surface, status):
    answer = await surface.ask(text_only(status=status), messages=LOOK)
    assert answer.text == "I cannot see it."
    assert pictures(surface) == ["picture", "note"]


@RELAY_TOO
async def test_words_of_the_conversation_make_no_model_blind(surface):
    async with surface.proxy(text_only()) as client:
        answer = await client.ask(messages=[{"role": "user", "text": f"Why {BLIND}?", "picture": "data"}])
        assert answer.text == "I cannot see it."
        await client.ask(messages=LOOK)
        assert pictures(surface) == ["picture", "note", "picture", "note"]


@RELAY_TOO
async def test_a_refusal_that_notes_do_not_mend_is_told_and_teaches_nothing(surface):
    refusal = Reply([orjson.dumps({"error": {"message": BLIND}})], status=400)
    async with surface.proxy(refusal, refusal, turn("A cat.")) as client:
        assert (await client.ask(messages=LOOK)).status == 400
        assert (await client.ask(messages=LOOK)).text == "A cat."
        assert pictures(surface) == ["picture", "note", "picture"]


@RELAY_TOO
async def test_a_configured_vision_model_gets_the_picture(surface):
    config = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0}}
models:
  m: {{upstream: up, vision_model: eyes}}
tools: {{}}
{more}
"""
    await surface.ask(turn("A cat."), config=config, messages=LOOK)
    assert [one["model"] for one in surface.upstream.requests] == ["eyes"]
    assert pictures(surface) == ["picture"]
