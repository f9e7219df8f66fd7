"""A publisher for load: a few seconds of this machine's vital signs, recorded at start, then replayed.

Every record that it publishes was a real reading, but the devices are its own (replay/NAME/cpu/0, ...), with
numbers of their own, so that the live ones stay what they are.  By paho-mqtt, like device_paho.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice

from examples.demo.device import Options
from examples.demo.device_paho import run
from examples.demo.vitals import KINDS, Reading, Vitals

__all__ = ["main", "record"]

RECORD_S = 3.0
RECORD_PAUSE_S = 0.02
AT_ONCE = 20  # messages between two looks at the clock


def record(name: str, seconds: float = RECORD_S) -> list[Reading]:
    """What every vital sign of this machine read during `seconds`, in order, under the replay's devices."""
    vitals = Vitals(name, KINDS)
    readings: list[Reading] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        readings += vitals.read()
        time.sleep(RECORD_PAUSE_S)
    return [
        Reading("replay" + device.removeprefix("host"), value, details) for device, value, details in readings
    ]


def main() -> None:
    """Until SIGTERM."""
    options = Options.parse(__doc__ or "")
    tape = cycle(record(options.name))

    def replay() -> Sequence[Reading]:
        return list(islice(tape, AT_ONCE))

    run(options, replay, "demo-burst")


if __name__ == "__main__":
    main()
