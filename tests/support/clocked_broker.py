"""A broker whose wall clock is wrong: BRIM_TEST_CLOCK is the Unix time at which it starts, and stands still
where the text ends with "!".
"""

import os
import sys
import time

from edge.cli import main

if __name__ == "__main__":
    text = os.environ["BRIM_TEST_CLOCK"]
    start, begun = float(text.rstrip("!")), time.monotonic_ns()
    stands = text.endswith("!")

    def time_ns() -> int:
        """The wrong time."""
        return int(start * 10**9) + (0 if stands else time.monotonic_ns() - begun)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 10**9
    sys.exit(main())
