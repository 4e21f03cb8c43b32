import asyncio
from collections import Counter

import pytest

from proxy.config.model import ApiKey
from proxy.http.key_pool import KeyPools
from proxy.http.key_turn import KeyAffinity, KeysBusy, KeysSpent, KeyTurn
from proxy.kit.rests import Refusal
from proxy.stores.memory import LocalLeases
from tests.fakes import FakeClock

HOUR = 3600.0


class No(Exception):
    """A refusal of a key."""

    def __init__(self, cause, seconds=None):
        super().__init__(cause, seconds)
        self.refusal = Refusal(cause, seconds)


def refusal_of(exc):
    return getattr(exc, "refusal", None)


class Pool:
    """A pool with its clock, its events, and a provider that refuses keys, each by a list of causes."""

    def __init__(self, *entries, pools=None):
        self.clock, self.leases = FakeClock(0.0), LocalLeases()
        self.pools = pools or KeyPools(clock=self.clock, leases=self.leases, observe=self.hear)
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

    async def ask(self, conversation=b"c", *, affinity=None, model="", seconds=5.0, work=None, may_go_on=lambda: True):
        turn = KeyTurn(self.pool, affinity or KeyAffinity(conversation), model, seconds)
        return await turn.run(work or self.provider, refusal_of, may_go_on)


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


def test_conversations_are_spread_by_weight():
    pool = Pool(ApiKey(key="a", weight=3), ApiKey(key="b", weight=1))
    assert 0.72 < Counter(chosen(pool, 3000))["a"] / 3000 < 0.78


@pytest.mark.parametrize(("weights", "order"), [((1, 1, 1), "123123123"), ((5, 1, 1), "1121311"), ((2, 1), "121121")])
async def test_calls_without_a_conversation_take_turns_by_weight(weights, order):
    pool = Pool(*(ApiKey(key=f"k{at}", weight=weight) for at, weight in enumerate(weights, 1)))
    assert "".join([str(await pool.ask(None)) for _ in order]) == order


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


async def test_a_short_rest_is_waited_for_once_and_a_longer_one_is_not():
    pool = Pool("a", "b")
    own = await pool.ask()
    pool.refusals = {own: [("rate",)]}
    assert (await pool.ask(), pool.clock.now, pool.calls) == (own, 2, [own, own, own])
    pool.refusals = {own: [("rate", 1.5), ("rate", 1.5)]}
    assert await pool.ask() != own
    assert pool.clock.now == 3.5
    pool.refusals = {own: [("rate", 2.5)]}
    pool.clock.now = 100
    assert await pool.ask() != own
    assert pool.clock.now == 100


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


async def test_a_short_rest_is_waited_for_where_every_key_rests():
    pool = Pool("a", "b")
    for key in pool.pool.keys:
        pool.pool.refused(key, Refusal("rate", 2 - key.number / 10), ValueError(), began=0, model="")
    assert (await pool.ask(), pool.clock.now) == (2, 1.8)


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


async def test_an_only_key_never_rests():
    pool = Pool(ApiKey(key="a", max_concurrent=9))
    pool.refusals = {1: [("refused",), ("rate",)]}
    for _ in range(2):
        with pytest.raises(No):
            await pool.ask()
    assert (await pool.ask(), pool.pool.states()) == (1, ["usable"])


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


@pytest.mark.parametrize(
    ("api_key", "pooled"),
    [("a", False), (("a",), False), (None, False), (("a", "b"), True), ((ApiKey(key="a", max_concurrent=2),), True)],
)
def test_one_key_without_a_limit_needs_no_pool(api_key, pooled):
    assert (Pool("a", "b").pools.pool_of(("tool", "t"), api_key, "https://up") is not None) is pooled


class Gate:
    """Calls that end when they are told to, in the order in which they began."""

    def __init__(self):
        self.begun, self._ends = [], []

    async def __call__(self, key):
        self.begun.append(key.number)
        self._ends.append(end := asyncio.Event())
        await end.wait()
        return key.number

    async def end(self):
        self._ends.pop(0).set()
        await settled()


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_full_key_is_passed_over_for_this_request_only_and_then_calls_wait_in_order():
    pool, gate = Pool(ApiKey(key="a", max_concurrent=1), ApiKey(key="b", max_concurrent=1)), Gate()
    own = pool.pool.order_for(b"c")[0].number
    ended = []

    async def ask(name):
        await pool.ask(work=gate)
        ended.append(name)

    async with asyncio.TaskGroup() as group:
        for name in range(5):
            group.create_task(ask(name))
            await settled()
        assert gate.begun == [own, 3 - own]
        for _ in range(5):
            await gate.end()
    assert ended == [0, 1, 2, 3, 4]
    assert await pool.ask() == own


async def test_a_call_that_has_waited_too_long_or_has_left_gives_its_place_in_the_queue_to_others():
    pool, gate = Pool(ApiKey(key="a", max_concurrent=1)), Gate()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(pool.ask(work=gate))
        await settled()
        with pytest.raises(KeysBusy):
            await pool.ask(seconds=0.01)
        leaving, staying = group.create_task(pool.ask()), group.create_task(pool.ask())
        await settled()
        leaving.cancel()
        await gate.end()
    assert (first.result(), staying.result(), pool.calls) == (1, 1, [1])
    assert not pool.pool.queue.is_wanted(pool.pool.keys[0], before=None)


async def test_a_place_is_given_back_however_a_call_ends():
    pool = Pool(ApiKey(key="a", max_concurrent=1), ApiKey(key="b"))
    affinity = KeyAffinity(b"c", pool.pool.keys[0])
    hanging = asyncio.ensure_future(pool.ask(work=Gate(), affinity=affinity))
    await settled()
    hanging.cancel()
    await settled()
    pool.refusals = {1: [ValueError("timed out"), None, ("refused",)]}
    with pytest.raises(ValueError, match="timed out"):
        await pool.ask(affinity=affinity)
    assert [await pool.ask(affinity=affinity) for _ in range(2)] == [1, 2]
    assert await pool.leases.acquire(pool.pool.keys[0].slot, 1) is not None


async def test_who_waits_may_pass_somebody_who_has_tried_the_key():
    entries = [ApiKey(key=key, max_concurrent=1) for at, key in enumerate("abc", 1)]
    pool, gate = Pool(*entries), Gate()
    own, other, third = [key.number for key in pool.pool.order_for(b"c")]

    async def picky(key):
        if key.number == own:
            raise No("model")
        return await gate(key)

    async with asyncio.TaskGroup() as group:
        group.create_task(pool.ask(work=gate, affinity=KeyAffinity(b"c", pool.pool.keys[other - 1])))
        group.create_task(pool.ask(work=gate, affinity=KeyAffinity(b"c", pool.pool.keys[third - 1])))
        await settled()
        patient = group.create_task(pool.ask(work=picky))  # has tried its own key, and the others are full
        await settled()
        free = group.create_task(pool.ask(work=gate, model="another"))
        await settled()
        assert gate.begun == [other, third, own]
        for _ in range(4):
            await gate.end()
    assert (patient.result(), free.result()) == (other, own)
