import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import rawjson
from proxy.wire.errors import InvalidJson
from proxy.wire.rawjson import MOST_EXACT_BYTES, loads, replace_model


@pytest.mark.parametrize(
    ("body", "replaced"),
    [
        (b'{"model":"a","n":12345678901234567890123}', b'{"model":"up","n":12345678901234567890123}'),
        (b'{ "x" : 1 , "model" : "a" }', b'{ "x" : 1 , "model" : "up" }'),
        (b'{"m":{"model":"inner"},"model":"a"}', b'{"m":{"model":"inner"},"model":"up"}'),
        (b'{"t":"\\"model\\":\\"no\\"","model":"a"}', b'{"t":"\\"model\\":\\"no\\"","model":"up"}'),
        (b'{"model" : "up", "n": 1.50}', b'{"model" : "up", "n": 1.50}'),
        (b'{"model":"a","model":"b"}', b'{"model":"up","model":"up"}'),
        (b'{"\\u006dodel":"b","l":["model"]}', b'{"\\u006dodel":"up","l":["model"]}'),
        (b'{"l":["model","a"],"k":"model","model":"a"}', b'{"l":["model","a"],"k":"model","model":"up"}'),
    ],
)
def test_only_the_top_level_model_changes(body, replaced):
    assert replace_model(body, "up") == replaced


def test_a_large_body_with_several_models_is_written_anew():
    body = b'{"x":"' + b"A" * 2_000_000 + b'","tools":[{"model":"inner"}],"model":"a"}'
    assert orjson.loads(replace_model(body, "up")) == {**orjson.loads(body), "model": "up"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.just("model"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("model"), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text() | st.just("model"), VALUES), st.text())
def test_whatever_else_is_in_the_body_stays(body, name):
    body = {**body, "model": "before"}
    assert orjson.loads(replace_model(orjson.dumps(body), name)) == {**body, "model": name}


# -- numbers --

KEPT = [
    "123456789012345678901234567890",
    "-123456789012345678901234567890",
    "18446744073709551616",
    "-9223372036854775809",
    "1e-400",
    "-1.5E-400",
    "1e400",
    "-1E+400",
    "3.14159265358979323846",
    "1" * 5000,
]
READ = ["0", "18446744073709551615", "-9223372036854775808", "0.1", "1e-5", "1E5", "0e-999"]


@pytest.mark.parametrize("number", KEPT)
@pytest.mark.parametrize("place", ['{"a":%s}', '{"a": %s}', "[0,%s]", "[%s]", '{"a":{"b":[ %s ]}}'])
def test_a_number_that_no_float_holds_stays_as_it_was_written(number, place):
    text = (place % number).encode()
    assert orjson.dumps(loads(text)) == text.replace(b" ", b"")


@pytest.mark.parametrize("number", ["1e-400", "-2.5E-999"])
def test_a_small_number_is_found_among_many_dashes_and_digits(number):
    text = b'{"a":"' + b"0e-00 e-000 -0000 " * 200 + b'","b":%b}' % number.encode()
    assert orjson.dumps(loads(text)) == text


@pytest.mark.parametrize("number", READ)
def test_any_other_number_is_a_number(number):
    assert loads(b"[%s,1e400]" % number.encode())[0] == json.loads(number)
    assert loads(number.encode()) == json.loads(number)


@pytest.mark.parametrize(
    "text",
    [b'"call_-7807255211226955507"', b'"123456789012345678901234567890"', b'" -9223372036854775809"', b'"1e-400"'],
)
def test_numbers_in_a_text_are_text(text):
    assert loads(b'{"a":%b}' % text) == {"a": orjson.loads(text)}


@pytest.mark.parametrize("text", ["2025092518192991173204", "call_-7807255211226955507", "1e-400"])
def test_an_id_of_many_digits_is_read_at_full_speed(text, monkeypatch):
    monkeypatch.setattr("proxy.wire.rawjson._exact", None)  # reading with care would take ten times as long
    assert loads(b'{"id":"%b"}' % text.encode()) == {"id": text}


@pytest.mark.parametrize("text", [b"", b"{", b"[1e400", b"[1e400,NaN]", b"NaN", b"[123456789012345678901234567890"])
def test_what_is_no_json_is_none(text):
    with pytest.raises(orjson.JSONDecodeError):
        loads(text)


def test_what_is_nested_too_deep_to_be_read_with_care_is_read_without(monkeypatch):
    def too_deep(*_, **__):  # how deep that is depends on the version of Python
        raise RecursionError

    monkeypatch.setattr("proxy.wire.rawjson._exact", too_deep)
    deep = b"[" * 1000 + b"18446744073709551616" + b"]" * 1000
    assert isinstance(loads(deep), list)
    with pytest.raises(orjson.JSONDecodeError):
        loads(b"[" * 1000 + b"1e400" + b"]" * 1000)


def test_a_large_body_is_read_without():
    blanks = b" " * MOST_EXACT_BYTES
    assert loads(b"18446744073709551616" + blanks) == 2.0**64
    with pytest.raises(orjson.JSONDecodeError):
        loads(b"1e400" + blanks)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


@given(JSON, st.booleans())
def test_whatever_is_read_is_written_as_it_was(value, spaced):
    text = json.dumps(value, separators=None if spaced else (",", ":"))
    assert json.loads(orjson.dumps(loads(text.encode()))) == json.loads(text)


def test_a_request_that_is_nested_too_deep_to_be_written_is_refused():
    with pytest.raises(InvalidJson, match="too deep"):
        rawjson.dumps(orjson.loads("[" * 300 + "]" * 300))
