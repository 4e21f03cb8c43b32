from time import process_time

import pytest

from proxy.kit.schema import References
from proxy.tools.types import repaired

PROPERTIES = {
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "ok": {"type": "boolean"},
    "s": {"type": "string"},
    "o": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
    "l": {"type": "array", "items": {"type": "integer"}},
    "maybe": {"type": ["integer", "null"]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "optional": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
    "point": {"allOf": [{"$ref": "#/$defs/point"}]},
    "level": {"enum": [1, 2, 3]},
    "fixed": {"const": True},
    "pair": {"prefixItems": [{"type": "integer"}, {"type": "boolean"}]},
    "map": {"type": "object", "additionalProperties": {"type": "number"}},
    "any": {},
    "tree": {"$ref": "#/$defs/tree"},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["n"],
    "$defs": {
        "point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "tree": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "kids": {"items": {"$ref": "#/$defs/tree"}}},
        },
    },
}


def repair(arguments, schema=SCHEMA):
    return repaired(arguments, References(schema))


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("n", "1", 1),
        ("n", " -3 ", -3),
        ("n", "3.0", 3),
        ("n", 3.0, 3),
        ("n", "1e3", 1000),
        ("n", "18446744073709551615", 18446744073709551615),
        ("x", "1.5", 1.5),
        ("x", "2", 2),
        ("ok", "true", True),
        ("ok", "False", False),
        ("l", "[]", []),
        ("l", '["1", 2]', [1, 2]),
        ("l", ["1", 2.0], [1, 2]),
        ("o", '{"n": "7", "s": "8"}', {"n": 7, "s": "8"}),
        ("maybe", "4", 4),
        ("maybe", "null", None),
        ("maybe", None, None),
        ("optional", '{"x": "1"}', {"x": 1}),
        ("optional", {"x": "1"}, {"x": 1}),
        ("optional", "null", None),
        ("point", {"x": "1"}, {"x": 1}),
        ("level", "2", 2),
        ("fixed", "true", True),
        ("pair", ["1", "true"], [1, True]),
        ("map", {"a": "1.5"}, {"a": 1.5}),
        ("tree", {"kids": [{"kids": [{"n": "1"}]}]}, {"kids": [{"kids": [{"n": 1}]}]}),
    ],
)
def test_a_value_of_another_type_is_repaired_where_the_schema_leaves_no_doubt(name, written, meant):
    found = repair({"n": 1, name: written})[name]
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *[
            ("n", text)
            for text in ("", " ", "one", "1.5", "0x10", "007", "1,000", "+1", "١", "NaN", "1_000", "true", "[1]")
        ],
        ("n", 1.5),
        ("n", "184467440737095516160"),
        ("n", None),
        ("n", "null"),
        *[("ok", text) for text in ("yes", "no", "1", "on", "", "tru")],
        ("ok", 1),
        ("x", "Infinity"),
        ("s", 7),
        ("s", "7"),
        ("s", "true"),
        ("either", "7"),
        ("o", "Oslo"),
        ("o", "[]"),
        ("o", "{n: 1}"),
        ("l", "a, b"),
        ("l", "{}"),
        ("any", "1"),
        ("any", None),
    ],
)
def test_a_value_that_leaves_doubt_stays(name, written):
    arguments = {"n": 1, name: written}
    assert repair(arguments) is arguments


@pytest.mark.parametrize("name", ["x", "ok", "s", "o", "l", "point", "level", "map"])
@pytest.mark.parametrize("null", [None, "null", "None"])
def test_null_for_what_may_be_left_out_and_takes_none_is_left_out(name, null):
    if name == "s" and null is not None:
        assert repair({"n": 1, name: null}) == {"n": 1, name: null}  # it may be the text
    else:
        assert repair({"n": 1, name: null}) == {"n": 1}


def test_null_is_left_out_of_objects_within_and_for_a_name_that_takes_no_value():
    assert repair({"n": 1, "o": {"n": None, "s": None}}) == {"n": 1, "o": {}}
    assert repair({"z": None}, {"type": "object", "additionalProperties": False}) == {}
    assert repair({"point": {"x": None}, "n": 1}) == {"point": {"x": None}, "n": 1}  # it is required


def test_of_several_objects_none_is_chosen():
    schema = {"properties": {"a": {"anyOf": [{"properties": {"x": {"type": "integer"}}}, {"properties": {"y": {}}}]}}}
    arguments = {"a": {"x": "1"}}
    assert repair(arguments, schema) is arguments


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#"}}, "allOf": [{"properties": {"a": {"$ref": "#"}}}]},
    ],
)
def test_a_schema_that_refers_to_itself_ends(schema):
    arguments = {"b": "1"}
    for _ in range(250):
        arguments = {"a": arguments}
    assert repair(arguments, schema) == arguments


def test_only_so_many_values_are_looked_at():
    begun = process_time()
    found = repair({"n": 1, "l": ["1"] * 300_000})["l"]
    assert (found[0], found[-1]) == (1, "1")
    assert process_time() - begun < 1
