"""`./dev simulate WHAT`: one campaign, from the command line."""

from __future__ import annotations

import argparse
import os
import sys

from tests.campaigns import crashes, cuts, faults, flips, kills


def main() -> int:
    """Runs what was asked for; the exit status says whether all held."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    verbs = parser.add_subparsers(dest="what", required=True)
    log = verbs.add_parser("log", help="crash states of the log on a simulated disk")
    log.add_argument("--states", type=int, default=1_000_000, help="different ones to judge (%(default)s)")
    log.add_argument("--seed", type=int, default=0, help="the first one (%(default)s)")
    log.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    for name, cycles, what in (
        ("kill", 1_000, "the broker killed with -9 under load"),
        ("cut", 300, "power cuts under the broker, on a file system that loses what was not synced"),
    ):
        verb = verbs.add_parser(name, help=what)
        verb.add_argument("--cycles", type=int, default=cycles, help="(%(default)s)")
        verb.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    flip = verbs.add_parser("flips", help="flipped bits and cut files of small logs")
    flip.add_argument("--damages", type=int, default=100_000, help="(%(default)s)")
    flip.add_argument("--seed", type=int, default=0, help="the first one (%(default)s)")
    flip.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    fault = verbs.add_parser(
        "faults", help="disks that are full, fail, or may not be written, under the broker"
    )
    fault.add_argument("--times", type=int, default=100, help="each (%(default)s)")
    fault.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    chosen = parser.parse_args()
    if chosen.what == "flips":
        return flips.run(chosen.damages, chosen.seed, chosen.processes)
    if chosen.what == "faults":
        return faults.run(chosen.times, chosen.seed)
    if chosen.what == "kill":
        return kills.run(chosen.cycles, chosen.seed)
    if chosen.what == "cut":
        return cuts.run(chosen.cycles, chosen.seed)
    return crashes.run(chosen.states, chosen.seed, chosen.processes)


if __name__ == "__main__":
    sys.exit(main())
