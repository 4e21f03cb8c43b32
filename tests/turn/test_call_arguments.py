from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.turn.call_arguments import Arguments, ObjectScanner

OBJECTS = st.dictionaries(st.text('"\\{}[]a ', max_size=6), st.recursive(st.text('"\\{}[]a'), st.lists), max_size=3)


def cut(text, data):
    bounds = [0, *sorted(data.draw(st.sets(st.integers(0, len(text))))), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def fed(*pieces):
    arguments = Arguments()
    return arguments, [arguments.feed(piece) for piece in pieces]


@given(OBJECTS, st.data())
def test_an_object_ends_with_its_last_bracket_however_it_is_cut(value, data):
    text = orjson.dumps(value).decode()
    scanner, position, found = ObjectScanner(), 0, []
    for piece in ["\n ", *cut(text, data), " ", "{}"]:
        if (end := scanner.feed(piece)) is not None:
            found.append(position + end)
        position += len(piece)
    assert found == [len("\n ") + len(text)]


@pytest.mark.parametrize("text", ["", " ", "[{}]", '"{}"', "null", '{"a": "}', "{]", "x{}", '{"a":' + "[" * 300_000])
def test_what_is_no_object_never_ends(text):
    assert not Arguments().is_whole
    arguments, shown = fed(text, "")
    assert (arguments.is_whole, "".join(shown), arguments.end()) == (False, text, "")


def test_the_end_of_an_object_in_very_many_pieces_is_found():
    arguments, _ = fed('{"a":[')
    for _ in range(40_000):
        arguments.feed("{},")
    assert not arguments.is_whole
    arguments.feed("0]}  ")
    assert arguments.is_whole


@pytest.mark.parametrize("before", ["", "{}", "{ }\n"])
@pytest.mark.parametrize("after", ["", " \n", '{"q":"x{}é"}', ' { "q" : "x{}é" } '])
@settings(max_examples=30)
@given(data=st.data())
def test_a_client_gets_arguments_once_that_come_after_an_empty_object_or_twice(before, after, data):
    arguments, shown = fed(*cut(before + '{"q":"x{}é"}' + after, data))
    assert arguments.is_whole
    everything = "".join(shown) + arguments.end()
    assert orjson.loads(everything) == orjson.loads(arguments.text) == {"q": "x{}é"}
    assert arguments.end() == ""


@given(OBJECTS, OBJECTS, st.text("{}x", max_size=3), st.data())
def test_whatever_follows_a_client_gets_what_the_history_holds(one, other, rest, data):
    text = orjson.dumps(one).decode() + orjson.dumps(other).decode() + rest
    arguments, shown = fed(*cut(text, data))
    assert ("".join(shown) + arguments.end()).strip() == arguments.text.strip()
    assert arguments.size == len(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1}{"a":2}',
        '{"a":1}{"a":1}{"a":1}',
        '{"a":1} I will search.',
        "{} I will search.",
        '{"a":1}{"a":',
        "{'a': 1}{'a': 1}",
        '{"a":' + "[" * 300 + "]" * 300 + '}{"a": ' + "[" * 300 + "]" * 300 + "}",
        "",
        "7",
    ],
)
def test_what_is_no_repetition_stays_as_it_is(text):
    arguments, shown = fed(text)
    assert "".join(shown) + arguments.end() == arguments.text == text
    assert not arguments.is_whole


@pytest.mark.parametrize(("text", "rest"), [("{}{}{}", "{}{}"), ('{}{}{"a":1}', '{}{"a":1}'), ("{} {a", "{a")])
def test_one_empty_object_before_another_is_taken_back(text, rest):
    arguments, shown = fed(text)
    assert "".join(shown) + arguments.end() == arguments.text == rest


def test_an_empty_object_before_the_arguments_of_a_whole_call_is_taken_back():
    assert fed('{}{"a":1}')[0].text == '{"a":1}'
    assert fed('{"a":"{} {"}')[0].text == '{"a":"{} {"}'


def test_an_empty_object_is_shown_at_its_end():
    arguments, shown = fed("{}", "\n")
    assert (shown, arguments.text, arguments.is_whole, arguments.end()) == (["{", ""], "{}\n", False, "}\n")


def test_the_input_of_a_custom_tool_stays_as_it_is():
    arguments = Arguments(is_plain=True)
    assert arguments.feed('{"a":1}\n{"a":1}') == arguments.text == '{"a":1}\n{"a":1}'


def test_the_same_object_is_recognised_whatever_its_blanks_and_order():
    arguments, _ = fed('{"a":1,"b":[2]}')
    assert arguments.repeats(' {"b": [2], "a": 1}')
    assert not arguments.repeats('{"a":1}')
    assert not arguments.repeats("x")
