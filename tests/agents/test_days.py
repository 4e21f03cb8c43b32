"""`make test-agents`: a recorded day of each agent, a hundred rounds, played against the proxy of today."""

from functools import partial

import anyio
import pytest

from proxy.app.configuration import parse
from proxy.mock.running import RunningMock
from tests.agents import player
from tests.serving import serving_as_shipped

# Of what the upstream's cache holds of an agent's requests without the proxy, so much has to remain.
KEPT = 0.97


@pytest.mark.parametrize(("agent", "rounds"), [("claude", 95), ("codex", 95), ("opencode", 95)])
async def test_an_agents_day_is_what_it_was_and_the_upstreams_prompt_cache_holds(agent, rounds):
    with RunningMock() as mock:
        async with serving_as_shipped(parse(player.config_for(mock), {})) as url:
            played = await anyio.to_thread.run_sync(partial(player.play, agent, url, mock))
    assert played.differences == []
    assert played.rounds >= rounds
    direct, through = (
        player.cached_share(list(map(player.prompt_of, bodies))) for bodies in (played.asked, played.upstream)
    )
    assert through >= KEPT * direct
