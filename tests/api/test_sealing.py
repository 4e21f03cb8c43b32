"""Conversations that clients carry themselves go on when the proxy or its configuration has changed between requests."""

from contextlib import AsyncExitStack

import pytest

from tests.api.surfaces import DOOR, SEARCH, on
from tests.fakes import turn
from tests.serving import CONFIG

THOUGHT = "The door is behind the curtain."
FOUND = "Something found."
KEY = "upstream-secret"
OTHER_KEY = CONFIG.replace(KEY, "another-key-of-the-upstream")
ANOTHER = CONFIG.replace("models:\n", "  two: {{base_url: {upstream}/v2, api_key: its-own-key}}\nmodels:\n")
WORDS = "a-passphrase-of-the-operator"
CARRIED = on("responses-whole", "messages-whole")
# A search, and then a call of the client's own, each after a thought.
REPLIES = turn(thoughts=THOUGHT, calls=[SEARCH]), turn(thoughts=THOUGHT, calls=[DOOR]), turn("Done.")


async def carried(surface, first, *later):
    """Begin at the first proxy, and go on at the later ones, with nothing of the thoughts but what is sealed."""
    surface.upstream.restart(REPLIES)
    if surface.kind == "messages":
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}, "max_tokens": 4000}
        answer = await first.ask(search=True, functions=["open_door"], body=thinking)
    else:
        sealed = {"store": False, "include": ["reasoning.encrypted_content"]}
        answer = await first.ask(search=True, functions=["open_door"], body=sealed)
        for item in answer.folded.history:
            item.update({"content": []} if item["type"] == "reasoning" else {})
    for client in later:
        await client.ask(after=answer, results=["opened"])


CHANGES = {
    "restarted": ("sqlite", CONFIG, "sqlite", CONFIG),
    "another key": ("sqlite", CONFIG, "sqlite", OTHER_KEY),
    "another upstream": ("sqlite", CONFIG, "sqlite", ANOTHER),
    "another replica": ("redis", CONFIG, "redis", ANOTHER),
    "another replica with the same secret": (f"secret: {WORDS}", CONFIG, f"secret: {WORDS}", OTHER_KEY),
    "a changed secret": (f"secret: {WORDS}", CONFIG, f"secret: [the-new-passphrase, {WORDS}]", OTHER_KEY),
    "a secret that is given after one was made": ("sqlite", CONFIG, f"secret: {WORDS}, sqlite", OTHER_KEY),
    "an upgrade from memory": ("", CONFIG.replace(KEY, "sk-5Kq9vT2xWm7Lr3Zp"), "sqlite", CONFIG.replace(KEY, "sk-5Kq9vT2xWm7Lr3Zp")),
}  # fmt: skip


@CARRIED
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_sealed_thoughts_and_searches_are_read_after(tmp_path, request, change, surface):
    urls = {"sqlite": f"url: 'sqlite:///{tmp_path}/state.db'"}
    if "redis" in change:
        urls["redis"] = f"url: '{request.getfixturevalue('redis_server').url}'"
    before, first, after, second = change
    states = [", ".join(urls.get(part, part) for part in state.split(", ")) for state in (before, after)]
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(surface.proxy(config=config, more=f"state: {{{state}}}"))
            for config, state in zip((first, second), states, strict=True)
        ]
        await carried(surface, one, one, two)
    same, changed = surface.upstream.requests[2:]
    assert changed["messages"] == same["messages"]
    sent = str(changed["messages"])
    assert sent.count(THOUGHT) == 2
    assert FOUND in sent


@CARRIED
async def test_with_another_secret_they_are_left_out_and_the_conversation_goes_on(surface):
    async with (
        surface.proxy(more="state: {secret: one-secret-of-the-operator}") as one,
        surface.proxy(more="state: {secret: another-one-of-the-operator}") as two,
    ):
        await carried(surface, one, two)
    assert THOUGHT not in str(surface.upstream.requests[2])
