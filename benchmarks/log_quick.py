"""Is the log as fast as the disk?  Durable appends and acks beside bare writes and syncs, alternating, a
minute.

    python benchmarks/log_quick.py [--rounds 5] [--seconds 1.5] [--directory DIR]

Appends: a producer fills a ring (256 B and 1 KiB records) while the log thread writes and syncs it; beside it
the same disk with nothing but pwrite of 8 MiB and fdatasync in a loop, into a file that has its
blocks.  Acks: one record of 256 B at a time, from publish() until the log says that it is durable; beside it
pwrite of as many bytes and fdatasync.  Prints a table (medians of the rounds) and, as its last line, one JSON
object.

The directory must be on the disk in question, not in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from persistence import Log, LogThread, Source  # noqa: E402
from ringbuf import Ring  # noqa: E402

RING_BYTES = 64 << 20
FILE_BYTES = 256 << 20
CHUNK = bytes(8 << 20)
RECORD = bytes(256)
ACKS = 300
BATCH = 2000


class Bare:
    """A file with its blocks, written in circles."""

    def __init__(self, directory: Path) -> None:
        self._handle = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
        for place in range(0, FILE_BYTES, len(CHUNK)):
            os.pwrite(self._handle, CHUNK, place)
        os.fsync(self._handle)

    def rate(self, seconds: float) -> float:
        """MB/s of 8 MiB writes, each synced."""
        place = written = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            written += os.pwrite(self._handle, CHUNK, place)
            os.fdatasync(self._handle)
            place = (place + len(CHUNK)) % FILE_BYTES
        return written / (time.perf_counter() - started) / 1e6

    def syncs(self, count: int) -> list[float]:
        """µs of each write of a small record with its sync."""
        data, found = RECORD + bytes(96), []
        for number in range(count):
            started = time.perf_counter()
            os.pwrite(self._handle, data, number * len(data))
            os.fdatasync(self._handle)
            found.append((time.perf_counter() - started) * 1e6)
        return found

    def close(self) -> None:
        """The file stays with its directory."""
        os.close(self._handle)


class Told(threading.Event):
    """on_durable, and when it was called last."""

    at = 0.0

    def __call__(self) -> None:
        """Called on the log thread."""
        self.at = time.perf_counter()
        self.set()


@contextmanager
def broker(directory: Path) -> Iterator[tuple[Ring, Log, Told]]:
    """A ring with its log, which keeps so little that segments are soon used again."""
    memory = Path(tempfile.mkdtemp(prefix="brim-bench-", dir="/dev/shm"))
    shutil.rmtree(directory / "log", ignore_errors=True)
    told = Told()
    try:
        with (
            Ring.create(memory / "bench-0", capacity_bytes=RING_BYTES, epoch=1) as ring,
            Log(directory / "log", retain_bytes=160 << 20) as log,
        ):
            log.recover()
            thread = LogThread(log, [Source(ring, "disk")], told)
            thread.start()
            yield ring, log, told
            thread.stop()
    finally:
        shutil.rmtree(memory)


def append_rate(directory: Path, payload_bytes: int, seconds: float) -> tuple[float, float]:
    """MB/s of records made durable while a producer keeps the ring filled, and records a second."""
    payloads = [bytes(payload_bytes)] * BATCH
    with broker(directory) as (ring, log, told):
        writer = ring.writer()
        warm = time.perf_counter() + 1.0  # Until segments come prepared.
        while time.perf_counter() < warm:
            if writer.publish_many(payloads) < BATCH:
                told.wait(0.01)
                told.clear()
        begin, first, started = log.stats.record_bytes, log.stats.records, time.perf_counter()
        while time.perf_counter() - started < seconds:
            if writer.publish_many(payloads) < BATCH:
                told.wait(0.01)
                told.clear()
        took = time.perf_counter() - started
        return (log.stats.record_bytes - begin) / took / 1e6, (log.stats.records - first) / took


def acks(directory: Path, count: int) -> list[float]:
    """µs from publish() until on_durable() is called, one record at a time."""
    found: list[float] = []
    with broker(directory) as (ring, log, told):
        writer = ring.writer()
        for number in range(count + 20):
            told.clear()
            started = time.perf_counter()
            writer.publish(RECORD)
            told.wait()
            if number >= 20:
                found.append((told.at - started) * 1e6)
        assert log.stats.records == count + 20
    return found


def run(directory: Path, rounds: int, seconds: float) -> dict[str, float]:
    """The medians."""
    seen: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seen.setdefault(name, []).append(value)

    bare = Bare(directory)
    try:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
            note("bare_mb_s", bare.rate(seconds))
            for payload_bytes in (256, 1024):
                rate, records = append_rate(directory, payload_bytes, seconds)
                note(f"append_{payload_bytes}_mb_s", rate)
                note(f"append_{payload_bytes}_records_s", records)
            note("fdatasync_p50_us", statistics.median(bare.syncs(ACKS)))
            note("ack_p50_us", statistics.median(acks(directory, ACKS)))
    finally:
        bare.close()
    return {name: statistics.median(values) for name, values in seen.items()}


def main() -> None:
    """Run, print, clean up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement of a rate")
    parser.add_argument("--directory", type=Path, default=ROOT, help="on the disk in question")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix=".log-bench-", dir=arguments.directory))
    try:
        found = run(directory, arguments.rounds, arguments.seconds)
    finally:
        shutil.rmtree(directory)
    found["append_256_over_bare"] = found["append_256_mb_s"] / found["bare_mb_s"]
    found["append_1024_over_bare"] = found["append_1024_mb_s"] / found["bare_mb_s"]
    found["ack_over_fdatasync"] = found["ack_p50_us"] / found["fdatasync_p50_us"]
    for name, value in found.items():
        print(f"{name:24} {value:14,.2f}")
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
