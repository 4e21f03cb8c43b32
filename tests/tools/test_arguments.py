import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.results import InvalidArguments
from proxy.tools.arguments import MOST_BYTES, MOST_REPAIRED_CHARACTERS, history_of, parse_arguments
from proxy.tools.schema import schema_of
from tests import hostile

SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}},
    "additionalProperties": False,
}


def parse(text, schema=SCHEMA, **options):
    return parse_arguments(text, schema_of(schema), **options)[0]


@pytest.mark.parametrize("text", ["", "  \n", "null", " null\n", '""', '" "', '"null"', "{}"])
def test_no_arguments_at_all_are_an_empty_object(text):
    assert parse(text) == {}


@pytest.mark.parametrize("text", ["", "null", '""'])
def test_a_tool_that_needs_arguments_says_which_where_there_are_none(text):
    with pytest.raises(InvalidArguments, match='"q" is a required property'):
        parse(text, {**SCHEMA, "required": ["q"]})


@pytest.mark.parametrize("number", ["NaN", "-NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_not_mended(number):
    for text in (f'{{"q": {number}}}', f'{{"q": "a", "o": {{"x": [1, {number}]}}}}'):
        with pytest.raises(InvalidArguments, match="not valid JSON"):
            parse(text)
    assert parse(f'{{"q": "{number}"}}') == {"q": number}


@pytest.mark.parametrize(
    "text",
    [
        "{'q': 'a b', 'n': 1}",
        '{"q": "a b", "n": 1,}',
        '{q: "a b", n: 1}',
        '{"q": "a b", "n": 1}}',
        '{"q": "a b" "n": 1}',
        '"{\\"q\\": \\"a b\\", \\"n\\": 1}"',
    ],
)
def test_what_is_broken_in_its_punctuation_only_is_mended(text):
    assert parse(text) == {"q": "a b", "n": 1}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"q": "line\nbreak"}', {"q": "line\nbreak"}),
        ('{"q": "a", "o": {"x": None}', {"q": "a", "o": {"x": None}}),
        ('{"q": "a\\n\\"b\\"", }', {"q": 'a\n"b"'}),
        ('{"q": "closed"', {"q": "closed"}),
    ],
)
def test_other_slips_of_the_pen_are_mended_too(text, meant):
    assert parse(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        '{"q":"a"}{"q":"b"}',
        '{"q":"a"} {"n":1}',
        '[{"q":"a"}, {"q":"b"}',
        '{"q":"a", "q":"b",}',
        '{"q":"a",} and then "b"',
        '{"q":"the weather in Nana',
        '{"n": 12',
        '{"q":"a", "n"}',
        '{"q":"a", "n": 1, "rm": "-rf",}',
        '{"n": 18446744073709551617,}',
        "q=a",
        "{" * 40 + "}" * 39,
        '{"q": "' + "a" * MOST_REPAIRED_CHARACTERS + '",}',
    ],
)
def test_what_can_be_read_in_two_ways_is_not_guessed_at(text):
    with pytest.raises(InvalidArguments, match="not valid JSON"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "why"), [("[1]", "one JSON object"), ('"q"', "one JSON object"), ('{"n":"one"}', "n: ")]
)
def test_json_that_does_not_fit_is_told_with_its_place(text, why):
    with pytest.raises(InvalidArguments, match=why):
        parse(text)


@pytest.mark.parametrize("depth", [97, 98, 199])  # 200 characters, 202, and more
def test_what_is_nested_as_deep_as_is_read_is_no_fault(depth):
    text = f'{{"x":{"[" * depth}{"]" * depth}}}'
    assert orjson.dumps(parse(text, {"type": "object"})).decode() == text


@pytest.mark.parametrize("depth", [300, 1000])
def test_arguments_that_are_nested_too_deep_to_be_checked_are_told_so(depth):
    with pytest.raises(InvalidArguments, match="too deep"):
        parse('{"o": {"a": ' + "[" * depth + "]" * depth + "}}")


@pytest.mark.parametrize(
    ("text", "history"),
    [
        ('{"q":  "zebra \\u00e9"}', None),  # byte for byte
        ('{"n": 1.0}', '{"n":1}'),
        ('{"n": "1"}', '{"n":1}'),
        ('{"n": null, "q": "a"}', '{"q":"a"}'),
        ("{'q': 'a'}", '{"q":"a"}'),
        ('```json\n{"q": "a \\u00e9"}\n```', '{"q":"a é"}'),
        ('"{\\"q\\": \\"a\\"}"', '{"q":"a"}'),
        ("", "{}"),
        ("null", "{}"),
    ],
)
def test_the_history_holds_what_was_written_or_its_repair(text, history):
    arguments, found = parse_arguments(text, schema_of(SCHEMA))
    assert found == (text if history is None else history)
    assert orjson.loads(found) == arguments


@pytest.mark.parametrize(
    ("text", "history"),
    [
        ('{"a":  1}', '{"a":  1}'),
        ("{'a': 1}", '{"a":1}'),
        ("", "{}"),
        ("[1]", None),
        ("please search", None),
        ('{"a": "b', None),
        ("q: a", None),
        ("7", None),
    ],
)
def test_a_call_of_no_known_tool_is_kept_as_an_object_if_it_is_one(text, history):
    assert history_of(text) == history


def test_arguments_beyond_what_can_be_checked_are_refused_before_they_are():
    many = {"type": "object", "properties": {"o": {"items": {"anyOf": [{"const": n} for n in range(1000)]}}}}
    for text, schema in (('{"q": "' + "a" * MOST_BYTES + '"}', SCHEMA), (f'{{"o": {[1] * 5000}}}', many)):
        with pytest.raises(InvalidArguments, match="too large"):
            parse(text, schema)


def test_of_many_faults_the_first_is_told():
    schema = {"type": "object", "required": [f"field_{n}" for n in range(50)]}
    with pytest.raises(InvalidArguments) as caught:
        parse("{}", schema)
    assert str(caught.value).count("required") == 1


@pytest.mark.parametrize("reference", ["http://127.0.0.1:1/schema.json", "file:///etc/passwd"])
def test_a_schema_that_refers_to_another_document_is_refused(reference):
    with pytest.raises(ValueError, match="not followed"):
        schema_of({"$ref": reference})


FITTING = st.fixed_dictionaries({}, optional={"q": hostile.texts, "n": st.integers(-(2**63), 2**63), "o": st.just({})})


@given(FITTING, st.booleans())
def test_arguments_that_fit_are_what_was_written_also_as_a_string(arguments, quoted):
    text = orjson.dumps(arguments).decode()
    assert parse(orjson.dumps(text).decode() if quoted else text) == arguments


@given(FITTING, st.lists(st.tuples(st.integers(0, 80), st.sampled_from('{}[]":,\\ \n0a') | st.none()), max_size=3))
def test_broken_text_is_mended_to_its_own_words_or_refused(arguments, slips):
    text = orjson.dumps(arguments).decode()
    for place, character in slips:
        at = place % (len(text) + 1)
        text = text[:at] + text[at + 1 :] if character is None else text[:at] + character + text[at:]
    found = hostile.outcome(InvalidArguments, lambda: parse(text))
    if not isinstance(found, InvalidArguments):
        assert found.keys() <= SCHEMA["properties"].keys()
        assert isinstance(found.get("q", ""), str)
        # Beyond 64 bits orjson reads a float, and it still fits the schema.
        assert float(found.get("n", 0)).is_integer()


@given(hostile.mutated(st.just({"q": "x", "n": 1, "o": {"a": [1]}})) | hostile.texts)
def test_whatever_a_model_writes_is_an_object_that_fits_or_a_word_to_it(value):
    found = hostile.outcome(InvalidArguments, lambda: parse(hostile.written(value).decode()))
    assert isinstance(found, InvalidArguments) or schema_of(SCHEMA).is_valid(found)
