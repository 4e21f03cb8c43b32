"""What comes over the wire, byte by byte: framing, sizes, times, and what is answered where HTTP ends."""

import asyncio
import errno
import gc
import re
import socket
import struct
import sys
import time
from contextlib import asynccontextmanager, suppress

import orjson
import pytest
from uvicorn.server import ServerState

from proxy.app.configuration import parse
from proxy.server.cycle import Cycle
from proxy.server.process import uvicorn_config
from proxy.server.protocol import HttpProtocol
from tests.fakes import FakeUpstream, Reply, whole
from tests.http.rawserver import raw_server
from tests.serving import CONFIG, proxy_of, serving_as_shipped, serving_of

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
PATHS = [CHAT, RESPONSES, EMBEDDINGS]
BODY = b'{"model":"m","messages":[{"role":"user","content":"x"}],"input":"x","tool_choice":"none"}'
_HANGS = 60  # seconds after which a test has failed that waits for what never comes, however slow the machine is
QUICK = "server: {header_timeout_seconds: 0.2, body_timeout_seconds: 0.2, send_timeout_seconds: 0.2}"


@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}  # as shipped; the other tests of endpoints run without it


@pytest.fixture
def upstream():
    return FakeUpstream([whole("Hi")])


def head(*lines, path=CHAT, method="POST", version="HTTP/1.1", host="host: x\r\n"):
    fields = "".join(f"{line}\r\n" for line in lines)
    return f"{method} {path} {version}\r\n{host}{fields}\r\n".encode("latin-1")


def post(*lines, path=CHAT, body=BODY, **options):
    return head(f"content-length: {len(body)}", *lines, path=path, **options) + body


def chunk(data, extension=b""):
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


@asynccontextmanager
async def connected(url):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def said(url, *pieces, seconds=0.0):
    """Everything that the server says until it closes; the pieces are sent so many seconds apart."""
    async with asyncio.timeout(_HANGS), connected(url) as (reader, writer):
        sending = asyncio.ensure_future(send(writer, pieces, seconds))
        try:
            return await reader.read()
        finally:
            sending.cancel()


async def send(writer, pieces, seconds):
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(seconds)


def answers(raw, *, has_body=True):
    """The (status, headers, body) of every response in there, in order."""
    found = []
    while raw:
        top, _, rest = raw.partition(b"\r\n\r\n")
        lines = top.decode().split("\r\n")
        status = int(re.fullmatch(r"HTTP/1\.1 (\d{3}) [ -~]*", lines[0])[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        if headers.get("transfer-encoding") == "chunked":
            body, raw = unchunked(rest)
        else:
            length = int(headers.get("content-length", 0)) if has_body else 0
            body, raw = rest[:length], rest[length:]
        found.append((status, headers, body))
    return found


def unchunked(raw):
    """The data of a chunked body, and what follows it."""
    data = b""
    while True:
        line, _, rest = raw.partition(b"\r\n")
        size = int(line, 16)
        data += rest[:size]
        raw = rest[size + 2 :]
        if not size:
            return data, raw


def refusal(raw):
    """The status and code of the only answer, which is in OpenAI's envelope and ends its connection."""
    ((status, headers, body),) = answers(raw)
    error = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (headers["connection"], headers["content-type"]) == ("close", "application/json")
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    return status, error["code"]


# -- framing --

CHUNKED = "transfer-encoding: chunked"
AMBIGUOUS = {
    "both lengths": head("content-length: 5", CHUNKED) + b"0\r\n\r\nGET /x",
    "both lengths, the other way round": head(CHUNKED, "content-length: 5") + b"0\r\n\r\n",
    "two lengths": head("content-length: 5", "content-length: 6") + b"hello!",
    "the same length twice": head("content-length: 5", "content-length: 5") + b"hello",
    "a list of lengths": head("content-length: 5, 5") + b"hello",
    "a signed length": head("content-length: +5") + b"hello",
    "a negative length": head("content-length: -5") + b"hello",
    "a length in hexadecimal": head("content-length: 0x5") + b"hello",
    "a length without end": head("content-length: 99999999999999999999999") + b"hello",
    "an empty length": head("content-length:") + b"hello",
    "a chunk without size": head(CHUNKED) + b"x\r\nhello\r\n0\r\n\r\n",
    "a chunk with a sign": head(CHUNKED) + b"+5\r\nhello\r\n0\r\n\r\n",
    "a chunk in 0x": head(CHUNKED) + b"0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk too large to count": head(CHUNKED) + b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "a chunk longer than it says": head(CHUNKED) + b"3\r\nhello\r\n0\r\n\r\n",
    "chunks and bare line feeds": head(CHUNKED) + b"5\nhello\n0\n\n",
    "a coding before chunked's end": head("transfer-encoding: chunked, identity") + chunk(b"hello") + b"0\r\n\r\n",
    "chunked with a tab": head("transfer-encoding: \x0bchunked") + chunk(b"hello"),
    "a blank before the colon": b"POST / HTTP/1.1\r\nhost : x\r\n\r\n",
    "a name with a blank": head("x y: z"),
    "no name": head(": z"),
    "no colon": head("nothing"),
    "a folded line": b"POST / HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
    "a fold before everything": b"POST / HTTP/1.1\r\n host: x\r\n\r\n",
    "bare line feeds": b"POST / HTTP/1.1\nhost: x\n\n",
    "a bare carriage return": head("x: a\rcontent-length: 5"),
    "a NUL": head("x: a\0b"),
    "no host": head(host=""),
    "two hosts": head("host: y"),
    "a version from the future": head(version="HTTP/3.7"),
    "no blank": b"GET/HTTP/1.1\r\nhost: x\r\n\r\n",
    "a method of its own": head(method="FROBNICATE"),
    "a path with a blank": head(path="/v1/a b"),
    "a path with bytes that are no ASCII": head(path="/v1/\xe9"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "nothing but nonsense": b"\x00" * 100,
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_two_parsers_could_read_in_two_ways_is_refused_and_goes_nowhere(upstream, request_bytes):
    async with proxy_of(upstream) as url:
        assert refusal(await said(url, request_bytes)) == (400, "invalid_request")
    assert upstream.heads == []


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (head("transfer-encoding: gzip, chunked") + chunk(b"x") + b"0\r\n\r\n", 501),
        (head("transfer-encoding: identity") + b"hello", 501),
        (head("transfer-encoding: xchunked") + chunk(b"hello"), 501),
        (b"GET /\r\n\r\n", 505),
        (head(CHUNKED, version="HTTP/1.0") + chunk(b"x") + b"0\r\n\r\n", 501),
        (post("expect: a-miracle"), 417),
        (head(version="HTTP/2.0"), 505),
        (head(version="RTSP/1.0", path="/v1/models", method="GET"), 505),
        (post(version="RTSP/1.1"), 505),
        (head("user-agent: x HTTP/1.1", version="RTSP/1.0", path="/v1/models", method="GET"), 505),
        (head(method="CONNECT", path="evil.example:443"), 405),
        (post(method="TRACE", path=EMBEDDINGS), 405),
    ],
)
async def test_what_is_http_but_not_spoken_here_is_refused_by_its_own_status(upstream, request_bytes, status):
    async with proxy_of(upstream) as url:
        assert refusal(await said(url, request_bytes))[0] == status
    assert upstream.heads == []


async def test_a_method_that_is_never_taken_is_refused_with_those_that_are(upstream):
    async with proxy_of(upstream) as url:
        ((_, headers, _),) = answers(await said(url, post(method="TRACE", path=EMBEDDINGS)))
    assert headers["allow"] == "delete, get, head, options, patch, post, put"


async def test_a_refused_request_has_its_line_in_the_log(upstream, logged):
    async with proxy_of(upstream) as url:
        ((_, headers, _),) = answers(await said(url, b"nonsense\r\n\r\n"))
    (line,) = [line for line in logged() if line["event"] == "request.refused"]
    assert (line["status"], line["request_id"]) == (400, headers["x-request-id"])


@pytest.mark.parametrize("given", ["mine-1", "not sane", ""])
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (lambda line: post(line, method="TRACE", path=EMBEDDINGS), 405),
        (lambda line: post(line, "expect: a-miracle"), 417),
        (lambda line: head(line, *(f"x-{at}: a" for at in range(200))), 431),
        (lambda line: head(line, CHUNKED) + b"no chunk", 400),
    ],
)
async def test_a_refused_request_keeps_the_id_that_its_client_gave_it(upstream, logged, request_bytes, status, given):
    async with proxy_of(upstream) as url:
        ((found, headers, _),) = answers(await said(url, request_bytes(f"x-request-id: {given}")))
    (line,) = [line for line in logged() if line["event"] == "request.refused"]
    assert (found, line["request_id"]) == (status, headers["x-request-id"])
    assert (headers["x-request-id"] == given) is (given == "mine-1")


async def test_what_follows_a_request_and_is_none_does_not_have_its_id(upstream):
    before = head("x-request-id: mine-1", path="/healthz", method="GET")
    async with proxy_of(upstream) as url, connected(url) as (reader, writer):
        writer.write(before)
        assert b"mine-1" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x00\r\n\r\n")
        rest = await reader.read()
    assert b"HTTP/1.1 400" in rest
    assert b"mine-1" not in rest


async def test_requests_in_one_packet_are_answered_one_after_the_other(upstream):
    pair = head(path="/healthz", method="GET") + head("connection: close", path="/readyz", method="GET")
    async with proxy_of(upstream) as url:
        found = answers(await said(url, pair))
    assert [orjson.loads(body)["status"] for _, _, body in found] == ["ok", "ready"]


async def test_many_requests_in_one_packet_are_answered_one_after_the_other_and_few_wait_at_a_time(upstream):
    gate = asyncio.Event()
    upstream.replies = [Reply([gate, *whole("Hi").body])]
    names = [f"r-{at}" for at in range(100)]
    rest = b"".join(head(f"x-request-id: {name}", path="/healthz", method="GET") for name in names)
    last = head("connection: close", "x-request-id: last", path="/healthz", method="GET")
    async with proxy_of(upstream) as url:
        saying = asyncio.ensure_future(said(url, post("x-request-id: first") + rest + last))
        await upstream.asked.wait()
        assert alive(Cycle) < 25
        gate.set()
        found = answers(await saying)
    assert [headers["x-request-id"] for _, headers, _ in found] == ["first", *names, "last"]
    assert {status for status, _, _ in found} == {200}


async def test_a_connection_that_is_lost_leaves_none_of_its_waiting_requests_behind(upstream, no_collector):
    gate = asyncio.Event()
    upstream.replies = [Reply([gate, *whole("Hi").body])]
    async with proxy_of(upstream) as url:
        async with connected(url) as (_, writer):
            writer.write(post() + head(path="/healthz", method="GET") * 100)
            await upstream.asked.wait()
            assert alive(Cycle) > 1
            writer.transport.abort()
        gate.set()
        await until(lambda: not alive(HttpProtocol, Cycle))


async def test_a_connection_that_was_refused_and_is_reset_is_not_kept(upstream, no_collector):
    async with proxy_of(upstream, more=CLIENTS) as url, connected(url) as (reader, writer):
        body = b"x" * 130_000
        writer.write(post(body=body))
        assert (await next_answer(reader))[0] == 401
        linger = struct.pack("ii", 1, 0)  # so that closing is a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await until(lambda: not alive(HttpProtocol, Cycle))


@pytest.fixture
def no_collector():
    """Without the garbage collector, whatever lies in a circle of references stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*kinds):
    """How many there are of these, whether anybody can still reach them or not."""
    return sum(isinstance(found, kinds) for found in gc.get_objects())


async def until(condition):
    async with asyncio.timeout(_HANGS):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("garbage", [b"\x00\x01", b"POST / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", b"G" * 100_000])
async def test_nonsense_behind_a_request_does_not_take_its_answer_away(upstream, garbage):
    gate = asyncio.Event()
    upstream.replies = [Reply([gate, *whole("Hi").body])]
    async with proxy_of(upstream) as url:
        saying = asyncio.ensure_future(said(url, post() + garbage))
        await upstream.asked.wait()
        gate.set()
        ((status, _, body),) = answers(await saying)
    assert (status, orjson.loads(body)["choices"][0]["message"]["content"]) == (200, "Hi")


async def test_nonsense_behind_two_requests_takes_neither_answer_away(upstream):
    upstream.replies = [whole("Hi"), whole("Hi")]
    async with proxy_of(upstream) as url:
        found = answers(await said(url, post() + post() + b"nonsense\r\n\r\n"))
    assert [(status, headers.get("connection")) for status, headers, _ in found] == [(200, None), (200, "close")]


async def crashes(send):
    raise ValueError


async def crashes_with_a_head(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ValueError


async def answers_nothing(send):
    pass


async def stops_half_way(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"Half", "more_body": True})


@pytest.mark.parametrize("work", [crashes, crashes_with_a_head, answers_nothing, stops_half_way])
async def test_an_application_that_fails_is_an_internal_error_or_the_end_of_the_connection(work):
    async def app(scope, receive, send):
        await work(send)

    config = uvicorn_config(parse(CONFIG.format(upstream="http://127.0.0.1:1", more=""), {}).config, app)
    config.lifespan = "off"
    async with serving_of(config) as url:
        raw = await said(url, post("x-request-id: mine-1", path="/v1/messages"))
    if work is stops_half_way:
        assert raw.endswith(b"\r\n\r\n4\r\nHalf\r\n")
        return
    ((status, headers, body),) = answers(raw)
    assert (status, headers["connection"], headers["x-request-id"]) == (500, "close", "mine-1")
    assert orjson.loads(body)["type"] == "error"  # in the shape of its API


async def test_a_body_that_turns_into_nonsense_is_refused_while_it_is_read(upstream):
    async with proxy_of(upstream) as url:
        pieces = (head(CHUNKED) + chunk(b'{"model"'), b"nonsense")
        assert refusal(await said(url, *pieces, seconds=0.05)) == (400, "invalid_request")
    assert upstream.heads == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_that_offers_an_upgrade_is_like_any_other(upstream, path, offer, chunked):
    lines = ("connection: Upgrade, HTTP2-Settings, close", f"upgrade: {offer}", "http2-settings: AAMAAABk")
    framed = head(CHUNKED, *lines, path=path) + chunk(BODY) + b"0\r\n\r\n"
    async with proxy_of(upstream) as url:
        ((status, _, _),) = answers(await said(url, framed if chunked else post(*lines, path=path)))
    assert (status, len(upstream.bodies)) == (200, 1)
    assert not {b"upgrade", b"http2-settings"} & upstream.heads[0]["headers"].keys()


async def test_an_upgrade_that_is_offered_in_pieces_is_not_taken_up_either(upstream):
    whole_request = post("connection: upgrade, close", "upgrade: h2c")
    async with proxy_of(upstream) as url:
        pieces = [whole_request[at : at + 40] for at in range(0, len(whole_request), 40)]
        ((status, _, _),) = answers(await said(url, *pieces, seconds=0.01))
    assert status == 200


async def test_who_expects_to_be_told_to_continue_is_told_so(upstream):
    async with proxy_of(upstream) as url, connected(url) as (reader, writer):
        writer.write(head("expect: 100-continue", f"content-length: {len(BODY)}"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        ((status, headers, _),) = answers(await reader.read())
    assert (status, headers["connection"]) == (200, "close")


@pytest.mark.parametrize("expectation", ["100-continue", "a-miracle"])
async def test_an_expectation_of_http_1_0_is_ignored(upstream, expectation):
    async with proxy_of(upstream) as url:
        ((status, _, _),) = answers(await said(url, post(f"expect: {expectation}", version="HTTP/1.0")))
    assert status == 200


async def test_an_extension_behind_a_pipelined_request_is_counted(upstream):
    first, second = head(method="GET", path="/healthz"), head(CHUNKED) + chunk(BODY, b";" + b"x" * 70_000)
    async with proxy_of(upstream) as url:
        found = answers(await said(url, first + second + b"0\r\n\r\n"))
    assert [status for status, _, _ in found] == [200]  # and the connection ends
    assert upstream.heads == []


async def test_requests_that_are_pipelined_in_one_read_are_counted_each_for_itself(upstream):
    body = b'{"model":"m","input":"%b"}' % (b"x" * 30_000)
    one = head(CHUNKED, path=EMBEDDINGS) + b"".join(chunk(body[at : at + 9]) for at in range(0, len(body), 9))
    last = post("connection: close", path=EMBEDDINGS, body=body)
    async with proxy_of(upstream) as url:
        found = answers(await said(url, (one + b"0\r\n\r\n") * 3 + last))
    assert [status for status, _, _ in found] == [200] * 4


async def test_who_is_refused_before_sending_a_body_is_not_told_to_continue_and_the_connection_ends(upstream):
    async with proxy_of(upstream, more="clients: [{{name: c, key: client-key}}]".format()) as url:
        smuggled = head(path="/healthz", method="GET")
        raw = await said(url, head("expect: 100-continue", f"content-length: {len(smuggled)}") + smuggled)
    ((status, _, _),) = answers(raw)
    assert status == 401


# -- who and where --


@pytest.mark.parametrize(
    "target",
    [
        "http://x/v1/chat/completions",
        "http://x/healthz/../v1/chat/completions",
        "//x/v1/chat/completions",
        "/healthz/../v1/chat/completions",
        "/healthz%2f..%2fv1/chat/completions",
        "/v1/chat/completions?/healthz",
        "/v1/chat/completions#/healthz",
        "/v1/chat/completions;/healthz",
        "*",
    ],
)
@pytest.mark.parametrize("host", ["x", "healthz", "x:99999"])
async def test_no_target_and_no_host_gets_past_the_key(upstream, target, host):
    more = "clients: [{{name: c, key: client-key}}]".format()
    lines = ("connection: close", "x-forwarded-host: a", "x-original-url: /healthz", "x-http-method-override: GET")
    async with proxy_of(upstream, more=more) as url:
        ((status, _, body),) = answers(await said(url, post(*lines, path=target, host=f"host: {host}\r\n")))
    assert (status, orjson.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    assert upstream.heads == []


@pytest.mark.parametrize(
    "host", ["a/b@c", "a/healthz?x=", "x@healthz", "[", "/healthz", "x:y", "x#y", "a, b", "a b", "\xe9", "http://x"]
)
async def test_what_is_no_host_is_refused(upstream, host):
    async with proxy_of(upstream) as url:
        assert refusal(await said(url, post(host=f"host: {host}\r\n"))) == (400, "invalid_request")
    assert upstream.heads == []


@pytest.mark.parametrize(
    "host", ["", "x", "x:", "a.example:8080", "a_b.example.", "127.0.0.1:1", "[::1]:8080", "%C3%A9"]
)
async def test_what_is_one_is_not(upstream, host):
    async with proxy_of(upstream) as url:
        ((status, _, _),) = answers(await said(url, post("connection: close", host=f"host: {host}\r\n")))
    assert status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/healthz", "/v1/models", "/nowhere"])
async def test_every_other_method_is_a_405_or_a_404(upstream, method, path):
    if method in ("GET", "HEAD") and path in ("/healthz", "/v1/models"):
        return
    async with proxy_of(upstream) as url:
        ((status, headers, _),) = answers(await said(url, head("connection: close", method=method, path=path)))
    assert status == (404 if path == "/nowhere" else 405)
    assert "x-request-id" in headers
    assert upstream.heads == []


async def test_what_belongs_to_one_hop_or_says_where_it_comes_from_is_not_handed_on(upstream):
    dropped = {
        "connection": "close, x-mine, content-type",
        "x-mine": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "trailer": "x-t",
        "proxy-authorization": "Basic x",
        "proxy-connection": "keep-alive",
        "cookie": "sid=1",
        "forwarded": "for=1",
        "x-forwarded-for": "1",
        "x-forwarded-anything": "1",
        "x_api_key": "1",
        "x-original-url": "/admin",
        "x-original-host": "a",
        "x-http-method-override": "DELETE",
    }
    lines = [f"{name}: {value}" for name, value in dropped.items()]
    async with proxy_of(upstream) as url:
        await said(url, post("x-kept: \xe9", *lines, path=EMBEDDINGS))
    headers = upstream.heads[0]["headers"]
    assert headers[b"x-kept"] == b"\xe9"
    assert not {name.encode() for name in dropped} & headers.keys()
    assert headers[b"content-length"] == str(len(upstream.bodies[0])).encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "odd",
    ["a\\r\\nx-injected: 1", "a\\u0000", "\\u2028", "\\ud83d\\ude00", "x" * 100_000, "../../admin", "http://evil/"],
)
@pytest.mark.parametrize("field", ["model", "user", "input"])
async def test_nothing_that_a_request_says_becomes_a_header_or_an_address(upstream, path, odd, field):
    body = BODY.replace(b"{", b'{"%s":"%s",' % (field.encode(), odd.encode()), 1)
    if field == "model":
        body = body.replace(b'"model":"m",', b"")
    async with proxy_of(upstream) as url:
        ((status, headers, _),) = answers(await said(url, post("connection: close", path=path, body=body)))
    assert status == (404 if field == "model" else 200)
    assert "x-injected" not in headers
    reached = [] if field == "model" else [EMBEDDINGS if path == EMBEDDINGS else CHAT]
    assert [head["path"] for head in upstream.heads] == reached
    assert all(b"x-injected" not in head["headers"] for head in upstream.heads)


@pytest.mark.parametrize(("method", "status", "length"), [("POST", 204, None), ("HEAD", 200, "9"), ("HEAD", 204, None)])
async def test_an_answer_without_body_is_handed_on_whatever_length_it_names(method, status, length):
    async def answers_without_body(peer):
        while True:
            await peer.answer(b"HTTP/1.1 %d -\r\ncontent-length: 9\r\n\r\n" % status)

    async with raw_server(answers_without_body) as upstream:
        config = parse(CONFIG.format(upstream=upstream.url, more=""), {})
        async with serving_as_shipped(config) as url, connected(url) as (reader, writer), asyncio.timeout(10):
            for _ in range(2):  # nothing of the first is taken for the second's
                writer.write(post(method=method, path=EMBEDDINGS))
                ((found, headers, _),) = answers(await reader.readuntil(b"\r\n\r\n"), has_body=False)
                assert (found, headers.get("content-length"), headers.get("connection")) == (status, length, None)


# -- sizes --


@pytest.mark.parametrize(
    "request_bytes",
    [
        head(*(f"x-{at}: {at}" for at in range(200)), method="GET", path="/healthz"),
        head("x: " + "y" * 200_000, method="GET", path="/healthz"),
        head(*(f"x-{at}: {'y' * 1000}" for at in range(80)), method="GET", path="/healthz"),
        head(path="/" + "a" * 200_000),
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 2_000_000,
        b"\r\n" * 1_000_000,
        head(CHUNKED) + b"5;" + b"x" * 2_000_000,
        head(CHUNKED) + chunk(BODY) + b"0\r\nx: " + b"y" * 2_000_000,
        head(CHUNKED) + chunk(BODY) + b"0\r\n" + b"x: y\r\n" * 1000,
        head(CHUNKED) + chunk(BODY, b";" + b"x" * 70_000) + b"0\r\n\r\n",
        head(CHUNKED) + chunk(BODY) + b"0\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
    ids=[
        "many fields",
        "a long field",
        "a long head",
        "a long path",
        "an endless field",
        "endless line ends",
        "an endless extension",
        "an endless trailer",
        "many trailers",
        "an extension in one read with the head",
        "a trailer in one read with the head",
    ],
)
async def test_a_head_is_bounded_and_so_is_what_else_is_no_data(upstream, request_bytes):
    async with proxy_of(upstream) as url:
        assert refusal(await said(url, request_bytes)) == (431, "headers_too_large")
    assert upstream.heads == []


async def test_a_head_at_its_limits_passes(upstream):
    fields = ("connection: close", *(f"x-{at}: {'y' * 600}" for at in range(98)))
    async with proxy_of(upstream) as url:
        ((status, _, _),) = answers(await said(url, head(*fields, method="GET", path="/healthz")))
    assert status == 200


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_body_in_many_small_chunks_passes(upstream, size):
    body = BODY + b" " * 30_000
    framed = b"".join(chunk(body[at : at + size]) for at in range(0, len(body), size)) + b"0\r\n\r\n"
    async with proxy_of(upstream) as url:
        ((status, _, _),) = answers(await said(url, head(CHUNKED, "connection: close") + framed))
    assert status == 200


async def test_fields_of_a_trailer_are_not_taken_for_fields_of_the_head(upstream):
    trailer = b"0\r\nx-injected: 1\r\nauthorization: Bearer other\r\n\r\n"
    async with proxy_of(upstream) as url:
        ((status, _, _),) = answers(
            await said(url, head(CHUNKED, "connection: close", path=EMBEDDINGS) + chunk(BODY) + trailer)
        )
    assert status == 200
    assert b"x-injected" not in upstream.heads[0]["headers"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("framing", ["content-length: 40000000", CHUNKED])
async def test_a_body_that_is_too_large_is_answered_while_it_is_sent_and_not_read_to_the_end(upstream, path, framing):
    pieces = [head(framing, path=path), *(chunk(b"x" * 9992) for _ in range(1000))]
    async with proxy_of(upstream, more="server: {max_body_bytes: 100000}") as url:
        began = time.monotonic()
        ((status, _, body),) = answers(await said(url, *pieces))
    assert (status, orjson.loads(body)["error"]["code"]) == (413, "request_too_large")
    assert time.monotonic() - began < 5
    assert upstream.heads == []


# -- answers that do not wait for the body --


async def next_answer(reader):
    """The (status, headers, body) of the next response of known length."""
    top = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", top)[1])
    ((status, headers, body),) = answers(top + await reader.readexactly(length))
    return status, headers, body


async def pour(writer, size):
    """So many bytes of a chunked body without end."""
    for _ in range(size // 100_000):
        writer.write(chunk(b"x" * 100_000))
        await writer.drain()


CLIENTS = "clients: [{name: c, key: client-key}]"
KEY = "authorization: Bearer client-key"
EARLY = [({"path": "/nowhere"}, KEY, 404), ({"method": "PUT"}, KEY, 405), ({}, "x: y", 401)]


@pytest.mark.parametrize(("where", "key", "status"), EARLY)
async def test_the_rest_of_a_small_body_is_thrown_away_and_the_connection_goes_on(upstream, where, key, status):
    async with proxy_of(upstream, more=f"{QUICK}\n{CLIENTS}") as url, connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(head(f"content-length: {len(BODY)}", key, **where))
            found, headers, _ = await next_answer(reader)
            assert (found, "connection" in headers) == (status, False)
            writer.write(BODY[:50])
            writer.write(BODY[50:] + head("content-length: 9", path="/healthz", method="GET") + b"x" * 9)
            assert (await next_answer(reader))[0] == 200
        writer.write(head(f"content-length: {len(BODY)}", key, **where))
        await next_answer(reader)
        writer.write(BODY)
        with pytest.raises(TimeoutError):  # an idle connection, and no head that does not come
            await asyncio.wait_for(reader.read(), 0.4)
        writer.write(post(KEY))
        assert (await next_answer(reader))[0] == 200
    assert len(upstream.heads) == 1


@pytest.mark.parametrize(("where", "key", "status"), EARLY)
@pytest.mark.parametrize(
    "lines",
    [["content-length: 3000000"], [CHUNKED], ["content-length: 3000000", "connection: close"]],
    ids=["large", "of unknown length", "the last one"],
)
async def test_with_any_other_body_the_answer_says_that_the_connection_ends_and_is_read(
    upstream, where, key, status, lines
):
    async with proxy_of(upstream, more=CLIENTS) as url, connected(url) as (reader, writer):
        writer.write(head(*lines, key, **where))
        found, headers, _ = await next_answer(reader)
        assert (found, headers["connection"]) == (status, "close")
        await pour(writer, 3_000_000)  # a reset would break this off
        assert await reader.read() == b""
    assert upstream.heads == []


@pytest.mark.parametrize("length", [1000, 3_000_000])
async def test_a_client_that_was_answered_is_not_heard_out_for_ever(upstream, length):
    drips = [b"x"] * 100
    async with proxy_of(upstream, more=QUICK) as url, connected(url) as (reader, writer):
        began = time.monotonic()
        sending = asyncio.ensure_future(
            send(writer, [head(f"content-length: {length}", path="/nowhere"), *drips], 0.05)
        )
        assert (await next_answer(reader))[0] == 404
        with suppress(ConnectionError):
            assert await reader.read() == b""
        with suppress(RuntimeError):  # uvloop's word for a transport that is closed
            await sending
        assert time.monotonic() - began < 3


async def test_nor_without_measure(upstream, monkeypatch):
    monkeypatch.setattr("proxy.server.protocol._MOST_DISCARDED", 1_000_000)
    async with proxy_of(upstream) as url, connected(url) as (_, writer):
        writer.write(head(CHUNKED, path="/nowhere"))
        with pytest.raises(ConnectionError):
            await pour(writer, 30_000_000)


class Gone(asyncio.Transport):
    """What asyncio has of a client that has just reset its connection, and does not know yet."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.is_read = True

    def write(self, data):
        self.written += data

    def can_write_eof(self):
        return True

    def write_eof(self):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    def is_closing(self):
        return False

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def get_write_buffer_size(self):
        return 0

    def close(self):
        pass


def wire_to(transport):
    """A connection whose requests nobody answers yet: their tasks have no turn before the test awaits anything."""

    async def app(scope, receive, send):
        await receive()

    config = uvicorn_config(parse(CONFIG.format(upstream="http://127.0.0.1:1", more=""), {}).config, app)
    config.load()
    wire = config.http(config=config, server_state=ServerState(), app_state={})
    wire.connection_made(transport)
    return wire


async def test_who_has_gone_when_its_answer_is_given_does_no_harm():
    gone = Gone()
    wire = wire_to(gone)
    wire.data_received(b"nonsense\r\n\r\n")
    wire.connection_lost(None)
    assert gone.written.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "bad", [head("x: y", host="host: a\r\nhost: b\r\n"), head("x: " + "y" * 100_000), b"\0" * 9000]
)
async def test_of_a_head_that_was_refused_nothing_is_kept(bad):
    wire = wire_to(Gone())
    before = sys.getrefcount(bad)
    wire.data_received(bad)
    assert sys.getrefcount(bad) == before
    wire.connection_lost(None)


async def test_reading_pauses_while_many_requests_wait_whoever_else_would_resume_it():
    transport = Gone()
    wire = wire_to(transport)
    wire.data_received(head(method="GET", path="/healthz") * 10)
    assert transport.is_read
    wire.data_received(head(method="GET", path="/healthz") * 10)
    assert not transport.is_read
    await asyncio.sleep(0)  # the first one asks for its body
    assert not transport.is_read
    wire.connection_lost(None)


async def test_a_body_that_nobody_reads_is_not_read_on_because_it_looks_like_the_ends_of_heads():
    transport = Gone()
    wire = wire_to(transport)
    wire.data_received(head("content-length: 10000000"))
    wire.data_received(b"\r\n\r\n" * 50_000)
    assert not transport.is_read
    assert len(wire.requests[0].body) == 200_000
    wire.connection_lost(None)


async def test_a_request_whose_body_comes_while_the_one_before_is_answered_is_answered_too(upstream):
    gate = asyncio.Event()
    upstream.replies = [Reply([gate, *whole("Hi").body])]
    second = post("connection: close")
    async with proxy_of(upstream) as url, connected(url) as (reader, writer):
        writer.write(post() + second[:-5])
        await upstream.asked.wait()
        gate.set()
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(second[-5:])
        rest = await reader.read()
    assert rest.count(b" 200 OK") == 1
    assert len(upstream.heads) == 2


# -- times --


async def test_who_connects_and_says_nothing_is_not_kept(upstream):
    async with proxy_of(upstream, more=QUICK) as url:
        assert await said(url) == b""
        assert await said(url, *[b"\r\n"] * 100, seconds=0.05) == b""


@pytest.mark.parametrize("before", [b"", head(method="GET", path="/healthz")], ids=["first", "second"])
async def test_a_head_that_comes_in_drips_is_timed_out_however_busy_it_seems(upstream, before):
    drips = [bytes([byte]) for byte in post()]
    async with proxy_of(upstream, more=QUICK) as url:
        began = time.monotonic()
        *_, (status, _, body) = answers(await said(url, before, *drips, seconds=0.02))
    assert (status, orjson.loads(body)["error"]["code"]) == (408, "request_timeout")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seconds", [0.05, 5], ids=["drips", "silence"])
async def test_a_body_that_comes_in_drips_or_not_at_all_is_timed_out(upstream, path, seconds):
    drips = [bytes([byte]) for byte in BODY]
    async with proxy_of(upstream, more=QUICK) as url:
        began = time.monotonic()
        raw = await said(url, head("content-length: 1000", path=path), *drips, seconds=seconds)
    ((status, _, body),) = answers(raw)
    assert (status, orjson.loads(body)["error"]["code"]) == (408, "request_timeout")
    assert time.monotonic() - began < 5
    assert upstream.heads == []


async def test_a_body_may_take_longer_than_the_timeout_if_it_comes_fast_enough(upstream):
    body = BODY + b" " * 400
    pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
    async with proxy_of(upstream, more=QUICK) as url:
        first = head("connection: close", f"content-length: {len(body)}")
        ((status, _, _),) = answers(await said(url, first, *pieces, seconds=0.03))
    assert status == 200


async def test_others_are_served_while_some_are_slow(upstream):
    async with proxy_of(upstream) as url:
        slow = [asyncio.ensure_future(said(url, post()[:-5], seconds=60)) for _ in range(200)]
        await asyncio.sleep(0.1)
        assert answers(await said(url, post("connection: close")))[0][0] == 200
        for one in slow:
            one.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_an_idle_connection_is_closed(upstream):
    async with proxy_of(upstream, more="server: {idle_timeout_seconds: 0.5}") as url:
        ((status, _, _),) = answers(await said(url, head(method="GET", path="/healthz")))
    assert status == 200


class Flood:
    """An upstream that streams without end, and counts what it has been able to send."""

    def __init__(self, content_type):
        self.content_type = content_type
        self.sent = 0
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", self.content_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        data = {"id": "u", "choices": [{"index": 0, "delta": {"content": "x" * 1000}, "finish_reason": None}]}
        event = b"data: " + orjson.dumps(data) + b"\n\n"
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": event, "more_body": True})
            self.sent += len(event)
            self.begun.set()
            await asyncio.sleep(0)
        self.ended.set()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tools", [b'"none"', b'"auto"'], ids=["relayed", "in the loop"])
async def test_a_client_that_does_not_read_holds_back_its_upstream_and_is_not_kept(path, tools):
    flood = Flood(b"text/event-stream")
    body = BODY.replace(b'"none"', tools).replace(b"{", b'{"stream":true,', 1)
    more = "server: {send_timeout_seconds: 0.5}"
    async with proxy_of(flood, more=more) as url, connected(url) as (_, writer):
        writer.transport.pause_reading()
        writer.write(post(path=path, body=body))
        async with asyncio.timeout(20):
            await flood.begun.wait()
            before = -1
            while before != flood.sent:  # it stands still: everything between it and the client is full
                before = flood.sent
                await asyncio.sleep(0.2)
            await flood.ended.wait()
    assert flood.sent < 30_000_000


async def test_a_client_that_takes_its_answer_slowly_is_not_idle():
    """The whole answer is written at once, and what is left of it when the idle timeout is over is still being read."""
    upstream = FakeUpstream([whole("x" * 24_000_000)])
    more = "server: {idle_timeout_seconds: 0.5, send_timeout_seconds: 1}"
    async with proxy_of(upstream, more=more) as url, connected(url) as (reader, writer), asyncio.timeout(30):
        writer.write(post())
        top = await reader.readuntil(b"\r\n\r\n")
        length = int(top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        taken = 0
        for _ in range(30):
            taken += len(await reader.read(300_000))
            await asyncio.sleep(0.06)
        while data := await reader.read(1_000_000):
            taken += len(data)
        assert taken == length
