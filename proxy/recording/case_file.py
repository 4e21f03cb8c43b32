"""A recording as a case: the JSON file that plays it again anywhere, without keys and times (docs/case.schema.json).

Every secret is masked in it: those of the configuration, and what the client and the upstreams have sent as keys and
cookies. It holds no address, no command and no header that is not needed.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import orjson
from msgspec.structs import asdict

from proxy.config.keys import FROM_CLIENT
from proxy.config.loaded import Loaded
from proxy.config.model import Config, ModelConfig, UpstreamConfig
from proxy.config.redaction import secrets_of
from proxy.kit.header_names import SECRET_NAME
from proxy.loop.results import ToolTimeout
from proxy.recording.masking import Masker
from proxy.recording.recording import MOST_BYTES, Headers, Recording, ToolRun, UpstreamCall
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.credentials import forms_of
from proxy.wire.errors import CaseTooLarge
from proxy.wire.json_text import read_json

NOTICE: Final = (
    "This file holds a conversation: the request, what the model and the tools answered, and what the app got. Keys, "
    "cookies and configured secrets are masked; nothing else is. `toolproxy replay FILE` plays it again."
)
_BIG_NUMBER: Final = re.compile(rb"[:\[,]\s*-?\d{19}")  # which might not come back as it was
# The headers of a request by which an answer may differ.
_ASKED_HEADERS: Final = re.compile(
    rb"accept|anthropic-(?:beta|version)|content-(?:encoding|type)|openai-beta|upgrade|x-server-tools|x-tool-events"
)
_ANSWER_HEADERS: Final = re.compile(
    rb"content-(?:type|encoding|disposition)|retry-after(?:-ms)?|x-should-retry|(?:x-|anthropic-)?ratelimit-.*"
    rb"|x-tool-.*|x-tools-ignored|allow|location"
)
# Fields of a request's body in which apps send keys of tools and servers.
_KEY_FIELDS: Final = re.compile(
    r"api[-_]?key|authorization(?:_token)?|password|access_token|client_secret", re.IGNORECASE
)
# The value of a header such as `Authorization` is a secret without it.
_SCHEME: Final = re.compile(r"^(?:bearer|basic|token|apikey|digest)\s+", re.IGNORECASE)
_OF_USER: Final = "masked"  # in the place of a credential, so that the tools that need it are there
_FIRST_FAILURE: Final = 400
_PUBLIC_HOST: Final = "api.z.ai"  # with two endpoints, on which the advice about a key depends
_UPSTREAM_FIELDS: Final = ("profile", "retries", "timeouts", "breaker", "cache_marks")
# What a tool is besides its description: no function, no key and no address.
_TOOL_FIELDS: Final = (*ToolSpec.__struct_fields__[1:], "timeout", "fallback", "block", "price")
_SERVER_FIELDS: Final = ("keepalive_seconds", "max_body_bytes")
_CLIENT_FIELDS: Final = ("name", "models", "tools", "limits", "tool_events")


class CaseContext(msgspec.Struct, frozen=True):
    """What was in force when a request was recorded.

    Attributes:
        loaded: the configuration.
        tools: the tools by their names.
        secrets: further secrets to mask, such as those that the state store keeps.
        version: of the proxy.
    """

    loaded: Loaded
    tools: Mapping[str, ToolSpec]
    secrets: tuple[str, ...] = ()
    version: str = ""


def encode(recording: Recording, context: CaseContext) -> bytes:
    """The case as JSON. Raises `CaseTooLarge`."""
    if recording.size > MOST_BYTES:
        raise CaseTooLarge(recording.size, MOST_BYTES)
    text = orjson.dumps(_CaseWriter(recording, context).case(), option=orjson.OPT_INDENT_2)
    if len(text) > MOST_BYTES:
        raise CaseTooLarge(len(text), MOST_BYTES)
    return text


class _CaseWriter:
    """Writes one case."""

    def __init__(self, recording: Recording, context: CaseContext) -> None:
        self._recording = recording
        self._loaded = context.loaded
        self._config = context.loaded.config
        self._tools = recording.tools or context.tools
        self._version = context.version
        self._user_headers = frozenset(name.encode() for name in context.loaded.user_headers)
        of_user = (value.decode("latin-1") for name, value in recording.headers if name in self._user_headers)
        found = {
            *secrets_of(context.loaded),
            *context.secrets,
            *_secrets_of_request(recording),
            *chain(*map(forms_of, of_user)),
        }
        names = (*self._config.upstreams, *self._config.models, *self._tools, *context.loaded.user_headers)
        self._masker = Masker((_SCHEME.sub("", secret) for secret in found), names=names)

    def case(self) -> Json:
        """The case as JSON values."""
        recording = self._recording
        asked, status = _json(b"".join(recording.body)), recording.status
        model = asked.get("model") if isinstance(asked, dict) else None
        path = recording.target.partition("?")[0]
        began = datetime.fromtimestamp(recording.began_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        title = f"{recording.method} {path}{f', {model}' if isinstance(model, str) else ''}: {status or 'no answer'}"
        request_id = self._masker.text(recording.request_id)
        return {
            "notice": NOTICE,
            "title": self._masker.text(title),
            "why": f"Recorded by toolproxy {self._version} on {began}, as request {request_id}.",
            "not_played": [*self._not_played(asked)],
            "recorded": {"version": self._version, "at": round(recording.began_at, 3)},
            "config": self._configuration(model),
            "exchanges": [self._exchange()],
        }

    def _not_played(self, asked: Any) -> Iterator[str]:
        """What time has caused, and no replay can cause again."""
        yield from self._recording.timed
        if isinstance(asked, dict) and asked.get("n") not in (None, 1) and any(map(_failed, self._recording.calls)):
            yield "one of several runs of the request failed, and how far the other runs had come was chance"
        for call in self._recording.calls:
            if call.failure is not None and call.failure.endswith("Timeout"):
                yield f"a call of the upstream {call.upstream} took too long ({call.failure})"
        for run in self._recording.runs:
            if run.failure is not None and run.failure.get("outcome") == ToolTimeout.outcome:
                yield f"a call of the tool {run.name} took too long"

    def _exchange(self) -> Json:
        recording = self._recording
        upstream: dict[str, list[Json]] = {}
        for call in recording.calls:
            upstream.setdefault(self._masker.text(call.upstream), []).append(self._call(call))
        is_stream = dict(recording.answer_headers).get(b"content-type", b"").startswith(b"text/event-stream")
        answer = {"pieces": self._pieces(recording.answer)} if is_stream else self._content(recording.answer)
        return {
            "request": {
                "path": self._masker.text(recording.target),
                "method": recording.method,
                "headers": {
                    **self._headers(recording.headers, _ASKED_HEADERS),
                    **{name.decode(): _OF_USER for name, _ in recording.headers if name in self._user_headers},
                },
                **self._content(recording.body),
            },
            "upstream": upstream,
            "tools": [self._run(run) for run in recording.runs],
            "state": [*self._state()],
            "got": {
                "status": recording.status,
                "headers": self._headers(recording.answer_headers, _ANSWER_HEADERS),
                **answer,
            },
        }

    def _call(self, call: UpstreamCall) -> Json:
        asked = self._content([call.asked], name="asked")
        told: Json = {"asked": asked.get("asked", asked.get("raw"))}
        if call.target and not call.target.endswith("/chat/completions"):
            told["path"] = self._masker.text(call.target)
        if call.status is not None:
            told |= {"status": call.status, "headers": self._headers(call.headers, _ANSWER_HEADERS)}
        told["pieces"] = self._pieces(call.pieces)
        if call.failure is not None:
            told["fails"] = call.failure
        elif not call.has_ended:
            told["left"] = True
        if call.wait is not None:
            told["wait"] = call.wait
        return told

    def _run(self, run: ToolRun) -> Json:
        told: Json = {"name": run.name, "arguments": self._masker.value(run.arguments)}
        if run.failure is not None:
            return {**told, **self._masker.value(run.failure)}
        if run.output is None:
            return {**told, "left": True}
        output = msgspec.to_builtins(run.output, enc_hook=dict)
        told["text"] = self._masker.text(output.pop("text", ""))
        kept = {name: value for name, value in output.items() if value not in (None, {}, [], ())}
        return {**told, "output": self._masker.value(kept)} if kept else told

    def _state(self) -> Iterator[Json]:
        for key, value in self._recording.state.items():
            found = {"value": None} if value is None else self._content([value], name="value")
            yield {"key": self._masker.text(key), **found}
        for sealed, held in self._recording.opened.items():
            yield {"sealed": sealed, "value": self._masker.value(held)}

    def _content(self, pieces: Sequence[bytes], *, name: str = "body") -> Json:
        """A body: JSON as it is, anything else as text, or in base64 if it is no text."""
        content = b"".join(pieces)
        if not content:
            return {}
        found = _json(content)
        if found is not None:
            with suppress(RecursionError):
                return {name: self._masker.value(found)}
        (piece,) = self._pieces([content])
        return {"raw": piece} if isinstance(piece, str) else piece

    def _pieces(self, pieces: Sequence[bytes]) -> list[Any]:
        """The pieces of a body as they came, or one with masked secrets."""
        return [*map(_text, self._masker.stream(pieces))]

    def _headers(self, headers: Headers, needed: re.Pattern[bytes]) -> dict[str, str]:
        kept = {name.lower(): value for name, value in reversed(headers) if needed.fullmatch(name.lower())}
        return {
            self._masker.text(name.decode("latin-1")): self._masker.text(value.decode("latin-1"))
            for name, value in sorted(kept.items())
        }

    # -- the configuration --

    def _configuration(self, model: Any) -> Json:
        config, scope = self._config, self._recording.scope
        models = _models_of(config, model) if isinstance(model, str) else {}
        names = {entry.upstream for entry in models.values()} | {call.upstream for call in self._recording.calls}
        used = {name: config.upstreams[name] for name in sorted(names) if name in config.upstreams}
        caller = scope.get("caller")
        client = {name: getattr(caller, name, None) for name in _CLIENT_FIELDS}
        if (left := scope.get("tool_calls_left")) is not None:
            client["tool_calls_left"] = left
        return {
            "server": {name: getattr(config.server, name) for name in _SERVER_FIELDS},
            "client": self._fields(client),
            "counts_use": config.needs_use,
            "upstreams": {self._masker.text(name): self._upstream(name, entry) for name, entry in used.items()},
            "models": {self._masker.text(name): self._fields(asdict(entry)) for name, entry in models.items()},
            "tools": {self._masker.text(name): self._tool(tool) for name, tool in self._tools.items()},
            "offer": self._masker.value(asdict(config.offer), keys=False),
            "limits": self._fields(asdict(config.limits)),
        }

    def _fields(self, fields: Mapping[str, Any]) -> Json:
        """Fields as JSON values, with masked secrets; those without a value are left out."""
        kept = {name: value for name, value in fields.items() if value is not None and value not in ((), {}, [])}
        plain: Json = self._masker.value(msgspec.to_builtins(kept, enc_hook=list), keys=False)
        return plain

    def _upstream(self, name: str, entry: UpstreamConfig) -> Json:
        told = {field: getattr(entry, field) for field in _UPSTREAM_FIELDS}
        if entry.api_key == FROM_CLIENT:
            told["from_client"] = True
        elif self._loaded.serves_operator:
            told["key_source"] = self._loaded.key_source(f"upstreams.{name}")
        if name in self._recording.system_first:
            told["system_first"] = True
        if urlsplit(entry.base_url).hostname == _PUBLIC_HOST:
            told["base_url"] = entry.base_url
        return self._fields({**told, "keys": self._recording.keys.get(name)})

    def _tool(self, tool: ToolSpec) -> Json:
        """A tool as data: whoever plays the case gives its results."""
        disabled = self._loaded.disabled.get(f"tools.{tool.name}")
        entry = self._config.tools.get(tool.group or tool.name) or (disabled and disabled.entry)
        told = {name: getattr(tool, name, None) for name in _TOOL_FIELDS}
        told["applies_filters"] = getattr(tool, "run_filtered", None) is not None
        parameters = self._masker.value(told.pop("parameters"))
        return {
            "type": entry.type if entry else "python",
            "recorded": {**self._fields(told), "parameters": parameters},
        }


def _failed(call: UpstreamCall) -> bool:
    return call.failure is not None or not call.has_ended or (call.status or 0) >= _FIRST_FAILURE


def _models_of(config: Config, name: str) -> dict[str, ModelConfig]:
    """The entry of a model, whether it is named or matched by a pattern, and those that it refers to."""
    found: dict[str, ModelConfig] = {}
    wanted = [name, name.removesuffix(config.offer.model_suffix or "")]
    for one in wanted:  # which grows by what each entry refers to
        patterns = [key for key in config.models if "*" in key and fnmatchcase(one, key)]
        for key in [one] if one in config.models else patterns:
            if key not in found:
                entry = found[key] = config.models[key]
                wanted += [*entry.fallbacks, *([entry.vision_model] if entry.vision_model else [])]
    return found


def _secrets_of_request(recording: Recording) -> Iterator[str]:
    """The keys and cookies in the client's request, and in the responses of upstreams."""
    for headers in (recording.headers, *(call.headers for call in recording.calls)):
        for name, content in headers:
            if SECRET_NAME.search(name.decode("latin-1")):
                yield from _secrets_in_header(name.lower(), content.decode("latin-1"))
    for parameter, value in parse_qsl(urlsplit(recording.target).query, keep_blank_values=True):
        if SECRET_NAME.search(parameter):
            yield value
    asked = _json(b"".join(recording.body))
    if isinstance(asked, dict):
        yield from _secrets_in_body(asked)


def _secrets_in_header(name: bytes, value: str) -> Iterator[str]:
    if name in (b"cookie", b"set-cookie"):
        parts = value.split(";") if name == b"cookie" else value.split(";", 1)[:1]
        yield from (part.partition("=")[2].strip() for part in parts)
        return
    yield value
    scheme, _, rest = value.partition(" ")
    yield rest.strip()
    if scheme.lower() == "basic":
        try:
            yield from b64decode(rest.strip()).decode("utf-8", "replace").partition(":")[::2]
        except ValueError:
            return


def _secrets_in_body(body: Json) -> Iterator[str]:
    """The keys that an app sends along with its tools, its servers and in fields of the request itself."""
    lists = [held for name in ("tools", "mcp_servers") if isinstance(held := body.get(name), list)]
    for one in (body, *chain(*lists)):
        if not isinstance(one, dict):
            continue
        for name, value in one.items():
            if isinstance(value, str) and _KEY_FIELDS.fullmatch(name):
                yield from (value, value.partition(" ")[2])
            elif name in ("headers", "extra_headers") and isinstance(value, dict):
                for header, held in value.items():
                    if isinstance(held, str) and SECRET_NAME.search(str(header)):
                        yield from (held, held.partition(" ")[2])


def _json(content: bytes) -> Any:
    """A body as JSON; None if it is something else, nested too deep, or would not come back as it was."""
    if not content or _BIG_NUMBER.search(content):
        return None
    try:
        return read_json(content.decode())
    except (orjson.JSONDecodeError, UnicodeDecodeError):
        return None


def _text(content: bytes) -> Any:
    """A piece of a body: text, or in base64 if it is no text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}
