import re
import sys
from itertools import pairwise
from time import process_time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.turn.json_mode import JsonMode
from proxy.turn.leaks import Leak, clean_name, fits
from proxy.turn.leaks import filter as leak_filter
from proxy.turn.leaks.filter import MAX_BUFFERED, MOST_LOOKS, LeakFilter
from proxy.turn.leaks.glm import split_glued_name
from proxy.turn.leaks.written import holds_raw_format, is_bare_call
from proxy.turn.turn_bounds import MOST_CALLS
from proxy.wire.errors import UpstreamError
from proxy.wire.json_text import json_value
from tests.prose import tokens

SEARCH = {"type": "object", "properties": {"query": {"type": "string"}, "n": {}}, "required": ["query"]}
TOOLS = {"web_search": SEARCH, "webSearch": SEARCH, "open_door": {"type": "object", "properties": {"door": {}}}}
QUERY = Leak("web_search", '{"query":"x"}')


def read(*pieces, tools=TOOLS, **options):
    """What is shown, the calls that were found, and whether raw format was taken out."""
    leaks = LeakFilter(tools, **options)
    shown = "".join([*map(leaks.feed, pieces), leaks.close()])
    return shown, leaks.leaks, leaks.garbled


GLM = "<tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>"
GLM_LINES = "<tool_call>web_search\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
GLM_DOOR = "<tool_call>open_door<arg_key>door</arg_key><arg_value>3</arg_value></tool_call>"
JSON = '{"query":"x"}'
TO = "to=functions.web_search"
GLM_TAIL, GLM_TAIL_LINES = GLM.removeprefix("<tool_call>"), GLM_LINES.removeprefix("<tool_call>")
HERMES_JSON = '{"name": "web_search", "arguments": {"query": "x"}}'
HERMES = f"<tool_call>{HERMES_JSON}</tool_call>"
THOUGHT = "<|channel|>analysis<|message|>I must look.<|end|>"
CALL = f"<|start|>assistant<|channel|>commentary {TO}<|message|>{JSON}<|call|>"

LEAKED = [
    (GLM, "", [QUERY]),
    (f"Let me see.\n{GLM_LINES}\nDone", "Let me see.\n\nDone", [QUERY]),
    (GLM.removesuffix("</tool_call>"), "", [QUERY]),
    (f"<tool_call>web_search\n{JSON}</tool_call>", "", [QUERY]),
    (GLM + GLM_DOOR, "", [QUERY, Leak("open_door", '{"door":3}')]),
    (f"<|channel|>commentary {TO} <|constrain|>json<|message|>{JSON}<|call|>", "", [QUERY]),
    (f"<|start|>assistant {TO}<|channel|>commentary json<|message|>{JSON}", "", [QUERY]),
    (THOUGHT + CALL, "", [QUERY]),
    (f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>Hello<|return|>", "Hello", []),
    (f"<|channel|>commentary {TO} {JSON}", "", [QUERY]),
    ("<tool_call>unknown<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>", "", [Leak("unknown", '{"a":"x"}')]),
    ("<tool_call>functions.web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>", "", [QUERY]),
    (
        "<tool_call>web_search<arg_key>query</arg_key><arg_value>a</tool_call>b</arg_value></tool_call>!",
        "!",
        [Leak("web_search", '{"query":"a</tool_call>b"}')],
    ),
    (f"<|channel|>commentary to= functions.web_search<|message|>{JSON}", "", [QUERY]),
    (f"<|channel|>commentary json<|message|>{JSON}", "", [QUERY]),
    (f"{THOUGHT}The answer is 42.", "The answer is 42.", []),
    (
        f'<|channel|>commentary {TO} {JSON}<|call|><|start|>assistant to=functions.open_door<|message|>{{"door":1}}',
        "",
        [QUERY, Leak("open_door", '{"door":1}')],
    ),
    # harmony without `<|message|>`
    (f"<|channel|>commentary json {JSON}", "", [QUERY]),
    (f"<|channel|>final {JSON.replace('query', 'city')}", '{"city":"x"}', []),
    ("<|channel|>commentary to=functions.open_door", "", [Leak("open_door", "{}")]),
    ("<|start|>assistant to=nobody<|channel|>commentary<|call|>", "", [Leak("nobody", "{}")]),
    (f"{THOUGHT}<|start|>assistant<|channel|>commentary to=open_door", "", [Leak("open_door", "{}")]),
    (JSON, "", [QUERY]),
    (' \n{"door": "front"}\n', "", [Leak("open_door", '{"door": "front"}')]),
    # a call with its name
    (HERMES_JSON, "", [QUERY]),
    (f"\n{HERMES_JSON}\n", "", [QUERY]),
    (r'{"name": "functions.web_search", "arguments": "{\"query\": \"x\"}"}', "", [QUERY]),
    ('{"type": "function", "name": "web_search", "parameters": {"query": "x"}}', "", [QUERY]),
    ('{"name": "open_door", "arguments": {}}', "", [Leak("open_door", "{}")]),
    # GLM-4.5v: its answer in a box, and its call without the opening tag
    ("<|begin_of_box|>42<|end_of_box|>", "42", []),
    ("So: <|begin_of_box|>`a < b`<|end_of_box|>.", "So: `a < b`.", []),
    # Hermes
    (HERMES, "", [QUERY]),
    (f"Let me.\n<tool_call>\n{HERMES_JSON}\n</tool_call>\n", "Let me.\n\n", [QUERY]),
    (f"{HERMES}\n{HERMES}", "\n", [QUERY, QUERY]),
    (HERMES.removesuffix("</tool_call>"), "", [QUERY]),
    ('<tool_call>{"name": "get_it", "arguments": {}}</tool_call>', "", [Leak("get_it", "{}")]),
    ('<tool_call>{"name": "open_door"}</tool_call>', "", [Leak("open_door", "{}")]),
    ("<tool_call>" + r'{"name": "open_door", "arguments": "{\"door\": 1}"}' + "</tool_call>", "", [Leak("open_door", '{"door": 1}')]),
    (
        "<tool_call>" + r'{"name": "web_search", "arguments": {"query": "\"</tool_call>"}}' + "</tool_call>!",
        "!",
        [Leak("web_search", r'{"query":"\"</tool_call>"}')],
    ),
    # harmony without its first marks, as gpt-oss has been seen to think it
    # glued to the sentence before it
    ("<tool_call>open_door</tool_call>!", "!", [Leak("open_door", "{}")]),
    # after marks that are only mentioned
    (f"Of <tool_call> and <|channel|>, we use\n{GLM}", "Of <tool_call> and <|channel|>, we use\n", [QUERY]),
    (f"The <|end|> mark ends it.\n{CALL}", "The <|end|> mark ends it.\n", [QUERY]),
]  # fmt: skip

# Calls whose first mark was lost, with the words before the next mark, which a stream may have shown.
LOST = [
    (f"web_search<|channel|>commentary json<|message|>{JSON}", "", [QUERY], "web_search"),
    (f"functions.web_search<|channel|>commentary<|message|>{JSON}<|call|>", "", [QUERY], "functions.web_search"),
    (f"assistant<|channel|>commentary {TO}<|message|>{JSON}", "", [QUERY], "assistant"),
    (f"Let me.\nweb_search<|channel|>commentary json<|message|>{JSON}", "Let me.\n", [QUERY], "web_search"),
    (f"\u6211\u6765\u641c\u7d22\u4e00\u4e0b{GLM_TAIL}", "\u6211\u6765\u641c\u7d22\u4e00\u4e0b", [QUERY], "web_search"),
    (f"\u597d\u7684commentary {TO}<|message|>{JSON}<|call|>", "\u597d\u7684", [QUERY], "commentary to"),
    (f"web_search<|channel|>commentary {JSON}", "", [QUERY], "web_search"),
    (f"web_search<|channel|>commentary{JSON}", "", [QUERY], "web_search"),
    (f"Hm. web_search<|channel|>commentary\n{JSON}", "Hm. ", [QUERY], "web_search"),
    (f"web_search<|channel|>commentary <|constrain|>json{JSON}<|call|>", "", [QUERY], "web_search"),
    ("open_door<|channel|>commentary", "", [Leak("open_door", "{}")], "open_door"),
    ("open_door<|channel|>commentary json<|message|>", "", [Leak("open_door", "{}")], "open_door"),
    ("Well. functions.open_door<|channel|>commentary json\n", "Well. ", [Leak("open_door", "{}")], "functions.open_door"),
    (f"Ha!\n<|begin_of_box|>{GLM_TAIL_LINES}", "Ha!\n", [QUERY], "web_search\n"),
    (f"Ha! {GLM_TAIL}<|end_of_box|>\nDone", "Ha! \nDone", [QUERY], "web_search"),
    (GLM_TAIL.removesuffix("</tool_call>"), "", [QUERY], "web_search"),
    (f"We call the tool.commentary to=repo.open code<|message|>{JSON}", "We call the tool.", [Leak("repo.open", JSON)], "commentary to"),
    (f"So: commentary {TO} json<|message|>{JSON}<|call|>", "So: ", [QUERY], "commentary to"),
    (f"So {TO}<|message|>{JSON}", "So ", [QUERY], "to"),
    (f"So {TO} <|constrain|>json<|message|>{JSON}", "So ", [QUERY], "to"),
    (f"I must look.assistantcommentary {TO} json<|message|>{JSON}", "I must look.", [QUERY], "assistantcommentary to"),
    (f"I must look.web_search<|channel|>commentary json<|message|>{JSON}", "I must look.", [QUERY], "web_search"),
    (f"I must look.functions.web_search<|channel|>commentary<|message|>{JSON}", "I must look.", [QUERY], "functions.web_search"),
    (f"I must look.assistant<|channel|>commentary {TO}<|message|>{JSON}<|call|>", "I must look.", [QUERY], "assistant"),
    (f"I must look.{GLM_TAIL}", "I must look.", [QUERY], "web_search"),
]  # fmt: skip

NOT_LEAKED = [
    "Hello.",
    "",
    "a < b, `x` and `` y ``",
    "In GLM's syntax, `<tool_call>web_search</tool_call>` is a call.",
    "```\n<tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>\n```\nThat was it.",
    "~~~\n<tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>\n~~~",
    "Written ``<tool_call>web_search<arg_key>query</arg_key>`` in code.",
    "Harmony's tokens: <|channel|> names the channel and <|message|> opens the text, <|end|> closes it.",
    "{1, 2, 3} is a set.",
    "about ~5 or ~~7 <b>",
    "{% for x in y %}",
    '{"id": 7, "source": "db"}',
    "<tool_call>unknown</tool_call>",
    "<tool_call> is a marker, and <|channel|> is one of harmony's.",
    "It goes to <|channel|>commentary to=functions.web_search.",
    "Of the marks it is <|channel|> here",
    "A template: <|channel|>commentary {content}",
    "The channel <|channel|>commentary is for calls.",
    f"<|channel|>commentary {'x' * 400}",
    "The tokens are <|start|>, <|end|> and <|message|>.",
    "web_search is the name of the tool.",
    "assistant",
    "to=nobody",
    '{"answer": 42}',
    '{"door": 1, "other": 2}',
    '{"query": ',
    "{not json}",
    "{}",
    "An answer {with: braces}",
    "<tool_call>",
    "<tool_call></tool_call>",
    "one `unclosed\n<b>bold</b> <",
    "`<|begin_of_box|>` and `<|end_of_box|>` are marks.",
    f"```\n{HERMES}\n<|begin_of_box|>{GLM_TAIL}\n```",
    f"Qwen writes `{HERMES}`.",
    '<tool_call>{"a": 1}</tool_call>',
    '<tool_call>{"name": "nobody"}</tool_call>',
    "<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>",
    "xweb_search<arg_key>query</arg_key>",
    "Send it commentary to=somebody else.",
    "to=somebody code<|message|> is a header.",
    "a basic topic, etc",
    "Written `` ` `` in code.",
    '{"name": "nobody", "arguments": {"query": "x"}}',
    '{"name": "web_search"}',
    '{"name": "web_search", "arguments": "x"}',
    '{"name": "web_search", "arguments": ["x"]}',
    '{"name": "web_search", "description": "Searches.", "parameters": {"type": "object"}}',
    '{"name": "web_search", "argu',
    '{"name": 5, "arguments": {}}',
    '{"type": "event", "name": "web_search"}',
    HERMES_JSON + " is how a call looks.",
    f"So: {HERMES_JSON}",
    "The <|end|> token ends a message, and <|message|> begins its text.",
    "A <|message|> follows; then <|call|>",
    "<|end|> is a token, and so is this.",
    "<|channel|>" + " " * 300 + ", that is all.",
    "<tool_call>" + "x" * 300 + "<arg_key>",
    "See example.com<b>",
    f"{THOUGHT}to=somebody code<|message|>is a header.",
    "`" * 70 + "<tool_call>" + "`" * 70,
]


@pytest.mark.parametrize(("text", "shown", "leaks"), LEAKED + [lost[:3] for lost in LOST])
def test_a_call_that_leaked_is_found_and_never_shown(text, shown, leaks):
    assert read(text) == (shown, leaks, False)


@pytest.mark.parametrize("text", NOT_LEAKED)
def test_what_only_looks_similar_stays_as_it_is(text):
    assert read(text) == (text, [], False)


MARKED = [text for text, *_ in LEAKED] + NOT_LEAKED


@pytest.mark.parametrize("text", MARKED)
def test_one_character_at_a_time_gives_the_same(text):
    assert read(*text) == read(text)


@pytest.mark.parametrize("text", MARKED)
def test_two_pieces_and_tokens_give_the_same(text):
    for at in range(1, len(text)):
        assert read(text[:at], text[at:]) == read(text)
    for seed in range(5):
        assert read(*tokens(text, seed)) == read(text)


@given(st.sampled_from(MARKED), st.lists(st.integers(0, 200)))
def test_any_cut_gives_the_same(text, cuts):
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert read(*(text[a:b] for a, b in pairwise(bounds))) == read(text)


@pytest.mark.parametrize(("text", "shown", "leaks", "words"), LOST)
def test_of_a_call_whose_first_mark_was_lost_a_stream_shows_the_words_before_its_next_mark_at_most(
    text, shown, leaks, words
):
    at = next(at for at in range(len(shown) + 1) if read(*text)[0] == shown[:at] + words + shown[at:])
    possible = [shown[:at] + words[:end] + shown[at:] for end in range(len(words) + 1)]
    cuts = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
    for pieces in [*cuts, *(tokens(text, seed) for seed in range(5))]:
        streamed, *found = read(*pieces)
        assert found == [leaks, False]
        assert streamed in possible


WORDS = [
    "commentary",
    " ",
    "to=",
    "code",
    "x",
    "<arg_key>",
    "<|begin_of_box|>",
    "<tool_call>{",
    '"',
    "<",
    "|",
    "`",
    "```",
    "{",
    "}",
    "<tool_call>",
    "</tool_call>",
    "<|channel|>",
    "<|message|>",
    "web_search",
]
ALPHABET = st.sampled_from([*WORDS, "\n", "a "])


@given(st.lists(ALPHABET), st.lists(ALPHABET))
def test_whatever_comes_a_cut_changes_no_more_than_the_words_before_a_mark_and_nothing_is_made_up(left, right):
    left, right = "".join(left), "".join(right)
    shown, *rest = read(left, right)
    uncut, *same = read(left + right)
    assert rest == same
    more = len(shown) - len(uncut)
    places = [at for at in range(len(uncut) + 1) if shown[:at] + shown[at + more :] == uncut]
    assert any(re.fullmatch(r"[\w.=\s-]*", shown[at : at + more]) for at in places)
    assert len(uncut) <= len(shown) <= len(left + right)


PIECES = [*" \n.=-<`~|{aswebto", "the ", "functions.", "assistant", "web_", "search"]
PROSE = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@given(st.lists(PROSE, max_size=8))
def test_a_piece_that_is_not_looked_at_is_shown_as_if_it_had_been(pieces):
    quick = LeakFilter(TOOLS)
    expected = [*map(quick.feed, pieces), quick.close()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leak_filter, "is_plain", lambda *_: False)
        slow = LeakFilter(TOOLS)
        assert [*map(slow.feed, pieces), slow.close()] == expected
    assert (quick.leaks, quick.garbled) == (slow.leaks, slow.garbled)


def test_plain_text_goes_the_short_way_and_nothing_of_it_is_held():
    leaks = LeakFilter(TOOLS)
    leaks.feed("It")
    for text in (" sails at nine.", " Then it", " comes back, "):
        assert leaks.feed(text) == text


@pytest.mark.parametrize("text", [" to=", " commentary to=functions.open", " to=open_door code"])
def test_a_recipient_waits_for_what_follows(text):
    leaks = LeakFilter(TOOLS)
    leaks.feed("Now")
    first = leaks.feed(text)
    assert first != text
    assert first + leaks.feed(" it is none") == f"{text} it is none"


GARBLED = [
    '<tool_call>{"name": "web_search", "argu',
    '{"cursor": 2, "id": 2}',
    "<tool_call>web_search<arg_key>que",
    THOUGHT,
    '<|channel|>commentary json {"city":"A"}',
    "<|channel|>commentary",
    "<|start|>assistant<|channel|>analysis",
]


@pytest.mark.parametrize("text", GARBLED)
def test_raw_format_that_is_no_call_is_taken_out_and_said_to_have_been_there(text):
    assert read(text) == ("", [], True)


@pytest.mark.parametrize("asked", [JsonMode.BY_PROMPT, JsonMode.BY_FORMAT])
@pytest.mark.parametrize("text", ['{"query":"x"}', '{"id": 3}', '{"name": "nobody", "arguments": {}}'])
def test_json_is_an_answer_where_json_was_asked_for(text, asked):
    assert read(text, json_mode=lambda: asked) == (text, [], False)
    assert read(*text, json_mode=lambda: asked) == (text, [], False)


@pytest.mark.parametrize(
    ("text", "leaks"),
    [(HERMES_JSON, [QUERY]), ('{"cursor": 2, "id": 2}', []), ('{"id": 2, "query": "x, \\"y\\"", "loc": 2}', [])],
)
def test_words_that_ask_for_json_make_no_answer_of_what_is_sure_to_be_a_call_and_a_format_does(text, leaks):
    for pieces in ([text], text):
        assert read(*pieces, json_mode=lambda: JsonMode.BY_PROMPT) == ("", leaks, not leaks)
        assert read(*pieces, json_mode=lambda: JsonMode.BY_FORMAT) == (text, [], False)


def test_a_tool_of_the_browsers_is_called_also_where_words_ask_for_json():
    tools = {"open": {"properties": {"cursor": {}, "id": {}}}}
    text = '{"cursor": 2, "id": 2}'
    assert read(text, tools=tools, json_mode=lambda: JsonMode.BY_PROMPT) == ("", [Leak("open", text)], False)


def test_json_that_words_ask_for_is_shown_as_soon_as_it_cannot_be_a_call():
    leaks = LeakFilter(TOOLS, json_mode=lambda: JsonMode.BY_PROMPT)
    assert [leaks.feed(piece) for piece in ('{"id": 1,', ' "query": "x",', ' "title"', ": 2")] == [
        "",
        "",
        "",
        '{"id": 1, "query": "x", "title": 2',
    ]
    leaks = LeakFilter(TOOLS, json_mode=lambda: JsonMode.BY_PROMPT)
    assert leaks.feed('{"query": "' + "x" * 500) == ""
    assert len(leaks.feed("yy")) == 513


def test_json_is_shown_at_once_where_the_name_in_it_is_no_tools():
    leaks = LeakFilter(TOOLS)
    assert [leaks.feed(piece) for piece in ('{"na', 'me": "web_', 'Shop", ', '"x": 1')] == [
        "",
        "",
        '{"name": "web_Shop", ',
        '"x": 1',
    ]


def test_an_object_that_fits_two_tools_is_guessed_to_be_neither():
    tools = {"a": {"properties": {"key": {}}}, "b": {"properties": {"key": {}}}}
    assert read('{"key": 1}', tools=tools) == ('{"key": 1}', [], False)


def test_text_is_shown_while_it_comes_but_for_what_may_become_a_marker():
    leaks = LeakFilter(TOOLS)
    assert [leaks.feed(piece) for piece in ("Hello <", "b> and <tool", "_c", "old>")] == [
        "Hello ",
        "<b> and ",
        "",
        "<tool_cold>",
    ]


@pytest.mark.parametrize(
    "opening",
    ["<tool_call>", "<|channel|>", "{", "<tool_call>x<arg_key>", "<|channel|>final<|message|>", '{"query": "'],
)
def test_no_more_is_held_back_than_a_call_may_be_long(opening):
    leaks = LeakFilter(TOOLS)
    leaks.feed(opening)
    assert len(leaks.feed("x" * MAX_BUFFERED)) == MAX_BUFFERED + len(opening)


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("web_search", "web_search"),
        ("web_search<|channel|>commentary", "web_search"),
        ("functions.web_search", "web_search"),
        ("to=functions.web_search", "web_search"),
        ("assistant<|channel|>web_search<|channel|>commentary", "web_search"),
        ("web_search<arg_key>query</arg_key>", "web_search"),
        ("<|constrain|>commentary", "commentary"),
        ("unknown<|channel|>", "unknown"),
        ("<|end|>", "<|end|>"),
        ("<tool_call>web_search", "web_search"),
        ("web_search</tool_call>", "web_search"),
        ("web_search</arg_key>", "web_search"),
        ("web_search</arg_value></tool_call>", "web_search"),
        ("web_search</tool_", "web_search"),
        ("web_search\n", "web_search"),
        ("web_search<arg_value>open_door</arg_value>", "web_search"),
        ("web_search_images", "web_search_images"),
        ("web_search_images</tool_call>", "web_search_images"),
        ("my web_search", "my web_search"),
        ("searching<arg_key>web_search", "searching"),
    ],
)
def test_a_name_loses_what_is_glued_to_it(name, clean):
    assert clean_name(name, TOOLS) == clean


@pytest.mark.parametrize("arguments", ["", "{}", '{"query": "x"}'])
@pytest.mark.parametrize(
    "name",
    [
        "web_search\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>",
        "<tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>",
        'functions.web_search{"query": "x"}',
    ],
)
def test_arguments_that_are_glued_to_a_name_are_the_calls_unless_it_has_others(name, arguments):
    name, arguments = split_glued_name(name, arguments, TOOLS)
    assert (name, orjson.loads(arguments)) == ("web_search", {"query": "x"})


@pytest.mark.parametrize(
    "name", ["searching<arg_key>query</arg_key><arg_value>x</arg_value>", 'web_search("query") {"query": "x"}']
)
def test_nothing_is_taken_from_a_name_that_is_not_understood(name):
    assert split_glued_name(name, "", TOOLS)[1] == ""


def test_a_text_with_too_many_leaked_calls_is_a_failure_of_the_upstream():
    leaks = LeakFilter(TOOLS)
    call = '<tool_call>web_search{"query": "x"}</tool_call>'
    assert leaks.feed(call * MOST_CALLS) == ""
    with pytest.raises(UpstreamError, match="128 tool calls"):
        leaks.feed(call)


@pytest.mark.parametrize(
    ("value", "schema", "fitting"),
    [
        ({"query": 1}, SEARCH, True),
        ({"n": 1}, SEARCH, False),
        ({}, {"properties": {}}, False),
        ([1], SEARCH, False),
        ({"a": 1}, {"type": "object"}, False),
    ],
)
def test_what_fits_a_schema(value, schema, fitting):
    assert fits(value, schema) is fitting


DEEP = "[" * 400 + "]" * 400


@pytest.mark.parametrize(
    "text",
    [
        f'{{"name": "open_door", "arguments": {{"door": {DEEP}}}}}',
        f'{{"type": "function", "name": "open_door", "arguments": {{"door": {"[" * 2000}}}}}',
        f'<tool_call>{{"name": "open_door", "arguments": {{"door": {DEEP}}}}}</tool_call>',
    ],
)
def test_a_call_that_is_nested_too_deep_to_be_parsed_has_arguments_that_are_no_json(text):
    shown, [leak], garbled = read(text)
    assert (shown, leak.name, json_value(leak.arguments), garbled) == ("", "open_door", None, False)


def test_an_object_that_is_nested_too_deep_and_names_no_tool_is_text():
    text = f'{{"name": "shut_door", "arguments": {{"door": {DEEP}}}}}'
    assert read(text) == (text, [], False)


def test_a_value_of_glm_that_is_nested_too_deep_is_a_text():
    _, [leak], _ = read(f"<tool_call>open_door<arg_key>door</arg_key><arg_value>{DEEP}</arg_value></tool_call>")
    assert orjson.loads(leak.arguments) == {"door": DEEP}


def test_values_are_json_where_they_are():
    pairs = [("a", "1"), ("b", "true"), ("c", '["x"]'), ("d", "plain {text"), ("e", "{broken"), ("f", "1.2.3")]
    text = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in pairs)
    _, (leak,), _ = read(f"<tool_call>open_door{text}</tool_call>")
    assert orjson.loads(leak.arguments) == {
        "a": 1,
        "b": True,
        "c": ["x"],
        "d": "plain {text",
        "e": "{broken",
        "f": "1.2.3",
    }


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "`",
        "<|",
        "<tool_call>",
        "<arg_key>",
        "<tool_call>web_search<arg_key>a</arg_key>",
        "<|channel|>",
        "<|start|><|message|>",
        "{",
        "to=",
        "commentary to=a b",
        "<arg_value>",
        "web_search<arg_key>",
        "<|begin_of_box|>",
        '<tool_call>{"</tool_call>',
        "web_search<|channel|>commentary ",
    ],
)
def test_the_work_grows_with_the_length_of_the_text_and_no_faster(piece):
    def work(length):
        text = piece * (length // len(piece))
        pieces = [text[at : at + 20] for at in range(0, len(text), 20)]
        steps = 0

        def count(*_):
            nonlocal steps
            steps += 1

        sys.setprofile(count)
        try:
            read(*pieces)
        finally:
            sys.setprofile(None)
        return steps

    assert work(400_000) < 3 * work(200_000)


# A text of two megabytes: marks that begin no call, that begin one and are none, rows that open and close code.
WORST = [
    "<|channel|>",
    "<|channel|>, ",
    "<|channel|>commentary, ",
    "<|start|>assistant<|channel|>",
    "<|end|>",
    "<tool_call>",
    "<tool_call>unknown</tool_call>",
    '<tool_call>{"name": "x"</tool_call>',
    "<tool_call>x<arg_value>",
    "<arg_key>",
    "web_search<arg_key>",
    "web_search <",
    "to=x <|message|>",
    "<|begin_of_box|>",
    "<",
    "<|",
    "`",
    "` ",
    "`` ",
    "```\n",
    "~~~ ",
    "`<",
    "to=",
    "{",
    "<tool_call>{",
]


@pytest.mark.parametrize("piece", WORST)
def test_two_megabytes_of_what_looks_like_calls_keep_nobody_waiting(piece):
    text = piece * (2_000_000 // len(piece))
    begun = process_time()
    shown, found, _ = read(text)
    assert process_time() - begun < 0.4  # 0.1 on a machine that does nothing else
    assert found == []
    assert text.endswith(shown[-1000:])


def test_a_text_with_more_marks_than_a_model_can_have_written_is_text_from_then_on():
    many = "<|channel|>, " * MOST_LOOKS
    assert read(many, GLM) == (many + GLM, [], False)
    assert read(many[: len(many) // 32], GLM) == (many[: len(many) // 32], [QUERY], False)
    ticks = "`x` " * (MOST_LOOKS // 2)
    assert read(ticks, GLM) == (ticks + GLM, [], False)
    assert read("```\n" + "`` " * MOST_LOOKS, "\n```\n", GLM)[0].endswith(GLM)


def test_a_value_is_text_where_the_schema_says_so():
    _, (leak,), _ = read("<tool_call>web_search<arg_key>query</arg_key><arg_value>2024</arg_value></tool_call>")
    assert leak.arguments == '{"query":"2024"}'


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("<tool_call>x", True),
        ("a <|end|>", True),
        ("`<tool_call>`", False),
        ("```\n<|end|>\n```", False),
        ("Hello", False),
    ],
)
def test_whether_a_text_still_holds_raw_format(text, raw):
    assert holds_raw_format(text) is raw


BARE = [
    'web_search("x")',
    'web_search ({"query": "smile :) {"})',
    'commentary to=functions.web_search json{"query": "x"}',
    'web_search(query="a")\nweb_search(query="b");',
    'web_search({"query": "x"',
    '[TOOL_CALLS][{"name": "web_search"}]',
]
WORDS = [
    "[web_search](https://a.example)",
    "Action: web_search",
    "web_search (noun): looking.",
    "web_search(x) is what I called.",
    "web_search {a} and {b}",
    "door (open)",
    "",
]


@pytest.mark.parametrize(("text", "is_call"), [*((text, True) for text in BARE), *((text, False) for text in WORDS)])
def test_a_text_is_a_bare_call_only_if_it_is_nothing_else(text, is_call):
    tools = {"web_search": {"properties": {"query": {}}}}
    assert is_bare_call(text, tools, json_mode=lambda: JsonMode.NO) is is_call


def test_a_text_that_is_longer_than_any_calls_is_an_answer():
    text = "web_search() " * 30_000
    assert not is_bare_call(text, {"web_search": {}}, json_mode=lambda: JsonMode.NO)
    assert is_bare_call(text[:13_000], {"web_search": {}}, json_mode=lambda: JsonMode.NO)


@pytest.mark.parametrize("name", ["<arg_key>", "web_search<arg_key>a</arg_key><arg_value>", "{", "<|"])
def test_a_name_of_a_megabyte_is_looked_at_once(name):
    begun = process_time()
    split_glued_name(name * (1_000_000 // len(name)), "", TOOLS)
    assert process_time() - begun < 0.4


@pytest.mark.parametrize("call", ["web_search() ", '{"name": "web_search", "arguments": {}}\n'])
def test_each_of_many_calls_is_read_once(call):
    def seconds(times):
        begun = process_time()
        assert is_bare_call(call * times, {"web_search": {}}, json_mode=lambda: JsonMode.NO)
        return process_time() - begun

    # Read once, it takes 10 times as long; if each call copies what follows it, 70 times or more.
    assert min(seconds(6_000) for _ in range(2)) < 30 * min(seconds(600) for _ in range(2))


def test_a_call_full_of_quotation_marks_that_are_never_closed_is_read_once():
    def seconds(quotes):
        text = 'web_search("' + r"\"" * quotes + "\\"
        begun = process_time()
        assert is_bare_call(text, {"web_search": {}}, json_mode=lambda: JsonMode.NO)
        return process_time() - begun

    # Of work in a regular expression there is no count. Read once, it takes 16 times as long; read anew from each
    # mark, 256 times.
    assert min(seconds(16_000) for _ in range(3)) < 64 * min(seconds(1_000) for _ in range(3))
