"""Which requests ask for JSON."""

from time import process_time

import pytest

from proxy.turn.citations import CITATIONS
from proxy.turn.json_mode import JsonMode, json_mode, with_bare_json
from proxy.wire.chat import Turn

ASKING = [
    "Answer in JSON.",
    "I want JSON: {...}",
    "Where is Paris? (json)",
    "Do not output anything but JSON.",
    "Do not wrap the JSON in a code fence.",
    "You must not reply with anything that isn't JSON.",
    "Translate the following JSON into French: {}",
    "How do I parse json in Python?",
    "Antworte als JSON",
    "Donne-moi un objet JSON",
    "JSON olarak cevap ver",
    "用JSON回答",
    "Never show raw JSON to the user, but answer me in JSON.",
]

FORBIDDING = [
    "Never show raw JSON to the user.",
    "Never output raw JSON.",
    "Do not answer in JSON.",
    "You mustn't return JSON",
    "Don’t ever respond with raw JSON to users.",
]


def asked(text, role="user", **request):
    return json_mode(request, [{"role": role, "content": text}])


@pytest.mark.parametrize("text", ASKING)
def test_words_that_name_json_ask_for_it(text):
    assert asked(text) is JsonMode.BY_PROMPT


@pytest.mark.parametrize("text", [*FORBIDDING, "Hello."])
def test_words_that_forbid_json_or_do_not_name_it_do_not_ask_for_it(text):
    assert asked(text) is JsonMode.NO


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", JsonMode.BY_PROMPT),
        ("developer", JsonMode.BY_PROMPT),
        ("assistant", JsonMode.NO),
        ("tool", JsonMode.NO),
    ],
)
def test_only_those_who_give_orders_can_ask(role, expected):
    assert asked("Answer in JSON.", role) is expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("json_object", JsonMode.BY_FORMAT), ("json_schema", JsonMode.BY_FORMAT), ("text", JsonMode.NO)],
)
def test_a_response_format_demands_json(kind, expected):
    assert asked("Hello.", response_format={"type": kind}) is expected


@pytest.mark.parametrize("piece", ["in the ", "return ", "json ", "never output ", "a " * 9, "\n", "do not "])
def test_a_long_message_is_searched_in_a_time_that_grows_with_its_length(piece):
    def seconds(length):
        text = piece * (length // len(piece)) + "What is json"
        begun = process_time()
        asked(text)
        return process_time() - begun

    # Of work in a regular expression there is no count: twice the length takes twice as long, or four times.
    assert min(seconds(256_000) for _ in range(3)) < 40 * min(seconds(16_000) for _ in range(3))


def held(*texts, **first):
    """Chunks that hold back these texts, after a chunk with thoughts."""
    deltas = [{"reasoning_content": "Hm."}, *({"content": text} for text in texts)]
    deltas[1] |= first
    return tuple({"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas)


def bare(text, buffered=()):
    turn = with_bare_json(Turn({"role": "assistant", "content": text}, "stop", buffered=buffered))
    return turn.message["content"], [one["choices"][0]["delta"] for one in turn.buffered]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("\n``` \n[1]```\n", "[1]"),
        ('<think>Hm.</think>\n{"a": 1}', '{"a": 1}'),
        ('<think>Hm.</think>```json\n{"a": 1}\n```', '{"a": 1}'),
        ('{"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1\n```', '```json\n{"a": 1\n```'),
        ('<think>{"a": 1}', '<think>{"a": 1}'),
        ('Here: ```{"a": 1}```', 'Here: ```{"a": 1}```'),
        (None, None),
    ],
)
def test_json_in_a_fence_or_behind_thoughts_is_taken_out_of_it(text, shown):
    assert bare(text) == (shown, [])


def test_json_is_taken_out_of_the_chunks_that_hold_it_wherever_they_are_cut():
    text = '```json\n{"a": 1}\n```'
    for at in range(1, len(text)):
        shown, (thoughts, *deltas) = bare(text, held(text[:at], text[at:]))
        assert (shown, thoughts) == ('{"a": 1}', {"reasoning_content": "Hm."})
        assert "".join(delta["content"] for delta in deltas) == '{"a": 1}'
    assert bare(text, held("other")) == ('{"a": 1}', [{"reasoning_content": "Hm."}, {"content": "other"}])


def test_citations_move_with_the_json_that_is_taken_out():
    cited = {CITATIONS: [(12, "https://a.example/")]}
    _, (_, delta) = bare('```json\n{"a": 1}\n```', held('```json\n{"a": 1}\n```', **cited))
    assert delta == {"content": '{"a": 1}', CITATIONS: [(4, "https://a.example/")]}
