"""Which requests ask for JSON."""

from time import process_time

import pytest

from proxy.loop.asked_json import AskedJson, asked_json

ASKING = [
    "Answer in JSON.",
    "Reply in json",
    "Give me the result as JSON",
    "Return a JSON object with the keys a and b.",
    "Return only a single, valid, minified JSON object.",
    "Respond with JSON.",
    "respond with json only",
    "Output: JSON",
    "Output format:\n```json\n{}\n```",
    "Use the JSON format.",
    "The answer must be valid JSON",
    "Your response should be a JSON array.",
    "Write nothing but JSON.",
    "Do not output anything but JSON.",
    "Do not wrap the answer in prose. JSON only!",
    "Convert it to JSON",
    "List the users. JSON please.",
    "Follow this JSON schema: {}",
    "Extract the names.\nJSON:",
    "Antworte als JSON",
    "Antworte im JSON-Format.",
    "Gib ein JSON-Objekt aus.",
    "Responde en JSON",
    "Responda em formato JSON",
    "Donne le tout au format JSON",
    "Rispondi in formato JSON",
    "用JSON回答",
    "JSON格式",
    "Réponds avec du JSON",
    "Ответь JSON",
    "Never show raw JSON to the user, but answer me in JSON.",
]

MENTIONING = [
    "Never show raw JSON to the user.",
    "How do I parse json in Python? Search for it.",
    "What is JSON?",
    "Never output raw JSON.",
    "Do not answer in JSON.",
    "You mustn't return JSON",
    "Don’t ever respond with raw JSON to users.",
    "Is json faster than yaml?",
    "My file package.json is broken.",
    "The tools speak JSON. Answer briefly.",
    "Hello.",
]


def asked(text, role="user", **request):
    return asked_json(request, [{"role": role, "content": text}])


@pytest.mark.parametrize("text", ASKING)
def test_words_that_ask_for_json_are_heard(text):
    assert asked(text) is AskedJson.IN_WORDS


@pytest.mark.parametrize("text", MENTIONING)
def test_words_that_only_mention_json_do_not_ask_for_it(text):
    assert asked(text) is AskedJson.NO


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", AskedJson.IN_WORDS),
        ("developer", AskedJson.IN_WORDS),
        ("assistant", AskedJson.NO),
        ("tool", AskedJson.NO),
    ],
)
def test_only_those_who_give_orders_can_ask(role, expected):
    assert asked("Answer in JSON.", role) is expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("json_object", AskedJson.BY_FORMAT), ("json_schema", AskedJson.BY_FORMAT), ("text", AskedJson.NO)],
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
