from collections import Counter

import pytest

from proxy.keys.attempts import KeyAffinity, KeyAttempts, KeysSpent
from proxy.keys.cooldowns import KeyRefusal
from proxy.keys.pool import KeyPools
from tests.fakes import FakeClock

HOUR = 3600.0


class No(Exception):
    """A refusal of a key."""

    def __init__(self, cause, seconds=None):
        super().__init__(cause, seconds)
        self.refusal = KeyRefusal(cause, seconds)


def refusal_of(exc):
    return getattr(exc, "refusal", None)


class Pool:
    """A pool with its clock, its events, and a provider that refuses keys, each by a list of causes."""

    def __init__(self, *entries, pools=None):
        self.clock = FakeClock(0.0)
        self.pools = pools or KeyPools(clock=self.clock, observe=self.hear)
        self.clock = self.pools.clock
        self.events, self.calls, self.refusals = [], [], {}
        self.pool = self.pools.pool_of(("upstream", "up"), entries, "https://up")

    def hear(self, event, /, upstream, key, **fields):
        self.events.append((event.removeprefix("upstream.key_"), key, *fields.values()))

    async def provider(self, key):
        self.calls.append(key.number)
        causes = self.refusals.get(key.number, [])
        if causes and (cause := causes.pop(0)) is not None:
            raise cause if isinstance(cause, Exception) else No(*cause)
        return key.number

    async def ask(self, conversation=b"c", *, affinity=None, model="", may_go_on=lambda: True, **options):
        turn = KeyAttempts(self.pool, affinity or KeyAffinity(conversation), model, **options)
        return await turn.run(self.provider, refusal_of, may_go_on)


def conversations(count):
    return [b"conversation %d" % at for at in range(count)]


def chosen(pool, count=300):
    return [pool.pool.order_for(one)[0].key for one in conversations(count)]


def test_conversations_are_spread_evenly_and_a_new_key_takes_only_its_own():
    three, four = Pool("a-1", "b-2", "c-3"), Pool("d-4", "c-3", "a-1", "b-2")
    before, after = chosen(three, 3000), chosen(four, 3000)
    assert all(900 < count < 1100 for count in Counter(before).values())
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {"d-4"}
    assert 650 < len(moved) < 850


async def test_calls_without_a_conversation_take_turns():
    pool = Pool("a", "b", "c")
    assert [await pool.ask(None) for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


async def test_turns_are_taken_by_the_keys_that_can_be_used():
    pool = Pool("a", "b", "c")
    pool.refusals = {2: [("refused",)]}
    assert Counter([await pool.ask(None) for _ in range(8)]) == {1: 4, 3: 4}
    pool.clock.now += 60
    assert {await pool.ask(None) for _ in range(3)} == {1, 2, 3}


@pytest.mark.parametrize("cause", ["refused", "credit", "window", "model"])
async def test_a_refused_key_costs_no_request_and_comes_back_by_itself(cause):
    pool = Pool("a", "b", "c")
    own = await pool.ask()
    pool.refusals = {own: [(cause,)]}
    other = await pool.ask()
    assert other != own
    assert pool.calls == [own, own, other]
    assert await pool.ask() == other
    pool.clock.now += HOUR
    assert await pool.ask() == own
    rested = [event for event in pool.events if event[0] == "rests"]
    assert [event[1:3] for event in rested] == [(own, cause)]


async def test_a_rate_goes_on_with_the_next_key_at_once():
    pool = Pool("a", "b")
    own = await pool.ask()
    pool.refusals = {own: [("rate",)]}
    assert (await pool.ask(), pool.clock.now, pool.calls) == (3 - own, 0, [own, own, 3 - own])
    pool.clock.now = 2
    assert await pool.ask() == own


@pytest.mark.parametrize("conversation", [b"c", None])
async def test_where_no_key_can_be_used_the_last_refusal_is_the_answer(conversation):
    pool = Pool("a", "b")
    pool.refusals = {1: [("window", 500)], 2: [("refused",)]}
    with pytest.raises(KeysSpent) as spent:
        await pool.ask(conversation)
    assert spent.value.seconds == 60
    assert sorted(pool.calls) == [1, 2]
    pool.clock.now += 20
    with pytest.raises(KeysSpent) as again:
        await pool.ask(b"another")
    assert again.value.seconds == 40
    assert again.value.refusal.args in [("window", 500), ("refused", None)]
    assert again.value.refusal.__traceback__ is None
    assert len(pool.calls) == 2, "a key that rests is not used"
    pool.clock.now += 40
    assert await pool.ask() == 2


async def test_where_every_key_rests_the_one_whose_rest_ends_first_is_asked_like_a_single_key():
    pool = Pool("a", "b", "c")
    pool.refusals = {1: [("window", 500)], 2: [("credit",)], 3: [("refused",), ("refused",), ("refused",)]}
    for calls in (3, 4, 5):
        with pytest.raises(KeysSpent) as spent:
            await pool.ask(never_gives_up=True)
        assert (len(pool.calls), spent.value.seconds) == (calls, 60)
        assert spent.value.refusal.args in [("window", 500), ("credit", None), ("refused", None)]
    assert pool.calls[3:] == [3, 3]
    rested = [event[1] for event in pool.events if event[0] == "rests"]
    assert sorted(rested) == [1, 2, 3], "a key that rests already rests no longer for it"
    pool.clock.now += 1
    assert await pool.ask(never_gives_up=True) == 3
    assert (pool.pool.states()[2], pool.events[-1]) == ("usable", ("works", 3)), "an answer ends the rest"


async def test_a_request_stays_with_the_key_that_works_for_it():
    pool, affinity = Pool("a", "b", "c"), KeyAffinity(b"c")
    own = await pool.ask(affinity=affinity)
    pool.refusals = {own: [("refused",)]}
    other = await pool.ask(affinity=affinity)
    pool.clock.now += HOUR
    assert await pool.ask(affinity=affinity) == other
    assert await pool.ask() == own, "another request of the conversation is back at its own key"


async def test_nothing_is_tried_again_once_something_was_shown():
    pool = Pool("a", "b")
    pool.refusals = {1: [("refused",)], 2: [("refused",)]}
    with pytest.raises(No):
        await pool.ask(may_go_on=lambda: False)
    assert (len(pool.calls), sorted(pool.pool.states())) == (1, ["refused", "usable"])


async def test_other_failures_are_no_affair_of_the_key():
    pool = Pool("a", "b")
    pool.refusals = {1: [ValueError("timed out")], 2: [ValueError("timed out")]}
    with pytest.raises(ValueError, match="timed out"):
        await pool.ask()
    assert (len(pool.calls), pool.pool.states()) == (1, ["usable", "usable"])


async def test_a_key_that_is_still_there_after_a_reload_keeps_its_rest():
    old = Pool("a", "b")
    old.refusals = {1: [("refused",)], 2: [("credit",)]}
    with pytest.raises(KeysSpent):
        await old.ask()
    new = Pool("c", "b", pools=old.pools)
    assert new.pool.states() == ["usable", "credit"]
    elsewhere = old.pools.pool_of(("upstream", "up"), ("a", "b"), "https://elsewhere")
    assert elsewhere.states() == ["usable", "usable"]
    old.pool = new.pool = None
    assert Pool("a", "b", pools=old.pools).pool.states() == ["usable", "usable"], "no pool was left that had them"


@pytest.mark.parametrize(("api_key", "pooled"), [("a", False), (("a",), False), (None, False), (("a", "b"), True)])
def test_one_key_needs_no_pool(api_key, pooled):
    assert (Pool("a", "b").pools.pool_of(("tool", "t"), api_key, "https://up") is not None) is pooled
