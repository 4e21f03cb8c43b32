"""Texts that may be JSON, at the depths at which parsers give up."""

import orjson
import pytest

from proxy.wire.json_text import (
    DEEPEST,
    MOST_VALUES,
    exact_json,
    is_json,
    is_object,
    is_too_deep,
    json_object,
    json_value,
    read_json,
    with_exact_calls,
)
from proxy.wire.json_values import holds_too_many_values


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [DEEPEST + 1, 254, 300, 990, 1024, 1025, 100_000])
def test_a_text_that_is_nested_deeper_than_every_parser_reads_is_no_json(depth):
    text = f'{{"x": {nested(depth - 1)}}}'
    assert (json_object(text), json_value(text), is_json(text), is_too_deep(text)) == (None, None, False, True)
    with pytest.raises(orjson.JSONDecodeError):
        read_json(text)


def test_a_text_of_as_many_levels_as_can_be_written_is_read():
    text = f'{{"x": {nested(DEEPEST - 1)}}}'
    assert orjson.dumps(json_object(text)).decode() == text.replace(" ", "")
    assert not is_too_deep(text)


def test_a_text_of_more_values_than_a_model_writes_tokens_is_no_json():
    text = f"[{','.join(['[]'] * (MOST_VALUES // 2 - 2))}]"
    assert json_value(text) is not None
    assert json_value(f"[{','.join(['[]'] * MOST_VALUES)}]") is None
    assert json_object(f'{{"text": "{"[]," * MOST_VALUES}"}}') is not None  # in a string there are none


def test_many_brackets_beside_each_other_are_not_deep():
    text = f"[{','.join(['[]'] * 1000)}]"
    assert json_value(text) == [[]] * 1000
    assert is_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[]", None),
        ("null", None),
        ("", None),
        ("{", None),
        ('{"x":"\ud800"}', None),
        ('{"a":1e400}', None),
    ],
)
def test_only_an_object_is_an_object(text, value):
    assert json_object(text) == value
    assert is_object(text) is (value is not None)


LONG = "x" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f'{{"x":"{LONG}"}}',
        f'["{LONG}"]',
        f'{{"x":"{LONG}"',
        f'{{"x":"{LONG}\ud800"}}',
        f'{{"x":"{LONG}","y":{nested(150)}}}',
        f'{{"x":"{LONG}","y":{nested(250)}}}',
        f'{{"x":"{LONG}","y":[{"0," * MOST_VALUES}0]}}',
        f'{{"x":"{"0," * MOST_VALUES}"}}',
    ],
)
def test_a_long_object_is_one_whether_or_not_its_values_are_made(text):
    assert is_object(text) is (json_object(text) is not None)


@pytest.mark.parametrize(
    "text",
    [
        '{"x":12345678901234567890123}',
        '{"x":[-98765432109876543210,1]}',
        '{"x":18446744073709551616}',
        '{"x":18446744073709551615}',
        '{"x":-9223372036854775808}',
        '{"x":"no number: 12345678901234567890123"}',
        '{"x":%s}' % ("9" * 300),
    ],
)
def test_integers_of_any_length_are_written_as_they_were_read(text):
    assert orjson.dumps(exact_json(text)).decode() == text


def test_only_integers_beyond_64_bits_are_no_numbers():
    assert exact_json('{"x":18446744073709551615,"y":0.5}') == {"x": 18446744073709551615, "y": 0.5}


def calling(number):
    return f'[{{"type":"tool_use","id":"2025092518192991173204","input":{{"id":{number}}}}}]'.encode()


def test_the_integers_of_calls_that_are_objects_are_exact():
    assert orjson.dumps(with_exact_calls(calling("12345678901234567890123"))) == calling("12345678901234567890123")
    assert with_exact_calls(calling("7")) == orjson.loads(calling("7"))


@pytest.mark.parametrize(
    "text",
    [
        calling("12345678901234567890123").replace(b"tool_use", b"text"),
        calling("12345678901234567890123") + b" " * 1024 * 1024,
    ],
)
def test_in_other_texts_an_integer_beyond_64_bits_is_a_float(text):
    assert orjson.loads(text) == with_exact_calls(text)


def test_what_is_no_json_has_no_calls():
    with pytest.raises(orjson.JSONDecodeError):
        with_exact_calls(calling("12345678901234567890123")[:-1])


def test_calls_that_are_nested_deeper_than_pythons_parser_reads_are_read_by_orjson_alone():
    assert isinstance(with_exact_calls(b"[" * 1000 + calling("12345678901234567890123") + b"]" * 1000), list)


def test_a_value_without_long_integers_is_read_by_orjson():
    assert exact_json('{"x": 1}') == {"x": 1}


def test_values_are_counted_outside_of_strings_wherever_the_text_is_looked_at_in_parts():
    text = b'["' + b"\\\\" * 200_000 + b'",' + b"0," * 1000 + b"0]"
    assert holds_too_many_values(text, 1000)
    assert not holds_too_many_values(text, 1010)
