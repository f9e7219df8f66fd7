"""A process that forks mergers and has each killed at a chosen line of the bridge.

    python -m tests.support.killed_merger

For each line "K LAKE" on standard input it forks a process that merges the closed days of LAKE until nothing
is due, and kills itself, with SIGKILL, before it executes the K-th line of Python in bridge/ (0: never).
Answers "killed", or "done N" with the lines that it took.
"""

import sys
from pathlib import Path

from tests.support.killed_drain import KillAt, serve
from tests.support.mergeable_lakes import merger, stores


def run(command: str) -> int:
    """Passes until a merged lake is left; the lines that they took."""
    line, _, lake = command.partition(" ")
    counter = KillAt(int(line))
    store = stores(Path(lake))
    made = merger(Path(lake), store)
    sys.settrace(counter)
    for _ in range(3):
        made.run_pass()
    sys.settrace(None)
    store.close()
    return counter.lines


def main() -> None:
    import pyarrow.parquet  # before the forks

    pyarrow.array([])  # imports pandas, where it is installed: 0.3 s

    serve(run)


if __name__ == "__main__":
    main()
