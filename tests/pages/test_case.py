"""`GET /debug/requests/{id}/case`: the file that plays a request again, over real sockets."""

import asyncio

import httpx
import jsonschema_rs
import orjson
import pytest

from proxy.cases.case_format import schema
from tests.fakes import FakeUpstream, Reply, chunk, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

VALIDATOR = jsonschema_rs.Draft202012Validator(schema())
CONTENT = "telemetry: {log_content: true, log_level: error}"
ADMIN = (
    CONTENT
    + "\nclients: [{name: boss, key: boss-key-1, admin: true}, {name: app, key: app-key-22, tools: [web_search]}]"
)
KEYS = CONFIG.replace("upstream-secret", "k7GhTz0qWm").replace("serper-secret", "Zp4vRx8yLs")
SEARCH = [("c1", "web_search", {"query": "one"})]
OWN = {"type": "function", "function": {"name": "own", "parameters": {"type": "object"}}}
CHAT = "/v1/chat/completions"


async def send(url, body, *, path=CHAT, request_id="asked-1", key="app-key-22", **headers):
    async with httpx.AsyncClient() as client:
        return await client.post(
            url + path, json=body, headers={"authorization": f"Bearer {key}", "x-request-id": request_id, **headers}
        )


async def case_of(url, request_id="asked-1", key="boss-key-1"):
    async with httpx.AsyncClient() as client:
        return await client.get(f"{url}/debug/requests/{request_id}/case", headers={"authorization": f"Bearer {key}"})


def ask(**more):
    return {"model": "m", "messages": [{"role": "user", "content": "What?"}], **more}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_case_has_everything_that_the_request_met(is_stream):
    replies = (
        [streamed("I look.", calls=SEARCH), streamed("Found.")]
        if is_stream
        else [whole("I look.", calls=SEARCH), whole("Found.")]
    )
    async with proxy_of(FakeUpstream(replies), config=KEYS, more=ADMIN) as url:
        answer = await send(
            url, ask(stream=is_stream), **{"x-tool-events": "true", "user-agent": "mine", "cookie": "c=cookie-1"}
        )
        response = await case_of(url)
    case = orjson.loads(response.content)
    assert response.headers["content-disposition"] == 'attachment; filename="case-asked-1.json"'
    assert [fault.message for fault in VALIDATOR.iter_errors(case)] == []
    (exchange,) = case["exchanges"]
    assert exchange["request"] == {"path": CHAT, "method": "POST", "headers": {"accept": "*/*", "content-type": "application/json", "x-tool-events": "true"}, "body": ask(stream=is_stream)}  # fmt: skip
    first, second = exchange["upstream"]["up"]
    assert [message["role"] for message in second["asked"]["messages"]] == ["system", "user", "assistant", "tool"]
    assert (first["status"], first["headers"]["content-type"][:16]) == (
        200,
        "text/event-strea" if is_stream else "application/json",
    )
    written = "".join(piece for piece in first["pieces"] if isinstance(piece, str))
    assert written == (b"".join(replies[0].body)).decode()
    (run,) = exchange["tools"]
    assert (run["name"], run["arguments"], run["output"]["hits"][0]["url"]) == (
        "web_search",
        {"query": "one"},
        "https://a.example/",
    )
    got = exchange["got"]
    assert got["status"] == 200
    assert (got["body"] if not is_stream else "".join(got["pieces"])) == (
        answer.json() if not is_stream else answer.text
    )
    assert (case["config"]["client"]["name"], case["config"]["client"]["tools"]) == ("app", ["web_search"])
    assert case["not_played"] == []
    for secret in (
        b"upstream-secret",
        b"serper-secret",
        b"app-key-22",
        b"boss-key-1",
        b"cookie-1",
        b"127.0.0.1",
        b"mine",
    ):
        assert secret not in response.content


async def test_a_case_has_what_was_read_from_the_store(sdk):
    both = [*SEARCH, ("c2", "own", {})]
    async with proxy_of(FakeUpstream([whole(calls=both), whole("Done.")]), more=ADMIN) as url:
        message = (await send(url, ask(tools=[OWN]))).json()["choices"][0]["message"]
        (call,) = message["tool_calls"]
        history = [*ask()["messages"], message, {"role": "tool", "tool_call_id": call["id"], "content": "mine"}]
        await send(url, {**ask(tools=[OWN]), "messages": history}, request_id="asked-2")
        case = (await case_of(url, "asked-2")).json()
    (entry,) = case["exchanges"][0]["state"]
    assert entry["key"] in call["id"]
    assert "web_search" in str(entry["value"])


async def test_failures_retries_and_fallbacks_are_recorded_as_they_came():
    more = ADMIN.replace(", tools: [web_search]", "")
    replies = [Reply([b'{"error": {"message": "busy"}}'], status=503, headers=[(b"retry-after", b"0"), (b"set-cookie", b"a=secret-cookie")]), stream(chunk({"content": "Hal"}), None)]  # fmt: skip
    async with proxy_of(FakeUpstream(replies), config=CONFIG_WITH_RETRIES, more=more) as url:
        await send(url, ask(stream=True))
        exchange = (await case_of(url)).json()["exchanges"][0]
    first, second = exchange["upstream"]["up"]
    assert (first["status"], first["headers"]) == (503, {"content-type": "application/json", "retry-after": "0"})
    assert second["fails"] == "RemoteProtocolError"
    assert exchange["got"]["status"] == 200


CONFIG_WITH_RETRIES = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, retries: 1}}
models: {{m: {{upstream: up}}}}
{more}
"""


async def test_a_client_that_leaves_is_recorded():
    upstream = FakeUpstream([stream(chunk({"content": "Hal"}), wait := asyncio.Event())])
    async with proxy_of(upstream, more=ADMIN) as url:
        async with httpx.AsyncClient() as client, client.stream("POST", url + CHAT, json=ask(stream=True), headers={"authorization": "Bearer app-key-22", "x-request-id": "asked-1"}) as response:  # fmt: skip
            async for _ in response.aiter_bytes():
                break
            still_open = await case_of(url)
        await upstream.left.wait()
        response = await case_of(url)
        wait.set()
    assert (still_open.status_code, still_open.json()["error"]["code"]) == (409, "not_recorded")
    assert response.json()["not_played"] == ["the client left before its answer was complete"]
    assert response.json()["exchanges"][0]["upstream"]["up"][0]["left"] is True


SLOW = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: upstream-secret, retries: 0, timeouts: {{read: READ}}}}}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: serper-secret, base_url: "{upstream}", retries: 0, timeout: 0.2}}}}
{more}
"""


@pytest.mark.parametrize("surface", [CHAT, "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    ("slow", "limits", "reason"),
    [
        ("upstream", "", "a call of the upstream up took too long (ReadTimeout)"),
        ("tool", "", "a call of the tool web_search took too long"),
        ("tool", "limits: {deadline: 0.1}", "the deadline of the request passed"),
    ],
    ids=["an upstream's timeout", "a tool's timeout", "the deadline"],
)
async def test_a_case_says_what_time_has_caused_in_it(surface, slow, limits, reason):
    never = asyncio.Event()
    upstream = FakeUpstream(
        [Reply([never])] if slow == "upstream" else [whole(calls=SEARCH), whole("Done.")],
        search=lambda _: Reply([never]),
    )
    more = ADMIN.replace(", tools: [web_search]", "") + f"\n{limits}"
    config = SLOW.replace("READ", "0.2" if slow == "upstream" else "60")
    async with proxy_of(upstream, config=config, more=more) as url:
        body = {"model": "m", "messages": ask()["messages"], "max_tokens": 50, "input": "What?"}
        await send(url, body, path=surface)
        case = (await case_of(url)).json()
        never.set()
    assert case["not_played"] == [reason]


async def test_a_case_that_is_too_large_is_refused_with_its_size():
    async with proxy_of(FakeUpstream([whole("Hi")]), more=ADMIN) as url:
        await send(url, ask(metadata={"a": "x" * 9_000_000}))
        response = await case_of(url)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "case_too_large")
    assert "bytes, and at most 8,388,608 are permitted" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "key", "request_id", "status", "code"),
    [
        (ADMIN, "app-key-22", "asked-1", 403, "admin_only"),
        (ADMIN, "boss-key-1", "unknown", 404, "not_found"),
        (ADMIN, "boss-key-1", "refused", 404, "not_found"),
        (ADMIN.replace("log_content: true", "log_content: false"), "boss-key-1", "asked-1", 409, "not_recorded"),
    ],
)
async def test_there_is_no_case_for_others_of_unknown_requests_and_without_content(more, key, request_id, status, code):
    async with proxy_of(FakeUpstream([whole("Hi")]), more=more) as url:
        await send(url, ask())
        await send(url, ask(), key="wrong-key", request_id="refused")
        response = await case_of(url, request_id, key)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_the_page_of_a_request_links_its_case_while_content_is_recorded():
    for more, shown in ((CONTENT, True), ("telemetry: {log_level: error}", False)):
        async with proxy_of(FakeUpstream([whole("Hi")]), more=more) as url:
            await send(url, ask())
            async with httpx.AsyncClient() as client:
                page = (await client.get(f"{url}/debug/requests/asked-1")).text
        assert ('href="/debug/requests/asked-1/case"' in page) == shown


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/v1/messages"])
async def test_every_surface_and_what_is_passed_through_has_cases(path):
    body = {"model": "m", "input": "What?", "messages": ask()["messages"], "max_tokens": 50}
    async with proxy_of(FakeUpstream([whole("Hi")]), more=ADMIN) as url:
        assert (await send(url, body, path=path)).status_code == 200
        case = (await case_of(url)).json()
    assert [fault.message for fault in VALIDATOR.iter_errors(case)] == []
    (call,) = case["exchanges"][0]["upstream"]["up"]
    assert call.get("path") == ("/v1/embeddings" if path == "/v1/embeddings" else None)
