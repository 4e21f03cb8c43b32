"""What clients use, what it costs, and what happens when a budget is used up: over real sockets, with the real SDK."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import httpx
import orjson
import pytest

from proxy.wire.tokens import count_tokens
from tests.api.surfaces import ALL, EACH, RELAY_TOO, on, request
from tests.fakes import FakeClock, Reply, call_chunk, chunk, completion, event, stream, streamed, turn, whole
from tests.serving import CONFIG, proxy_of

KEY = "key-of-the-app-itself"
ADMIN = "key-of-the-administrator"
PRICED = CONFIG.replace(
    "m: {{upstream: up}}",
    "m: {{upstream: up, price: {{input: 2, cached: 0.5, output: 10}}, fallbacks: [cheap]}}\n"
    "  cheap: {{upstream: up, model: cheap-one, price: {{input: 1, output: 1}}}}\n"
    '  "wild-*": {{upstream: up}}',
).replace("serper-secret,", "serper-secret, price: 0.25,")
ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
SEARCH = [("call-1", "web_search", {"query": "a"})]
# Of 1,000 tokens read, 600 of them cached, and 100 written: 400 * 2 + 600 * 0.5 + 100 * 10 millionths.
COST = 0.0021
COUNTS = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "total_tokens": 1100,
    "prompt_tokens_details": {"cached_tokens": 600},
}


def clients(budget):
    return (
        (
            f"clients: [{{{{name: app, key: {KEY}, budget: {{{{{budget}}}}}}}}}, {{{{name: boss, key: {ADMIN}, admin: true}}}}]"
        )
        .replace("{{", "{")
        .replace("}}", "}")
    )


def counted(text="", **options):
    return Reply([orjson.dumps({**completion(text, **options), "usage": COUNTS})])


async def post(url, *, path="/v1/chat/completions", key=KEY, **changes):
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(url + path, json={**ASK, **changes}, headers={"authorization": f"Bearer {key}"})


async def read_until(client, word):
    """Ask, and leave when that word has come."""
    async with aclosing(client.read(key=KEY)) as pieces:
        async for piece in pieces:
            if word in piece:
                break


async def usage_of(url):
    async with httpx.AsyncClient() as client:
        response = await client.get(f"{url}/debug/usage?format=json", headers={"x-api-key": ADMIN})
        found = {one["client"]: one for one in response.json()["clients"]}
    return found["app"]


async def used(url):
    """What the app has used today, by model."""
    days = (await usage_of(url))["days"]
    return days[0]["models"] if days else {}


@EACH
@pytest.mark.parametrize(
    ("budget", "calls", "what"),
    [
        ("per: day, tokens: 2200", [], "2200 tokens per day"),
        ("per: day, cost: 0.0042", [], "0.0042 (cost) per day"),
        ("per: day, tool_calls: 2", SEARCH, "2 tool calls per day"),
    ],
)
async def test_the_request_after_the_budget_is_used_up_is_told_when_it_is_renewed(surface, budget, calls, what):
    replies = [*([turn(calls=calls, usage=COUNTS)] if calls else []), turn("Hi", usage=COUNTS)] * 2
    clock = FakeClock(datetime(2026, 2, 28, 23, 59, 0, tzinfo=UTC).timestamp())
    async with surface.proxy(*replies, config=PRICED, more=clients(budget), clock=clock) as client:
        for _ in range(2):
            assert (await client.ask(key=KEY)).text == "Hi"
        refused = await client.ask(key=KEY)
        assert (refused.status, refused.error["code"]) == (429, "budget_exceeded")
        told = f"The budget of this key, {what}, is used up. It is renewed on 2026-03-01 at 00:00 UTC."
        assert refused.error["message"] == told
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("60", "false")
        clock.now += 59.9
        assert (await client.ask(key=KEY)).status == 429
        clock.now += 0.1  # the new day
        assert (await client.ask(key=KEY)).status == 200


@pytest.mark.parametrize("streaming", [False, True])
async def test_in_a_file_use_is_counted_without_budgets_and_prices_and_a_relayed_request_stays_as_it_is(
    upstream, tmp_path, streaming
):
    without_usage = stream(chunk({"content": "Hi there"}), chunk({}, "stop"))
    upstream.replies = [without_usage if streaming else counted("Hi there")]
    more = f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
    more += f"clients: [{{name: app, key: {KEY}}}, {{name: boss, key: {ADMIN}, admin: true}}]"
    async with proxy_of(upstream, more=more) as url, httpx.AsyncClient() as client:
        body = orjson.dumps({**ASK, "stream": streaming})
        headers = {"authorization": f"Bearer {KEY}", "x-server-tools": "none"}
        await client.post(f"{url}/v1/chat/completions", content=body, headers=headers)
        await client.post(f"{url}/v1/chat/completions", content=body, headers=headers | {"x-server-tools": "all"})
        assert upstream.bodies[0] == body
        assert (await used(url))["m"]["requests"] == 2
        assert (await used(url))["m"]["output_tokens"] == (5 if streaming else 200)


async def test_a_month_is_one_of_the_calendar(upstream):
    upstream.replies = [counted("Hi")]
    clock = FakeClock(datetime(2026, 12, 1, tzinfo=UTC).timestamp())
    async with proxy_of(upstream, more=clients("per: month, tokens: 1"), clock=clock) as url:
        assert (await post(url)).status_code == 200
        refused = await post(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, str(31 * 86400))
        clock.now += 31 * 86400 - 1
        assert (await post(url)).status_code == 429
        clock.now += 1
        assert (await post(url)).status_code == 200


async def test_only_what_uses_something_is_refused(upstream):
    upstream.replies = [counted("Hi")]
    async with proxy_of(upstream, more=clients("per: day, tokens: 1")) as url:
        await post(url)
        message = {"max_tokens": 5}
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/completions"):
            refused = await post(url, path=path, **message)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        assert (await post(url, path="/v1/messages/count_tokens")).status_code == 200
        async with httpx.AsyncClient(headers={"x-api-key": KEY}) as app:
            assert (await app.get(f"{url}/v1/models")).status_code == 200
        assert (await post(url, key=ADMIN)).status_code == 200
    assert len(upstream.requests) == 2


@RELAY_TOO
async def test_the_cost_of_models_and_tools_is_in_the_usage(surface):
    """With a search in the loop, and relayed without one."""
    searches = surface.kind != "relay"
    replies = [turn(calls=SEARCH, usage=COUNTS)] * searches + [turn("Hi", usage=COUNTS)]
    async with surface.proxy(*replies, config=PRICED, more=clients("per: day, cost: 9")) as client:
        usage = (await client.ask(key=KEY)).whole["usage"]
        found = await used(client.url)
    expected, turns = pytest.approx(2 * COST + 0.25 if searches else COST), 1 + searches
    assert usage["cost"] == expected
    assert found["m"] == {
        "requests": 1,
        "input_tokens": 1000 * turns,
        "cached_tokens": 600 * turns,
        "output_tokens": 100 * turns,
        "tokens": 1100 * turns,
        "tool_calls": int(searches),
        "cost": expected,
    }


async def test_the_model_that_has_answered_sets_the_price(upstream):
    upstream.replies = [Reply([b"{}"], status=500), counted("Hi")]
    async with proxy_of(upstream, config=PRICED, more=clients("per: day, cost: 9")) as url:
        assert (await post(url)).json()["usage"]["cost"] == 0.0011
        assert list(await used(url)) == ["m"]  # as its client has called it


async def test_a_stream_is_counted_whose_client_does_not_ask_for_usage(upstream):
    upstream.replies = [streamed("Hi", usage=10)]
    async with proxy_of(upstream, config=PRICED, more=clients("per: day, cost: 9")) as url:
        answer = await post(url, tool_choice="none", stream=True)
        assert upstream.requests[0]["stream_options"] == {"include_usage": True}
        assert b"Hi" in answer.content
        assert b'"usage":{' not in answer.content.replace(b" ", b"")
        assert (await used(url))["m"]["input_tokens"] == 10


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"data": [%s], "usage": {"prompt_tokens": 8, "total_tokens": 8}}' % b",".join([b"0.25"] * 9000), (8, 0)),
        (
            b'{"usage": {"input_tokens": 7, "output_tokens": 5, "input_tokens_details": {"x": 1}}, "data": "..."}',
            (7, 5),
        ),
        (b'{"text": "\\"usage\\": {\\"prompt_tokens\\": 9}", "usage": {"total_tokens": 3}}', (3, 0)),
        (b'{"data": []}', (1, 0)),  # estimated
    ],
)
async def test_what_is_handed_through_is_counted_wherever_its_usage_stands(upstream, body, tokens):
    upstream.replies = [Reply([body[:5000], body[5000:]] if len(body) > 5000 else [body])]
    async with proxy_of(upstream, config=PRICED, more=clients("per: day, cost: 9")) as url:
        assert (await post(url, path="/v1/embeddings", input="x")).content == body
        use = (await used(url))["m"]
        assert (use["input_tokens"], use["output_tokens"]) == tokens
        assert use["cost"] == pytest.approx((2 * tokens[0] + 10 * tokens[1]) / 1e6)


async def test_what_a_request_has_used_is_counted_when_a_later_turn_fails(upstream):
    upstream.replies = [counted("", calls=SEARCH), Reply([b"{}"], status=400)]
    async with proxy_of(upstream, config=PRICED, more=clients("per: day, cost: 9")) as url:
        assert (await post(url)).status_code == 400
        assert (await used(url))["m"]["cost"] == pytest.approx(COST + 0.25)


@RELAY_TOO
async def test_what_an_upstream_was_asked_when_its_client_left_is_estimated(surface):
    """Relayed, or in the loop after a search."""
    upstream, searches, never = surface.upstream, surface.kind != "relay", asyncio.Event()
    begun = [chunk({"content": word}) for word in ("Once ", "upon ", "a ", "time ")]
    first = [turn(calls=SEARCH)] if searches else []
    last = stream(*begun, never) if surface.streaming else Reply([never])
    async with surface.proxy(*first, last, config=PRICED, more=clients("per: day, cost: 9")) as client:
        leaving = asyncio.create_task(read_until(client, "time"))
        if not surface.streaming:
            while len(upstream.requests) <= len(first):
                upstream.asked.clear()
                await upstream.asked.wait()
            leaving.cancel()
        await asyncio.wait({leaving})
        await upstream.left.wait()
        async with asyncio.timeout(5):
            while not (found := await used(client.url)):
                pass
    use = found["m"]
    assert use["input_tokens"] == pytest.approx(count_tokens(upstream.requests[-1]) + 10 * searches, abs=1)
    written = {(False, False): 0, (False, True): 4, (True, False): 1, (True, True): 7}
    assert use["output_tokens"] == written[searches, surface.streaming]
    tokens = 2 * use["input_tokens"] + 10 * use["output_tokens"]
    assert use["cost"] == pytest.approx(tokens / 1e6 + 0.25 * searches)


async def test_a_stream_that_breaks_off_is_estimated_and_one_that_is_refused_costs_nothing(upstream):
    upstream.replies = [Reply([b"{}"], status=400), stream(chunk({"content": "Once"}), None)]
    async with proxy_of(upstream, config=PRICED, more=clients("per: day, cost: 9")) as url:
        assert (await post(url, stream=True)).status_code == 400
        assert (await used(url))["m"]["input_tokens"] == 0
        await post(url, stream=True)
        found = (await used(url))["m"]
        assert found["input_tokens"] == count_tokens(upstream.requests[-1])
        assert 0 < found["output_tokens"] < 9


async def test_a_run_makes_as_many_tool_calls_as_the_budget_has_left_and_then_answers(upstream):
    searches = [("call-1", "web_search", {"query": query}) for query in "abc"]
    upstream.replies = [whole(calls=searches), whole("Hi")]
    async with proxy_of(upstream, more=clients("per: day, tool_calls: 2")) as url:
        answer = await post(url)
        assert (answer.status_code, answer.headers["x-tool-stop"], answer.headers["x-tool-calls"]) == (
            200,
            "budget",
            "2",
        )
        assert len(upstream.searches) == 2
        assert (await post(url)).status_code == 429


async def test_names_that_strangers_choose_are_counted_as_one_model(upstream):
    upstream.replies = [counted("Hi")]
    async with proxy_of(upstream, config=PRICED, more=clients("per: day, cost: 9")) as url:
        for name in ("wild-1", "wild-2"):
            await post(url, model=name)
        assert (await post(url, model="unknown")).status_code == 404
        found = await used(url)
        assert {model: use["requests"] for model, use in found.items()} == {"other": 2}


async def test_the_page_is_for_administrators_and_shows_budgets_and_days(upstream):
    upstream.replies = [counted("Hi")]
    clock = FakeClock(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp())
    more = clients("per: month, tokens: 5000, cost: 9")
    async with proxy_of(upstream, config=PRICED, more=more, clock=clock) as url, httpx.AsyncClient() as browser:
        await post(url)
        clock.now += 86400
        await post(url)
        assert (await browser.get(f"{url}/debug/usage", headers={"x-api-key": KEY})).status_code == 403
        found = await usage_of(url)
        assert found["budget"] == {
            "per": "month",
            "renewed_at": "2026-12-01T00:00:00+00:00",
            "tokens": {"limit": 5000, "used": 2200, "left": 2800},
            "cost": {"limit": 9.0, "used": 2 * COST, "left": 9 - 2 * COST},
        }
        assert [day["day"] for day in found["days"]] == ["2026-11-23", "2026-11-22"]
        page = await browser.get(f"{url}/debug/usage", headers={"x-api-key": ADMIN})
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for part in ("2,200", "5,000", "0.0042", "2026-11-22", "boss", 'aria-label="44 %"'):
            assert part in page.text
        metrics = (await browser.get(f"{url}/metrics")).text
        assert 'toolproxy_cost_total{client="app",model="m"} 0.0042' in metrics
        assert 'toolproxy_client_budget_used{client="app",kind="tokens"} 1100.0' in metrics
        assert 'toolproxy_cached_tokens_total{client="app",model="m"} 1200.0' in metrics


async def test_two_replicas_exceed_a_budget_by_no_more_than_what_was_under_way(upstream, redis_server):
    """Two hundred clients at once, of a budget of fifty requests."""
    upstream.replies = [counted("Hi")]
    more = clients(f"per: day, tokens: {50 * 1100}") + f"\nstate: {{url: '{redis_server.url}'}}"
    at_once, most = asyncio.Semaphore(20), 0
    open_now = 0

    async def ask(client, url):
        nonlocal open_now, most
        async with at_once:
            open_now += 1
            most = max(most, open_now)
            response = await client.post(
                f"{url}/v1/chat/completions", json={**ASK, "tool_choice": "none"}, headers={"x-api-key": KEY}
            )
            open_now -= 1
            return response.status_code

    async with proxy_of(upstream, more=more) as one, proxy_of(upstream, more=more) as other:
        async with httpx.AsyncClient(timeout=20) as client:
            statuses = await asyncio.gather(*(ask(client, (one, other)[number % 2]) for number in range(200)))
        served = statuses.count(200)
        assert 50 <= served <= 50 + most
        assert statuses.count(429) == 200 - served
        for url in (one, other):
            assert (await used(url))["m"]["requests"] == served
            assert (await post(url)).status_code == 429
    async with proxy_of(upstream, more=more) as restarted:
        assert (await post(restarted)).status_code == 429


@on("chat-streamed", "relay-streamed", "responses-streamed", "messages-streamed", "completions-streamed")
async def test_a_client_that_goes_at_the_end_mark_has_been_answered_and_its_use_is_booked(surface, tmp_path):
    more = clients("per: day, tokens: 1000000") + f"\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}"
    async with surface.proxy(turn("Hi there"), more=more) as client, httpx.AsyncClient(timeout=20) as other:
        for _ in range(12):
            await read_until(client, "message_stop" if surface.kind == "messages" else "[DONE]")
        async with asyncio.timeout(20):
            while 'status="200"} 12.0' not in (metrics := (await other.get(f"{client.url}/metrics")).text):
                assert 'status="499"' not in metrics
        assert (await used(client.url))["m"]["requests"] == 12


async def test_a_stream_that_is_handed_through_without_a_count_is_booked_by_an_estimate(upstream):
    events = [event({"choices": [{"index": 0, "text": word}]}) for word in ("a", "b", "c")]
    upstream.replies = [stream(*events)]
    async with proxy_of(upstream, more=clients("per: day, tokens: 20")) as url:
        asked = {"path": "/v1/completions", "prompt": "one two three four", "stream": True}
        assert [(await post(url, **asked)).status_code for _ in range(4)] == [200, 200, 200, 429]
        found = (await used(url))["m"]
    assert (found["input_tokens"], found["output_tokens"]) == (12, 9)


@RELAY_TOO
async def test_an_answer_that_the_upstream_has_not_counted_is_booked_by_an_estimate(surface):
    reply = turn(["Hello", " there"], usage=None)
    async with surface.proxy(reply, more=clients("per: day, tokens: 1000")) as client:
        assert (await client.ask(key=KEY)).status == 200
        found = (await used(client.url))["m"]
    assert (found["input_tokens"] > 3, found["output_tokens"] >= 2) == (True, True)


async def test_a_search_that_was_begun_early_counts_also_where_its_turn_is_cut_off(upstream):
    searched, found = asyncio.Event(), upstream.search

    def search(_):
        searched.set()
        return found

    def cut_off(_):
        return stream(
            call_chunk(("c0", "web_search", '{"query": "a"}')),
            call_chunk(("c1", "web_search", '{"query": "b'), at=1),
            searched,
            chunk(finish_reason="length"),
        )

    upstream.replies, upstream.search = [cut_off], search
    more = clients("per: day, tool_calls: 2")
    async with proxy_of(upstream, config=PRICED, more=more) as url:
        statuses = []
        for _ in range(3):
            searched.clear()
            statuses.append((await post(url, stream=True)).status_code)
        booked = await used(url)
    assert (statuses, len(upstream.searches), booked["m"]["tool_calls"]) == ([200, 200, 429], 2, 2)


async def test_the_choices_of_a_request_share_what_is_left_of_a_budget_of_calls(upstream):
    upstream.replies = [
        lambda request: whole("", calls=SEARCH) if "tools" in request and len(request["messages"]) < 3 else whole("Hi")
    ]
    async with proxy_of(upstream, more=clients("per: day, tool_calls: 2")) as url:
        answer = (await post(url, n=2)).json()
        assert answer["usage"]["server_tool_use"]["tool_calls"] == 2
        assert (await post(url, n=2)).status_code == 429


IMPOSSIBLE = [b"1e300", b"10000000000000000000", b"-7", b"2.5", b'"12"', b"true", b"null", b"1e400"]


@on(*ALL, "completions-whole", "completions-streamed")
async def test_counts_that_no_model_can_have_written_are_estimated_and_cost_nobody_an_answer(surface, tmp_path):
    def counted_as(number, request):
        usage = b'{"prompt_tokens":%b,"completion_tokens":%b,"total_tokens":%b,"cost":%b}' % ((number,) * 4)
        reply, mark = turn("Hello there", usage={"n": 0}, size=100)(request), b'"usage":{"n":0}'
        assert mark in b"".join(reply.body)
        return replace(reply, body=[part.replace(mark, b'"usage":' + usage) for part in reply.body])

    replies = [partial(counted_as, number) for number in IMPOSSIBLE]
    more = clients("per: day, tokens: 1") + f"\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}"
    more = more.replace("clients: [", "clients: [{name: other, key: other-key, budget: {per: day, tokens: 100000}}, ")
    async with surface.proxy(*replies, config=PRICED, more=more) as client, httpx.AsyncClient(timeout=20) as http:

        async def ask(key):
            sent = request(surface.kind, stream=surface.streaming, key=key)
            return await http.post(client.url + sent["path"], json=sent["body"], headers=sent["headers"])

        for _ in IMPOSSIBLE:
            answer = await ask("other-key")
            assert answer.status_code == 200
            assert "Hello there" in answer.text
            assert "internal_error" not in answer.text
        assert (await ask(KEY)).status_code == 200
        assert (await ask(KEY)).status_code == 429  # the estimate has used the budget up
        admin = {"x-api-key": ADMIN}
        assert (await http.get(f"{client.url}/debug?format=json", headers=admin)).status_code == 200
        page = (await http.get(f"{client.url}/debug/usage?format=json", headers=admin)).json()
        (other,) = (one for one in page["clients"] if one["client"] == "other")
        use = other["days"][0]["models"]["m"]
        assert use["requests"] == len(IMPOSSIBLE)
        assert len(IMPOSSIBLE) <= use["input_tokens"] + use["output_tokens"] < 10_000
        assert "Inf" not in (await http.get(f"{client.url}/metrics")).text.replace('le="+Inf"', "")


async def test_a_turn_that_the_upstream_has_not_counted_is_estimated_beside_those_that_it_has(upstream):
    uncounted = {name: value for name, value in completion("Hello there").items() if name != "usage"}
    upstream.replies = [counted("", calls=SEARCH), Reply([orjson.dumps(uncounted)])]
    async with proxy_of(upstream) as url:
        usage = (await post(url)).json()["usage"]
    assert usage["prompt_tokens"] > COUNTS["prompt_tokens"] + 20
    assert COUNTS["completion_tokens"] < usage["completion_tokens"] < COUNTS["completion_tokens"] + 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_max_output_tokens_bounds_all_turns_of_an_upstream_that_counts_nothing(upstream):
    def uncounted(*args, **kwargs):
        return Reply([orjson.dumps({**completion(*args, **kwargs), "usage": None})])

    upstream.replies = [uncounted("one two three four five six", calls=SEARCH), uncounted("Hello there")]
    async with proxy_of(upstream) as url:
        await post(url, path="/v1/responses", input="x", max_output_tokens=100)
    first, second = (body["max_tokens"] for body in upstream.requests)
    assert first == 100
    assert 60 < second < 95


async def test_a_booking_that_fails_costs_nobody_an_answer(upstream, monkeypatch):
    async def fails(*_):
        raise OverflowError("the count is too large")

    monkeypatch.setattr("proxy.stores.budgets.LocalBudgets.book", fails)
    upstream.replies = [counted("Hi")]
    async with proxy_of(upstream, more=clients("per: day, tokens: 5")) as url:
        assert (await post(url)).json()["choices"][0]["message"]["content"] == "Hi"
