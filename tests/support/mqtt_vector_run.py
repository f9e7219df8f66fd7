"""Runs the vectors against any broker on a TCP port: `python -m tests.support.mqtt_vector_run --port 1883`.

For a second opinion: where another broker disagrees, either it is wrong, or the vector is.  What is known
of Mosquitto 2.0.11 is marked in the vectors with `~`, and shown only with `--all`.  Its patience is short,
since a broker of another kind leaves many a vector unanswered.
"""

import argparse
import os
import sys
import time

from tests.support.vector_files import scenarios
from tests.support.vector_lines import tcp_dial
from tests.support.vector_run import run


def main() -> int:
    """0: the broker agrees with every vector."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--patience-s", type=float, default=0.5)
    parser.add_argument("--only", default="", help="part of a vector's file, line or name")
    parser.add_argument("--all", action="store_true", help="show known disagreements of Mosquitto 2.0.11")
    parser.add_argument("--terse", action="store_true", help="the broker need not say why it closes")
    wanted = parser.parse_args()
    dial = tcp_dial(wanted.port, wanted.host, wanted.patience_s)
    chosen = [scenario for scenario in scenarios() if wanted.only in str(scenario)]
    first = os.getpid() * 4099  # another run of this program uses other names
    counts = {"agree": 0, "known": 0, "disagree": 0}
    for number, scenario in enumerate(chosen, first):
        verdict = run(scenario, f"{number & 0xFFFF:04x}", dial, time.sleep, terse=wanted.terse)
        outcome = "agree" if not verdict else "known" if scenario.mosquitto_differs else "disagree"
        counts[outcome] += 1
        if outcome == "disagree" or (outcome == "known" and wanted.all):
            print(f"{scenario}\n    {verdict}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["disagree"] else 0


if __name__ == "__main__":
    sys.exit(main())
