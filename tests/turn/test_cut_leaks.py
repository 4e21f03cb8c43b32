"""A turn that a limit cuts off inside a leaked call shows nothing of the call, wherever it was cut."""

import pytest

from proxy.turn.json_mode import JsonMode
from proxy.turn.leaks import Leak
from proxy.turn.leaks.filter import LeakFilter

SEARCH = {"type": "object", "properties": {"query": {"type": "string"}, "n": {}}, "required": ["query"]}
TOOLS = {"web_search": SEARCH, "read": {"properties": {"path": {}}}}
BEFORE = "Let me look it up.\n"
JSON = '{"query": "zebra"}'

CALLS = [
    "<tool_call>web_search\n<arg_key>query</arg_key>\n<arg_value>zebra</arg_value>\n</tool_call>",
    '<tool_call>\n{"name": "web_search", "arguments": {"query": "zebra"}}\n</tool_call>',
    "<tool_call>\n<function=web_search>\n<parameter=query>zebra</parameter>\n</function>\n</tool_call>",
    f"<|channel|>commentary to=functions.web_search <|constrain|>json<|message|>{JSON}<|call|>",
    f"<|start|>assistant<|channel|>commentary to=functions.web_search<|message|>{JSON}<|call|>",
    f"<|start|>assistant to=functions.web_search<|channel|>commentary json<|message|>{JSON}<|call|>",
]
LOST = [  # with the words before their first mark, which may be shown
    (f"functions.web_search<|channel|>commentary json<|message|>{JSON}<|call|>", "functions.web_search"),
    ("web_search<arg_key>query</arg_key><arg_value>zebra</arg_value></tool_call>", "web_search"),
    (f"web_search<|channel|>commentary json<|message|>{JSON}", "web_search"),
    (f"commentary to=functions.web_search json<|message|>{JSON}", "commentary to"),
    (f"to=functions.web_search<|message|>{JSON}", "to"),
]


def cut_off(text, *, step, asked=JsonMode.NO, tools=TOOLS):
    leaks = LeakFilter(tools, json_mode=lambda: asked)
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    return "".join([*map(leaks.feed, pieces), leaks.close(is_cut=True)]), leaks


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("before", ["", BEFORE, "Let me look it up. ", "Let me look it up."])
@pytest.mark.parametrize("call", CALLS)
def test_nothing_of_a_call_is_shown_however_early_it_was_cut_off(before, call, step):
    for end in range(1, len(call)):
        shown, _ = cut_off(before + call[:end], step=step)
        assert shown == before, call[:end]


@pytest.mark.parametrize("step", [1, 2, 1000])
@pytest.mark.parametrize("before", ["", BEFORE])
@pytest.mark.parametrize(("call", "words"), LOST)
def test_of_a_call_without_its_first_marks_only_the_words_before_the_next_one_are_shown(before, call, words, step):
    for end in range(len(call)):
        shown, _ = cut_off(before + call[:end], step=step)
        assert shown.startswith(before)
        assert words.startswith(shown.removeprefix(before)), call[:end]


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "a < b and c <",
        "5 <",
        "if x<",
        "a <t",
        "Call functions. Then",
        "The web_search tool",
        "We use web_search",
        "Use tools <https://x.example/a",
        "Then we go to",
        "and a commentary",
        "In code: `<tool_call>web_search",
        "```\n<tool_call>\n<",
        "<tool_call> is a mark, and so",
        "<|channel|> is a mark, and so",
        "<|start|>, <|end|>",
        "A set: {1, 2",
        '{"id": 7, "other": {"query"',
        '{"title": "x',
    ],
)
def test_prose_that_ends_similarly_is_shown_as_it_is(text, step):
    assert cut_off(text, step=step)[0] == text


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    "text", ["{", '{"', '{"que', '{"query": "zeb', '{"name": "web_sea', '{"name": "web_search", "arguments": {"query"']
)
def test_the_beginning_of_a_bare_call_is_not_shown_but_where_json_was_asked_for(text, step):
    assert cut_off(text, step=step)[0] == ""
    assert cut_off(text, step=step, asked=JsonMode.BY_FORMAT)[0] == text
    is_named = "web_s" in text
    assert cut_off(text, step=step, asked=JsonMode.BY_PROMPT)[0] == ("" if is_named else text)


def test_arguments_that_only_gpt_osss_browser_has_are_not_shown_either():
    assert cut_off('{"cursor": 2, "i', step=3, asked=JsonMode.BY_PROMPT)[0] == ""


def test_a_call_that_was_complete_before_the_limit_counts():
    shown, leaks = cut_off(CALLS[0] + "\nAnd <tool_", step=5)
    assert (shown, leaks.leaks) == ("\nAnd ", [Leak("web_search", '{"query":"zebra"}')])


def test_an_answer_that_is_cut_off_after_its_thoughts_is_shown():
    thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"
    assert cut_off(f"{thoughts}final<|message|>It is", step=4)[0] == "It is"
    assert cut_off(f"{thoughts}fin", step=4)[0] == ""
