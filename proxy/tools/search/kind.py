"""What all types of search have in common: the words of `toolproxy check` about them, and their probe."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.config.rules import Entry
from proxy.loop.results import ToolOutput
from proxy.tools.search.provider import Provider
from proxy.tools.tool_type import Make, ProbeResult, Resources, ToolType

_SEARCHED, _RESULTS = "news", 5
_PROBE_SECONDS: Final = 30.0


def described(name: str, provider: Provider) -> str:
    """The words of `toolproxy check` for a search: its provider by name and host, and the filters that it lacks."""
    lacking = provider.cannot()
    said = f"{name} at {urlsplit(provider.address).netloc}"
    return f"{said}; its provider cannot filter by {', '.join(lacking)}" if lacking else said


def search_kind(
    config: type[Entry], provider_of: Callable[[Entry], Provider], make: Make[Entry], **more: Any
) -> ToolType[Entry]:
    """The kind of a search."""

    def address(entry: Entry) -> str:
        return provider_of(entry).address

    def describe(entry: Entry, _: str) -> Iterator[str]:
        yield described(entry.type, provider_of(entry))

    async def probe(name: str, entry: Entry, resources: Resources) -> ProbeResult:
        began = resources.clock.monotonic()
        async with asyncio.timeout(_PROBE_SECONDS):
            output = await make(name, entry, resources).run({"query": _SEARCHED, "num_results": _RESULTS})
        milliseconds = (resources.clock.monotonic() - began) * 1000
        hits = output.hits if isinstance(output, ToolOutput) else ()
        note = output.note if isinstance(output, ToolOutput) else None
        if not hits:
            why = f": {note}" if note else f" for {_SEARCHED!r}"
            return ProbeResult(f"no results in {milliseconds:.0f} ms{why}", is_fault=note is not None)
        dated = sum(hit.published is not None for hit in hits)
        found = f"{len(hits)} result{'' if len(hits) == 1 else 's'}"
        return ProbeResult(f"{found} in {milliseconds:.0f} ms, {dated} of them dated")

    return ToolType(config=config, make=make, **{"address": address, "describe": describe, "probe": probe, **more})
