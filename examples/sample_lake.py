"""Sample lake: a small set of drained files from four simulated machines, to try Spark without a plant.

    python -m examples.sample_lake sample-lake

A broker with a bridge runs for 20 seconds on its own port, and machines publish JSON by MQTT. Some payloads
are not JSON, and some records are skipped on purpose, so that the jobs have something to report. The result
is the lake, as any bridge writes it, and payloads.toml, which declares the payload formats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bridge.drain.control_socket import Pause, Resume, Skip, send, state_of
from brim.asyncio import Client, connect

MACHINES = 4
PER_SECOND = 10  # messages of each machine
SKIPPED = 40  # messages of all machines together
DRAIN_S = 60.0  # time limit for the bridge

CONFIG = """
edge_id = "sample"
runtime_dir = "{scratch}/run"
state_dir = "{scratch}/state"

[[listener]]
port = 0                                 # a free one

[[stream]]
name = "machines"
topics = ["plant/+/data"]
ring_bytes = "4 MiB"

[[bridge]]
name = "lake"
to = "{lake}"
streams = ["machines"]
"""

PAYLOADS = """
[[payload]]
topic = "plant/+/data"
format = "json"
fields = { temp = "double", rpm = "long" }
"""


@contextmanager
def broker(scratch: Path, lake: Path) -> Iterator[str]:
    """A running broker with a bridge to `lake`; yields its MQTT URL."""
    config = scratch / "brim.toml"
    config.write_text(CONFIG.format(scratch=scratch, lake=lake.as_uri()))
    command = [sys.executable, "-m", "edge", "run", "--config", str(config), "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = re.search(r"mqtt (\S+:\d+)", process.stdout.readline())
        try:
            if ready is None:
                sys.exit("the broker did not start; what it said is above")
            yield f"mqtt://{ready[1]}"
        finally:
            process.terminate()


def payload(machine: int, at_s: float) -> bytes:
    """Payload of a machine: JSON, except for one in two hundred."""
    if random.random() < 0.005:
        return b"sensor fault"
    swing = math.sin(at_s / 3 + machine)
    reading = {"temp": round(20 + 5 * machine + 4 * swing + random.gauss(0, 0.3), 2), "rpm": 1_500 + machine}
    return json.dumps(reading).encode()


async def publish(client: Client, rounds: int, *, per_second: float) -> None:
    """Publish `rounds` messages of each machine."""
    for _ in range(rounds):
        now = time.monotonic()
        for machine in range(MACHINES):
            await client.publish(f"plant/{machine}/data", payload(machine, now), qos=1)
        await asyncio.sleep(1 / per_second)


async def play(url: str, runtime_dir: Path, seconds: float) -> None:
    """Publish half of the messages, some that are skipped on purpose, then the other half."""
    half = round(seconds * PER_SECOND / 2)
    async with connect(url) as client:
        await publish(client, half, per_second=PER_SECOND)
        wait_for_records(half * MACHINES, runtime_dir)
        send(runtime_dir, "lake", Pause())
        await publish(client, SKIPPED // MACHINES, per_second=1_000)
        send(runtime_dir, "lake", Skip())  # the next file declares it
        send(runtime_dir, "lake", Resume())
        await publish(client, half, per_second=PER_SECOND)
    wait_for_records(2 * half * MACHINES, runtime_dir)


def wait_for_records(count: int, runtime_dir: Path) -> None:
    """Wait until the lake has this number of records."""
    deadline = time.monotonic() + DRAIN_S
    while (state := state_of(runtime_dir, "lake"))["totals"]["records"] < count:
        if time.monotonic() > deadline:
            sys.exit(f"the bridge is {state['condition']}: {state['last_error'] or 'it is too slow'}")
        time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="makes drained files to try Spark on")
    parser.add_argument("lake", type=Path, help="a directory that is not there yet")
    parser.add_argument("--seconds", type=float, default=20, help="of data (%(default)s)")
    options = parser.parse_args(arguments)
    lake = options.lake.absolute()
    if lake.exists():
        parser.error(f"{options.lake} is there already; remove it, or name another")
    with tempfile.TemporaryDirectory(prefix="brim-sample-") as name:
        scratch = Path(name)
        with broker(scratch, lake) as url:
            print(f"four machines publish for {options.seconds:g} seconds ...", flush=True)
            asyncio.run(play(url, scratch / "run", options.seconds))
    (lake / "payloads.toml").write_text(PAYLOADS.lstrip())
    files = sum(1 for _ in lake.rglob("*.brim"))
    print(f"{options.lake}: {files} drained files; to look at them:")
    print(f"  python -m examples.first_look {options.lake} --field temp")


if __name__ == "__main__":
    main()
