"""HTTP tools from their configuration to a real server and back."""

import gzip
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.app import tool_client
from proxy.app.configuration import parse
from proxy.kit.json_pointer import MISSING, resolve
from proxy.loop.call_context import CallContext
from proxy.loop.results import InvalidArguments, ToolError, ToolUnavailable
from proxy.tools.catalog import tools_of
from proxy.tools.kinds.http import template as http_template
from proxy.tools.kinds.http.faults import pointer_in
from proxy.tools.kinds.http.template import HttpToolConfig
from proxy.tools.registry import Registry
from proxy.tools.tool_type import Resources
from proxy.wire.chat import ToolCall
from proxy.wire.errors import ConfigurationError
from tests import hostile
from tests.fakes import FakeClock, FakeUpstream, streamed
from tests.serving import proxy_of, serving

CITY = "parameters: {type: object, properties: {city: {type: string}}, required: [city]}"


@dataclass
class Api:
    """An ASGI application that remembers what it was asked, byte for byte."""

    answers: list = field(default_factory=lambda: [(200, b"Fine.", {})])
    asked: list = field(default_factory=list)

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.asked.append({
            "method": scope["method"],
            "path": scope["raw_path"].decode(),
            "query": parse_qsl(scope["query_string"].decode(), keep_blank_values=True),
            "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
            "body": orjson.loads(body) if body else None,
        })  # fmt: skip
        status, content, headers = self.answers[min(len(self.asked), len(self.answers)) - 1]
        headers = {"content-type": "text/plain", **headers}
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        for part in content if isinstance(content, list) else [content]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def api():
    return Api()


@asynccontextmanager
async def calling(api, entry, environ=None):
    """A way to call the tool that the entry makes; `URL` in it is the API's address."""
    async with serving(api, lifespan="off") as url, aclosing(tool_client()) as client:
        text = f"tools:\n  t: {{type: http, description: d, {entry.replace('URL', url)}}}"
        tools = tools_of(parse(text, environ or {}), Resources(client, FakeClock()))
        registry = Registry(tools, clock=FakeClock())

        async def call(**arguments):
            asked = ToolCall("id", "t", orjson.dumps(arguments).decode())
            return (await registry.execute(asked, CallContext("me", default_timeout=5))).text

        call.tool = registry.specs["t"]
        yield call


async def asked_by(api, entry, **arguments):
    async with calling(api, entry) as call:
        assert await call(**arguments) == "Fine."
    (asked,) = api.asked
    return asked


async def test_an_argument_in_the_path_is_one_segment(api):
    asked = await asked_by(api, f"url: 'URL/weather/{{city}}/now', {CITY}", city="Qualicum Beach, 50% ☂ a?b#c;d&e")
    assert asked["method"] == "GET"
    assert asked["path"] == "/weather/Qualicum%20Beach%2C%2050%25%20%E2%98%82%20a%3Fb%23c%3Bd%26e/now"
    assert asked["query"] == []


ESCAPES = [
    "..", ".", "", " ", "../admin", "a/b", "/etc/passwd", "a\\b", "..\\admin", "%2e%2e", "%2E%2E%2Fadmin", "%252e%252e",
    "a%2fb", "a%2Fb", "a%252fb", "a%5cb", "%252525252f", "a\nb", "a\r\nHost: x", "a\0b", "a%00b", "a%0d%0aHost:x", "\u2025",
    "a\uff0fb", "a\uff3cb", "\uff0e\uff0e", "a" * 2000, "//evil.example/", "\x7f", "\x85",
]  # fmt: skip


@pytest.mark.parametrize("city", ESCAPES)
@pytest.mark.parametrize("path", ["weather/{city}", "weather/{city}/now", "{city}", "{city}/x"])
async def test_an_argument_that_would_leave_its_segment_is_refused_and_nothing_is_sent(api, city, path):
    async with calling(api, f"url: 'URL/{path}', {CITY}") as call:
        with pytest.raises(InvalidArguments, match="'city' stands in the path"):
            await call(city=city)
    assert api.asked == []


@pytest.mark.parametrize(
    "city", ["x@evil.example", ":80", "@evil.example", "a.b", "...", "?q=1", "#f", ";x=1", "http:", "%", "%zz", "..a"]
)
async def test_whatever_an_argument_holds_scheme_host_and_port_stay(api, city):
    asked = await asked_by(api, f"url: 'URL/{{city}}', {CITY}", city=city)
    assert asked["path"].count("/") == 1
    assert asked["query"] == []


async def test_what_the_path_needs_is_required_whether_the_schema_says_so_or_not(api):
    async with calling(api, "url: 'URL/{id}', parameters: {properties: {id: {type: [integer, 'null']}}}") as call:
        assert call.tool.parameters["required"] == ["id"]
        for arguments in ({}, {"id": None}):
            with pytest.raises(InvalidArguments):
                await call(**arguments)
        assert await call(id=7) == "Fine."
    assert [asked["path"] for asked in api.asked] == ["/7"]


async def test_the_query_takes_literals_arguments_and_lists_and_leaves_out_what_was_not_given(api):
    entry = """url: 'URL/s?v=1&q={q}', query: {units: metric, limit: 3, deep: true, near: "{lat},{lon}", tag: "{tags}",
        also: [a, "{more}"], none: null, braces: "{{q}} {q}"}, parameters: {properties: {q: {type: string}, lat: {type:
        number}, lon: {type: number}, tags: {type: array}, more: {type: string}, page: {type: integer, default: 1},
        free: {type: string}, nothing: {type: 'null'}}}"""
    asked = await asked_by(api, entry, q="a&b=c d", lat=1.5, tags=["x", "y", None], free="f", nothing=None)
    assert asked["path"] == "/s"
    assert asked["query"] == [
        ("v", "1"), ("q", "a&b=c d"), ("units", "metric"), ("limit", "3"), ("deep", "true"), ("tag", "x"),
        ("tag", "y"), ("also", "a"), ("braces", "{q} a&b=c d"), ("page", "1"), ("free", "f"),
    ]  # fmt: skip


async def test_a_body_is_a_template_in_which_an_argument_keeps_its_type(api):
    entry = """url: 'URL/', method: POST, body: {n: "{n}", all: ["{n}", "{gone}"], text: "n={n} {o}", gone: "{gone}",
        part: "x{gone}", day: 2024-01-31, deep: {o: "{o}", nil: "{nil}"}}, parameters: {properties: {n: {type: integer},
        o: {type: object}, gone: {}, nil: {}}}"""
    asked = await asked_by(api, entry, n=3, o={"a": [1]}, nil=None)
    assert asked["method"] == "POST"
    assert asked["headers"]["content-type"] == "application/json"
    assert asked["body"] == {
        "n": 3, "all": [3], "text": 'n=3 {"a":[1]}', "day": "2024-01-31", "deep": {"o": {"a": [1]}, "nil": None},
    }  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_without_a_body_template_it_is_the_arguments_that_stand_nowhere_else(api, method):
    entry = f"url: 'URL/{{a}}', method: {method}, parameters: {{properties: {{a: {{}}, b: {{}}, c: {{}}}}}}"
    asked = await asked_by(api, entry, a=1, b={"x": [True]})
    assert (asked["method"], asked["path"], asked["body"]) == (method, "/1", {"b": {"x": [True]}})


@pytest.mark.parametrize(("method", "eager"), [("GET", True), ("DELETE", False), ("POST", False)])
async def test_what_may_change_things_waits_for_the_end_of_its_turn(api, method, eager):
    async with calling(api, f"url: 'URL/', method: {method}, parameters: {{properties: {{q: {{}}}}}}") as call:
        assert call.tool.eager is eager
        await call(q="x")
    assert (api.asked[0]["query"] == [("q", "x")]) is (method != "POST")


async def test_an_argument_that_is_not_named_is_refused_unless_the_schema_takes_any(api):
    async with calling(api, "url: 'URL/', query: {limit: 1}") as call:
        with pytest.raises(InvalidArguments, match="limit"):
            await call(limit=100)
    any_name = "url: 'URL/', query: {limit: 1}, parameters: {additionalProperties: true}"
    async with calling(api, any_name) as call:
        with pytest.raises(InvalidArguments, match="no argument 'limit'"):
            await call(limit=100)
        await call(other="x y")
    assert [asked["query"] for asked in api.asked] == [[("limit", "1"), ("other", "x y")]]


async def test_arguments_that_are_no_text_or_too_long_are_told(api):
    async with calling(api, "url: 'URL/', parameters: {properties: {q: {}}}") as call:
        with pytest.raises(InvalidArguments, match="too long"):
            await call(q="x" * 70_000)
    async with aclosing(tool_client()) as client:
        config = parse(
            "tools: {t: {type: http, description: d, url: 'http://h/', parameters: {properties: {q: {}}}}}", {}
        )
        (tool,) = tools_of(config, Resources(client, FakeClock()))
        with pytest.raises(InvalidArguments, match="written as JSON"):
            await tool.run({"q": "\ud800"})


@pytest.mark.parametrize(
    ("answer", "entry", "told"),
    [
        ((200, b'{"a": {"b/c": [1, {"d": "e"}]}}', {}), "result: {json_pointer: /a/b~1c/1/d}", "e"),
        ((200, b'{"a": [1, null]}', {}), "result: {json_pointer: /a}", "[1,null]"),
        ((200, b'{"~1": 1}', {}), "result: {json_pointer: /~01}", "1"),
        ((200, b"[1]", {}), "result: {json_pointer: ''}", "[1]"),
        ((200, b"Gr\xfc\xdfe", {"content-type": "text/plain; charset=latin-1"}), "result: text", "Grüße"),
        ((200, b"\xffa", {"content-type": "text/html"}), "method: PUT", "\ufffda"),
        ((200, b"a", {"content-type": "text/plain; charset=nonsense"}), "method: PUT", "a"),
        ((200, b"a", {"content-type": "text/plain; charset=hex"}), "method: PUT", "a"),
        ((200, b"{}", {"content-type": "application/octet-stream"}), "method: PUT", "{}"),
        ((204, b"", {}), "method: PUT", "The API answered HTTP 204 without content."),
        ((200, gzip.compress(b"zipped"), {"content-encoding": "gzip"}), "method: PUT", "zipped"),
        ((200, b"0123456789", {}), "max_response_bytes: 10", "0123456789"),
        ((200, b"0123456789a", {}), "max_response_bytes: 10", "0123456789\n[cut: no more than 10 bytes of the answer were read]"),
    ],
)  # fmt: skip
async def test_the_model_gets_the_text_or_the_part_that_is_wanted(api, answer, entry, told):
    api.answers = [answer]
    async with calling(api, f"url: 'URL/', {entry}") as call:
        assert await call() == told


@pytest.mark.parametrize(
    ("answer", "entry", "told"),
    [
        ((200, b"{}", {}), "result: {json_pointer: /a}", "lacks the configured part"),
        ((200, b"[1]", {}), "result: {json_pointer: /01}", "lacks the configured part"),
        ((200, b"[1]", {}), "result: {json_pointer: /-}", "lacks the configured part"),
        ((200, b"[1]", {}), "result: {json_pointer: /1}", "lacks the configured part"),
        ((200, b"1", {}), "result: {json_pointer: /a}", "lacks the configured part"),
        ((200, b"<p>", {}), "result: {json_pointer: /a}", "not JSON"),
        ((200, b"[1111111]", {}), "result: {json_pointer: ''}, max_response_bytes: 5", "longer than 5 bytes"),
        ((200, b"\x89PNG", {"content-type": "image/png"}), "method: PUT", "not text"),
        ((200, b"a\0b", {"content-type": "application/octet-stream"}), "method: PUT", "binary"),
        ((200, b"\xff\xfe", {"content-type": ""}), "method: PUT", "binary"),
        ((200, b"x", {"content-encoding": "br"}), "method: PUT", "compressed"),
        ((200, b"not gzip", {"content-encoding": "gzip"}), "method: PUT", "decompressed"),
        ((302, b"", {"location": "http://169.254.169.254/"}), "method: PUT", r"a redirect to http://169\.254.*not followed"),
        ((404, b"No\n such  city", {}), "method: PUT", r"^The API answered HTTP 404: No such city$"),
        ((500, b"", {}), "method: PUT", r"^The API answered HTTP 500\.$"),
        ((418, b"\x89PNG", {"content-type": "image/png"}), "method: PUT", r"^The API answered HTTP 418\.$"),
        ((400, b"x" * 10_000, {}), "method: PUT", r"^The API answered HTTP 400: x{400,480}\.\.\.$"),
    ],
)  # fmt: skip
async def test_what_went_wrong_is_told_in_one_line(api, answer, entry, told):
    api.answers = [answer]
    async with calling(api, f"url: 'URL/', {entry}") as call:
        with pytest.raises(ToolError, match=told) as raised:
            await call()
    assert not isinstance(raised.value, ToolUnavailable)
    assert len(api.asked) == 1


async def test_an_endless_or_exploding_answer_is_read_no_further_than_the_cap(api):
    for content, headers in (
        ([b"x" * 100_000] * 200, {}),
        (gzip.compress(bytes(50_000_000)), {"content-encoding": "gzip"}),
    ):
        api.answers = [(200, content, headers)]
        async with calling(api, "url: 'URL/', max_response_bytes: 1000") as call:
            assert len(await call()) < 1100


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_another_try_may_mend_is_tried_again_where_that_is_safe(api, status):
    api.answers = [(status, b"busy", {}), (200, b"Fine.", {})]
    async with calling(api, "url: 'URL/', retries: 1") as call:
        assert await call() == "Fine."
    api.answers, api.asked = [(status, b"busy", {})], []
    async with calling(api, "url: 'URL/', method: POST") as call:
        with pytest.raises(ToolUnavailable, match=f"HTTP {status}: busy"):
            await call()
    assert len(api.asked) == 1


async def test_a_server_that_cannot_be_reached_is_unavailable(api):
    async with calling(api, "url: 'http://127.0.0.1:9/'") as call:
        with pytest.raises(ToolUnavailable, match="could not be reached") as failure:
            await call()
    assert failure.value.why.startswith("ConnectionRefusedError: ")


SECRETS = {"K": "canary/header&1", "Q": "canary query+2", "B": 'canary"body"3', "P": "canary-path-4"}
SENT = """url: 'URL/${P}/x', method: POST, headers: {Authorization: 'Bearer ${K}', X-Literal-Token: canary-literal-5,
    Cookie: "a=canary-cookie-6; b=c"},
    query: {key: '${Q}'}, body: {key: '${B}'}"""


@pytest.mark.parametrize("status", [200, 302, 404, 503])
@pytest.mark.parametrize("result", ["text", "{json_pointer: ''}"])
async def test_secrets_are_sent_and_never_told(api, status, result, logged):
    echo = {"headers": "Bearer canary/header&1", "url": "/canary-path-4/x?key=canary%20query%2B2&k=canary+query%2B2",
            "raw": "canary query+2", "body": 'canary"body"3', "more": "canary-literal-5 canary-cookie-6", "fine": "as it is"}  # fmt: skip
    body = b"y" * 400 + b"canary/header&1" if status == 404 else orjson.dumps(echo)
    api.answers = [(status, body, {"location": "http://h/?canary/header&1", "content-type": "application/json"})]
    async with calling(api, f"{SENT}, result: {result}", SECRETS) as call:
        try:
            told = await call()
            assert "as it is" in told
            assert '"fine":' in told
        except ToolError as exc:
            told = str(exc)
    assert "canary" not in told + str(logged())
    assert "[secret]" in told
    (asked,) = api.asked
    assert asked["headers"]["authorization"] == "Bearer canary/header&1"
    assert (asked["path"], asked["query"]) == ("/canary-path-4/x", [("key", "canary query+2")])
    assert asked["body"] == {"key": 'canary"body"3'}


async def test_a_host_from_the_environment_is_no_secret(api):
    async with serving(api, lifespan="off") as url:
        api.answers = [(200, url.encode(), {})]
        environ = {"BASE": url, "T": "9999"}
        async with calling(api, "url: '${BASE}/x', timeout: '${T:-30}'", environ) as call:
            assert await call() == url


PROPERTIES = "parameters: {properties: {a: {}, b: {}}}"


@pytest.mark.parametrize(
    ("entry", "where", "why"),
    [
        ("url: 'http://{a}.example.com/{b}'", "url", "path and the query only"),
        ("url: 'http://h:{a}/{b}'", "url", "path and the query only"),
        ("url: '{a}://h/{b}'", "url", "path and the query only"),
        ("url: 'http://{a}@h/{b}'", "url", "path and the query only"),
        ("url: 'http://h{a}'", "url", "path and the query only"),
        ("url: 'http://user:pass@h/'", "url", "without user"),
        ("url: 'http://h/#{a}'", "url", "fragment"),
        ("url: 'http://good\\@evil/'", "url", "must be http"),
        ("url: 'http://h:99999/'", "url", "has a port that is not"),
        ("url: 'ftp://h/'", "url", "must be http"),
        ("url: 'http://h/{nope}'", "url", "{nope} is none of the properties"),
        ("url: 'http://h/?{a}=1'", "url", "cannot be a key"),
        ("url: 'http://h/', query: {x: '{nope}'}", "query.x", "{nope} is none"),
        ("url: 'http://h/', query: {'{a}': 1}", "query.{a}", "cannot be a key"),
        ("url: 'http://h/', query: {x: {y: 1}}", "query.x", "single value or a list"),
        ("url: 'http://h/', query: {a: 1}", "query.a", "is a property too"),
        ("url: 'http://h/{a}/{b}', method: POST, body: ['{nope}']", "body", "{nope} is none"),
        ("url: 'http://h/{a}', method: POST, body: [{'{a}': 1, b: '{b}'}]", "body", "cannot be a key"),
        ("url: 'http://h/', method: POST, body: {a: '{a}'}", "parameters", "b stands neither in url"),
        ("url: 'http://h/', body: {a: 1}", "body", "a GET request has no body"),
        ("url: 'http://h/{a}/{b}', method: POST, body: !!binary aGk=", "body", "cannot be written as JSON"),
        ("url: 'http://h/{a}/{b}', method: POST, body: {on: 1}", "body", "needs quotes"),
        ("url: 'http://h/', headers: {X-City: 'in {a}'}", "headers.X-City", "cannot stand in a header"),
        ("url: 'http://h/', headers: {Host: other}", "headers.Host", "is set by the proxy"),
        ("url: 'http://h/', headers: {Expect: 100-continue}", "headers.Expect", "is set by the proxy"),
        ("url: 'http://h/', headers: {Keep-Alive: x}", "headers.Keep-Alive", "is set by the proxy"),
        ("url: 'http://h/', headers: {proxy-authorization: x}", "headers.proxy-authorization", "is set by the proxy"),
        ("url: 'http://h/', headers: {X: \"a\\r\\nb\"}", "headers.X", "printable ASCII"),
        ("url: 'http://h/', headers: {X: 'é'}", "headers.X", "printable ASCII"),
        ("url: 'http://h/', headers: {'X Y': z}", "headers.X Y", "no header's name"),
        ("url: 'http://h/', result: {json_pointer: a}", "result", "begins with '/'"),
        ("url: 'http://h/', result: {json_pointer: /~2}", "result", "~0 and ~1"),
        ("url: 'http://h/', result: html", "result", "must be text, or"),
        ("url: 'http://h/', method: POST, retries: 1", "retries", "may not be sent twice"),
        ("url: 'http://h/', method: PATCH, retries: 1", "retries", "may not be sent twice"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused_with_its_line(entry, where, why):
    with pytest.raises(ConfigurationError) as raised:
        parse(f"tools:\n  t:\n    {{type: http, description: d, {entry}, {PROPERTIES}}}", {})
    (fault,) = raised.value.faults
    assert fault.startswith(f"config.yaml:3: tools.t.{where}: ")
    assert why in fault


@pytest.mark.parametrize(
    ("schema", "why"),
    [("{type: array}", "type object"), ("{properties: []}", "not a JSON Schema"), ("{properties: {1: {}, a: {$ref: 'http://h/'}}}", "not a JSON Schema")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["http, description: d, url: 'http://h/'", "python"])
def test_parameters_are_checked_at_start(schema, why, kind):
    with pytest.raises(ConfigurationError, match=f"config.yaml:1: tools.t.parameters: .*{why}"):
        parse(f"tools: {{t: {{type: {kind}, parameters: {schema}}}}}", {})


def test_a_post_that_may_be_sent_twice_may_be_retried():
    loaded = parse(
        "tools: {t: {type: http, description: d, method: POST, url: 'http://h/', retries: 2, idempotent: true}}", {}
    )
    assert loaded.config.tools["t"].retries == 2


def test_an_api_without_its_key_is_disabled_and_its_fallback_stands_in_and_its_faults_are_still_told():
    entry = "{type: http, description: d, url: 'http://h/', headers: {X-Key: 'Key ${KEY}'}, fallback: now}"
    text = "tools: {now: {type: clock}, t: " + entry + "}"
    config = parse(text, {})
    assert config.disabled["tools.t"].why == "KEY is not set"
    tools = tools_of(config, Resources(tool_client(), FakeClock()))
    assert [tool.name for tool in tools] == ["now", "t"]
    with pytest.raises(ConfigurationError, match=r"tools\.t\.url"):
        parse(text.replace("http://h/", "http://h/{a}"), {})


def test_a_value_that_two_entries_share_is_a_secret_of_both():
    entry = "{type: http, description: d, url: 'http://h/', headers: {X-A: %s }}"
    text = "tools: {a: " + entry % "&k '${KEY}'" + ", b: " + entry % "*k" + "}"
    loaded = parse(text, {"KEY": "canary"})
    assert [loaded.secrets[f"tools.{name}"] for name in "ab"] == [{"canary"}] * 2


async def test_a_conversation_uses_an_api_that_wants_a_secret_header(api, sdk):
    api.answers = [(200, b'{"now": {"sky": "rain", "key": "canary"}}', {"content-type": "application/json"})]
    upstream = FakeUpstream([streamed(calls=[("c", "weather", {"city": "Nanaimo"})]), streamed("Rain.")])
    entry = "type: http, description: d, url: 'URL/w/{city}', headers: {X-Key: canary}, result: {json_pointer: /now}"
    async with serving(api, lifespan="off") as url:
        more = "  weather: {" + entry.replace("URL", url) + ", " + CITY + "}"
        async with proxy_of(upstream, more=more) as proxy, sdk(proxy) as client:
            ask = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            stream = await client.chat.completions.create(**ask, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == "Rain."
    assert api.asked[0]["headers"]["x-key"] == "canary"
    told = upstream.requests[1]["messages"][-1]["content"]
    assert '{"sky":"rain","key":"[secret]"}' in told


TEMPLATED = {name: {} for name in ("q", "r", "s")}
ENTRY = HttpToolConfig(
    description="",
    url="http://api.example:8080/v1/{q}/x-{r}/end?a={q}&b=1",
    method="POST",
    query={"c": ["{s}", "x{r}y"]},
    body={"deep": [{"er": "{s}"}], "text": "<{r}>"},
    parameters={"type": "object", "properties": TEMPLATED},
)
TEMPLATE = http_template.template_of(ENTRY)
SNEAKY = st.sampled_from(
    [
        "..",
        ".",
        "%2e%2e",
        "a/b",
        "a\\b",
        "?x=1",
        "#",
        "@evil.example",
        "\u2025",
        "\uff0e\uff0e",
        "%252e%252e%252f",
        "\r\nHost: x",
    ]
)


ARGUMENTS = st.text(min_size=1) | SNEAKY | hostile.json_values


@given(st.fixed_dictionaries({"q": ARGUMENTS, "r": ARGUMENTS}, optional={"s": ARGUMENTS}))
def test_no_argument_leaves_its_place(arguments):
    sent = hostile.outcome(InvalidArguments, lambda: TEMPLATE.fill(arguments))
    if isinstance(sent, InvalidArguments):
        return
    parts = urlsplit(sent.url)
    path = parts.path.split("/")
    assert sent.url.isascii()
    assert (parts.scheme, parts.netloc, parts.fragment) == ("http", "api.example:8080", "")
    assert (len(path), path[1], path[3][:2], path[4]) == (5, "v1", "x-", "end")
    assert not {".", "..", ""} & set(path[1:])
    assert {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} <= {"a", "b", "c"}
    assert orjson.loads(sent.body).keys() <= {"deep", "text"}


@given(st.lists(hostile.texts, max_size=4))
def test_a_pointer_leads_where_it_was_made_to_lead(keys):
    document = "found"
    for key in reversed(keys):
        document = {key: document}
    pointer = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)
    assert resolve(document, pointer_in({"json_pointer": pointer})) == "found"


@given(st.text("/~01a9", max_size=8) | st.integers(10**17, 10**30).map("/{}".format), hostile.json_values)
def test_any_pointer_finds_a_value_or_none(pointer, document):
    steps = hostile.outcome(ValueError, lambda: pointer_in({"json_pointer": pointer}))
    if not isinstance(steps, ValueError):
        found = resolve(document, steps)
        assert found is MISSING or any(found is value for value in values_in(document))


def values_in(document):
    yield document
    children = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    for child in children:
        yield from values_in(child)


def test_operators_of_placeholders_are_those_of_search_providers():
    entry = HttpToolConfig(
        description="d",
        method="POST",
        url="http://h/{country|lower}",
        body={"tags": "{tags|join:;}", "country": "{country}", "none": None, "empty": {}, "lists": ["{tags}"]},
        parameters={"properties": {"country": {"type": "string"}, "tags": {"type": "array"}}},
    )
    request = http_template.template_of(entry).fill({"country": "CA", "tags": ["a", "b"]})
    assert request.url == "http://h/ca"
    assert orjson.loads(request.body) == {
        "tags": "a;b",
        "country": "CA",
        "none": None,
        "empty": {},
        "lists": [["a", "b"]],
    }
    assert orjson.loads(http_template.template_of(entry).fill({"country": "CA", "tags": []}).body)["lists"] == [[]]
