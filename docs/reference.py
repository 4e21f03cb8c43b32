"""Writes what the documents say out of the code: `docs/configuration.md`, and the tables of events and metrics.

    python docs/reference.py            # what `make docs` runs

A table is written between `<!-- NAME -->` and `<!-- end of NAME -->`.
"""

import ast
import builtins
import logging
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # also where the package is not installed

from proxy.config import model as c  # noqa: E402
from proxy.loop import limits  # noqa: E402
from proxy.telemetry.events import EVENTS, Event  # noqa: E402
from proxy.telemetry.series import Series  # noqa: E402
from proxy.tools.kinds import KINDS  # noqa: E402
from proxy.tools.search import description  # noqa: E402

_SECTIONS = (
    ("server", c.ServerConfig),
    ("clients[]", c.ClientConfig),
    ("upstreams.NAME", c.UpstreamConfig),
    ("models.NAME", c.ModelConfig),
    ("tools.NAME", c.ToolConfig),
    *((f"tools.NAME, type: {name}", kind.config) for name, kind in KINDS.items()),
    ("offer", c.OfferConfig),
    ("limits", c.LimitsConfig),
    ("state", c.StateConfig),
    ("telemetry", c.TelemetryConfig),
)
_WORDS = {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "Any": "anything"}
_ALIASES = {
    c.Seconds: "seconds",
    c.Count: "integer ≥ 1",
    c.CountOrZero: "integer ≥ 0",
    c.SecondsOrZero: "seconds ≥ 0",
    c.WholeSeconds: "whole seconds",
    c.BytesPerSecond: "bytes per second",
    c.Bytes: "bytes",
    c.Characters: "characters",
    c.Tokens: "tokens",
    c.PageCount: "0 to 20",
    c.Port: "port",
    c.Workers: "1 to 1024",
    c.Url: "URL",
    c.Key: "key",
    c.Keys: "key",
    typing.get_args(c.ApiKeys)[1]: "list of keys",
    c.LimitsConfig: "mapping: [limits](#limits)",
    c.LimitOverrides: "mapping: [limits](#limits)",
    description.Description: "mapping: [a description](search.md)",
}


class NoDescription(Exception):
    """A field of the configuration that says nothing about itself."""


def configuration() -> str:
    """The page `docs/configuration.md`."""
    said = descriptions()
    parts = [_HEAD]
    shown: set[type] = set()  # mappings whose keys an earlier section lists
    for title, kind in _SECTIONS:
        parts.append(f"## `{title}`\n\n{docstring(kind)}\n")
        fields = list(_fields(kind))
        if fields:
            rows = [row for info in fields for row in _rows(kind, info, said, shown)]
            parts.append("\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def descriptions() -> dict[tuple[str, str], str]:
    """The comment after every field of the configuration, or on the line before it, by class and field."""
    found = {}
    for module in (c, limits, description, *(sys.modules[kind.config.__module__] for kind in KINDS.values())):
        source = Path(module.__file__).read_text(encoding="utf-8")
        lines = source.splitlines()
        for made in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
            for node in made.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    behind = lines[node.lineno - 1].partition("  # ")[2]
                    before = lines[node.lineno - 2].strip()
                    text = behind or (before.removeprefix("# ") if before.startswith("# ") else "")
                    found[made.name, node.target.id] = text
    return found


def events() -> str:
    """The table of log events."""
    rows = [
        f"| `{name}` | {logging.getLevelName(event.level).lower()} | {event.meaning} | {_fields_of(event)} |"
        for name, event in EVENTS.items()
    ]
    return "\n".join(["| event | level | | fields |", "|---|---|---|---|", *rows])


def _fields_of(event: Event) -> str:
    return ", ".join(f"`{name}`" for name in event.fields.split())


def metrics() -> str:
    """The table of metrics."""
    rows = []
    series = Series()
    for metric in (*series.registry.collect(), *series.processes.collect()):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = ", ".join(f"`{label}`" for label in series.labels.get(metric.name, ()))
        rows.append(f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |")
    return "\n".join(["| metric | kind | labels | |", "|---|---|---|---|", *rows])


def with_tables(page: str) -> str:
    """A page with its tables written again."""
    for name, table in (("events", events()), ("metrics", metrics())):
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = between.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)
    return page


def _fields(kind: type[msgspec.Struct]) -> Iterator[msgspec.structs.FieldInfo]:
    inherited = () if kind is c.ToolConfig else c.ToolConfig.__struct_fields__
    own = kind.__annotations__
    for info in msgspec.structs.fields(kind):
        if info.name in own or info.name not in inherited or not issubclass(kind, c.ToolConfig):
            yield info


def _rows(
    kind: type[msgspec.Struct],
    info: msgspec.structs.FieldInfo,
    said: dict[tuple[str, str], str],
    shown: set[type],
    within: str = "",
) -> Iterator[str]:
    """The row of a field, and the rows of its keys if it is a mapping that no earlier section has shown."""
    yield f"| `{within}{info.name}` | {_kind(info.type)} | {_default_cell(info)} | {_cell(meaning(kind, info, said))} |"
    mapping = _mapping(info.type)
    if mapping and mapping not in shown:
        shown.add(mapping)
        for inner in msgspec.structs.fields(mapping):
            yield from _rows(mapping, inner, said, shown, f"{within}{info.name}.")


def meaning(kind: type[msgspec.Struct], info: msgspec.structs.FieldInfo, said: dict[tuple[str, str], str]) -> str:
    """The description of a field, its own or that of a class it inherits from. Raises `NoDescription`."""
    text = next((said[base.__name__, info.name] for base in kind.__mro__ if (base.__name__, info.name) in said), "")
    if not text:
        raise NoDescription(f"{kind.__module__}: {kind.__name__}.{info.name} needs a comment that says what it means")
    mark = " Needs a restart." if info.name in getattr(kind, "needs_restart", ()) else ""
    return text.replace("None: ", "Not set: ") + mark


def _kind(kind: object) -> str:
    """A type in words."""
    if kind in _ALIASES:
        return _ALIASES[kind]
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Union | types.UnionType:
            words = " or ".join(dict.fromkeys(_kind(one) for one in arguments if one is not type(None)))
        case typing.Literal:
            words = _cell(" | ".join(f"`{one}`" for one in arguments))
        case typing.Annotated:
            words = _kind(arguments[0])
        case builtins.tuple:
            words = f"list of {_kind(arguments[0])}"
        case builtins.dict:
            words = f"mapping of {_kind(arguments[1])}"
        case _:
            words = _plain(kind)
    return words


def _plain(kind: object) -> str:
    if _mapping(kind):
        return "mapping"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(name, name)


def _mapping(kind: object) -> type[c.Value] | None:
    """The class of a mapping whose keys are listed where it is used."""
    if kind in _ALIASES:
        return None
    options = typing.get_args(kind) if typing.get_origin(kind) in {typing.Union, types.UnionType} else (kind,)
    own = (one for one in options if isinstance(one, type) and issubclass(one, c.Value) and one not in _ALIASES)
    return next(own, None)


def default(info: msgspec.structs.FieldInfo) -> typing.Any:
    """The default of a field; None where there is none, and for a mapping whose keys have their own."""
    if info.required:
        return None
    value = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
    return None if isinstance(value, msgspec.Struct) else value


def _default_cell(info: msgspec.structs.FieldInfo) -> str:
    if info.required:
        return "required"
    value = default(info)
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def docstring(kind: type) -> str:
    """The description of a class, in one line."""
    text = " ".join((kind.__doc__ or "").split())
    return re.sub(r"^`[^`]+`[:,] ?(.)", lambda match: match[1].upper(), text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_HEAD = """\
# Configuration

This page has an example of each part of `config.yaml`, and then every option. `make docs` writes it from the program.

[`config.yaml`](../config.yaml) as shipped works with any one key. An upstream, tool or client without a key is
disabled with a warning, and so is one with a placeholder such as `your-api-key` or `changeme`.

## An example

```yaml
upstreams:
  zai: {base_url: https://api.z.ai/api/coding/paas/v4, api_key: "${ZAI_API_KEY}", profile: glm}
  gmi: {base_url: https://api.gmi-serving.com/v1, api_key: "${GMI_API_KEY}", profile: gpt_oss}
models:                       # the names that clients send
  glm-4.7: {upstream: zai, price: {input: 0.6, cached: 0.11, output: 2.2}}    # per million tokens
  glm-5: {upstream: zai, vision_model: glm-4.6v}     # for questions with an image
  "glm-*": {upstream: zai}    # a pattern: exact names first, then the longest pattern
  gpt-oss-120b: {upstream: gmi, model: openai/gpt-oss-120b, fallbacks: [glm-4.7]}
  "*": {upstream: zai}        # any other name goes there unchanged; without it, 404
tools:
  web_search: {type: serper, api_key: "${SERPER_API_KEY}", aliases: [webSearch], max_calls: 5, fallback: zai_search}
  zai_search: {type: zai_search, api_key: "${ZAI_API_KEY}", offer: never}    # GLM's own search: only as the fallback
  fetch_page: {type: web_fetch}
  current_time: {type: clock}
offer: {mode: always}         # offer the tools with every request, unless its tool_choice forbids it; or on_request, by
                              # prefix: "//" or model_suffix: ":online"; or declared, when the client itself names them
limits: {max_turns: 5, max_tool_calls: 8, deadline: 240, max_duration: 1200}
clients:                      # who may call; a client may have its own models, tools and limits
  - {name: app, key: "${TOOLPROXY_KEY}", models: ["glm-*"], requests_per_minute: 600, limits: {max_tool_calls: 2},
     budget: {per: day, tokens: 5000000, cost: 20.0}}
```

- Without `clients`, anyone may call the proxy, so it listens on loopback only. `TOOLPROXY_ALLOW_ANONYMOUS=true`
  permits other addresses.
- `api_key: from_client` passes each app's own key to the upstream.

## The file

**Variables.** `${NAME}` and `${NAME:-default}` are replaced from the environment. A `.env` file next to the
configuration sets variables that are missing or empty in the environment; `--no-env-file` ignores it. Its lines
are `NAME=value`, with `export`, quotes and comments as in python-dotenv. Nothing is expanded in it: `$` and `${NAME}`
stay as written.
A line that is not an assignment causes a warning. The `.env` file is only for `${NAME}` in the configuration: it sets
no option such as `TOOLPROXY_PORT`, and no variable of programs that tools start.

**Errors.** With an unknown key, a wrong type or an undefined name, `toolproxy serve` does not start and names the
line and path.

**Editors.** `toolproxy schema` prints a JSON Schema of the file. Editors with yaml-language-server use it to complete
and check: the first line of the shipped file names `config.schema.json` next to it, and `toolproxy init` writes both.
After an upgrade, run `toolproxy schema > config.schema.json`.

**Reload.** A running proxy [reads the file again](upgrades.md) at SIGHUP or, with `--watch`, when it changes.
Settings marked "Needs a restart" keep their old value.

**Check.** `toolproxy check` exits with 1 if `toolproxy serve` would not start. It prints a line for each reason, and
the verdict last. It ignores a port in use, because the running proxy may be using it. With `--probe`, it also uses
the configured keys: it asks each upstream for one token, each search for one result and each MCP server for its
tools, and writes to Redis. It reports an unknown host, TLS errors, a refused key, a key for Z.AI's other endpoint,
and missing credit.

`check` and the log warn about:

- a client `key` of fewer than 16 characters (with fewer than 8, the proxy listens on loopback only);
- an `api_key` of fewer than 8 characters for a public host;
- a file without models.
"""


def main() -> None:
    """Write all of it."""
    (DOCS / "configuration.md").write_text(configuration(), encoding="utf-8")
    page = DOCS / "observability.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
