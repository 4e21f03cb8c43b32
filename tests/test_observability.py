"""Log, metrics, trace and debug page tell the same story, over real sockets; none of them tells a secret."""

import asyncio
import io
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import openai
import orjson
import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from proxy.config.model import TelemetryConfig
from proxy.telemetry import log
from tests.fakes import FakeUpstream, Reply, chunk, stream, streamed, whole
from tests.serving import proxy_of, serving
from tests.test_deploy import alerts

CONFIG = """
clients: [{{name: app, key: canary-app-key, admin: true}}]
upstreams:
  up: {{base_url: '{upstream}/v1', api_key: canary-upstream-key, retries: 2}}
models:
  m: {{upstream: up, model: the/real-name}}
tools:
  web_search: {{type: serper, api_key: canary-serper-key, base_url: '{upstream}', cache_seconds: 60}}
{more}
"""
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"
ASK = {"model": "m", "messages": [{"role": "user", "content": "canary-question"}]}
SECRETS = ["canary-upstream-key", "canary-app-key", "canary-serper-key"]
SEARCHES = [("c1", "web_search", {"query": "canary-one"}), ("c2", "web_search", {"query": "canary-two"})]
BUSY = Reply([b'{"error": {"message": "busy", "code": "1305"}}'], status=429)


@dataclass
class Receiver:
    """An OTLP receiver: an ASGI application that keeps the spans it is sent."""

    spans: list = field(default_factory=list)
    resources: list = field(default_factory=list)
    paths: set = field(default_factory=set)

    async def __call__(self, scope, receive, send) -> None:
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        self.paths.add(scope["path"])
        for traced in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes(traced.resource))
            self.spans += [span for scoped in traced.scope_spans for span in scoped.spans]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def attributes(of):
    return {one.key: _value(one.value) for one in of.attributes}


def _value(value):
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@dataclass
class Seen:
    """Everything that watched one proxy."""

    url: str = ""
    receiver: Receiver = field(default_factory=Receiver)
    stream: io.StringIO = field(default_factory=io.StringIO)

    @property
    def log(self):
        return [orjson.loads(line) for line in self.stream.getvalue().splitlines()]

    async def get(self, path, **headers):
        async with httpx.AsyncClient() as client:
            headers = {"authorization": "Bearer canary-app-key", **headers}
            return await client.get(f"{self.url}{path}", headers=headers)

    async def story(self, request_id):
        return (await self.get(f"/debug/requests/{request_id}", accept="application/json")).json()

    async def samples(self):
        lines = [line.rsplit(" ", 1) for line in (await self.get("/metrics")).text.splitlines() if line[0] != "#"]
        return {name.removeprefix("toolproxy_"): float(value) for name, value in lines}


@asynccontextmanager
async def watched(upstream, *, level="debug", more="", **telemetry):
    """A proxy with everything on; when it has stopped, the receiver has every span."""
    seen = Seen()
    log.configure(TelemetryConfig(log_level=level, **telemetry), secrets=SECRETS, stream=seen.stream)
    content = "true" if telemetry.get("log_content") else "false"
    try:
        async with serving(seen.receiver, lifespan="off") as collector:
            more += f"\ntelemetry: {{otlp_endpoint: '{collector}', log_content: {content}}}"
            async with proxy_of(upstream, config=CONFIG, more=more) as seen.url:
                yield seen
    finally:
        structlog.reset_defaults()


async def ask(seen, sdk, request_id, **body):
    headers = {"x-request-id": request_id, "traceparent": CALLER, "tracestate": "vendor=1"}
    async with sdk(seen.url, api_key="canary-app-key") as client:
        answer = await client.chat.completions.create(**{**ASK, **body}, extra_headers=headers)
        return [chunk async for chunk in answer] if body.get("stream") else answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_question_with_two_searches_and_a_retry_is_the_same_story_everywhere(sdk, stream):
    turn = streamed if stream else whole
    upstream = FakeUpstream([BUSY, turn(calls=SEARCHES), turn("Found it")])
    async with watched(upstream) as seen:
        await ask(seen, sdk, "slow-question", stream=stream)
        story, samples, page = await seen.story("slow-question"), await seen.samples(), await seen.get("/debug")
    lines = [line for line in seen.log if line.get("request_id") == "slow-question"]
    spans = seen.receiver.spans
    served = next(span for span in spans if attributes(span).get("toolproxy.request_id") == "slow-question")
    below = [span for span in spans if span.parent_span_id == served.span_id]

    # what happened
    steps = [(step["kind"], step.get("tool"), step["outcome"]) for step in story["steps"]]
    assert steps == [
        ("turn", None, "completed"),
        ("tool", "web_search", "completed"),
        ("tool", "web_search", "completed"),
        ("turn", None, "completed"),
    ]
    logged = [line["event"] for line in lines if line["level"] != "debug"]
    assert logged == [
        "upstream.retried",
        *(f"{kind}.completed" for kind in ("turn", "tool", "tool", "turn", "request")),
    ]
    assert [span.name for span in below] == [
        "chat the/real-name", "execute_tool web_search", "execute_tool web_search", "chat the/real-name",
    ]  # fmt: skip
    assert samples['tool_calls_total{outcome="ok",tool="web_search"}'] == 2
    assert samples['upstream_retries_total{upstream="up"}'] == 1
    assert samples['upstream_errors_total{error="rate_limit_exceeded",upstream="up"}'] == 1
    assert samples['requests_total{client="app",model="m",route="/v1/chat/completions",status="200"}'] == 1
    assert samples['request_turns_sum{model="m"}'] == 2

    # under the same names
    assert story["trace_id"] == TRACE == served.trace_id.hex()
    assert {line["trace_id"] for line in lines if line["event"] != "request.started"} == {TRACE}
    assert served.parent_span_id.hex() == "b7ad6b7169203331"
    assert [step["span_id"] for step in story["steps"]] == [span.span_id.hex() for span in below]
    calls = sorted(line["call_id"] for line in lines if line["event"] == "tool.completed")  # either may be first
    assert calls == [step["call_id"] for step in story["steps"] if step["kind"] == "tool"]
    assert calls == [attributes(span)["gen_ai.tool.call.id"] for span in below[1:3]]
    assert "slow-question" in page.text

    # with the same numbers
    done = lines[-1]
    said = attributes(served)
    for name, attribute in (("turns", "toolproxy.turns"), ("tool_calls", "toolproxy.tool_calls"),
                            ("stop", "toolproxy.stop"), ("client", "toolproxy.client"),
                            ("status", "http.response.status_code")):  # fmt: skip
        assert done[name] == story[name] == said[attribute], name
    tokens = [attributes(span)["gen_ai.usage.input_tokens"] for span in (below[0], below[3])]
    assert sum(tokens) == done["prompt_tokens"] == story["prompt_tokens"] == 20
    assert samples['tokens_total{client="app",kind="prompt",model="m"}'] == 20
    for step, span in zip(story["steps"], below, strict=True):
        assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(step["seconds"], abs=1e-5)
    assert story["steps"][0]["notes"][0]["event"] == below[0].events[0].name == "upstream.retried"
    assert story["steps"][0]["seconds"] >= story["steps"][0]["notes"][0]["wait"]


async def test_whoever_is_called_is_told_the_span_that_it_is_called_in(sdk):
    upstream = FakeUpstream([whole(calls=SEARCHES[:1]), whole("Found it")])
    async with watched(upstream) as seen:
        await ask(seen, sdk, "r")
    told = [head["headers"].get(b"traceparent", b"").decode() for head in upstream.heads]
    spans = {span.span_id.hex(): span for span in seen.receiver.spans}
    assert [spans[header.split("-")[2]].name for header in told] == [
        "chat the/real-name", "execute_tool web_search", "chat the/real-name",
    ]  # fmt: skip
    assert {head["headers"][b"tracestate"] for head in upstream.heads} == {b"vendor=1"}
    assert [span.kind for span in seen.receiver.spans] == [
        Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_CLIENT,
    ]  # fmt: skip
    assert seen.receiver.paths == {"/v1/traces"}
    assert seen.receiver.resources[0]["service.name"] == "toolproxy"


async def test_a_request_that_is_handed_through_has_its_spans_too(sdk):
    upstream = FakeUpstream([whole("Hi"), streamed("Hi there"), Reply([b'{"data": []}'])])
    async with watched(upstream) as seen, sdk(seen.url, api_key="canary-app-key") as client:
        await ask(seen, sdk, "whole", max_tokens=5, tool_choice="none")
        await ask(seen, sdk, "stream", stream=True, tool_choice="none")
        await client.embeddings.create(model="m", input="x", encoding_format="float")
        await client.post("/rerank", body={"model": "m"}, cast_to=object)
        story = await seen.story("stream")
    names = [span.name for span in seen.receiver.spans if span.kind == Span.SPAN_KIND_CLIENT]
    assert names == ["chat the/real-name", "chat the/real-name", "embeddings the/real-name", "relay up"]
    assert [step["kind"] for step in story["steps"]] == ["relay"]
    assert story["steps"][0]["first"] > 0


async def test_a_callers_own_trace_headers_are_replaced_by_those_of_the_span_that_calls(sdk):
    sent = []

    class Recording(FakeUpstream):
        async def __call__(self, scope, receive, send):
            sent.append([header for header in scope["headers"] if header[0] in (b"traceparent", b"tracestate")])
            await super().__call__(scope, receive, send)

    async with (
        watched(Recording([Reply([b'{"data": []}'])])) as seen,
        sdk(seen.url, api_key="canary-app-key") as client,
    ):
        for trace in ({"traceparent": CALLER, "tracestate": "vendor=1"}, {"traceparent": "no", "tracestate": "x=1"}):
            await client.embeddings.create(model="m", input="x", encoding_format="float", extra_headers=trace)
    spans = [span.span_id.hex() for span in seen.receiver.spans if span.kind == Span.SPAN_KIND_CLIENT]
    (first, state), (second,) = sent
    assert [value.decode().split("-")[2] for _, value in (first, second)] == spans
    assert (TRACE in first[1].decode(), TRACE in second[1].decode(), state) == (
        True,
        False,
        (b"tracestate", b"vendor=1"),
    )


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Reply([b'{"error": {"code": "401", "message": "token expired"}}'], status=401), "upstream_auth_failed"),
        (Reply([b'{"error": {"code": "1113", "message": "no balance"}}'], status=429), "upstream_quota_exceeded"),
        (Reply([b'{"error": {"code": "1308", "message": "until 5 pm"}}'], status=429), "insufficient_quota"),
    ],
)
async def test_a_refusal_of_the_operators_account_is_counted_as_the_alert_expects_it(sdk, refusal, error):
    async with watched(FakeUpstream([refusal])) as seen:
        with pytest.raises(openai.APIStatusError):
            await ask(seen, sdk, "refused")
        samples = await seen.samples()
    assert samples[f'upstream_errors_total{{error="{error}",upstream="up"}}'] == 1
    [alert] = [rule["expr"] for rule in alerts() if rule["alert"] == "ToolproxyUpstreamRefusesKey"]
    assert error in re.search(r'error=~"([^"]+)"', alert)[1].split("|")


async def test_what_fails_says_so_in_every_place(sdk):
    broken = Reply([b'{"message": "canary"}'], status=500)
    upstream = FakeUpstream([whole(calls=[("c1", "web_search", "{not json")]), broken])
    async with watched(upstream) as seen:
        with pytest.raises(openai.InternalServerError):
            await ask(seen, sdk, "failing")
        story, samples = await seen.story("failing"), await seen.samples()
    assert [step["outcome"] for step in story["steps"]] == ["completed", "invalid_arguments", "failed"]
    assert samples['tool_calls_total{outcome="invalid_arguments",tool="web_search"}'] == 1
    assert samples['upstream_errors_total{error="upstream_error",upstream="up"}'] == 3
    failed = {
        span.name: attributes(span)["error.type"]
        for span in seen.receiver.spans
        if span.status.code == Status.STATUS_CODE_ERROR
    }
    assert failed == {
        "POST /v1/chat/completions": "upstream_error",
        "execute_tool web_search": "invalid_arguments",
        "chat the/real-name": "upstream_error",
    }


async def test_a_client_that_leaves_leaves_nothing_open(sdk, upstream):
    never = asyncio.Event()
    upstream.replies = [Reply([never])]
    async with watched(upstream) as seen:
        with pytest.raises(openai.APITimeoutError):
            async with sdk(seen.url, api_key="canary-app-key", timeout=0.2) as client:
                await client.chat.completions.create(**ASK, extra_headers={"x-request-id": "left"})
        await upstream.left.wait()
        async with asyncio.timeout(5):
            while (story := await seen.story("left"))["seconds"] is None:
                pass
        samples = await seen.samples()
    assert (story["status"], [step["outcome"] for step in story["steps"]]) == (499, ["abandoned"])
    assert samples["open_requests"] == 0
    assert [line["event"] for line in seen.log if line.get("event", "").startswith("turn.")] == [
        "turn.started", "turn.abandoned",
    ]  # fmt: skip


async def test_a_result_that_is_used_again_is_seen_to_be(sdk):
    upstream = FakeUpstream([whole(calls=SEARCHES[:1]), whole("a"), whole(calls=SEARCHES[:1]), whole("b")])
    async with watched(upstream) as seen:
        await ask(seen, sdk, "first")
        await ask(seen, sdk, "second")
        story, samples = await seen.story("second"), await seen.samples()
    assert [note["event"] for note in story["steps"][1]["notes"]] == ["tool.cache_hit"]
    assert samples['tool_cache_hits_total{tool="web_search"}'] == 1


async def test_a_caller_that_keeps_no_traces_gets_none(sdk):
    async with watched(FakeUpstream([whole("Hi")])) as seen, sdk(seen.url, api_key="canary-app-key") as client:
        await client.chat.completions.create(**ASK, extra_headers={"traceparent": CALLER[:-2] + "00"})
    assert seen.receiver.spans == []


async def test_neither_secrets_nor_what_was_said_are_in_log_metrics_traces_or_pages(sdk):
    upstream = FakeUpstream([whole("canary-thought", calls=SEARCHES), whole("canary-answer"), whole("canary-relayed")])
    async with watched(upstream) as seen:
        await ask(seen, sdk, "r")
        await ask(seen, sdk, "relayed", tool_choice="none")
        with pytest.raises(openai.AuthenticationError):
            async with sdk(seen.url, api_key="canary-wrong-key") as client:
                await client.chat.completions.create(**ASK)
        told = [(await seen.get(path)).text for path in ("/metrics", "/debug", "/debug/requests/r", "/readyz")]
        told.append(str(await seen.story("r")) + str(await seen.story("relayed")))
    told += [seen.stream.getvalue(), str(seen.receiver.spans)]
    assert all(told)
    assert "canary" not in "".join(told)


async def test_what_was_said_is_in_log_traces_and_pages_where_it_is_asked_for_and_secrets_are_not(sdk):
    upstream = FakeUpstream([whole("canary-thought", calls=SEARCHES), whole("canary-answer")])
    async with watched(upstream, log_content=True) as seen:
        await ask(seen, sdk, "r")
        told = [(await seen.get("/debug/requests/r")).text, seen.stream.getvalue()]
    told.append(str(seen.receiver.spans))
    for text in told:
        assert {"canary-question", "canary-one", "canary-answer"} <= set(re.findall(r"canary-\w+", text))
        assert not re.search(r"canary-\w+-key", text)
    chat = next(span for span in seen.receiver.spans if span.name.startswith("chat"))
    (asked, *_) = [one for one in orjson.loads(attributes(chat)["gen_ai.input.messages"]) if one["role"] == "user"]
    assert asked["parts"] == [{"type": "text", "content": "canary-question"}]


async def test_a_secret_that_somebody_quotes_is_masked_in_log_traces_and_pages_alike(sdk):
    quoted = "the key is canary-upstream-key, or canary-app-key"
    upstream = FakeUpstream([BUSY, whole(quoted, calls=[("c1", "web_search", {"query": quoted})]), whole(quoted)])
    async with watched(upstream, log_content=True) as seen:
        await ask(seen, sdk, "r", messages=[{"role": "user", "content": quoted}])
        told = {
            "page": (await seen.get("/debug/requests/r")).text,
            "JSON": str(await seen.story("r")),
            "list": (await seen.get("/debug")).text,
            "log": seen.stream.getvalue(),
        }
    told["traces"] = str(seen.receiver.spans)
    for text in told.values():
        assert not re.search(r"canary-\w+-key", text)
    for where in ("page", "JSON", "log", "traces"):
        assert "the key is ***, or ***" in told[where]


async def test_a_receiver_that_is_gone_disturbs_nobody(sdk):
    seen = Seen()
    log.configure(TelemetryConfig(), stream=seen.stream)
    more = "telemetry: {otlp_endpoint: 'http://127.0.0.1:9'}"
    async with proxy_of(FakeUpstream([whole("Hi")]), config=CONFIG, more=more) as seen.url:
        assert (await ask(seen, sdk, "r")).choices[0].message.content == "Hi"
    structlog.reset_defaults()


async def test_with_everything_off_there_is_nothing(sdk):
    upstream = FakeUpstream([whole("Hi")])
    more = "telemetry: {metrics: false}\nserver: {allow_anonymous: true}"
    async with proxy_of(upstream, more=more) as url, httpx.AsyncClient() as client:
        async with sdk(url) as asking:
            await asking.chat.completions.create(**ASK)
        for path in ("/metrics", "/debug"):
            assert (await client.get(f"{url}{path}")).status_code == 404
    assert b"traceparent" not in upstream.heads[0]["headers"]


@pytest.mark.parametrize("log_level", ["debug", "info"])
async def test_what_is_handed_through_is_told_where_the_log_is_to_say_it(sdk, log_level):
    seen = Seen()
    log.configure(TelemetryConfig(log_level=log_level), stream=seen.stream)
    upstream = FakeUpstream([whole("Hi"), Reply([b"{}"], status=400)])
    async with proxy_of(upstream) as url, sdk(url) as client:
        await client.chat.completions.create(**ASK, tool_choice="none")
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**ASK, tool_choice="none")
    structlog.reset_defaults()
    told = [(line["event"], line["level"]) for line in seen.log if line["event"].startswith("relay")]
    of_success = [("relay.started", "debug"), ("relay.completed", "debug"), ("relay.started", "debug")]
    assert told == [*(of_success if log_level == "debug" else ()), ("relay.failed", "warning")]


async def test_a_scrape_tells_how_many_tasks_there_are(sdk):
    end = asyncio.Event()
    upstream = FakeUpstream([stream(chunk({"content": "One"}), end, chunk({}, "stop"))])
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client, sdk(url) as asking:

        async def tasks():
            lines = (await client.get(f"{url}/metrics")).text.splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith("toolproxy_asyncio_tasks "))

        before = await tasks()
        answer = await asking.chat.completions.create(**ASK, stream=True)
        assert await tasks() > before
        end.set()
        assert [chunk.choices[0].finish_reason async for chunk in answer][-1] == "stop"


async def test_a_scrape_does_not_grow_with_traffic(sdk):
    async with proxy_of(FakeUpstream([whole("Hi")])) as url, httpx.AsyncClient() as client:

        async def scrape():
            return len((await client.get(f"{url}/metrics")).text.splitlines())

        async def traffic(names):
            for name in names:
                await client.post(f"{url}/v1/chat/completions", json={**ASK, "model": name})
                await client.get(f"{url}/nowhere/{name}", headers={"x-request-id": name})

        await traffic(["m", "unknown-0"])
        before = await scrape()
        await traffic(f"unknown-{number}" for number in range(1, 60))
        assert await scrape() == before
