"""`./dev simulate WHAT`: one campaign, or a chunk of it, from the command line."""

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from tests.campaigns.archives import ARCHIVES
from tests.campaigns.crashes import CRASHES
from tests.campaigns.cuts import CUTS
from tests.campaigns.faults import FAULTS
from tests.campaigns.flips import FLIPS
from tests.campaigns.histories import HISTORIES
from tests.campaigns.kills import KILLS
from tests.campaigns.million import KILLS as MILLION_KILLS
from tests.campaigns.million import RECORDS, SINKS, run_million
from tests.campaigns.mixed import MIXED
from tests.campaigns.pipeline import KAFKA, OVERFLOW, PIPELINE
from tests.campaigns.running import Work, run
from tests.campaigns.soak import MINUTES, RATE, SOAK, soak_for
from tests.campaigns.spill import SPILL
from tests.campaigns.state_flips import STATE_FLIPS, state_flips_of
from tests.campaigns.sums import show_sums
from tests.support.damaged_state import KINDS

CAMPAIGNS = (
    CRASHES,
    MIXED,
    HISTORIES,
    ARCHIVES,
    FLIPS,
    STATE_FLIPS,
    KILLS,
    SPILL,
    CUTS,
    FAULTS,
    PIPELINE,
    OVERFLOW,
    KAFKA,
)


def main() -> int:
    """Run the requested campaigns; the exit status reports if all promises held."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    verbs = parser.add_subparsers(dest="name", required=True)
    for it in CAMPAIGNS:
        verb = verbs.add_parser(it.name, help=it.what)
        of_each = " of each kind" if it is STATE_FLIPS else ""
        count_help = f"{it.unit}{of_each}, at least (%(default)s)"
        verb.add_argument("--count", type=int, default=it.wanted, help=count_help)
        verb.add_argument("--minutes", type=float, default=float("inf"), help="at most, about")
        verb.add_argument("--seed", type=int, help="the first one (that behind the last chunk, or 0)")
        processes = (os.cpu_count() or 1) * (2 if it is STATE_FLIPS else 1)  # whose brokers wait for timers
        verb.add_argument("--processes", type=int, default=processes, help="(%(default)s)")
        verb.add_argument("--sums", type=Path, help="a file in which chunks of a campaign add up")
        if it is STATE_FLIPS:
            kinds_help = "a kind of file; may be given more than once (all)"
            verb.add_argument("--kind", action="append", choices=KINDS, help=kinds_help)
        verb.set_defaults(campaign=it)
    soak = verbs.add_parser(SOAK.name, help=SOAK.what)
    soak.add_argument("--count", type=int, default=1, help="seeds, one after the other (%(default)s)")
    soak.add_argument("--minutes", type=float, default=MINUTES, help="of each (%(default)s)")
    soak.add_argument("--rate", type=float, default=RATE, help="messages a second (%(default)s)")
    soak.add_argument("--seed", type=int, default=0, help="the first one (%(default)s)")
    million = verbs.add_parser("million", help="records by each sink into the table, each process killed")
    million.add_argument("--records", type=int, default=RECORDS, help="by each sink (%(default)s)")
    million.add_argument(
        "--kills", type=int, default=MILLION_KILLS, help="of broker and bridge (%(default)s)"
    )
    million.add_argument("--spark-kills", type=int, help="(as --kills)")
    million.add_argument("--bridge-kills", type=int, help="(as --kills)")
    million.add_argument(
        "--format", choices=("parquet", "delta", "iceberg"), default="parquet", help="of tables (%(default)s)"
    )
    million.add_argument("--sinks", default=",".join(SINKS), help="%(default)s")
    million.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    million.add_argument("--processes", type=int, default=len(SINKS), help="sinks at once (%(default)s)")
    sums = verbs.add_parser("sums", help="what the chunks of a file come to")
    sums.add_argument("sums", type=Path)
    chosen = parser.parse_args()
    if chosen.name == "sums":
        return show_sums(chosen.sums)
    if chosen.name == "million":
        return run_million(chosen)
    if chosen.name == SOAK.name:
        work = Work(chosen.count, float("inf"), chosen.seed, 1, None)
        return run(soak_for(chosen.minutes, chosen.rate), work)
    work = Work(chosen.count, chosen.minutes * 60, chosen.seed, chosen.processes, chosen.sums)
    if chosen.name == STATE_FLIPS.name:
        kinds = chosen.kind or [*KINDS]
        return run(state_flips_of(kinds), replace(work, count=chosen.count * len(kinds)))
    return run(chosen.campaign, work)


if __name__ == "__main__":
    sys.exit(main())
