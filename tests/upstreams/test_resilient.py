import pytest

from proxy.core.actions import CallUpstream
from proxy.core.errors import (
    Overloaded,
    RequestError,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
)
from proxy.upstreams.resilient import Resilient
from proxy.upstreams.retry import Backoff

CALL = CallUpstream({}, number=1)


def refused(status, **headers):
    return UpstreamRefused("no", status=status, type="t", code="c", headers=headers)


class Candidate:
    """Gives these outcomes in turn; an outcome is an answer, an exception, or (shown, exception)."""

    def __init__(self, name, *outcomes):
        self.name = self.model = name
        self.ladder = (name,)
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

    async def relay(self, body, request):
        return await self.complete(None, None)

    async def relay_stream(self, body, request, write):
        return await self.complete(None, write)


class Attempt:
    """A resilient upstream, what it waited, what was shown and what was heard."""

    def __init__(self, *candidates, retries=2):
        self.waits, self.shown, self.heard, self.abandoned = [], [], [], 0
        self.upstream = Resilient(
            candidates, backoff=Backoff(retries, jitter=lambda: 1.0), clock=self, observe=self.hear
        )

    async def sleep(self, seconds):
        self.waits.append(seconds)

    async def show(self, shown):
        self.shown.append(shown)

    def hear(self, event, /, **fields):
        if event not in ("upstream.answered", "relay.started", "relay.completed"):  # told of every one
            self.heard.append(event)

    def monotonic(self):
        return sum(self.waits)

    async def complete(self):
        return await self.upstream.complete(CALL, self.show, self)

    def start(self, call):
        raise AssertionError

    def abandon(self):
        self.abandoned += 1


@pytest.mark.parametrize("failure", [refused(429), refused(408), UpstreamError("500"), UpstreamError("cut off")])
async def test_what_may_pass_is_tried_again(failure):
    attempt = Attempt(Candidate("a", failure, "fine"))
    assert await attempt.complete() == "fine"
    assert (attempt.waits, attempt.heard) == ([0.5], ["upstream.retried"])
    assert attempt.abandoned == 2


@pytest.mark.parametrize(
    "failure",
    [
        refused(400),
        refused(401),
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


async def test_the_upstreams_own_retry_after_is_kept_to():
    attempt = Attempt(Candidate("a", refused(429, **{"retry-after": "3"}), "fine"))
    assert await attempt.complete() == "fine"
    assert attempt.waits == [3.0]


@pytest.mark.parametrize("value", ["60", "900"])
async def test_a_retry_after_that_is_too_long_for_us_is_passed_on_to_the_client(value):
    attempt = Attempt(Candidate("a", refused(429, **{"retry-after": value})))
    with pytest.raises(UpstreamRefused) as raised:
        await attempt.complete()
    assert (raised.value.headers["retry-after"], attempt.waits) == (value, [])


@pytest.mark.parametrize("value", ["\u00b2", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", ""])
async def test_an_odd_retry_after_is_none(value):
    attempt = Attempt(Candidate("a", refused(429, **{"retry-after": value}), "fine"))
    assert await attempt.complete() == "fine"
    assert attempt.waits == [0.5]


@pytest.mark.parametrize(
    "failure",
    [UpstreamError("down"), UpstreamTimeout("slow"), refused(401), refused(402), refused(429), Overloaded("full")],
)
async def test_when_an_upstream_fails_the_next_is_spoken_to_and_from_then_on(failure):
    first, second = Candidate("a", failure), Candidate("b", 1, 2)
    attempt = Attempt(first, second, retries=0)
    assert [await attempt.complete(), await attempt.complete()] == [1, 2]
    assert (first.tries, attempt.upstream.name, attempt.upstream.ladder) == (1, "b", ("b",))
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
    assert await attempt.upstream.relay(b"", {}) == "whole"
    assert await attempt.upstream.relay_stream(b"", {}, attempt.show) == "streamed"


def test_waits_double_and_are_spread():
    assert list(Backoff(6, jitter=lambda: 1.0).delays()) == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert list(Backoff(2, jitter=lambda: 0.0).delays()) == [0.25, 0.5]
