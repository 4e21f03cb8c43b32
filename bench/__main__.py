"""The benchmark: one command, one table.

python -m bench [--quick] [--peers] [--rounds N] [--no-write]
"""

import argparse

from bench import report
from bench.measure import Plan, measure

_ROUNDS = 9


def main() -> None:
    """Measure, print, and write bench/README.md."""
    parser = argparse.ArgumentParser(prog="bench", description="What the proxy costs, beside nginx.")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works, not to quote")
    parser.add_argument("--peers", action="store_true", help="the peers as well that `make bench-peers` has installed")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"interleaved rounds (default {_ROUNDS})")
    parser.add_argument("--no-write", action="store_true", help="leave bench/README.md as it is")
    asked = parser.parse_args()
    plan = Plan(rounds=1 if asked.quick else asked.rounds, scale=0.25 if asked.quick else 1.0, peers=asked.peers)
    results = report.rendered(measure(plan), plan)
    print(results)
    if not asked.no_write and not asked.quick:
        report.write(results)


if __name__ == "__main__":
    main()
