"""A process that forks mergers and has each killed at a chosen line of the bridge.

    python -m tests.support.killed_merger

For each line "K LAKE" on standard input it forks a process that merges the closed days of LAKE until nothing
is due, and kills itself, with SIGKILL, before it executes the K-th line of Python in bridge/ (0: never).
Answers "killed", or "done N" with the lines that it took.
"""

import os
import sys
from pathlib import Path

from tests.support.killed_drain import KillAt
from tests.support.mergeable_lakes import merger, stores


def run(lake: Path, line: int) -> int:
    """Passes until a merged lake is left; the lines that they took."""
    counter = KillAt(line)
    store = stores(lake)
    made = merger(lake, store)
    sys.settrace(counter)
    for _ in range(3):
        made.run_pass()
    sys.settrace(None)
    store.close()
    return counter.lines


def main() -> None:
    import pyarrow.parquet  # noqa: F401  before the forks

    for command in sys.stdin:
        line, _, lake = command.rstrip("\n").partition(" ")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, str(run(Path(lake), int(line))).encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        lines = os.read(reading, 100).decode()
        os.close(reading)
        print("killed" if os.WIFSIGNALED(status) else f"done {lines}", flush=True)


if __name__ == "__main__":
    main()
