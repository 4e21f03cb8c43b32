"""Any sequence of refusals, rates, quotas, failures, timeouts and reloads, tried against what is promised of keys."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from proxy.keys.attempts import KeyAffinity, KeyAttempts, KeysSpent
from proxy.keys.cooldowns import KeyRefusal
from proxy.keys.pool import KeyPools
from proxy.kit.no_observer import NoObserver
from tests.fakes import FakeClock

NAMES = "abcde"
OUTCOMES = st.sampled_from(["ok", "ok", "refused", "credit", "window", "rate", "model", "failed", "slow"])
SAID = st.none() | st.sampled_from([0.5, 2.0, 30.0, 1200.0, 10.0**8])
SHORTEST = {"refused": 60, "credit": 600, "window": 60, "rate": 0, "model": 3600}


class No(Exception):
    def __init__(self, cause, said):
        super().__init__(cause, said)
        self.refusal = KeyRefusal(cause, said)


class Failed(Exception):
    pass


class KeysOfAProvider(RuleBasedStateMachine):
    """The pool between requests and a provider; what is known of each key is written down independently."""

    @initialize()
    def start(self):
        self.runner = asyncio.Runner()
        self.clock = FakeClock(0.0)
        self.pools = KeyPools(clock=self.clock, observe=NoObserver())
        self.resting = {}  # (key, model or None) -> until
        self.load("abc")

    def load(self, names):
        before, self.pool = getattr(self, "pool", None), self.pools.pool_of(("upstream", "u"), (*names,), "https://u")
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
        ),
        never_gives_up=st.booleans(),
    )  # fmt: skip
    def ask(self, asks, never_gives_up):
        async def together():
            await asyncio.gather(*(self.one(*one, never_gives_up) for one in asks))

        self.runner.run(together())

    async def one(self, conversation, model, outcomes, never_gives_up):
        used, outcomes = [], list(outcomes)

        async def provider(key):
            name = key.key
            is_forced = never_gives_up and not used and all(self.rests(name, model) for name in self.names)
            rests = any(self.clock.now < self.resting.get((name, what), 0) for what in (None, model))
            assert is_forced or not rests, "it rests"
            assert name not in used, "a key is used twice in a turn"
            used.append(name)
            for _ in range(3):
                await asyncio.sleep(0)
            outcome, said = outcomes.pop(0) if outcomes else ("ok", None)
            if outcome == "slow":
                self.clock.now += 300
                raise Failed
            if outcome == "failed":
                raise Failed
            if outcome != "ok":
                if not is_forced:
                    self.refused(name, outcome, said, model)
                raise No(outcome, said)
            if is_forced:
                self.resting = {what: until for what, until in self.resting.items() if what[0] != name}

        turn = KeyAttempts(self.pool, KeyAffinity(conversation), model, never_gives_up=never_gives_up)
        try:
            await turn.run(provider, lambda exc: getattr(exc, "refusal", None))
        except KeysSpent:
            left = {name for name in {*self.names} - {*used} if not self.rests(name, model)}
            assert not left, "a request fails on account of keys though one can be used"
            assert used or not never_gives_up
        except Failed:
            pass

    def refused(self, name, cause, said, model):
        """Write a refusal down."""
        least = SHORTEST[cause]
        if said is not None and cause in ("rate", "window"):
            least = min(max(said, least), 600 if cause == "rate" else 31 * 86400)
        elif cause == "rate":
            least = 0  # a call that was under way tells nothing new, and its rest is over soon
        what = (name, model if cause == "model" else None)
        self.resting[what] = max(self.resting.get(what, 0), self.clock.now + least * 0.999)

    def rests(self, name, model):
        key = next(one for one in self.pool.keys if one.key == name)
        return key.cooldowns.at(self.clock.now, model) is not None


KeysOfAProvider.TestCase.settings = settings(stateful_step_count=25)
test_keys_are_used_as_promised_whatever_the_provider_says = KeysOfAProvider.TestCase
