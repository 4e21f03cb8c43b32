import json
import time
from decimal import Decimal

import pytest
from pydantic import BaseModel

from proxy.api.schema import SchemaCheck
from proxy.wire.errors import RequestError

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"$ref": "#/$defs/degrees"}},
    "required": ["city", "degrees"],
    "$defs": {"degrees": {"type": "integer"}},
}


class Node(BaseModel):
    name: str
    price: Decimal = Decimal(1)
    kids: list["Node"] = []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"city": "Nanaimo", "degrees": 12}', None),
        ('{"city": "Nanaimo", "degrees": "12"}', 'degrees: "12" is not of type "integer"'),
        ('{"city": "Nanaimo"}', '"degrees" is a required property'),
        ("It is 12 degrees.", "it is not JSON"),
    ],
)
def test_an_answer_fits_or_is_told_what_is_wrong(text, fault):
    found = SchemaCheck.of(CITY, "schema").fault(text)
    assert found is None if fault is None else fault in found


def test_recursive_schemas_are_checked_as_deep_as_answers_go():
    check = SchemaCheck.of(Node.model_json_schema(), "schema")
    assert check.fault('{"name": "a", "kids": [{"name": "b", "kids": [{"name": "c"}]}]}') is None
    assert check.fault('{"name": "a", "kids": [{"name": "b", "kids": [{"name": 3}]}]}') is not None


def test_what_stands_beside_a_reference_counts_too():
    definitions = {"a": {"type": "integer"}}
    beside = {"$ref": "#/definitions/a", "maximum": 5, "allOf": [{"minimum": 1}], "definitions": definitions}
    check = SchemaCheck.of(beside, "schema")
    assert check.fault("3") is None
    assert all(check.fault(text) for text in ("9", "0", '"x"'))


def test_a_list_that_is_none_beside_a_reference_is_a_fault():
    with pytest.raises(RequestError, match='5 is not of type "array"'):
        SchemaCheck.of({"$ref": "#", "allOf": 5}, "schema")


def test_data_that_looks_like_a_reference_is_data():
    check = SchemaCheck.of({"enum": [{"$ref": "#/x"}], "properties": {"$ref": {"type": "string"}}}, "schema")
    assert check.fault('{"$ref": "#/x"}') is None
    assert check.fault('{"$ref": "#/y"}') is not None


def test_a_pointer_is_read_as_one():
    check = SchemaCheck.of({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "null"}}}, "schema")
    assert (check.fault("null"), check.fault("1")) == (None, '1 is not of type "null"')


def test_a_fault_in_a_recursive_schema_with_alternatives_is_named_where_that_is_no_work():
    class Leaf(BaseModel):
        name: str
        left: "Leaf | None" = None
        right: "Leaf | None" = None

    check = SchemaCheck.of(Leaf.model_json_schema(), "schema")
    assert check.fault('{"name": "a", "left": {"name": "b", "right": null}}') is None
    assert "left" in check.fault('{"name": "a", "left": {"name": 3}}')
    deep = '{"name": "a", "left": ' * 20 + "3" + "}" * 20
    assert check.fault(deep) == "it does not fit the schema"


@pytest.mark.parametrize(
    "schema",
    [
        "object",
        None,
        {"type": "nothing"},
        {"$ref": "https://example.org/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/type/x", "type": "object"},
        {"$ref": "#anchor"},
        {"$schema": "https://example.org/meta", "type": "object"},
        {"$dynamicRef": "#x"},
        {"pattern": "("},
        {"description": "x" * 70_000},
    ],
)
def test_what_is_no_schema_or_points_beyond_itself_is_refused(schema):
    with pytest.raises(RequestError) as fault:
        SchemaCheck.of(schema, "schema")
    assert fault.value.param == "schema"


def doubling(number):
    definitions = {f"x{n}": {"anyOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 2} for n in range(number)}
    return {"$ref": "#/$defs/x0", "$defs": {**definitions, f"x{number}": {"type": "integer"}}}


HOSTILE = [
    (doubling(40), '"x"'),
    ({"$ref": "#"}, "1"),
    ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "1"),
    ({"items": {"anyOf": [{"type": "integer"}] * 3000}}, f"[{','.join(['1.5'] * 5000)}]"),
    ({"pattern": "^(a+)+$"}, f'"{"a" * 5000}b"'),
    ({"pattern": "^(?=(a+)+b)x"}, f'"{"a" * 5000}"'),
]


@pytest.mark.parametrize(("schema", "text"), HOSTILE)
def test_no_schema_keeps_the_event_loop(schema, text):
    began = time.process_time()
    SchemaCheck.of(schema, "schema").fault(text)
    assert time.process_time() - began < 3  # without the bounds it is minutes, or for ever


def test_an_answer_nested_too_deep_to_be_checked_does_not_fit():
    text = '{"city": %s, "degrees": 12}' % ("[" * 500 + "]" * 500)
    assert SchemaCheck.of(CITY, param="text.format.schema").fault(text) == "it is nested too deep"


@pytest.mark.parametrize("pattern", [r"\p{L}{1,90}", r"(?i)\p{L}{1,10}", "(a{1,200}b{1,200}){1,9}"])
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_schema_of_a_thousand_expensive_patterns_is_compiled_in_time(pattern, keyword):
    patterns = [f"{pattern}{number}" for number in range(1000)]
    schema = {"properties": {f"p{at}": {"pattern": one} for at, one in enumerate(patterns)}}
    if keyword == "patternProperties":
        schema = {"patternProperties": {one: {"type": "integer"} for one in patterns}}
    began = time.process_time()
    SchemaCheck.of(schema, "schema")
    assert time.process_time() - began < 0.5  # it took up to 20 s


def test_of_very_large_patterns_some_are_compared_and_the_others_permit_anything():
    names = [f"p{at}" for at in range(40)]
    schema = {"properties": {name: {"pattern": rf"^\p{{L}}{{1,10}}{name}$"} for name in names}}
    check = SchemaCheck.of(schema, "schema")
    assert "does not match" in check.fault('{"p7": "1"}')
    began = time.process_time()
    assert check.fault(json.dumps(dict.fromkeys(names, "ap1")))
    assert time.process_time() - began < 0.5
    assert SchemaCheck.of({"pattern": r"^\p{L}{1,900}$"}, "schema").fault('"1"') is None


@pytest.mark.parametrize("pattern", [r"^(?=a).*(?=a).*x$", "^a*$"])
def test_a_text_that_takes_too_long_to_be_compared_fits_its_pattern(pattern):
    check = SchemaCheck.of({"pattern": pattern}, "schema")
    assert check.fault(json.dumps("a" * 300_000 + "b")) is None
    assert "does not match" in check.fault('"b"')


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "1.50", "much"), ("(?i)^nanaimo$", "NANAIMO", "Victoria")],
)
def test_patterns_with_look_around_and_with_flags_are_checked(pattern, fits, fits_not):
    check = SchemaCheck.of({"properties": {"a": {"anyOf": [{"type": "number"}, {"pattern": pattern}]}}}, "schema")
    assert check.fault(json.dumps({"a": fits})) is None
    assert check.fault(json.dumps({"a": fits_not})).startswith("a: ")


def test_a_pattern_that_is_too_large_permits_anything_and_one_that_is_none_is_refused():
    schema = {"type": "object", "patternProperties": {r"^\p{L}{1,90}$": {}}, "additionalProperties": False}
    assert SchemaCheck.of(schema, "schema").fault('{"a": 1}') is None
    schema = {"type": "object", "patternProperties": {"^a{1,3}$": {}}, "additionalProperties": False}
    assert "'b' was unexpected" in SchemaCheck.of(schema, "schema").fault('{"b": 1}')
    for wrong in ("(a{2}", "[", 5):
        with pytest.raises(RequestError):
            SchemaCheck.of({"pattern": wrong}, "schema")
