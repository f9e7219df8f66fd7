"""Publisher for load: records this machine's vital signs for a few seconds at its start, then replays them.

Every published value was a real reading. The devices are separate (replay/NAME/cpu/0, ...), with separate
numbers, so the live devices are not affected. By paho-mqtt, as device_paho.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice

from examples.demo.device import Options
from examples.demo.device_paho import run
from examples.demo.vitals import KINDS, Reading, Vitals

RECORD_S = 3.0
RECORD_PAUSE_S = 0.02
AT_ONCE = 20  # messages between two checks of the clock


def record(name: str, seconds: float = RECORD_S) -> list[Reading]:
    """Readings of all vital signs of this machine during `seconds`, in order, under the replay's devices."""
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
    """Run until SIGTERM."""
    options = Options.parse(__doc__ or "")
    tape = cycle(record(options.name))

    def replay() -> Sequence[Reading]:
        return list(islice(tape, AT_ONCE))

    run(options, replay, "demo-burst")


if __name__ == "__main__":
    main()
