import pytest

from proxy.turn.call_fragments import Fragment, StreamedCalls

TOOLS = {"search": {}, "open_door": {}}


def calls_in(*fragments):
    """The calls that a stream of fragments brings: names, ids and arguments; a fragment is (index, id, name, arguments)."""
    calls = StreamedCalls()
    for index, identity, name, arguments in fragments:
        entry = {"index": index, "id": identity, "function": {"name": name, "arguments": arguments}}
        fragment = Fragment.read(entry, TOOLS)
        calls.so_far[calls.place(fragment)].arguments.feed(fragment.arguments)
    return [(call.name, call.upstream_id, call.arguments.text) for call in calls.so_far]


ONE, TWO = '{"n":1}', '{"n":2}'


@pytest.mark.parametrize("index", [0, 7, None, -1])
@pytest.mark.parametrize("cut", [0, 3, len(ONE)])
@pytest.mark.parametrize(
    ("first", "second", "more"),
    [(("a", "search"), ("b", "search"), (None, None)), ((None, "search"), (None, "open_door"), ("", ""))],
    ids=["id", "name"],
)
def test_calls_under_one_index_are_told_apart_by_a_new_id_or_name(index, cut, first, second, more):
    pieces = [
        (index, *first, ONE[:cut]),
        (index, *more, ONE[cut:]),
        (index, *second, TWO[:cut]),
        (index, *more, TWO[cut:]),
    ]
    found = [(name, identity or "", arguments) for (identity, name), arguments in ((first, ONE), (second, TWO))]
    assert calls_in(*pieces) == found


@pytest.mark.parametrize("index", [0, None])
def test_calls_under_one_index_and_name_are_told_apart_by_other_arguments(index):
    assert calls_in((index, None, "search", ONE), (index, None, "search", TWO)) == [
        ("search", "", ONE),
        ("search", "", TWO),
    ]
    announced = [(index, None, "search", ""), (index, None, None, ONE), (index, None, "search", "")]
    assert calls_in(*announced, (index, None, None, TWO)) == [("search", "", ONE), ("search", "", TWO)]


@pytest.mark.parametrize("again", [("a", "search"), ("a", None), (None, "search"), ("", "")])
@pytest.mark.parametrize("index", [0, None])
def test_fragments_that_repeat_id_and_name_belong_to_one_call(index, again):
    pieces = [(index, *again, piece) for piece in ('":', "1}", "")]
    assert calls_in((index, "a", "search", '{"n'), *pieces) == [("search", "a", ONE)]


@pytest.mark.parametrize("again", [("a", "search"), ("a", None), (None, "search"), (None, None)])
def test_arguments_that_come_once_more_begin_no_call(again):
    assert calls_in((0, "a", "search", ONE), (0, *again, ONE)) == [("search", "a", ONE)]


def test_where_calls_are_numbered_an_id_without_a_name_begins_none():
    assert calls_in((0, "a", "search", '{"n'), (0, "b", None, '":'), (0, "c", None, "1}")) == [("search", "a", ONE)]
    assert calls_in((None, "a", "search", ONE), (None, "b", None, TWO)) == [("search", "a", ONE), ("", "b", TWO)]


def test_an_id_or_a_name_may_come_after_the_beginning_of_a_call():
    assert calls_in((0, None, None, '{"n'), (0, "a", None, '":'), (0, None, "search", "1}")) == [("search", "a", ONE)]


def test_a_call_without_an_id_may_be_followed_by_one_with_an_id():
    assert calls_in((0, None, "search", ONE), (0, "b", "search", ""), (0, None, None, TWO)) == [
        ("search", "", ONE),
        ("search", "b", TWO),
    ]


def test_calls_with_their_own_indices_may_share_an_id_and_be_written_by_turns():
    pieces = [(0, "a", "search", '{"n":'), (1, "a", "search", '{"n":'), (0, None, None, "1}"), (1, "a", None, "2}")]
    assert calls_in(*pieces) == [("search", "a", ONE), ("search", "a", TWO)]


def test_calls_under_one_index_may_all_be_named_before_their_arguments_come():
    pieces = [(0, "a", "search", ""), (0, "b", "search", ""), (0, "a", None, '{"n":'), (0, None, None, "1}")]
    assert calls_in(*pieces, (0, "b", None, TWO)) == [("search", "a", ONE), ("search", "b", TWO)]


@pytest.mark.parametrize("more", ["</arg_value>", "search</tool_call>", "functions.search"])
def test_raw_format_is_no_new_name(more):
    assert calls_in((0, None, "search", '{"n"'), (0, None, more, ":1}")) == [("search", "", ONE)]


@pytest.mark.parametrize(
    ("entry", "kind", "text"),
    [
        ({"function": None}, "function", ""),
        ({"type": "", "function": {"arguments": {"n": 1}}}, "function", ONE),
        ({"custom": {"input": "x"}}, "custom", "x"),
        ({"type": "custom", "custom": "x"}, "custom", ""),
        ({"type": "odd", "odd": {"arguments": "x"}}, "odd", ""),
    ],
)
def test_the_arguments_of_a_fragment_are_those_of_its_type(entry, kind, text):
    fragment = Fragment.read(entry, TOOLS)
    assert (fragment.type, fragment.arguments) == (kind, text)


@pytest.mark.parametrize("index", [0, None])
def test_calls_of_one_id_are_told_apart_by_a_new_name_or_other_arguments(index):
    for cut in (3, len(ONE)):
        pieces = [(index, "a", "search", ONE[:cut]), (index, None, None, ONE[cut:])]
        other = [(index, "a", "open_door", TWO[:cut]), (index, None, None, TWO[cut:])]
        assert calls_in(*pieces, *other) == [("search", "a", ONE), ("open_door", "a", TWO)]
        same = [(index, "a", "search", TWO[:cut]), (index, None, None, TWO[cut:])]
        assert calls_in(*pieces, *same) == [("search", "a", ONE), ("search", "a", TWO)]
