"""Writes `config.schema.json`, the JSON Schema of `config.yaml` for editors and `toolproxy schema`.

    python docs/config_schema.py        # what `make docs` runs

Keys, types, ranges and defaults are those of the classes in `proxy/config/model.py` and `proxy/tools/kinds/`, and
descriptions the comments that `docs/configuration.md` has too. Rules across keys are left to `toolproxy check`.
"""

import types
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson
import reference

from proxy.config import model as c
from proxy.config.syntax import VARIABLE
from proxy.loop.limits import LimitOverrides, LimitsConfig
from proxy.tools.kinds import KINDS
from proxy.tools.search.description import Description, shipped

Schema: typing.TypeAlias = dict[str, Any]

FILE: Final = reference.DOCS.parent / "config.schema.json"
_SAID: Final = reference.descriptions()
_VARIABLE: Final = {"$ref": "#/$defs/variable"}
_UNIT: Final = "x-unit"
_COMMON: Final = msgspec.structs.fields(c.ToolConfig)
# Keys that the configuration takes as anything, and that a tool reads more strictly.
_STRICTER: Final[dict[tuple[str, str], Any]] = {
    ("SearchConfig", "provider"): typing.Literal[shipped()] | Description,
    ("HttpToolConfig", "result"): typing.Literal["text"] | dict[typing.Literal["json_pointer"], str],
}


def schema() -> Schema:
    """The schema of the whole file. An empty file is valid: everything has a default."""
    definitions: Schema = {
        "variable": {
            "description": "A text with variables: ${NAME}, or ${NAME:-default}. It may stand for any single value.",
            "type": "string",
            "pattern": _ecma(VARIABLE.pattern),
        }
    }
    root = _mapping(c.Config, definitions)
    root["properties"]["clients"]["type"] = ["array", "null"]  # all clients may be commented out
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "config.yaml of toolproxy",
        **root,
        "description": "What runs where: see docs/configuration.md.",
        "type": ["object", "null"],
        "$defs": dict(sorted(definitions.items())),
    }


def _mapping(kind: type[msgspec.Struct], definitions: Schema, *, overrides: bool = False) -> Schema:
    """The schema of a class; with `overrides`, of limits that replace others, there are no defaults."""
    properties: Schema = {}
    required = []
    for info in msgspec.structs.fields(kind):
        said = reference.meaning(kind, info, _SAID)
        if info.required:
            required.append(info.name)
        if issubclass(kind, c.ToolConfig) and info in _COMMON and kind is not c.ToolConfig:
            properties[info.name] = {"$ref": f"#/$defs/ToolConfig/properties/{info.name}"}
            continue
        value = _STRICTER.get((kind.__name__, info.name), info.type)
        options = _options(value | None if kind is LimitsConfig else value, definitions)
        properties[info.name] = _property(said, options, None if overrides else reference.default(info))
    return {
        "description": reference.docstring(kind),
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _property(said: str, options: list[Schema], default: Any) -> Schema:
    units = [option.pop(_UNIT) for option in options if _UNIT in option]
    made: Schema = {"description": said}
    for unit in units:
        made[_UNIT] = unit
        if unit not in said.lower():
            made["description"] += f" Unit: {unit}."
    if default is not None:
        made["default"] = default
    return {**made, **_any_of(options)}


def _any_of(options: list[Schema]) -> Schema:
    return options[0] if len(options) == 1 else {"anyOf": options}


def _options(kind: Any, definitions: Schema) -> list[Schema]:
    """The schemas of which a value of that type fits one."""
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin in {typing.Union, types.UnionType}:
        found = [option for argument in arguments for option in _options(argument, definitions)]
        return [option for at, option in enumerate(found) if option not in found[:at]]
    if origin is tuple:
        return [{"type": "array", "items": _any_of(_options(arguments[0], definitions))}]
    if origin is dict:
        names = {"not": _VARIABLE} if arguments[0] is str else _leaf(arguments[0])
        values = _any_of(_options(arguments[1], definitions))
        return [{"type": "object", "propertyNames": names, "additionalProperties": values}]
    return _plain_options(kind, definitions)


def _plain_options(kind: Any, definitions: Schema) -> list[Schema]:
    """The same, of a class or a single value."""
    if kind is Any:
        return [{}]
    if kind is c.ToolConfig:
        return [_tool(definitions)]
    if kind is LimitOverrides:
        return [_defined("LimitOverrides", definitions, lambda: _mapping(LimitsConfig, definitions, overrides=True))]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [_defined(kind.__name__, definitions, lambda: _mapping(kind, definitions))]
    leaf = _leaf(kind)
    is_any_text = leaf.get("type") == "string" and "pattern" not in leaf
    return [leaf] if is_any_text or kind is type(None) else [leaf, _VARIABLE]


def _defined(name: str, definitions: Schema, make: Callable[[], Schema]) -> Schema:
    """A reference to a definition, which is made where it is used first."""
    if name not in definitions:
        definitions[name] = make()
    return {"$ref": f"#/$defs/{name}"}


def _tool(definitions: Schema) -> Schema:
    """An entry of `tools:`: one of the types, or one with a variable as its type, whose keys cannot be told."""
    definitions["ToolConfig"] = _mapping(c.ToolConfig, definitions)
    types_ = {name: kind.config for name, kind in KINDS.items()}
    for name, kind in types_.items():
        made = _mapping(kind, definitions)
        made["properties"] = {"type": {"description": made["description"], "const": name}, **made["properties"]}
        made["required"] = ["type", *made.get("required", ())]
        definitions[kind.__name__] = made
    known = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in types_.values()]
    return {"oneOf": [*known, {"type": "object", "properties": {"type": _VARIABLE}, "required": ["type"]}]}


def _leaf(kind: Any) -> Schema:
    made = msgspec.json.schema(kind)
    if "pattern" in made:
        made["pattern"] = _ecma(made["pattern"])
    return made


def _ecma(pattern: str) -> str:
    r"""A pattern of Python's in what is common to the dialects of validators: none knows `\Z`, and some `\w` is ASCII.

    Python's own validator knows no `\p{L}`, so that all characters beyond ASCII stand for letters.
    """
    return pattern.replace(r"\Z", "$").replace(r"\w", r"\w\u0080-\uffff")  # each `\w` stands in brackets


def text() -> str:
    """The content of the file."""
    return orjson.dumps(schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def main() -> None:
    """Write the schema."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
