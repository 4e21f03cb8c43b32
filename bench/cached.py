"""What an upstream's prompt cache holds of an agent's day: with the agent's own requests, and with those of the proxy.

    python -m bench.cached            a recorded day of each agent: some hundred requests

An upstream that caches prompts keeps the beginnings of all that it has read, and charges a fraction for what a request
shares with one of them. Printed is that share of all bytes, of the requests as the agent sends them (what a server
could cache without the proxy) and of those that reach the upstream. Searches that the proxy adds are among the latter.
"""

import argparse
import asyncio
import sys
from functools import partial

from proxy.app import create_app
from proxy.app.configuration import parse
from proxy.mock.running import RunningMock
from proxy.server.serving import serving
from proxy.telemetry import log
from tests.agents import player, recording

KEPT = 0.97
"""What has to remain of the share without the proxy."""


async def measure(agent: str) -> tuple[float, float]:
    """The shares of an agent's day without the proxy and with it."""
    with RunningMock() as mock:
        config = parse(player.config_for(mock), {}).config
        log.configure(config.telemetry)
        async with serving(create_app(config), lifespan="on") as url:
            played = await asyncio.to_thread(partial(player.play, agent, url, mock))
    direct, through = (
        player.cached_share([player.prompt_of(body) for body in bodies]) for bodies in (played.asked, played.upstream)
    )
    return direct, through


def main() -> None:
    """Measure and print a row for each agent. Exits with 1 if one keeps too little."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = {
        agent: asyncio.run(measure(agent))
        for agent in sorted(path.name.partition(".")[0] for path in recording.FOLDER.glob("*.xz"))
    }
    print(f"{'agent':<10}{'direct':>9}{'through':>9}{'kept':>9}")
    for agent, (direct, through) in rows.items():
        print(f"{agent:<10}{direct:>9.2%}{through:>9.2%}{through / direct:>9.2%}")
    sys.exit(any(through < KEPT * direct for direct, through in rows.values()))


if __name__ == "__main__":
    main()
