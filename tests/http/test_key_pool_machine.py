"""Any sequence of refusals, rates, quotas, failures, timeouts and reloads, tried against what is promised of keys."""

import asyncio
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from proxy.config.model import ApiKey
from proxy.http.key_pool import KeyPools
from proxy.http.key_turn import KeyAffinity, KeysBusy, KeysSpent, KeyTurn
from proxy.kit.no_observer import NoObserver
from proxy.kit.rests import Refusal
from proxy.stores.memory import LocalLeases
from tests.fakes import FakeClock

NAMES = "abcde"
OUTCOMES = st.sampled_from(["ok", "ok", "refused", "credit", "window", "rate", "model", "failed", "slow"])
SAID = st.none() | st.sampled_from([0.5, 2.0, 30.0, 1200.0, 10.0**8])
SHORTEST = {"refused": 60, "credit": 600, "window": 60, "rate": 0, "model": 3600}


class No(Exception):
    def __init__(self, cause, said):
        super().__init__(cause, said)
        self.refusal = Refusal(cause, said)


class Failed(Exception):
    pass


class KeysOfAProvider(RuleBasedStateMachine):
    """The pool between requests and a provider; what is known of each key is written down independently."""

    @initialize(limits=st.lists(st.none() | st.integers(1, 2), min_size=5, max_size=5))
    def start(self, limits):
        self.runner = asyncio.Runner()
        self.clock = FakeClock(0.0)
        self.pools = KeyPools(clock=self.clock, leases=LocalLeases(), observe=NoObserver())
        self.limits = dict(zip(NAMES, limits, strict=True))
        self.resting, self.open_calls = {}, Counter()  # (key, model or None) -> until
        self.load("abc")

    def load(self, names):
        entries = tuple(ApiKey(key=name, max_concurrent=self.limits[name]) for name in names)
        before, self.pool = getattr(self, "pool", None), self.pools.pool_of(("upstream", "u"), entries, "https://u")
        self.names = names
        del before
        self.resting = {(key, model): until for (key, model), until in self.resting.items() if key in names}

    def teardown(self):
        if hasattr(self, "runner"):
            self.runner.close()

    @rule(names=st.permutations(NAMES), count=st.integers(2, 5))
    def reload(self, names, count):
        self.load("".join(names[:count]))

    @rule(seconds=st.sampled_from([0.1, 1.9, 3, 59, 61, 700, 4000, 10**6]))
    def wait(self, seconds):
        self.clock.now += seconds

    @rule(
        asks=st.lists(
            st.tuples(st.none() | st.binary(max_size=2), st.sampled_from(["m", "n"]), st.lists(st.tuples(OUTCOMES, SAID), max_size=7)),
            min_size=1,
            max_size=6,
        )
    )  # fmt: skip
    def ask(self, asks):
        async def together():
            await asyncio.gather(*(self.one(*one) for one in asks))

        self.runner.run(together())
        assert not any(self.open_calls.values())

    async def one(self, conversation, model, outcomes):
        used, outcomes, waited = [], list(outcomes), Counter()

        async def provider(key):
            name = key.key
            assert not any(self.clock.now < self.resting.get((name, what), 0) for what in (None, model)), "it rests"
            assert used.count(name) <= waited[name] <= 1, "a key is used twice in a turn"
            used.append(name)
            self.open_calls[name] += 1
            assert self.open_calls[name] <= (self.limits[name] or 9)
            try:
                for _ in range(3):
                    await asyncio.sleep(0)
                outcome, said = outcomes.pop(0) if outcomes else ("ok", None)
                if outcome == "slow":
                    self.clock.now += 300
                    raise Failed
                if outcome == "failed":
                    raise Failed
                if outcome != "ok":
                    waited[name] += self.refused(name, outcome, said, model)
                    raise No(outcome, said)
            finally:
                self.open_calls[name] -= 1

        turn = KeyTurn(self.pool, KeyAffinity(conversation), model, 0.5)
        names = self.names
        full = set()
        try:
            await turn.run(provider, lambda exc: getattr(exc, "refusal", None))
        except KeysBusy:
            full = {name for name in names if self.limits[name] is not None}
        except KeysSpent:
            pass
        except Failed:
            return
        else:
            return
        left = {name for name in {*names} - {*used} - full if not self.rests(name, model)}
        assert not left, "a request fails on account of keys though one can be used"

    def refused(self, name, cause, said, model):
        """Write a refusal down; whether its rest may be waited for."""
        least = SHORTEST[cause]
        if said is not None and cause in ("rate", "window"):
            least = min(max(said, least), 600 if cause == "rate" else 31 * 86400)
        elif cause == "rate":
            least = 0  # a call that was under way tells nothing new, and its rest is over soon
        what = (name, model if cause == "model" else None)
        self.resting[what] = max(self.resting.get(what, 0), self.clock.now + least * 0.999)
        return cause == "rate" and (said is None or said <= 2)

    def rests(self, name, model):
        key = next(one for one in self.pool.keys if one.key == name)
        return key.rests.at(self.clock.now, model) is not None


KeysOfAProvider.TestCase.settings = settings(stateful_step_count=25)
test_keys_are_used_as_promised_whatever_the_provider_says = KeysOfAProvider.TestCase
