"""`./dev simulate WHAT`: one campaign, from the command line."""

from __future__ import annotations

import argparse
import os
import sys

from tests.campaigns import crashes, kills


def main() -> int:
    """Runs what was asked for; the exit status says whether all held."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    verbs = parser.add_subparsers(dest="what", required=True)
    log = verbs.add_parser("log", help="crash states of the log on a simulated disk")
    log.add_argument("--states", type=int, default=1_000_000, help="different ones to judge (%(default)s)")
    log.add_argument("--seed", type=int, default=0, help="the first one (%(default)s)")
    log.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    kill = verbs.add_parser("kill", help="the broker killed with -9 under load")
    kill.add_argument("--cycles", type=int, default=1_000, help="(%(default)s)")
    kill.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    chosen = parser.parse_args()
    if chosen.what == "kill":
        return kills.run(chosen.cycles, chosen.seed)
    return crashes.run(chosen.states, chosen.seed, chosen.processes)


if __name__ == "__main__":
    sys.exit(main())
