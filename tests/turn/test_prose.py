"""Ordinary text stays in the pieces in which it is written, although tools are offered whose calls could leak into it."""

import pytest

from proxy.turn.leaks import Leak
from proxy.turn.leaks.filter import LeakFilter
from tests.prose import PAGES, joined_and_split, tokens

SHIPPED = [
    "web_search",
    "webSearch",
    "browser.search",
    "fetch_page",
    "current_time",
    "weather",
    "roll_dice",
    "wiki_read",
]
AGENTS = [
    "Read",
    "Write",
    "Edit",
    "Bash",
    "Glob",
    "Grep",
    "Task",
    "WebSearch",
    "TodoWrite",
    "read",
    "search",
    "list_files",
]
SEEDS = range(3)


def shown_of(text, names, seed):
    leaks, given = LeakFilter({name: {} for name in names}), tokens(text, seed)
    shown = [*map(leaks.feed, given), leaks.close()]
    assert (leaks.leaks, leaks.garbled) == ([], False)
    return given, shown


@pytest.mark.parametrize("names", [SHIPPED, AGENTS, [*SHIPPED, *AGENTS]])
def test_of_ten_pages_of_prose_one_piece_in_a_hundred_waits_at_most_and_none_is_split(names):
    total = joined = 0
    for text in PAGES.values():
        for seed in SEEDS:
            given, shown = shown_of(text, names, seed)
            waited, split = joined_and_split(given, shown)
            assert split == 0
            assert waited <= max(6, len(given) / 100)
            total, joined = total + len(given), joined + waited
    assert joined <= total / 100


@pytest.mark.parametrize(
    "pieces",
    [
        ["We", " have", " a", " shop", " to", " buy", " it", " as", " it", " is", "."],
        ["This", " is", " a", " web", " page", " of", " function", " to", "(x", ")"],
        ["Its", " own", " commentary", " shows", " a", " tool", " called", " search", " we", " use"],
        ["Run", " `", "ls", "`", " or", " ~", "5", " ``", "x", "``", " now"],
        ["```", "py", "\n", "a", " <", " b", "\n", "```", "\n", "Done"],
        ["See", " https", "://", "www", ".example", ".com", "/a", " or", " it", "."],
        ["Hm", "\n\n", "Yes", ",", " we", " do", " so", "\n", "  ", "a", " list"],
    ],
)
def test_a_word_that_only_could_begin_a_call_is_shown_at_once(pieces):
    leaks = LeakFilter({name: {} for name in [*SHIPPED, "search"]})
    assert [leaks.feed(piece) for piece in pieces] == pieces


def test_in_a_text_of_many_tags_and_formulas_the_sign_of_both_waits_no_longer():
    leaks = LeakFilter({"web_search": {}})
    pieces = ["x", " <", " y"] * 6
    assert [leaks.feed(piece) for piece in pieces] == [*["x", "", " < y"] * 4, *["x", " <", " y"] * 2]
    assert leaks.feed(" <") + leaks.feed("tool_call>web_search{}</tool_call>") == " <"
    assert [leak.name for leak in leaks.leaks] == ["web_search"]
    assert leaks.feed(" <") == ""  # a text with a call may have another


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (
            ["Then", " we", " web", "_search", "<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>"],
            " web_search",
        ),
        (["Then", " the", " commentary", " to=web_search", '<|message|>{"query":"x"}'], " commentary"),
        (
            ["x" * 50] * 40 + [" ", "web_search", "<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>"],
            " web_search",
        ),
    ],
)
def test_a_call_within_a_sentence_is_found_although_its_first_words_were_shown(pieces, shown):
    leaks = LeakFilter({"web_search": {"properties": {"query": {"type": "string"}}}})
    text = "".join([*map(leaks.feed, pieces), leaks.close()])
    assert text.endswith(shown)
    assert leaks.leaks == [Leak("web_search", '{"query":"x"}')]


def test_a_call_that_is_no_call_after_all_shows_each_of_its_characters_once():
    leaks = LeakFilter({"web_search": {}})
    pieces = ["Then", " we", " web", "_search", "<|channel|>", ", which", " is a mark"]
    assert "".join([*map(leaks.feed, pieces), leaks.close()]) == "".join(pieces)
