"""`toolproxy check --probe`: sends one request to every server of the configuration, with the configured key.

An upstream is sent a request for a completion of one token, the cheapest one that really tests a key: some providers
list their models without a key, and Z.AI reports a missing balance (code 1113) only here. A search provider is sent one
query; an MCP server lists its tools; a shared state makes one write.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import httpx
import msgspec
import orjson

from proxy import stores
from proxy.config import model as c
from proxy.config.redaction import without_pieces
from proxy.http.client import HttpClient, ServiceClient
from proxy.http.connect import causes
from proxy.http.tunnel import ProxyRefused
from proxy.kit.terminal import printable
from proxy.loop.results import ToolError
from proxy.ports import Clock, NoObserver
from proxy.tools.kinds import kind_of
from proxy.tools.tool_type import ProbeResult, Resources
from proxy.upstreams import failures
from proxy.upstreams.endpoint import Endpoint
from proxy.upstreams.profile import PROFILES
from proxy.upstreams.request_body import prepare
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError, UpstreamRefused

_SECONDS: Final = 30.0  # timeout of a response: a model that thinks needs some seconds for its first token
_TIMEOUTS: Final = c.Timeouts(connect=10, read=_SECONDS, write=10, pool=10)
_LONGEST_MESSAGE: Final = 300
_QUESTION: Final = "Answer with one word: ready?"
_NOT_FOUND, _TOO_MANY = 404, 429
_FAULTS_OF_KEYS: Final[Mapping[str | None, str]] = {
    "refused": "the key is refused",
    "credit": "no credit is left for this key",
    "window": "the quota of this key is used up",
}
_AskTool: TypeAlias = Callable[[str, c.ToolConfig, Resources], Awaitable[ProbeResult]]


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding about one server; `path` is its part of the configuration.

    A server that was tried, and has answered without a fault, is usable.
    """

    path: str
    message: str
    is_fault: bool = False
    is_tried: bool = True


@dataclass(frozen=True, slots=True)
class ProbeClients:
    """The HTTP clients and resources of a probe, which are those that `serve` uses."""

    http_client_for: Callable[[c.UpstreamConfig], HttpClient]
    tool_client: Callable[[], ServiceClient]
    clock: Clock


async def probe(config: c.Config, clients: ProbeClients) -> list[Finding]:
    """Probe all servers of a configuration at the same time; the findings are in the order of the file."""
    entries = (*config.upstreams.values(), *config.tools.values())
    keys = [key for entry in entries for key in c.keys_of(getattr(entry, "api_key", None)).values()]
    async with aclosing(clients.tool_client()) as client:
        findings = await asyncio.gather(*_questions(config, clients, client))
    return [replace(finding, message=without_pieces(finding.message, keys)) for finding in findings]


def _questions(config: c.Config, clients: ProbeClients, client: ServiceClient) -> Iterator[Awaitable[Finding]]:
    """Ask each upstream and tool with each of its keys, and the state."""
    for name, upstream in config.upstreams.items():
        ask_upstream = partial(_ask_upstream, name, model=_model_of(name, config), clients=clients)
        yield from _by_number(name, upstream, ask_upstream)
    resources = Resources(client, clients.clock)
    for name, tool in config.tools.items():
        if ask := kind_of(tool).probe:
            yield from _by_number(name, tool, partial(_ask_tool, name, ask, resources))
    if config.state.is_shared:
        yield _ask_state(config.state, clients.clock)


def _by_number(name: str, entry: c.Keyed, ask: Callable[[c.Keyed], Awaitable[Finding]]) -> Iterator[Awaitable[Finding]]:
    """The findings with each key of an entry; each of several is named by its number."""

    async def named(number: int, finding: Awaitable[Finding]) -> Finding:
        found = await finding
        return replace(found, message=f"{name} key {number}: {found.message}")

    single = c.with_single_keys(entry)
    for number, one in single.items():
        yield ask(one) if len(single) == 1 else named(number, ask(one))


def _model_of(upstream: str, config: c.Config) -> str | None:
    """The upstream's name of a model to request; None if only patterns are configured for the upstream."""
    for name, model in config.models.items():
        if model.upstream == upstream and (model.model or "*" not in name):
            return model.model or name
    return None


async def _ask_upstream(name: str, upstream: c.UpstreamConfig, model: str | None, clients: ProbeClients) -> Finding:
    finding = await _ask(name, upstream, model, clients)
    other = failures.other_endpoint(PROFILES[upstream.profile], upstream.base_url)
    if not finding.path.endswith(".api_key") or not finding.is_fault or other is None:
        return finding
    there = await _ask(name, msgspec.structs.replace(upstream, base_url=other), model, clients)
    if there.is_fault:
        return finding
    advice = f"this key fits the other Z.AI endpoint: {other} (ZAI_BASE_URL={other})"
    return Finding(f"upstreams.{name}.base_url", advice, is_fault=True)


async def _ask(name: str, upstream: c.UpstreamConfig, model: str | None, clients: ProbeClients) -> Finding:
    """The finding about one endpoint."""
    upstream = msgspec.structs.replace(upstream, timeouts=_TIMEOUTS)
    endpoint = Endpoint.of(name, clients.http_client_for(upstream), upstream)
    path = f"upstreams.{name}"
    try:
        if endpoint.credential.uses_client_key:
            return await _reach(endpoint, path)
        if model is None:
            await _get_models(endpoint)
            return Finding(
                path, "lists its models; no model was asked, because `models` names none of them", is_tried=False
            )
        return await _complete(endpoint, path, upstream, model)
    except UpstreamRefused as exc:
        return _refusal(path, exc, model)
    except ProxyError as exc:
        return Finding(f"{path}.base_url", _network_fault(exc) or _plain(exc.message), is_fault=True)
    finally:
        await endpoint.client.aclose()


async def _complete(endpoint: Endpoint, path: str, upstream: c.UpstreamConfig, model: str) -> Finding:
    # The response is closed with the endpoint.
    body = await endpoint.read_whole(await endpoint.respond(endpoint.whole, orjson.dumps(_request(model, upstream))))
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    failures.raise_if_failed(answer)
    if isinstance(answer, dict) and answer.get("choices"):
        return Finding(path, f"{model} answers")
    return Finding(f"{path}.base_url", "the server at this address does not answer with a completion", is_fault=True)


def _request(model: str, upstream: c.UpstreamConfig) -> Json:
    profile, question = PROFILES[upstream.profile], {"role": "user", "content": _QUESTION}
    thinking = {"thinking": {"type": "disabled"}} if profile.thinking_switch else {}
    return prepare({"model": model, "messages": [question], "max_tokens": 1, "stream": False, **thinking}, profile)


async def _reach(endpoint: Endpoint, path: str) -> Finding:
    """Whether an upstream that gets the clients' own keys responds at all; without a key, it may refuse."""
    try:
        await _get_models(endpoint)
    except UpstreamRefused as exc:
        if exc.status == _NOT_FOUND:
            return _nothing_there(path)
    return Finding(path, "can be reached; clients bring their own keys", is_tried=False)


async def _get_models(endpoint: Endpoint) -> None:
    headers = ((b"accept", b"application/json"), (b"accept-encoding", b"identity"), (b"user-agent", b"toolproxy"))
    reply = await endpoint.send("GET", "/models", headers, b"")
    await reply.aclose()


def _refusal(path: str, exc: UpstreamRefused, model: str | None) -> Finding:
    """The finding about a 4xx response. One that is about the request itself means that the key was accepted."""
    said = f"(HTTP {exc.status}: {_plain(exc.message)})"
    cause = exc.cause if isinstance(exc, failures.KeyRefused) else "refused" if exc.operator_code else None
    if cause in _FAULTS_OF_KEYS:
        return Finding(f"{path}.api_key", f"{_FAULTS_OF_KEYS[cause]} {said}", is_fault=True)
    says_model = model is not None and (exc.code == "model_not_found" or "model" in exc.message.lower())
    if cause == "model" or (exc.status == _NOT_FOUND and says_model):
        return Finding(path, f"has no model {model!r} for this key {said}", is_fault=True)
    if exc.status == _NOT_FOUND:
        return _nothing_there(path)
    does = "is busy" if exc.status == _TOO_MANY else "refuses the test question"
    return Finding(path, f"takes the key, and {does} {said}", is_tried=False)


def _nothing_there(path: str) -> Finding:
    return Finding(f"{path}.base_url", "there is no API at this address (HTTP 404)", is_fault=True)


async def _ask_tool(name: str, ask: _AskTool, resources: Resources, tool: c.ToolConfig) -> Finding:
    path = f"tools.{name}"
    try:
        found = await ask(name, tool, resources)
    except ToolError as exc:
        network = _network_fault(exc)
        return Finding(path, f"{network}{_where(tool)}" if network else _plain(exc.why or str(exc)), is_fault=True)
    except TimeoutError:
        return Finding(path, f"gave no answer within {_SECONDS:g} s", is_fault=True)
    return Finding(path, _plain(found.message) if found.is_fault else found.message, found.is_fault, found.is_tried)


async def _ask_state(config: c.StateConfig, clock: Clock) -> Finding:
    shared = stores.connect(config, clock=clock, observe=NoObserver())
    try:
        await shared.probe()
        why_not = shared.readiness().why_not
    finally:
        await shared.aclose()
    said = f"{shared.place}: {why_not}" if why_not else f"{shared.place} can be written to"
    return Finding("state.url", said, is_fault=bool(why_not))


def _network_fault(exc: BaseException) -> str | None:
    """Why a server cannot be reached, in plain words; None if it was reached."""
    faults = (
        str(link) if isinstance(link, ProxyRefused) else _tls_fault(link) or _connection_fault(link)
        for link in causes(exc)
    )
    # Last the error of a name with several addresses, each of which has failed in its own way.
    several = (f"cannot be reached: {link}" for link in causes(exc) if isinstance(link, OSError) and str(link))
    return next(filter(None, (*faults, *several)), None)


def _where(tool: c.ToolConfig) -> str:
    """The host of a tool that could not be reached; empty if it is not known."""
    host = urlsplit(kind_of(tool).address(tool) or "").hostname
    return f" ({host})" if host else ""


def _tls_fault(exc: BaseException) -> str | None:
    match exc:
        case ssl.SSLCertVerificationError():
            return f"TLS: its certificate is not trusted: {exc.verify_message}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "TLS: the server does not use TLS at this port: should the URL begin with http://?"
        case ssl.SSLError():
            return f"TLS: {exc.reason or exc.strerror}"
    return None


def _connection_fault(exc: BaseException) -> str | None:
    match exc:
        case socket.gaierror(errno=socket.EAI_NONAME):
            return "no such host"
        case ConnectionRefusedError():
            return "nothing listens at this address: the connection was refused"
        case httpx.ConnectTimeout():
            return f"took no connection within {_TIMEOUTS.connect:g} s"
        case httpx.TimeoutException():
            return f"gave no answer within {_SECONDS:g} s"
        case OSError(strerror=str(why)):
            return f"cannot be reached: {why}"
    return None


def _plain(text: str) -> str:
    """A server's text on one line, cut to a message."""
    words = printable(text)
    return words if len(words) <= _LONGEST_MESSAGE else f"{words[:_LONGEST_MESSAGE]}..."
