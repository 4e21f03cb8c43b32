from time import process_time

import orjson
import pytest

from proxy.kit.schema import MOST_SCHEMA_BYTES
from proxy.tools.schema import schema_fault, schema_of


def chained(levels, *, keyword="anyOf"):
    """A schema that doubles at each level: each definition refers twice to the one before."""
    definitions = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        definitions[f"d{level}"] = {keyword: [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{levels}"}}, "$defs": definitions}


def seconds(work):
    begun = process_time()
    work()
    return process_time() - begun


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_a_schema_that_doubles_at_each_level_is_refused(keyword):
    assert "expands to more than" in schema_fault(chained(25, keyword=keyword))
    assert schema_fault(chained(5, keyword=keyword)) is None


def test_a_schema_that_doubles_through_properties_is_refused():
    schema = {"type": "object", "$defs": {"d0": {}}}
    for level in range(1, 25):
        step = {"properties": {"a": {"$ref": f"#/$defs/d{level - 1}"}}}
        schema["$defs"][f"d{level}"] = {"anyOf": [step, {**step, "title": "b"}]}
    assert "expands" in schema_fault({**schema, "$ref": "#/$defs/d24"})


def test_a_schema_that_hides_its_doubling_behind_an_identity_or_an_anchor_is_refused():
    hidden = {"$id": "https://a.example/x", "$ref": "#/$defs/d25", "$defs": chained(25)["$defs"]}
    assert "expands" in schema_fault({"type": "object", "properties": {"a": hidden}, "$defs": {"d25": {}}})
    anchored = chained(25)
    anchored["$defs"]["d25"]["$anchor"] = "x"
    anchored["properties"] = {"a": {"$ref": "#x"}, "b": {"enum": [{"$anchor": "x"}]}}
    assert "expands" in schema_fault(anchored)
    assert "named" in schema_fault({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x", "type": "null"}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"child": {"$ref": "#"}}},
        {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"children": {"items": {"$ref": "#/$defs/n"}}}}}},
        {"$defs": {"n~/%": {"type": "null"}}, "properties": {"a": {"$ref": "#/$defs/n~0~1%25"}}},
        {"properties": {"a": {"$anchor": "here"}, "b": {"$ref": "#here"}}},
        {"properties": {"a": {"$id": "T0", "items": {"$ref": "T0"}}}},
        {"properties": {"a": {"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$"}}},
    ],
)
def test_recursive_schemas_references_and_patterns_with_look_around_are_taken(schema):
    assert schema_fault({"type": "object", **schema}) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"pattern": "("}}}, "not a regular expression"),
        ({"patternProperties": {"(": True}}, "not a regular expression"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "nothing at"),
        ({"properties": {"a": {"description": "x" * MOST_SCHEMA_BYTES}}}, "longer than 65536 bytes"),
        ({"$ref": "#/$defs/d200", "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n - 1}"} for n in range(1, 201)}}, "levels"),
        ({"type": "array"}, "type object"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema, why):
    assert why in schema_fault(schema)


def test_a_schema_is_compiled_once_and_a_refused_one_is_refused_again():
    assert schema_of(chained(3)) is schema_of(chained(3))
    assert schema_fault(chained(25)) == schema_fault(chained(25)) is not None


def test_many_patterns_are_compiled_only_when_they_are_needed():
    properties = {f"p{n}": {"type": "string", "pattern": ".{999}"} for n in range(1200)}
    assert seconds(lambda: schema_of({"type": "object", "properties": properties})) < 0.5  # compiled: five seconds


@pytest.mark.parametrize(
    "pattern", [r"(?=a).*(?=a).*x", "[01]*1[01]{200}x", "[01]*1[01]{2000}x", "(a|a)*b", r"^(.*)\1x$"]
)
@pytest.mark.parametrize("text", ["a" * 200_000, "01" * 100_000, "a" * 30_000, "1" * 4_000])
def test_no_pattern_takes_long_whatever_the_text(pattern, text):
    schema = schema_of({"properties": {"q": {"pattern": pattern}}})
    assert seconds(lambda: schema.is_valid({"q": text})) < 0.5  # some took more than a minute


def test_all_texts_of_a_call_are_bounded_together_for_patterns():
    schema = schema_of({"properties": {"q": {"items": {"pattern": "^a*$"}}}})
    assert schema.is_valid({"q": ["a" * 1000] * 30})
    assert not schema.is_valid({"q": ["a" * 1000] * 60})
    assert schema.is_valid({"q": ["a" * 1000] * 30})  # for each call anew
    assert "too long" in schema.fault({"q": ["a" * 1000] * 60}, "")


@pytest.mark.parametrize(
    "items",
    [
        {"type": "integer"},
        {"type": "object", "required": ["a", "b", "c", "d"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "array", "items": {"type": "integer"}}]},
        {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
    ],
)
def test_of_faults_without_number_only_the_first_is_described(items):
    schema = schema_of({"type": "object", "properties": {"a": {"type": "array", "items": items}}})
    arguments = {"a": ["x"] * 200_000}
    text = orjson.dumps(arguments).decode()

    def describe():
        assert not schema.is_valid(arguments)
        assert len(schema.fault(arguments, text) or "") < 500

    assert seconds(describe) < 0.5  # it took four to sixteen seconds


def test_alternatives_in_a_recursive_schema_are_not_described_again_and_again():
    alternatives = [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]
    schema = schema_of({"type": "object", "anyOf": alternatives})
    arguments = "x"
    for _ in range(20):
        arguments = {"a": arguments}
    assert not schema.is_valid(arguments)
    assert schema.fault(arguments, "") is None  # a description would double with each level


def test_work_grows_with_the_values_and_with_the_alternatives():
    few, many = (
        schema_of({"properties": {"a": {"items": {"anyOf": [{"const": n} for n in range(count)]}}}})
        for count in (2, 500)
    )
    numbers = str(list(range(5000)))
    assert not few.is_too_much(numbers)
    assert many.is_too_much(numbers)
    assert not many.is_too_much('{"text": "' + "a" * 900_000 + '"}')
