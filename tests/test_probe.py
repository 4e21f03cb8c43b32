"""`toolproxy check --probe` against scripted servers: what is wrong is said in words, and each fault has its place."""

import asyncio
import errno
import re
import socket
import ssl
from contextlib import asynccontextmanager

import orjson
import pytest
import trustme

from proxy import app
from proxy.app.configuration import parse
from proxy.commands import cli
from proxy.commands.probe import ProbeClients, probe
from tests.free_port import free_port
from tests.redis_server import RedisServer

KEY = "sk-canary-0123456789"
COMPLETION = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Re"}, "finish_reason": "length"}]}


@asynccontextmanager
async def scripted(answers, *, tls=None):
    """A server with an answer for each path: a status, and JSON or bytes. Yields its address and what it was asked."""
    asked = []

    async def serve(reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            writer.close()
            return
        lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = lines[0].split()
        asked.append((f"{method} {path}", headers, orjson.loads(body) if body else None))
        status, answer = answers.get(path, (404, {"error": {"message": "no such path"}}))
        data = answer if isinstance(answer, bytes) else orjson.dumps(answer)
        writer.write(f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def findings(text):
    """What a probe of a configuration finds: good news and faults, as `check` prints them."""
    loaded = parse(text, {})
    found = await probe(loaded.config, ProbeClients(app.http_client_for, app.tool_client, app.SystemClock()))
    good = [f"{one.path}: {one.message}" for one in found if not one.is_fault]
    return good, [f"{loaded.place_of(one.path)}: {one.message}" for one in found if one.is_fault]


def upstream(base_url, *, profile="openai", key=KEY, models="m: {upstream: up, model: the/model}"):
    return (
        f"models: {{{models}}}\n"
        f"upstreams:\n  up:\n    profile: {profile}\n    base_url: {base_url}\n    api_key: {key}\n    transport: TRANSPORT\n"
    )


@pytest.fixture(params=["auto", "httpx"])
def transport(request):
    return request.param


async def test_an_upstream_is_asked_for_one_token_of_a_model_with_its_key(transport):
    async with scripted({"/v1/chat/completions": (200, COMPLETION)}) as (at, asked):
        text = upstream(f"http://{at}/v1", profile="glm").replace("TRANSPORT", transport)
        assert await findings(text) == (["upstreams.up: the/model answers"], [])
    ((line, headers, body),) = asked
    assert line == "POST /v1/chat/completions"
    assert headers["authorization"] == f"bearer {KEY}"
    assert (body["model"], body["max_tokens"], body["thinking"]) == ("the/model", 1, {"type": "disabled"})


def error(status, message, **rest):
    return status, {"error": {"message": message, **rest}}


KEY_LINE, URL_LINE, ENTRY_LINE = "config.yaml:6: upstreams.up.api_key", "config.yaml:5: upstreams.up.base_url", "config.yaml:3: upstreams.up"  # fmt: skip
REFUSALS = {
    "a wrong key": (
        error(401, "Incorrect API key provided"),
        f"{KEY_LINE}: the key is refused (HTTP 401: Incorrect API key provided)",
    ),
    "a key that may not": (error(403, "Not yours"), f"{KEY_LINE}: the key is refused (HTTP 403: Not yours)"),
    "a wrong key in Z.AI's manner": (
        (200, {"error": {"code": "1000", "message": "Authentication Failed"}}),
        f"{KEY_LINE}: the key is refused (HTTP 401: Authentication Failed (upstream code 1000))",
    ),
    "no balance at Z.AI": (
        error(429, "No balance.", code="1113"),
        f"{KEY_LINE}: no credit is left for this key (HTTP 429: No balance. (upstream code 1113))",
    ),
    "no quota at OpenAI": (
        error(429, "You exceeded your current quota", code="insufficient_quota"),
        f"{KEY_LINE}: no credit is left for this key (HTTP 429: You exceeded your current quota)",
    ),
    "no credits at OpenRouter": (
        error(402, "Insufficient credits", code=402),
        f"{KEY_LINE}: no credit is left for this key (HTTP 402: Insufficient credits)",
    ),
    "a quota that is used up": (
        error(429, "Usage limit reached", code="1308"),
        f"{KEY_LINE}: the quota of this key is used up (HTTP 429: Usage limit reached (upstream code 1308))",
    ),
    "a plan without the model": (
        error(400, "Not in your plan", code="1311"),
        f"{ENTRY_LINE}: has no model 'the/model' for this key (HTTP 400: Not in your plan (upstream code 1311))",
    ),
    "an unknown model": (
        (404, b"No server found for model the/model"),
        f"{ENTRY_LINE}: has no model 'the/model' for this key (HTTP 404: No server found for model the/model)",
    ),
    "an unknown path": (
        (404, {"timestamp": "x", "status": 404, "error": "Not Found", "path": "/v4/v1/chat/completions"}),
        f"{URL_LINE}: there is no API at this address (HTTP 404)",
    ),
    "a web page": (
        (200, b"<html>Welcome</html>"),
        f"{URL_LINE}: the server at this address does not answer with a completion",
    ),
    "another service": (
        (200, {"hello": 1}),
        f"{URL_LINE}: the server at this address does not answer with a completion",
    ),
    "a failure": (error(503, "out of order"), f"{URL_LINE}: The upstream failed (HTTP 503): out of order"),
    "a redirect": ((302, b""), f"{URL_LINE}: The upstream 'up' answered with a redirect, which is not followed."),
    "what a terminal would obey": (
        error(401, "bad\x1b[2J\r\nkey"),
        f"{KEY_LINE}: the key is refused (HTTP 401: bad [2J key)",
    ),
}


@pytest.mark.parametrize(("answer", "fault"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_what_an_upstream_refuses_is_said_in_words_with_its_place(answer, fault, transport):
    async with scripted({"/v1/chat/completions": answer}) as (at, _):
        assert await findings(upstream(f"http://{at}/v1").replace("TRANSPORT", transport)) == ([], [fault])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(429, "Slow down"), "takes the key, and is busy (HTTP 429: Slow down)"),
        (
            error(400, "max_tokens is not supported"),
            "takes the key, and refuses the test question (HTTP 400: max_tokens is not supported)",
        ),
    ],
)
async def test_a_refusal_that_says_nothing_against_the_key_is_no_fault(answer, said):
    async with scripted({"/v1/chat/completions": answer}) as (at, _):
        assert await findings(upstream(f"http://{at}/v1").replace("TRANSPORT", "auto")) == (
            [f"upstreams.up: {said}"],
            [],
        )


CODING, PAAS = "/api/coding/paas/v4", "/api/paas/v4"


@pytest.mark.parametrize("answer", [error(429, "No balance", code="1113"), error(401, "token expired or incorrect")])
@pytest.mark.parametrize(("configured", "right"), [(CODING, PAAS), (PAAS, CODING)])
async def test_a_key_that_fits_the_other_endpoint_of_zai_is_told_so(answer, configured, right):
    answers = {f"{configured}/chat/completions": answer, f"{right}/chat/completions": (200, COMPLETION)}
    async with scripted(answers) as (at, _):
        text = upstream(f"http://{at}{configured}/", profile="glm").replace("TRANSPORT", "auto")
        there = f"http://{at}{right}"
        told = f"{URL_LINE}: this key fits the other Z.AI endpoint: {there} (ZAI_BASE_URL={there})"
        assert await findings(text) == ([], [told])


async def test_a_key_that_fits_neither_endpoint_of_zai_is_a_fault_of_the_key():
    refused = error(401, "token expired or incorrect")
    answers = {f"{path}/chat/completions": refused for path in (CODING, PAAS)}
    async with scripted(answers) as (at, asked):
        _, (fault,) = await findings(upstream(f"http://{at}{CODING}", profile="glm").replace("TRANSPORT", "auto"))
    assert fault == f"{KEY_LINE}: the key is refused (HTTP 401: token expired or incorrect)"
    assert len(asked) == 2


async def test_a_server_that_cannot_be_reached_says_why(transport):
    for url, why in (
        (f"http://127.0.0.1:{free_port()}", "nothing listens at this address: the connection was refused"),
        ("http://no-such-host.invalid", "no such host"),
    ):
        _, (fault,) = await findings(upstream(url).replace("TRANSPORT", transport))
        assert fault.startswith(f"{URL_LINE}: {why}")


async def test_a_server_whose_addresses_fail_each_in_its_own_way_says_all_of_them(monkeypatch):
    loop = asyncio.get_running_loop()

    async def getaddrinfo(*_, **__):
        kinds = socket.SOCK_STREAM, 6, ""
        return [(socket.AF_INET6, *kinds, ("2001:db8::1", 80)), (socket.AF_INET, *kinds, ("192.0.2.1", 80))]

    async def sock_connect(sock, _):
        raise OSError(errno.ENETUNREACH if sock.family == socket.AF_INET6 else errno.EHOSTUNREACH, "not this way")

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    _, (fault,) = await findings(upstream("http://two.example").replace("TRANSPORT", "auto"))
    assert fault.startswith(f"{URL_LINE}: cannot be reached: ")
    assert "not this way" in fault


async def answer_in_plain_http(reader, writer):
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    writer.close()


async def test_faults_of_tls_are_named(transport):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with (
        scripted({}, tls=context) as (secure, _),
        await asyncio.start_server(answer_in_plain_http, "127.0.0.1") as server,
    ):
        plain = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        _, (untrusted,) = await findings(upstream(f"https://{secure}").replace("TRANSPORT", transport))
        _, (not_spoken,) = await findings(upstream(f"https://{plain}").replace("TRANSPORT", transport))
    assert untrusted.startswith(f"{URL_LINE}: TLS: its certificate is not trusted: ")
    assert (
        not_spoken == f"{URL_LINE}: TLS: the server does not use TLS at this port: should the URL begin with http://?"
    )


async def test_with_nothing_but_a_pattern_for_models_or_keys_of_the_clients_models_are_listed():
    async with scripted({"/models": (200, {"data": []})}) as (at, asked):
        pattern = upstream(f"http://{at}", models="'*': {upstream: up}").replace("TRANSPORT", "auto")
        said = "upstreams.up: lists its models; no model was asked, because `models` names none of them"
        assert await findings(pattern) == ([said], [])
        theirs = upstream(f"http://{at}", key="from_client").replace("TRANSPORT", "auto")
        assert await findings(theirs) == (["upstreams.up: can be reached; clients bring their own keys"], [])
    assert [line for line, _, _ in asked] == ["GET /models"] * 2
    assert "from_client" not in str(asked)


UP = "upstreams: {}\n"
PAGES = [{"link": "https://a.example/", "date": "2026-01-02"}, {"link": "https://b.example/"}]
SEARCHES = {
    "serper": ("/search", {"organic": PAGES}, (403, {"message": "Unauthorized.", "statusCode": 403}), "Unauthorized."),
    "zai_search": (
        "/web_search",
        {"search_result": [{**page, "publish_date": page.get("date")} for page in PAGES]},
        (401, {"error": {"code": "1000", "message": "no such key"}}),
        "no such key",
    ),
}


@pytest.mark.parametrize("kind", SEARCHES)
async def test_a_search_provider_is_asked_one_query_with_its_key(kind):
    path, good, refused, said = SEARCHES[kind]
    for answer, expected in (
        ((200, good), (["tools.s: 2 results in N ms, 1 of them dated"], [])),
        (refused, ([], [f"config.yaml:3: tools.s: its key was refused (HTTP {refused[0]}: {said})"])),
        ((429, {"error": {"code": "1113"}, "message": "Not enough credits"}), ([], ["config.yaml:3: tools.s: its credit is used up (HTTP 429: Not enough credits)"])),
        ((500, {}), ([], ["config.yaml:3: tools.s: the search service does not work (HTTP 500)"])),
    ):  # fmt: skip
        async with scripted({path: answer}) as (at, asked):
            text = UP + f"tools:\n  s: {{type: {kind}, api_key: {KEY}, base_url: 'http://{at}'}}"
            fine, faults = await findings(text)
        assert ([re.sub("[0-9]+ ms", "N ms", one) for one in fine], faults) == expected
        ((_, headers, _),) = asked
        assert KEY in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("bearer "))


async def test_a_search_provider_that_cannot_be_reached_says_why():
    text = UP + f"tools:\n  s: {{type: serper, api_key: {KEY}, base_url: 'http://127.0.0.1:{free_port()}'}}"
    why = "nothing listens at this address: the connection was refused"
    assert await findings(text) == ([], [f"config.yaml:3: tools.s: {why} (127.0.0.1)"])


async def test_redis_is_asked_for_a_write(tmp_path):
    server = RedisServer(tmp_path, password="right-secret").start()
    try:
        assert await findings(f"state:\n  url: {server.url}") == (["state.url: Redis can be written to"], [])
        why = "it wants a password, and state.url has none (NOAUTH)"
        fault = f"config.yaml:2: state.url: Redis: {why}"
        assert await findings(f"state:\n  url: redis://127.0.0.1:{server.port}") == ([], [fault])
    finally:
        server.stop()


async def test_the_command_prints_what_answers_and_fails_with_what_does_not_and_masks_the_key(tmp_path, capsys):
    answer = error(401, f"Incorrect API key provided: {KEY}")
    async with scripted({"/v1/chat/completions": answer, "/search": (200, {"organic": []})}) as (at, _):
        (tmp_path / "config.yaml").write_text(
            upstream(f"http://{at}/v1").replace("TRANSPORT", "auto")
            + f"tools: {{s: {{type: serper, api_key: {KEY}, base_url: 'http://{at}'}}}}\n"
        )
        arguments = ["check", "--probe", "--config", str(tmp_path / "config.yaml")]
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(cli.main, arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert re.search(
        r"probes:\n  tools\.s: usable, no results in \d+ ms for 'news'\n"
        r"config.yaml is valid, but 1 of 2 servers cannot be used\n\Z",
        printed.out,
    )
    assert printed.err == f"toolproxy: {KEY_LINE}: the key is refused (HTTP 401: Incorrect API key provided: ***)\n"


KEYS = [f"{name}-key-{number * 8}" for name, number in (("first", "1"), ("second", "2"), ("third", "3"))]


async def test_each_of_several_keys_is_probed_and_known_by_its_number():
    asked = []

    async def serve(reader, writer):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        await reader.readexactly(int(headers.get("content-length", 0)))
        key = headers.get("x-api-key") or headers["authorization"].removeprefix("bearer ")
        asked.append(key)
        status, answer = (200, COMPLETION) if key != KEYS[1] else error(401, f"Incorrect key: {key[:12]}****")
        data = orjson.dumps({"organic": [], **answer})
        writer.write(f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        good, faults = await findings(
            "models: {m: {upstream: up}}\n"
            f"upstreams: {{up: {{base_url: 'http://127.0.0.1:{port}', api_key: ['${{UNSET}}', '{KEYS[0]},{KEYS[1]}', {{key: {KEYS[2]}}}]}}}}\n"
            f"tools: {{s: {{type: serper, base_url: 'http://127.0.0.1:{port}', api_key: [{KEYS[0]}, {KEYS[1]}]}}}}\n"
        )
    assert sorted(asked) == sorted([*KEYS, KEYS[0], KEYS[1]])
    good = [re.sub(r"\d+ ms", "N ms", line) for line in good]
    assert good == [
        "upstreams.up: up key 2: m answers",
        "upstreams.up: up key 4: m answers",
        "tools.s: s key 1: no results in N ms for 'news'",
    ]
    assert [line.partition(": ")[2] for line in faults] == [
        "upstreams.up.api_key: up key 3: the key is refused (HTTP 401: Incorrect key: *******)",
        "tools.s: s key 2: its key was refused (HTTP 401: Incorrect key: *******)",
    ]
