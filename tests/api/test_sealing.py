"""Conversations that clients carry themselves go on when the proxy or its configuration has changed between requests."""

from contextlib import AsyncExitStack

import pytest

from tests.api.messages import asking
from tests.api.messages.asking import follow_up
from tests.api.responses.asking import DOOR, HOSTED
from tests.api.responses.asking import ask as respond
from tests.fakes import FakeUpstream, whole
from tests.serving import CONFIG, proxy_of

THOUGHT = "The door is behind the curtain."
FOUND = "Something found."
KEY = "upstream-secret"
OTHER_KEY = CONFIG.replace(KEY, "another-key-of-the-upstream")
ANOTHER = CONFIG.replace("models:\n", "  two: {{base_url: {upstream}/v2, api_key: its-own-key}}\nmodels:\n")
WORDS = "a-passphrase-of-the-operator"


def first_turns():
    """A search, and then a call of the client's own, each after a thought."""
    calls = (("u1", "web_search", {"query": "doors"}), ("u2", "open_door", {"door": 1}))
    return [whole(calls=[call], reasoning_content=THOUGHT) for call in calls]


async def messages_surface(first, later):
    options = {
        "tools": [asking.SEARCH, asking.DOOR],
        "max_tokens": 4000,
        "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
    }
    answer = await asking.ask(first, streaming=False, **options)
    [call] = [block for block in answer["content"] if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "opened"}
    for url in later:
        await asking.ask(url, streaming=False, messages=follow_up(answer, result), **options)


async def responses_surface(first, later):
    options = {"tools": [HOSTED, DOOR], "store": False, "include": ["reasoning.encrypted_content"]}
    answer = await respond(first, options, streaming=False)
    [call] = [item for item in answer["output"] if item["type"] == "function_call"]
    sealed = [{**item, "content": []} if item["type"] == "reasoning" else item for item in answer["output"]]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "opened"}
    history = [{"role": "user", "content": "What is new?"}, *sealed, result]
    for url in later:
        await respond(url, options | {"input": history}, streaming=False)


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


@pytest.mark.parametrize("surface", [messages_surface, responses_surface])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_sealed_thoughts_and_searches_are_read_after(tmp_path, request, change, surface):
    upstream = FakeUpstream([*first_turns(), whole("Done.")])
    urls = {"sqlite": f"url: 'sqlite:///{tmp_path}/state.db'"}
    if "redis" in change:
        urls["redis"] = f"url: '{request.getfixturevalue('redis_server').url}'"
    before, first, after, second = change
    states = [", ".join(urls.get(part, part) for part in state.split(", ")) for state in (before, after)]
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(proxy_of(upstream, config=config, more=f"state: {{{state}}}"))
            for config, state in zip((first, second), states, strict=True)
        ]
        await surface(one, [one, two])
    same, changed = upstream.requests[2:]
    assert changed["messages"] == same["messages"]
    sent = str(changed["messages"])
    assert sent.count(THOUGHT) == 2
    assert FOUND in sent


async def test_with_another_secret_they_are_left_out_and_the_conversation_goes_on(upstream):
    upstream.replies = [*first_turns(), whole("Done.")]
    async with (
        proxy_of(upstream, more="state: {secret: one-secret-of-the-operator}") as one,
        proxy_of(upstream, more="state: {secret: another-one-of-the-operator}") as two,
    ):
        for surface in (messages_surface, responses_surface):
            upstream.restart([*first_turns(), whole("Done.")])
            await surface(one, [two])
            assert THOUGHT not in str(upstream.requests[2])
