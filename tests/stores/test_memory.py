import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.config.model import StateConfig
from proxy.stores.memory import MemoryStore
from tests.fakes import FakeClock

# In a process of its own, for what a process has taken from the system once it does not give back.
MEASURED = """
import asyncio, os, sys
import orjson
from proxy.config.model import StateConfig
from proxy.stores.memory import MemoryStore
from tests.fakes import FakeClock

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main(size, entries):
    said = {}
    store = MemoryStore(StateConfig(max_entries=10**6), clock=FakeClock(), max_bytes=10**12,
                        observe=lambda _, **fields: said.update(fields))
    before = resident()
    for number in range(entries):
        await store.put("client:app", f"resp_{number:032x}", orjson.dumps({"x": "y" * size}))
    print((resident() - before) / said["bytes"])

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no Linux")
@pytest.mark.parametrize(("size", "entries"), [(10, 40_000), (1000, 20_000), (30_000, 1000), (2_000_000, 20)])
def test_what_is_counted_is_the_memory_that_it_takes(size, entries):
    command = [sys.executable, "-c", MEASURED, str(size), str(entries)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    factor = float(subprocess.run(command, env=environ, capture_output=True, check=True, text=True).stdout)
    assert 0.75 < factor < 1.25


async def test_nothing_is_left_of_who_has_nothing_any_more():
    said = {}
    store = MemoryStore(
        StateConfig(), clock=FakeClock(), max_bytes=10**6, observe=lambda _, **fields: said.update(fields)
    )
    await store.put("one", "k", b"value")
    await store.put("other", "k", b"value")
    for owner in ("one", "other"):
        await store.delete(owner, "k")
    await store.put("other", "k", b"")
    assert (len(store), said["entries"]) == (1, 1)
    assert said["bytes"] < 1000
