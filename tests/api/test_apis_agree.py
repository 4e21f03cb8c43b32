"""The three APIs agree: for the same upstream answers, a client is told the same on each of them, whole and streamed.

Messages and Responses have the same parts in the same order. A chat completion has no order of its own: a stream has the
thoughts, the texts and the calls of all turns, and a whole one those of the last turn. What is relayed as bytes is not
compared.
"""

import re
from itertools import groupby

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.answer import Call, ServerCall, Text, Thoughts
from tests.api.surfaces import Client, Surface
from tests.api.test_one_path import CONFIG, SCHEMA, conversations, found, replying
from tests.player.sdks import Sdks
from tests.serving import proxy_of

EXAMPLES = 150
asked = st.fixed_dictionaries({
    "model": st.sampled_from(["m", "m", "m", "glm", "oss"]),
    "format": st.sampled_from([None, None, "schema"]),
    "thinking": st.booleans(),
    "events": st.sampled_from([None, None, "true"]),
    "search": st.sampled_from([True, True, False]),  # whether the client declares a search
    "server_tools": st.sampled_from([None, None, "none"]),
    "upstream": st.sampled_from(["streams where asked", "streams where asked", "streams", "does not stream"]),
})  # fmt: skip
KINDS = ("chat", "responses", "messages")
ITEMS = ("responses", False)
REFUSED = "Icannot."  # of `conversations`, without blanks


@pytest.fixture
async def url(upstream):
    async with proxy_of(upstream, config=CONFIG) as url:
        yield url


@pytest.fixture
async def sdks():
    async with Sdks() as sdks:
        yield sdks


@settings(
    max_examples=max(EXAMPLES, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(conversation=conversations, options=asked)
async def test_apis_show_the_same_thoughts_texts_and_calls(upstream, url, sdks, conversation, options):
    async def ask(kind, *, streaming):
        upstream.restart(replying(conversation, options), search=found)
        words = {name: options[name] for name in ("model", "thinking", "events", "search", "server_tools")}
        schema = SCHEMA if options["format"] else None
        words = {name: value for name, value in words.items() if value is not None}
        client = Client(Surface(kind, streaming, upstream), url, sdks)
        answer = await client.ask(functions=["mine", "other"], schema=schema, **words)
        return answer, len(upstream.requests)

    told = {(kind, streaming): await ask(kind, streaming=streaming) for kind in KINDS for streaming in (False, True)}
    of_items, most_turns = told[ITEMS]
    for (kind, streaming), (answer, turns) in told.items():
        assert kind == "chat" or (answer.error is None) == (of_items.error is None)
        if of_items.error is None and kind != "chat":
            assert sequence(answer, thinking=options["thinking"]) == sequence(of_items, thinking=options["thinking"])
        # A chat completion is not held to a schema: only the others ask for another answer.
        elif of_items.error is None and options["server_tools"] != "none" and turns == most_turns:
            same_in_chat(answer, of_items, is_whole=not streaming)


def sequence(answer, *, thinking):
    """The parts of an answer in order, each with its kind; a refusal is a text, whatever its API makes of it."""
    parts = [one for one in map(plain, answer.parts) if one[1] and (thinking or one[0] is not Thoughts)]
    merged = [(kind, [words for _, words in group]) for kind, group in groupby(parts, key=lambda part: part[0])]
    return [(kind, "".join(words) if kind is Text else words) for kind, words in merged]


def plain(part):
    """The kind of a part, and its words without blanks."""
    match part:
        case Text(text) | Thoughts(text):
            return type(part), blankless(text)
        case Call(_, name, arguments):
            # The Messages API has an object, whatever the model wrote.
            return Call, (name, blankless(arguments).replace(",}", "}") or "{}")
        case ServerCall(name, arguments, failed):
            return ServerCall, (name, failed)


def blankless(text):
    return re.sub(r"\s", "", text)


def same_in_chat(chat, items, *, is_whole):
    """Expect that a chat completion says what the items of a response say."""
    assert of_kind(chat, Call) == of_kind(items, Call)
    refused = blankless(chat.whole["choices"][0]["message"].get("refusal") or "")
    assert refused.count(REFUSED) <= "".join(of_kind(items, Text)).count(REFUSED)
    for kind in (Text, Thoughts):
        said, told = ("".join(of_kind(answer, kind)).replace(REFUSED, "") for answer in (chat, items))
        assert told.endswith(said) if is_whole else said == told


def of_kind(answer, kind):
    """The words of the parts of one kind."""
    return [plain(part)[1] for part in answer.of(kind)]
