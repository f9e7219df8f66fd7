"""`brim ...` in a process half of whose time a Python thread computes: 5 ms of every 10."""

from __future__ import annotations

import sys
import threading
import time

from edge.cli import main

BUSY_S, PERIOD_S = 0.005, 0.010


def burn() -> None:
    """Compute without end."""
    while True:
        until = time.perf_counter() + BUSY_S
        while time.perf_counter() < until:
            sum(range(50))
        time.sleep(PERIOD_S - BUSY_S)


if __name__ == "__main__":
    threading.Thread(target=burn, name="busy", daemon=True).start()
    sys.exit(main())
