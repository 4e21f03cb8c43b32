"""Large JSON that is parsed part by part: what orjson makes of it as a whole, or what orjson says is wrong with it."""

import json

import orjson
import pytest

from proxy.wire import json_parts
from proxy.wire.json_values import holds_too_many_values

BLOCK = {"type": "text", "text": 'a "b", {c: [é]} \\'}
LONG = "é\n" * 40_000  # of more than a part
TEXTS = {
    "messages": orjson.dumps({"model": "m", "messages": [{"role": "user", "content": [BLOCK] * 50}] * 300}),
    "blocks": orjson.dumps({"messages": [{"role": "user", "content": [BLOCK] * 15_000}], "model": "m"}),
    "long texts": orjson.dumps([{"a": LONG, "b": [LONG, 1, [LONG], {}]}] * 3 + [[BLOCK] * 12_000]),
    "names": orjson.dumps({f"k{at},": {"a": at} for at in range(60_000)}),
    "texts that end in a comma": orjson.dumps({f"k{at}": ["x,", "y,"] for at in range(40_000)}),
    "large members among small ones": orjson.dumps(
        {f"k{at}": [0] * (1 if at % 6_000 else 90_000) for at in range(30_000)}
    ),
    "numbers": orjson.dumps({"input": [[1.5, -2, 3]] * 35_000}),
    "empty lists": orjson.dumps([[], {}] * 60_000),
    "names twice": b'{"a":[' + b'{"a":1},' * 60_000 + b'{}],"a":2,"b":{"c":1,"c":2}}',
    "blanks": b" \r\n{" + b'"a" : [ {} , { "b" :\n1 } ] ,' * 30_000 + b'"c" : 5 } \t',
    "emojis": orjson.dumps({"a": '\U0001f600"' * 70_000, "b": [{}, [], {"c": []}, None], "d": "x" * 100_000}),
    "a list of lists": b"[" * 9 + b'{"a":"b"},' * 60_000 + b"1" + b"]" * 9,
}


def error_of(parse, text):
    with pytest.raises(orjson.JSONDecodeError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_parts_make_the_value_that_the_whole_text_is(text):
    parsed = json_parts.loads(text)
    assert parsed == orjson.loads(text)
    assert json_parts.dumps(parsed) == orjson.dumps(orjson.loads(text))  # in the same order


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b",1", b",}"),
        (b'"text"', b'"te\xff"'),
        (b'"text"', b'"te\\ud800"'),
        (b'"role":"user"', b'"\xff":"user"'),
        (b'"model":"m"', b'"model":NaN'),
        (b'"model":"m"', b'"model":1e999'),
        (b'"model":"m"', b'"model":' + b"[" * 2000 + b"]" * 2000),
        (b'{"type"', b'"type"'),
        (b'{"model"', b'\xef\xbb\xbf{"model"'),
        (b'"content":[', b'"content":[['),
    ],
)
def test_the_error_is_that_of_the_whole_text(before, after):
    text = TEXTS["messages"]
    text = text.replace(before, after, 1) if before in text else text + after
    assert error_of(json_parts.loads, text) == error_of(orjson.loads, text)


@pytest.mark.parametrize("piece", ["a", "é", "中", "\U0001f600", '"', "\\", "\\n", 'ab\n\u00e9\\\\"'])
@pytest.mark.parametrize("escaped", [False, True])
def test_a_long_text_is_cut_within_no_character_and_no_escape(piece, escaped):
    for shift in range(0, 13, 3):
        value = ["x" * shift + piece * (4_300_000 // len(json.dumps(piece if escaped else "aa")))]
        text = json.dumps(value).encode() if escaped else orjson.dumps(value)
        assert json_parts.loads(text) == value


@pytest.mark.parametrize("end", [b"", b"\\", b'\\"', b'"x', b'""'])
def test_a_long_text_that_has_no_end_or_goes_on_behind_it_is_the_error_of_the_whole(end):
    text = b'"' + b"a" * 5_000_000 + end
    assert error_of(json_parts.loads, text) == error_of(orjson.loads, text)


def test_what_is_parsed_in_parts_is_counted_as_values_before():
    assert holds_too_many_values(TEXTS["numbers"], 139_000)
    assert not holds_too_many_values(TEXTS["numbers"], 141_000)


@pytest.mark.parametrize("levels", [300, 5000])
def test_what_is_nested_too_deep_is_refused_as_by_orjson(levels):
    value = ["a long text " * 10_000]
    for _ in range(levels):
        value = [value]
    with pytest.raises(orjson.JSONEncodeError):
        json_parts.dumps(value)
