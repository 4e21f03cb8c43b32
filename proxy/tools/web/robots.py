"""robots.txt (RFC 9309): whether a site wants a page to be read by machines."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from cachetools import TTLCache

from proxy.loop.errors import ToolError, ToolUnavailable
from proxy.tools.threads import DaemonThreads
from proxy.tools.web.client import PageSession
from proxy.tools.web.guard import Target

MOST_BYTES = 500 * 1024  # RFC 9309, 2.5: a crawler reads at least this much
MOST_RULES = 2000  # of one site, for us; honest files have some dozens
KEPT_SECONDS = 600
_MOST_KEPT = 4 * 1024 * 1024  # characters of the rules of all sites, and 100 for each rule
_KEPT_CHARACTERS = "/%:@!$&'()*+,;=~-._?"
_BUSY = 429
_FIRST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """One `Allow` or `Disallow` line; `*` in its pattern is any text, `$` at its end the end."""

    allows: bool
    pattern: str

    def matches(self, path: str) -> bool:
        """Whether it speaks of this path. Takes time in proportion to its length: no regular expression."""
        first, *parts = self.pattern.removesuffix("$").split("*")
        if not path.startswith(first):
            return False
        at = len(first)
        last = parts.pop() if parts and self.pattern.endswith("$") else None
        for part in parts:
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        if last is not None:
            return len(path) - len(last) >= at and path.endswith(last)
        return not self.pattern.endswith("$") or at == len(path)


def rules_for(text: str, agent: str) -> tuple[Rule, ...]:
    """The rules of a robots.txt for the product token `agent`: those under its name, or else those for everyone."""
    named: list[Rule] = []
    everyone: list[Rule] = []
    found = False
    for agents, rules in _groups(text):
        if agent.lower() in agents:
            found = True
            named += rules
        elif "*" in agents:
            everyone += rules
    return tuple((named if found else everyone)[:MOST_RULES])


def permits(rules: tuple[Rule, ...], path: str) -> bool:
    """The longest pattern that matches decides; of two equally long ones, the one that allows."""
    matching = [(len(rule.pattern), rule.allows) for rule in rules if rule.matches(path)]
    return max(matching, default=(0, True))[1]


def _groups(text: str) -> Iterator[tuple[set[str], list[Rule]]]:
    agents: set[str] = set()
    rules: list[Rule] = []
    begun = False  # a rule was read: the next user-agent line begins another group
    for line in text.lstrip("\ufeff").splitlines():
        key, _, value = line.partition("#")[0].partition(":")
        key, value = key.strip().lower(), value.strip()
        if key == "user-agent":
            if begun:
                yield agents, rules
                agents, rules, begun = set(), [], False
            agents.add(value.lower().partition("/")[0])
        elif key in ("allow", "disallow"):
            begun = True
            if value:
                rules.append(Rule(key == "allow", quote(value, safe=_KEPT_CHARACTERS)))
    yield agents, rules


class Robots:
    """Asked before each page of a site; keeps a site's rules for ten minutes.

    Args:
        user_agent: as servers are told; its first word, up to the version, is the name that rules are for.
        timer: seconds that never go back.
        threads: read the files.
    """

    def __init__(self, user_agent: str, *, timer: Callable[[], float], threads: DaemonThreads) -> None:
        self._agent = user_agent.partition(" ")[0].partition("/")[0]
        self._threads = threads
        self._kept: TTLCache[str, tuple[Rule, ...]] = TTLCache(_MOST_KEPT, KEPT_SECONDS, timer, getsizeof=_size)

    async def __call__(self, session: PageSession, target: Target) -> None:
        """Whether a page may be read.

        Raises:
            ToolError: its site does not want it.
            ToolUnavailable: its site cannot say now, which RFC 9309 takes for a no.
        """
        rules = self._kept.get(target.origin)
        if rules is None:
            rules = self._kept[target.origin] = await self._rules(session, target)
        if not permits(rules, target.path):
            raise ToolError("The site asks machines not to read this page (robots.txt).")

    async def _rules(self, session: PageSession, target: Target) -> tuple[Rule, ...]:
        where = Target(target.scheme, target.host, target.port, "/robots.txt")
        try:
            answer = await session.get(where, most_bytes=MOST_BYTES, wanted=lambda _: None)
        except ToolUnavailable:
            raise
        except ToolError:
            return ()  # led astray by a redirect, say: there are no rules to be had
        if answer.status == _BUSY or answer.status >= _FIRST_SERVER_ERROR:
            raise ToolUnavailable(f"The site cannot say now whether it may be read (robots.txt: {answer.status}).")
        text = answer.body.decode("utf-8", "replace")
        return await self._threads.run(lambda: rules_for(text, self._agent))


def _size(rules: tuple[Rule, ...]) -> int:
    return 100 + sum(100 + len(rule.pattern) for rule in rules)
