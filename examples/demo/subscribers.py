"""Two subscribers, each a process, that check every offset: shared memory without a copy, and ZeroMQ.

    python -m examples.demo.subscribers shm|zmq --runtime-dir DIR --report FILE

Both begin before the first record, and continue while the broker dies and returns.

    shm    reads every record in the broker's memory; a re-attached ring continues with the next record
    zmq    receives the messages of the broker.  Messages that were in flight when the broker was killed, or
           were published before the new broker knew the subscription, are gaps in the offsets.  They are
           fetched from the ring by their addresses, (ring, epoch, offset), and counted separately

SIGTERM: read the remaining records, write the report (a JSON object, and a tally next to it), end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import brim.asyncio
from brim import Record, Ring
from examples.demo.device import Payload
from examples.demo.offsets import Offsets
from examples.demo.tally import Tally

FILTERS = ("host/#", "replay/#")
STATUS_S = 0.5
AGES_MAX = 4_000  # per status interval
AGE_OF = 50
QUEUE_MAX = 100_000  # messages that may wait in this process


class Received:
    """Records and report of one subscriber."""

    def __init__(self, report: Path) -> None:
        self.offsets = Offsets()
        self.fetched = 0
        self.stopping = False
        self._tally = Tally()
        self._report = report
        self._ages_us: list[float] = []  # of this status interval
        self._ages_kept: list[float] = []  # one in AGE_OF of the whole run
        self._age_p50_us = self._age_p99_us = 0.0
        self._status: dict[str, Any] = {}
        self._next_status = 0.0
        self._read = msgspec.json.Decoder(Payload).decode

    def take(self, ring: str, epoch: int, offset: int, topic: str, payload: bytes | Record) -> bool:
        """Record one message; False: it is known already."""
        if not self.offsets.accept(ring, epoch, offset):
            return False
        content = self._read(payload)
        self._tally.add(topic, content.n)
        if len(self._ages_us) < AGES_MAX:
            self._ages_us.append((time.time_ns() - content.sent_ns) / 1000)
        return True

    def report(self, **more: object) -> None:
        """Write a status line, when one is due."""
        now = time.monotonic()
        if now < self._next_status:
            return
        self._next_status = now + STATUS_S
        if ages := sorted(self._ages_us):
            self._age_p50_us, self._age_p99_us = ages[len(ages) // 2], ages[len(ages) * 99 // 100]
            self._ages_kept += self._ages_us[::AGE_OF]
            self._ages_us.clear()
        self._status = {
            "records": self.offsets.records,
            "twice": self.offsets.twice,
            "gaps": self.offsets.gaps,
            "fetched": self.fetched,
            "places": self.offsets.places(),
            "age_p50_us": self._age_p50_us,
            "age_p99_us": self._age_p99_us,
            **more,
        }
        print(json.dumps(self._status), flush=True)

    def close(self, **more: object) -> None:
        """Write the report."""
        self._next_status = 0.0
        ages = sorted(self._ages_kept)
        self.report(age_us=ages[len(ages) // 2] if ages else 0, **more)
        self._tally.save(self._report.with_suffix(".tally"))
        self._report.write_text(json.dumps(self._status))

    def stop(self, _signal: int = 0, _frame: object = None) -> None:
        """Stop after the remaining records; also a signal handler."""
        self.stopping = True


def read_shm(runtime_dir: Path, received: Received) -> None:
    """Until told to stop, and then to the end."""
    with brim.subscribe(FILTERS, runtime_dir=runtime_dir, start="oldest", name="demo-shm") as subscription:
        while True:
            batch = subscription.read(0.0 if received.stopping else STATUS_S)
            if batch is not None:
                for record in batch:
                    received.take(batch.ring, batch.epoch, record.offset, record.key.decode(), record)
                    assert record.valid(), "overwritten while it was read"
            elif received.stopping:
                break
            received.report(lost=subscription.lost, connected=subscription.connected)
        received.close(lost=subscription.lost)


async def read_zmq(runtime_dir: Path, received: Received) -> None:
    """Until told to stop, and then to the end of what has been stored."""
    messages = brim.asyncio.subscribe_zmq(FILTERS, runtime_dir=runtime_dir, receive_high_water=QUEUE_MAX)
    async with messages as subscription:

        async def follow() -> None:
            async for topic, header, payload in subscription:
                received.take(header.ring, header.epoch, header.offset, topic, payload)

        following = asyncio.create_task(follow())
        while not received.stopping and not following.done():
            if received.offsets.gaps:  # ZeroMQ keeps the order: skipped records will not arrive
                fetch(runtime_dir, received)
            received.report()
            await asyncio.sleep(STATUS_S / 2)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    for ring in _rings(runtime_dir):
        received.offsets.expect(ring.name, ring.epoch, ring.extremes().end_offset)
        ring.close()
    fetch(runtime_dir, received)
    received.close()


def fetch(runtime_dir: Path, received: Received) -> None:
    """Read missing records from the rings' memory."""
    rings = {(ring.name, ring.epoch): ring for ring in _rings(runtime_dir)}
    for name, epoch, offsets in list(received.offsets.missing()):
        ring = rings.get((name, epoch))
        if ring is None:
            continue
        remaining = set(offsets)
        with ring.reader(name="demo-zmq", overrun="count", start="oldest") as reader:
            reader.seek(max(offsets[0], ring.extremes().oldest_offset))
            while (record := reader.poll()) is not None and record.offset <= offsets[-1]:
                if record.offset in remaining:
                    received.fetched += received.take(name, epoch, record.offset, record.key.decode(), record)
    for ring in rings.values():
        ring.close()


def _rings(runtime_dir: Path) -> list[Ring]:
    """Rings of partitions; the broker's journal of sessions is a ring, too."""
    return [Ring.attach(path.with_suffix("")) for path in sorted(runtime_dir.glob("*-*.ring"))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(description="a subscriber that checks every offset")
    parser.add_argument("way", choices=["shm", "zmq"])
    parser.add_argument("--runtime-dir", type=Path, required=True, help="of the broker")
    parser.add_argument("--report", type=Path, required=True, help="file to write at the end")
    options = parser.parse_args(arguments)
    received = Received(options.report)
    signal.signal(signal.SIGTERM, received.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo handles Ctrl-C, and ends this process
    if options.way == "shm":
        read_shm(options.runtime_dir, received)
    else:
        asyncio.run(read_zmq(options.runtime_dir, received))


if __name__ == "__main__":
    main()
