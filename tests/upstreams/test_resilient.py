import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.kit.breaker import Backoff, Breaker
from proxy.loop.actions import CallUpstream
from proxy.upstreams.failures import retry_after
from proxy.upstreams.late_system import SystemPlacement
from proxy.upstreams.profile import GLM, GPT_OSS
from proxy.upstreams.resilient import Resilient, SharedUpstreamState
from proxy.upstreams.sight import Sight
from proxy.wire.errors import Overloaded, RequestError, UpstreamDown, UpstreamError, UpstreamRefused, UpstreamTimeout
from proxy.wire.relayed import RelayClient

CALL = CallUpstream({"stream": True, "messages": []}, number=1)
NOON = datetime(2026, 10, 21, 12, tzinfo=UTC).timestamp()  # what the wall clock says


def refused(status, **headers):
    return UpstreamRefused("no", status=status, type="t", code="c", headers=headers)


def failed(**headers):
    return UpstreamError("503", headers=headers)


def unreachable(kind=UpstreamError):
    """No connection could be made."""
    failure = kind("refused")
    failure.unreachable = True
    return failure


class Candidate:
    """Gives these outcomes in turn; an outcome is an answer, an exception, or (shown, exception)."""

    def __init__(self, name, *outcomes):
        self.name = self.model = name
        self.uses_client_key, self.keys = False, None
        self.placement, self.sight = SystemPlacement(), Sight()
        self.profile = GLM if name == "a" else GPT_OSS
        self.outcomes = list(outcomes)
        self.tries = 0

    async def complete(self, call, show, eager=None):
        self.tries += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, tuple):
            await show(outcome[0])
            outcome = outcome[1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def redact(self, error):
        pass

    async def relay(self, body, request, count):
        return await self.complete(None, None)

    async def relay_stream(self, body, request, client):
        return await self.complete(None, client.write)


class Attempt:
    """A resilient upstream, what it waited, what was shown and what was heard."""

    def __init__(self, *candidates, retries=2):
        self.waits, self.shown, self.heard = [], [], []
        self.firsts = []  # when something of each answer was shown for the first time
        self.now = 0.0
        self.breakers = {candidate.name: Breaker(threshold=3, seconds=10) for candidate in candidates}
        self.upstream = self.another(*candidates, retries=retries)

    def another(self, *candidates, retries=0, client="app"):
        """A further request of the same process."""
        shared = SharedUpstreamState(self.breakers, self, self.hear, Backoff(jitter=lambda: 1.0))
        return Resilient(candidates, shared, retries=retries, client=client)

    def monotonic(self):
        return self.now + sum(self.waits)

    def time(self):
        return NOON

    async def sleep(self, seconds):
        self.waits.append(seconds)

    async def show(self, shown):
        self.shown.append(shown)

    def hear(self, event, /, **fields):
        if event not in ("upstream.answered", "relay.started", "relay.completed"):  # told of every one
            self.heard.append(event)
        if event == "upstream.answered":
            self.firsts.append(fields["first"])

    async def complete(self, call=CALL):
        return await self.upstream.complete(call, self.show, self)

    were_shown = False

    def start(self, call, model):
        raise AssertionError

    def drop(self, used):
        raise AssertionError


@pytest.mark.parametrize(("body", "first"), [({"stream": True, "messages": []}, 0.0), ({"messages": []}, None)])
async def test_only_of_a_stream_something_is_shown_before_the_end(body, first):
    attempt = Attempt(Candidate("a", ("text", "fine")))
    assert await attempt.complete(CallUpstream(body, number=1)) == "fine"
    assert (attempt.shown, attempt.firsts) == (["text"], [first])


@pytest.mark.parametrize(
    "failure", [refused(429), refused(408), refused(409), UpstreamError("500"), UpstreamError("cut off")]
)
async def test_what_may_pass_is_tried_again(failure):
    attempt = Attempt(Candidate("a", failure, "fine"))
    assert await attempt.complete() == "fine"
    assert (attempt.waits, attempt.heard) == ([0.5], ["upstream.retried"])


@pytest.mark.parametrize(
    "failure",
    [
        refused(400),
        refused(401),
        refused(403),
        refused(404),
        refused(422),
        refused(429, **{"x-should-retry": "false"}),
        UpstreamTimeout("silent"),
        Overloaded("no connection"),
        RequestError("json_schema"),
    ],
)
async def test_what_will_not_pass_is_not(failure):
    candidate = Candidate("a", failure)
    with pytest.raises(type(failure)):
        await Attempt(candidate).complete()
    assert candidate.tries == 1


async def test_one_budget_of_retries_holds_for_all_turns_of_a_request():
    attempt = Attempt(Candidate("a", UpstreamError("x"), 1, UpstreamError("x"), 2, UpstreamError("last")))
    assert [await attempt.complete(), await attempt.complete()] == [1, 2]
    with pytest.raises(UpstreamError, match="last"):
        await attempt.complete()
    assert attempt.waits == [0.5, 1.0]


async def test_after_the_first_visible_byte_nothing_is_tried_again():
    candidate, fallback = Candidate("a", ("Hel", UpstreamError("cut"))), Candidate("b", "fine")
    attempt = Attempt(candidate, fallback)
    with pytest.raises(UpstreamError, match="cut"):
        await attempt.complete()
    assert (attempt.shown, fallback.tries) == (["Hel"], 0)


@pytest.mark.parametrize(
    "advice",
    [
        {"retry-after": "3"},
        {"retry-after": "3.0"},
        {"retry-after": "Wed, 21 Oct 2026 12:00:03 GMT"},
        {"retry-after": "Wednesday, 21-Oct-26 12:00:03 GMT"},
        {"retry-after": "Wed Oct 21 12:00:03 2026"},
        {"retry-after-ms": "3000", "retry-after": "4"},
        {"retry-after-ms": "soon", "retry-after": "3"},
    ],
)
@pytest.mark.parametrize("failure", [lambda headers: refused(429, **headers), lambda headers: failed(**headers)])
async def test_the_upstreams_own_retry_after_is_kept_to(failure, advice):
    attempt = Attempt(Candidate("a", failure(advice), "fine"))
    assert await attempt.complete() == "fine"
    assert attempt.waits == [3.0]


@pytest.mark.parametrize("value", ["60", "900", "99999999", "9" * 400, "Wed, 21 Oct 2026 12:01:00 GMT"])
async def test_a_retry_after_that_is_too_long_for_us_is_passed_on_to_the_client(value):
    attempt = Attempt(Candidate("a", refused(429, **{"retry-after": value})))
    with pytest.raises(UpstreamRefused) as raised:
        await attempt.complete()
    assert (raised.value.headers["retry-after"], attempt.waits) == (value, [])


ODD = ["\u00b2", "soon", "-3", "1e1", "inf", "Wed, 21 Oct 2026", ""]
OVER = ["0", "Wed, 21 Oct 2026 11:59:00 GMT", "Thu Jan  1 00:00:00 1970"]


@pytest.mark.parametrize("value", [*ODD, *OVER])
async def test_a_retry_after_that_is_odd_or_over_leaves_the_usual_wait(value):
    attempt = Attempt(Candidate("a", refused(429, **{"retry-after": value}), "fine"))
    assert await attempt.complete() == "fine"
    assert attempt.waits == [0.5]


DATE_LIKE = st.from_regex(r"(Wed, )?[0-9]{1,3}[ -]Oct[ -][0-9]{1,12} [0-9]{1,3}(:[0-9]{1,12}){0,3} ?(GMT|[+-][0-9]+)?")


@given(st.one_of(st.text(), DATE_LIKE))
def test_no_retry_after_breaks_anything(value):
    assert retry_after(refused(503, **{"retry-after": value, "retry-after-ms": value}), NOON) >= 0


@pytest.mark.parametrize(
    "failure",
    [UpstreamError("down"), UpstreamTimeout("slow"), refused(401), refused(402), refused(429), Overloaded("full")],
)
async def test_when_an_upstream_fails_the_next_is_spoken_to_and_from_then_on(failure):
    first, second = Candidate("a", failure), Candidate("b", 1, 2)
    attempt = Attempt(first, second, retries=0)
    assert [await attempt.complete(), await attempt.complete()] == [1, 2]
    assert (first.tries, attempt.upstream.name, attempt.upstream.traits.answer_steps) == (1, "b", GPT_OSS.answer_steps)
    assert attempt.heard == ["upstream.fell_back"]


async def test_what_the_request_is_at_fault_for_it_is_at_fault_for_everywhere():
    second = Candidate("b", "fine")
    with pytest.raises(UpstreamRefused):
        await Attempt(Candidate("a", refused(400)), second).complete()
    assert second.tries == 0


async def test_a_fallback_that_cannot_do_what_is_asked_does_not_hide_the_failure():
    attempt = Attempt(Candidate("a", refused(401)), Candidate("b", RequestError("n is not supported")))
    with pytest.raises(UpstreamRefused):
        await attempt.complete()


async def test_when_every_fallback_fails_the_last_failure_is_told():
    attempt = Attempt(Candidate("a", UpstreamError("first")), Candidate("b", UpstreamError("second")), retries=0)
    with pytest.raises(UpstreamError, match="second"):
        await attempt.complete()


async def test_what_is_handed_through_is_tried_again_too():
    attempt = Attempt(Candidate("a", UpstreamError("x"), "whole", UpstreamError("x"), "streamed"))
    assert await attempt.upstream.relay(b"", {}, print) == "whole"
    await attempt.upstream.relay_stream(b"", {}, RelayClient(attempt.show, attempt.show, print, list))
    assert attempt.heard == ["upstream.retried"] * 2


@pytest.mark.parametrize(("observes_relays", "of_success"), [(True, ["relay.started", "relay.completed"]), (False, [])])
async def test_what_goes_well_is_told_where_somebody_hears_of_it_and_a_failure_always(observes_relays, of_success):
    attempt, heard = Attempt(Candidate("a")), []
    shared = SharedUpstreamState(
        {"a": Breaker()}, attempt, lambda event, **fields: heard.append(event), Backoff(), observes_relays
    )
    upstream = Resilient([Candidate("a", "whole", UpstreamError("x"))], shared, retries=0)
    await upstream.relay(b"", {}, print)
    assert [event for event in heard if event.startswith("relay")] == of_success
    with pytest.raises(UpstreamError):
        await upstream.relay(b"", {}, print)
    assert heard[-1] == "relay.failed"


# -- the breaker: Attempt's opens after 3 failures in a row, for 10 seconds --


async def shut(*candidates):
    """An attempt whose first upstream has just failed for the third time in a row."""
    attempt = Attempt(*candidates, retries=2)
    with pytest.raises(UpstreamError):
        await attempt.complete()
    return attempt


async def fails(attempt, candidate, *, times, client, fallback=()):
    """So many requests of a client, one after the other; whether they were refused without being tried."""
    refused = []
    for _ in range(times):
        with pytest.raises(UpstreamError) as failure:
            await attempt.another(candidate, *fallback, client=client).complete(CALL, attempt.show, attempt)
        refused.append(isinstance(failure.value, UpstreamDown))
    return refused


@pytest.mark.parametrize("kind", [UpstreamError, UpstreamTimeout])
async def test_an_upstream_that_cannot_be_reached_is_not_asked_for_a_while(kind):
    candidate = Candidate("a", *[unreachable(kind) for _ in range(3)])
    attempt = Attempt(candidate, retries=0)
    assert await fails(attempt, candidate, times=4, client="app") == [False, False, False, True]
    assert attempt.heard[-1] == "upstream.breaker_opened"
    with pytest.raises(UpstreamDown) as refused:
        await attempt.another(candidate, retries=2).complete(CALL, attempt.show, attempt)
    assert (candidate.tries, refused.value.status, refused.value.headers) == (3, 502, {"retry-after": "10"})


@pytest.mark.parametrize("failure", [UpstreamError("500"), UpstreamTimeout("silent"), UpstreamError("cut off")])
async def test_what_one_client_is_answered_with_keeps_nobody_else_out(failure):
    bad, good = Candidate("a", *[failure] * 20), Candidate("a", "fine")
    attempt = Attempt(bad)
    assert await fails(attempt, bad, times=20, client="one") == [False] * 20
    assert await attempt.another(good, client="another").complete(CALL, attempt.show, attempt) == "fine"
    assert attempt.breakers["a"].state == "closed"


async def test_where_several_clients_are_failed_in_a_row_the_upstream_is_at_fault():
    candidate = Candidate("a", *[UpstreamError("500")] * 9)
    attempt = Attempt(candidate)
    assert await fails(attempt, candidate, times=5, client="one") == [False] * 5
    assert await fails(attempt, candidate, times=2, client="another") == [False, True]
    assert await fails(attempt, candidate, times=1, client="one") == [True]


async def test_a_request_counts_once_however_often_it_is_tried_and_however_many_turns_it_has():
    attempt = Attempt(Candidate("a", *[UpstreamError("500")] * 3, "fine"), Candidate("b"), retries=3)
    assert await attempt.complete() == "fine"
    candidate = Candidate("a", *[UpstreamError("500")] * 8)
    attempt = Attempt(candidate, retries=0)
    for client in ("one", "another"):
        with pytest.raises(UpstreamError):
            await attempt.another(candidate, retries=3, client=client).complete(CALL, attempt.show, attempt)
    assert attempt.breakers["a"].state == "closed"


async def test_a_request_that_a_fallback_can_answer_is_not_sent_to_what_keeps_failing_one_client():
    bad, fallback, alone = (
        Candidate("a", *[UpstreamError("500")] * 3),
        Candidate("b", *range(4)),
        Candidate("a", "fine"),
    )
    attempt = Attempt(bad, fallback)
    for answer in range(4):
        answered = attempt.another(bad, fallback, client="one").complete(CALL, attempt.show, attempt)
        assert await answered == answer
    assert (bad.tries, attempt.heard.count("upstream.breaker_opened")) == (3, 1)
    assert await attempt.another(alone, client="another").complete(CALL, attempt.show, attempt) == "fine"
    assert attempt.heard[-1] == "upstream.breaker_closed"


@pytest.mark.parametrize("failure", [refused(400), refused(429), refused(404), RequestError("no"), Overloaded("full")])
async def test_what_is_no_sign_of_illness_does_not_count(failure):
    candidate = Candidate("a", *[failure] * 20, "fine")
    attempt = Attempt(candidate)
    for _ in range(20):
        with pytest.raises(type(failure)):
            await attempt.another(candidate).complete(CALL, attempt.show, attempt)
    assert await attempt.another(candidate).complete(CALL, attempt.show, attempt) == "fine"


async def test_while_an_upstream_is_left_alone_its_fallback_answers_at_once():
    candidate, fallback = Candidate("a", unreachable(), unreachable(), unreachable()), Candidate("b", "fine")
    attempt = await shut(candidate)
    attempt.breakers["b"] = Breaker()
    waited = len(attempt.waits)
    assert await attempt.another(candidate, fallback, retries=2).complete(CALL, attempt.show, attempt) == "fine"
    assert (candidate.tries, len(attempt.waits)) == (3, waited)


async def test_a_call_that_opens_the_breaker_is_not_tried_again():
    candidate, fallback = Candidate("a", *[unreachable() for _ in range(9)]), Candidate("b", "fine")
    attempt = Attempt(candidate, fallback, retries=8)
    assert await attempt.complete() == "fine"
    assert candidate.tries == 3


async def test_one_call_finds_out_that_it_has_recovered_and_lets_the_others_in():
    candidate = Candidate("a", *[unreachable() for _ in range(3)], "fine", "fine")
    attempt = await shut(candidate)
    attempt.now = 10
    for _ in range(2):
        assert await attempt.another(candidate).complete(CALL, attempt.show, attempt) == "fine"
    assert attempt.heard[-1] == "upstream.breaker_closed"


async def test_a_probe_that_has_begun_to_answer_lets_the_others_in_already():
    begun, gate = asyncio.Event(), asyncio.Event()

    class Slow(Candidate):
        async def complete(self, call, show, eager=None):
            await show("Hel")
            begun.set()
            await gate.wait()
            return "Hello"

    candidate = Candidate("a", *[unreachable() for _ in range(3)], "fine")
    attempt = await shut(candidate)
    attempt.now = 10
    probing = asyncio.ensure_future(attempt.another(Slow("a")).complete(CALL, attempt.show, attempt))
    await begun.wait()
    assert await attempt.another(candidate).complete(CALL, attempt.show, attempt) == "fine"
    gate.set()
    assert await probing == "Hello"


async def test_a_client_that_leaves_says_nothing_about_its_upstream():
    class Hanging(Candidate):
        async def complete(self, call, show, eager=None):
            await asyncio.Event().wait()

    attempt = Attempt(Hanging("a"))
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await attempt.another(Hanging("a")).complete(CALL, attempt.show, attempt)
    assert attempt.breakers["a"].state == "closed"


async def test_a_fault_of_the_request_is_not_its_own_cause():
    attempt = Attempt(Candidate("a", RequestError("no", param="n")))
    with pytest.raises(RequestError) as caught:
        await attempt.upstream.complete(CALL, attempt.show, attempt)
    assert caught.value.__cause__ is None
