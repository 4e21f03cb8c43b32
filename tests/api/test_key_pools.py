"""Several keys of one upstream: over real sockets, on every API."""

import asyncio
from collections import Counter

import httpx
import orjson
import pytest

from tests.fakes import FakeClock, Reply, chunk, event, stream, streamed, whole
from tests.serving import proxy_of

KEYS = [f"{name}-{number * 8}" for name, number in (("alpha", "1"), ("bravo", "2"), ("charlie", "3"))]
CONFIG = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: [%s], profile: glm, retries: 0}}}}
models:
  m: {{upstream: up}}
  other: {{upstream: up}}
  safe: {{upstream: up, fallbacks: [spare]}}
  spare: {{upstream: up, model: spare}}
tools: {{current_time: {{type: clock}}}}
{more}
"""
POOL = CONFIG % ", ".join(KEYS)
PATHS = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/responses": lambda text: {"input": text},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 9},
    "/v1/completions": lambda text: {"prompt": text},
}


class Provider:
    """An upstream that refuses keys: `refusals` has the answers that each key gets first, by its number."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.refusals: dict[int, list[Reply]] = {}
        upstream.replies = [self.answer]

    @property
    def used(self):
        """The numbers of the keys, in the order in which they were used."""
        sent = [head["headers"][b"authorization"].decode().removeprefix("Bearer ") for head in self.upstream.heads]
        return [KEYS.index(key) + 1 for key in sent]

    def forget(self):
        self.upstream.restart([self.answer])

    def answer(self, request):
        if refusals := self.refusals.get(self.used[-1]):
            return refusals.pop(0) if len(refusals) > 1 or not getattr(refusals, "endless", False) else refusals[0]
        if "prompt" in request:
            return Reply([b'{"choices": [{"text": "Hi"}]}'])
        return streamed("Hi") if request.get("stream") else whole("Hi")


class always(list):  # noqa: N801 - reads as a word
    """The same answer for ever."""

    endless = True


def no(status, code=None, message="No.", headers=()):
    error = {"message": message} if code is None else {"code": code, "message": message}
    return Reply([orjson.dumps({"error": error})], status=status, headers=headers)


@pytest.fixture
def provider(upstream):
    return Provider(upstream)


async def ask(url, text="Hi", *, path="/v1/chat/completions", headers=(), **fields):
    body = {"model": "m", **PATHS[path](text), **fields}
    async with httpx.AsyncClient(timeout=30, verify=False) as client:  # noqa: S501 - there is no TLS here
        return await client.post(url + path, json=body, headers={"x-server-tools": "none", **dict(headers)})


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_refused_key_costs_no_request_and_its_conversations_come_back_to_it(provider, path, streaming):
    clock = FakeClock()
    async with proxy_of(provider.upstream, config=POOL, clock=clock) as url:
        await ask(url, path=path, stream=streaming)
        own = provider.used[0]
        provider.refusals = {own: [no(401)]}
        provider.forget()
        for _ in range(3):
            assert (await ask(url, path=path, stream=streaming)).status_code == 200
        assert provider.used[0] == own
        assert own not in provider.used[1:]
        assert len({*provider.used[1:]}) == 1, "one key takes the conversation over"
        clock.now += 61
        provider.forget()
        await ask(url, path=path, stream=streaming)
    assert provider.used == [own]


@pytest.mark.parametrize("said", ["none", "all"])
async def test_a_refusal_inside_a_stream_moves_the_call_to_another_key_before_the_first_byte(provider, said):
    inside = stream(event({"error": {"code": "1113", "message": "No balance"}}), done=False)
    provider.refusals = {number: [inside] for number in (1, 2)}
    async with proxy_of(provider.upstream, config=POOL) as url:
        response = await ask(url, stream=True, headers={"x-server-tools": said})
    assert response.status_code == 200
    assert "Hi" in response.text
    assert provider.used[-1] == 3 if len(provider.used) == 3 else True


async def test_after_the_first_byte_a_refusal_is_the_end_and_the_key_rests(provider, logged):
    broken = stream(chunk({"content": "Hello"}), event({"error": {"code": "1000", "message": "expired"}}), done=False)
    provider.refusals = {number: [broken] for number in (1, 2, 3)}
    async with proxy_of(provider.upstream, config=POOL) as url:
        response = await ask(url, stream=True)
        assert ("Hello" in response.text, "[DONE]" in response.text) == (True, False)
        assert len(provider.used) == 1
        await ask(url, stream=True)
    assert len({*provider.used}) == 2
    assert [line["key"] for line in logged() if line["event"] == "upstream.key_rests"] == provider.used


@pytest.mark.parametrize(
    ("reply", "cause", "seconds"),
    [
        (no(401), "refused", 60),
        (no(403, message="This account is suspended"), "refused", 60),
        (no(429, "1113"), "credit", 600),
        (no(402), "credit", 600),
        (no(429, "1308", "Your limit will reset at 2023-11-15 07:13:20"), "window", 3600),
        (no(429, "1310", "您的限额将在 2023-11-15 08:13:20 重置。"), "window", 7200),
        (no(429, headers=[(b"retry-after", b"30")]), "rate", 30),
        (no(429, headers=[(b"retry-after", b"18000")]), "rate", 600),
        (no(400, "1311"), "model", 3600),
    ],
)
async def test_how_long_a_key_rests_for_what_its_provider_says(provider, logged, reply, cause, seconds):
    provider.refusals = {number: always([reply]) for number in (1, 2, 3)}
    clock = FakeClock()  # at 2023-11-14 22:13:20 UTC
    async with proxy_of(provider.upstream, config=POOL, clock=clock) as url:
        response = await ask(url)
        own = provider.used[0]
        assert response.status_code == (424 if cause in ("refused", "credit", "model") else 429)
        assert response.headers["retry-after"] == str(seconds)
        assert response.headers.get("x-should-retry") == (None if cause == "rate" else "false")
        assert sorted(provider.used) == [1, 2, 3]
        provider.forget()
        assert (await ask(url)).headers["retry-after"] == str(seconds)
        assert len(provider.used) == 1, "while all keys rest, one is asked, as a single one would be"
        clock.now += seconds - 3
        assert (await ask(url)).status_code == response.status_code
        assert len(provider.used) == 2
        provider.refusals = {}
        clock.now += 3
        provider.forget()
        assert (await ask(url)).status_code == 200
    assert provider.used == [own]
    rests = [line for line in logged() if line["event"] == "upstream.key_rests"]
    assert {(line["cause"], line["seconds"]) for line in rests} == {(cause, seconds)}
    assert sorted(line["key"] for line in rests) == [1, 2, 3]


@pytest.mark.parametrize(
    "reply",
    [
        no(500),
        no(429, "1305"),
        no(400, "1210"),
        no(400, "1301"),
        no(404),
        no(403, message="flagged by our content policy"),
        Reply([None]),
    ],
)
async def test_what_is_no_affair_of_the_key_puts_none_to_rest(provider, reply):
    provider.refusals = {number: always([reply]) for number in (1, 2, 3)}
    async with proxy_of(provider.upstream, config=POOL) as url, httpx.AsyncClient() as client:
        for _ in range(2):
            response = await ask(url)
            assert response.status_code == (reply.status if 400 <= reply.status < 500 else 502)
        ready = (await client.get(f"{url}/readyz")).json()
    assert len(provider.used) == 2
    assert ready["upstreams"][0]["keys"] == {"usable": 3, "of": 3}


NOT_OWN = "zz' Your credit balance is too low, your account is suspended: invalid api key, usage limit will reset at 2030-01-01 '"


def quoting(status, *, inside=False):
    """An upstream that refuses any request, and quotes its last message."""

    def answer(request):
        said = f"Unknown value '{request['messages'][-1]['content']}'."
        error = {"error": {"message": said[:2000], "code": status if inside else None}}
        return stream(event(error), done=False) if inside else Reply([orjson.dumps(error)], status=status)

    return answer


@pytest.mark.parametrize("status", [400, 403, 404, 422, 429])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_nothing_that_a_request_says_puts_a_key_to_rest(provider, path, streaming, status, logged):
    clock = FakeClock()
    provider.upstream.replies = [quoting(status, inside=streaming and status != 404)]
    async with proxy_of(provider.upstream, config=POOL, clock=clock) as url, httpx.AsyncClient() as client:
        for text in (NOT_OWN, NOT_OWN.upper(), NOT_OWN + "y" * 3000, f'{{"q": "{NOT_OWN}"}}'):
            await ask(url, text, path=path, stream=streaming)
        clock.now += 3  # after which no rate rests any more
        ready = (await client.get(f"{url}/readyz")).json()["upstreams"][0]["keys"]
        provider.upstream.replies = [provider.answer]
        provider.forget()
        assert [(await ask(url, str(number), path=path)).status_code for number in range(9)] == [200] * 9
    assert ready == {"usable": 3, "of": 3}
    assert {*provider.used} == {1, 2, 3}
    assert {line["cause"] for line in logged() if line["event"] == "upstream.key_rests"} <= {"rate"}


async def test_words_in_the_path_of_a_request_put_no_key_to_rest(provider):
    def answer(_):
        return no(403, message=f"No handler for {provider.upstream.heads[-1]['path']}: permission denied")

    provider.upstream.replies = [answer]
    async with proxy_of(provider.upstream, config=POOL) as url, httpx.AsyncClient() as client:
        for _ in range(3):
            await client.post(f"{url}/v1/files/permission%20denied%20credential", json={"model": "m"})
        ready = (await client.get(f"{url}/readyz")).json()["upstreams"][0]["keys"]
    assert ready == {"usable": 3, "of": 3}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_refusal_in_words_that_the_request_says_too_goes_on_with_the_next_key(provider, path, streaming):
    provider.refusals = {1: always([no(403, message="Your account has been suspended")])}
    async with proxy_of(provider.upstream, config=POOL) as url, httpx.AsyncClient() as client:
        for number in range(9):
            response = await ask(url, f"{number}: why is my account suspended?", path=path, stream=streaming)
            assert (response.status_code, "Hi" in response.text) == (200, True)
        ready = (await client.get(f"{url}/readyz")).json()["upstreams"][0]["keys"]
    assert 1 in provider.used
    assert ready == {"usable": 3, "of": 3}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_429_about_the_size_of_one_request_is_its_answer_and_rests_no_key(provider, path, streaming):
    message = "Request too large for m on tokens per min (TPM): Limit 30000, Requested 50000."
    provider.refusals = {number: always([no(429, "rate_limit_exceeded", message)]) for number in (1, 2, 3)}
    async with proxy_of(provider.upstream, config=POOL.replace("retries: 0", "retries: 2")) as url:
        response = await ask(url, path=path, stream=streaming)
        assert (response.status_code, response.headers["x-should-retry"]) == (429, "false")
        assert message in response.json()["error"]["message"]
        assert len(provider.used) == 1
        provider.refusals = {}
        assert (await ask(url, path=path)).status_code == 200


@pytest.mark.parametrize("status", [402, 403, 429])
@pytest.mark.parametrize(("profile", "seconds"), [("glm", 3600), ("openai", 9 * 3600)])
async def test_a_reset_in_words_without_a_code_has_the_time_of_china_at_zai(provider, logged, status, profile, seconds):
    message = "You have used up your plan. Your limit will reset at 2023-11-15 07:13:20"
    provider.refusals = {number: always([no(status, message=message)]) for number in (1, 2, 3)}
    config = POOL.replace("profile: glm", f"profile: {profile}")
    async with proxy_of(provider.upstream, config=config, clock=FakeClock()) as url:  # at 2023-11-14 22:13:20 UTC
        response = await ask(url)
    assert (response.status_code, response.headers["retry-after"], response.headers["x-should-retry"]) == (
        429, str(seconds), "false"
    )  # fmt: skip
    rests = {(line["cause"], line["seconds"]) for line in logged() if line["event"] == "upstream.key_rests"}
    assert rests == {("window", seconds)}


@pytest.mark.parametrize("shape", ["event", "chunk", "whole"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_an_error_that_names_a_rate_in_words_inside_a_success_rests_the_key(provider, logged, path, shape):
    error = {"error": {"type": "rate_limit_error", "message": "Slow down", "retry_after": 7}}
    inside = {
        "event": Reply([b"event: error\ndata: %b\n\n" % orjson.dumps(error)], content_type="text/event-stream"),
        "chunk": stream(event(error), done=False),
        "whole": Reply([orjson.dumps(error)]),
    }[shape]
    provider.refusals = {number: always([inside]) for number in (1, 2, 3)}
    async with proxy_of(provider.upstream, config=POOL, clock=FakeClock()) as url:
        response = await ask(url, path=path, stream=shape != "whole")
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    rests = [(line["cause"], line["seconds"]) for line in logged() if line["event"] == "upstream.key_rests"]
    assert rests == [("rate", 7)] * 3


async def test_a_rate_goes_on_with_the_next_key_at_once_and_its_rest_is_not_waited_for(provider):
    clock = FakeClock()
    async with proxy_of(provider.upstream, config=POOL, clock=clock) as url:
        await ask(url)
        own, began = provider.used[0], clock.now
        provider.refusals = {own: [no(429, "1302")]}
        assert (await ask(url)).status_code == 200
        assert clock.now == began
        clock.now += 2
        await ask(url)
    assert [key == own for key in provider.used] == [True, True, False, True]


async def test_a_model_that_no_plan_has_leaves_the_keys_to_other_models(provider):
    refuse = no(400, "1311")
    provider.upstream.replies = [lambda request: refuse if request["model"] == "m" else whole("Hi")]
    async with proxy_of(provider.upstream, config=POOL) as url:
        assert [(await ask(url)).status_code, (await ask(url, model="other")).status_code] == [424, 200]


async def test_an_answer_to_a_key_that_rests_ends_the_outage_of_a_pool(provider):
    provider.refusals = {number: [no(401)] for number in (1, 2, 3)}
    async with proxy_of(provider.upstream, config=POOL, clock=FakeClock()) as url:
        assert [(await ask(url)).status_code for _ in range(3)] == [424, 200, 200]
    assert len(provider.used) == 5


async def test_refusals_of_keys_are_no_retries_and_come_before_the_fallbacks(provider):
    provider.refusals = {number: always([no(401)]) for number in (1, 2, 3)}
    config = (
        POOL.replace("retries: 0", "retries: 2")
        .replace("spare: {{upstream: up", "spare: {{upstream: away")
        .replace("models:", "  away: {{base_url: '{upstream}/away', api_key: away-secret}}\nmodels:")
    )
    config = config.replace("upstreams: {{up: {{", "upstreams:\n  up: {{").replace("retries: 2}}}}", "retries: 2}}")
    async with proxy_of(provider.upstream, config=config) as url:
        provider.upstream.replies = [*[no(401)] * 3, whole("Hi")]
        assert (await ask(url, model="safe")).status_code == 200
    assert [request["model"] for request in provider.upstream.requests] == ["safe"] * 3 + ["spare"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_the_turns_of_a_run_stay_with_the_key_that_works(provider, path):
    calls = whole(calls=[("c", "current_time", {})])
    clock = FakeClock()
    async with proxy_of(provider.upstream, config=POOL, clock=clock) as url:
        await ask(url, path=path)
        own = provider.used[0]
        provider.forget()
        turns = [no(401), calls, calls, whole("Hi")]

        def answer(_):
            clock.now += 40  # the rest of the own key ends in the middle
            return turns.pop(0)

        provider.upstream.replies = [answer]
        response = await ask(url, path=path, headers={"x-server-tools": "all"})
        assert response.status_code == 200
    assert provider.used[0] == own
    assert len({*provider.used[1:]}) == 1
    assert len(provider.used) == 4


WAYS = [
    ("/v1/chat/completions", {"headers": {"x-session-id": "s"}}),
    ("/v1/chat/completions", {"headers": {"session_id": "s"}}),
    ("/v1/messages", {"headers": {"x-claude-code-session-id": "s"}}),
    ("/v1/responses", {"headers": {"session-id": "s"}}),
    ("/v1/responses", {"headers": {"thread-id": "s"}}),
    ("/v1/chat/completions", {"prompt_cache_key": "s"}),
    ("/v1/responses", {"prompt_cache_key": "s"}),
    ("/v1/messages", {"metadata": {"user_id": "user_1_account__session_5-6"}}),
    ("/v1/messages", {"metadata": {"user_id": '{"device_id": "d", "session_id": "s"}'}}),
    ("/v1/completions", {"headers": {"x-session-id": "s"}}),
]


@pytest.mark.parametrize(("path", "said"), WAYS)
async def test_a_conversation_is_known_by_the_name_that_its_app_gives_it(provider, path, said):
    async with proxy_of(provider.upstream, config=POOL) as url:
        for number in range(8):
            await ask(url, f"question {number}", path=path, **said)
        assert len({*provider.used}) == 1
        provider.forget()
        for number in range(24):
            await ask(url, f"question {number}", path=path)
    assert {*provider.used} == {1, 2, 3}, "without a name, each beginning is a conversation of its own"


async def test_a_conversation_is_known_by_its_beginning_and_not_by_its_end(provider):
    system = {"role": "system", "content": "Be brief."}
    async with proxy_of(provider.upstream, config=POOL) as url:
        for question in range(10):
            history = [system, {"role": "user", "content": f"question {question}"}]
            for turn in range(3):
                await ask(url, messages=history)
                history += [{"role": "assistant", "content": "a"}, {"role": "user", "content": f"and {turn}?"}]
        used = [provider.used[at : at + 3] for at in range(0, 30, 3)]
        assert all(len({*turns}) == 1 for turns in used)
        assert len({turns[0] for turns in used}) > 1
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        odd = [{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}]
        provider.forget()
        for _ in range(3):
            await ask(url, messages=odd)
    assert len({*provider.used}) == 1


async def test_what_continues_a_response_inherits_its_conversation_before_any_other_name(provider, sdk):
    async with proxy_of(provider.upstream, config=POOL) as url, sdk(url) as client:
        for number in range(6):
            first = await client.responses.create(
                model="m", input=f"question {number}", instructions="A.", extra_headers={"x-session-id": str(number)}
            )
            second = await client.responses.create(
                model="m", input="And?", previous_response_id=first.id, prompt_cache_key="k", instructions="B."
            )
            reference = {"type": "item_reference", "id": second.output[-1].id}
            await client.responses.create(model="m", input=[reference, {"role": "user", "content": "And?"}])
    used = [provider.used[at : at + 3] for at in range(0, 18, 3)]
    assert all(len({*turns}) == 1 for turns in used)
    assert len({turns[0] for turns in used}) > 1


async def test_requests_of_no_conversation_take_turns(provider):
    provider.upstream.replies = [Reply([b"{}"])]
    async with proxy_of(provider.upstream, config=POOL) as url, httpx.AsyncClient() as client:
        for _ in range(6):
            await client.post(f"{url}/v1/embeddings", json={"model": "m", "input": "x"})
    assert provider.used == [1, 2, 3, 1, 2, 3]


async def test_readyz_and_metrics_show_how_many_keys_can_be_used(provider):
    clock = FakeClock()
    provider.refusals = {1: always([no(401)]), 2: always([no(429, "1113")]), 3: always([no(429, "1308")])}
    async with proxy_of(provider.upstream, config=POOL, clock=clock) as url, httpx.AsyncClient() as client:

        async def seen():
            ready = await client.get(f"{url}/readyz")
            lines = (await client.get(f"{url}/metrics")).text.splitlines()
            states = [line.split()[1] for line in lines if line.startswith("toolproxy_upstream_keys{")]
            return ready.status_code, ready.json()["upstreams"][0].get("keys"), states

        assert await seen() == (200, {"usable": 3, "of": 3}, ["3.0", "0.0", "0.0"])
        await ask(url)
        assert await seen() == (503, {"usable": 0, "of": 3}, ["0.0", "2.0", "1.0"])
        clock.now += 60
        assert await seen() == (200, {"usable": 1, "of": 3}, ["1.0", "2.0", "0.0"])
        provider.refusals = {1: [no(429, headers=[(b"retry-after", b"60")])]}
        assert (await ask(url)).status_code == 429
        assert await seen() == (200, {"usable": 1, "of": 3}, ["0.0", "3.0", "0.0"]), "a rate is over in no time"
        text = (await client.get(f"{url}/metrics")).text
    assert 'toolproxy_upstream_key_requests_total{key="1",upstream="up"} 2.0' in text
    assert 'toolproxy_upstream_key_requests_total{key="3",upstream="up"} 1.0' in text


async def test_the_ends_of_a_key_that_its_provider_shows_are_masked(provider, logged):
    message = f"Incorrect API key provided: {KEYS[0][:3]}********{KEYS[0][-4:]}, or {KEYS[0][:3]}...{KEYS[0][-4:]}"
    provider.refusals = {number: always([no(401, message=message)]) for number in (1, 2, 3)}
    async with proxy_of(provider.upstream, config=POOL) as url:
        told = (await ask(url)).json()["error"]["message"]
    assert "HTTP 401: Incorrect API key provided: ***, or ***. To try" in told
    assert not [line for line in logged() if KEYS[0][-4:] in str(line.get("why"))]


async def test_no_piece_of_a_key_is_shown_anywhere(provider, logged, tmp_path):
    quoting = f"Incorrect API key provided: {KEYS[0][:10]}***{KEYS[0][-6:]}. {KEYS[1]} and {KEYS[2][3:]} are wrong too."
    provider.refusals = {1: always([no(401, message=quoting)]), 2: always([no(400, "1210", quoting)]),
                         3: always([no(429, "1302", quoting, [(b"retry-after", b"9")])])}  # fmt: skip
    config = POOL + "telemetry: {{log_level: debug, log_content: true}}\n"
    seen = []
    async with proxy_of(provider.upstream, config=config) as url, httpx.AsyncClient() as client:
        requests = [(path, number, streaming) for path in PATHS for number in range(6) for streaming in (False, True)]
        seen += [(await ask(url, f"{number}", path=path, stream=stream)).text for path, number, stream in requests]
        pages = ("/readyz", "/metrics", "/debug", "/debug/requests")
        seen += [(await client.get(url + path)).text for path in pages]
        shown = [line["request_id"] for line in logged() if line["event"] == "request.completed"]
        seen += [(await client.get(f"{url}/debug/requests/{identity}")).text for identity in shown[:20]]
    seen += [orjson.dumps(line).decode() for line in logged()]
    assert {1, 2, 3} == {*provider.used}
    pieces = [key[at : at + 6] for key in KEYS for at in range(len(key) - 5)]
    for text in seen:
        assert not [piece for piece in pieces if piece in text]


async def test_conversations_find_their_prompts_in_the_cache_of_their_key_also_when_one_is_refused(upstream):
    provider, caches, hits = Provider(upstream), {}, Counter()

    def answer(request):
        if provider.refusals.get(provider.used[-1]):
            return provider.refusals[provider.used[-1]][0]
        texts = [message["content"] for message in request["messages"]]
        cache = caches.setdefault(provider.used[-1], set())
        hits["hit" if "\0".join(texts[:-2]) in cache else "new"] += 1
        cache.add("\0".join(texts))
        return whole("a")

    async def converse(number):
        history = [{"role": "user", "content": f"question {number}"}]
        for turn in range(3):
            assert (await ask(url, messages=history)).status_code == 200
            history += [{"role": "assistant", "content": "a"}, {"role": "user", "content": f"and {turn}?"}]

    upstream.replies = [answer]
    async with proxy_of(upstream, config=POOL) as url:
        await asyncio.gather(*map(converse, range(30)))
        assert hits == {"new": 30, "hit": 60}
        assert {*provider.used} == {1, 2, 3}
        provider.refusals = {2: always([no(401)])}
        hits.clear()
        await asyncio.gather(*map(converse, range(30, 60)))
    assert hits == {"new": 30, "hit": 60}
