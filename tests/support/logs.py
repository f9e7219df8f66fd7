"""Logs to try things on: written without rings, on a simulated disk, and read back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from persistence import DamagedRange, Log, LogReader, RecoveryReport
from ringbuf import FLAG_UNCHECKED, Range
from ringbuf.record import decode, encode
from tests.support.log_simulation import records_in, run_of
from tests.support.simfiles import SimFiles

DIRECTORY = "/log"


def make_log(
    files: SimFiles, *, segment_bytes: int = 1 << 20, retain_bytes: int = 0, direct: bool = False
) -> Log:
    """A log whose headers are the same in each run."""
    salts = count(1)
    return Log(
        DIRECTORY,
        files,
        segment_bytes=segment_bytes,
        retain_bytes=retain_bytes,
        direct=direct,
        clock_ns=lambda: 1_700_000_000_000_000_000,
        salt=lambda: next(salts),
    )


def payloads(log: Log, name: str, epoch: int) -> dict[int, bytes]:
    """Payloads of a ring in the log, by offset."""
    found: dict[int, bytes] = {}
    offset = 0
    while ranges := log.read(name, epoch, offset, 1 << 20):
        for it in ranges:
            data = bytes(it.view)
            for _ in range(it.count):
                record, length = decode(data, epoch)
                data = data[length:]
                found[record.offset] = record.payload
            offset = it.offset + it.count
    return found


def quarantined(files: SimFiles) -> dict[DamagedRange, int]:
    """Damage that the reports in quarantine describe, and the length of each copy."""
    found = {}
    for name, file in files.names.items():
        if name.startswith(f"{DIRECTORY}/quarantine/") and name.endswith(".json"):
            values = json.loads(file.cache)
            copy = files.names[name.replace(".json", ".bytes")].cache
            assert len(copy) == values.pop("copied_bytes")
            assert values.pop("found").endswith("Z")
            lost = tuple(map(tuple, values.pop("lost")))
            found[DamagedRange(**values, lost=lost)] = len(copy)
    return found


@dataclass
class Written:
    """A log, and what has been written to it: by ring name and epoch, the bytes of each record by offset."""

    files: SimFiles
    log: Log
    records: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    position: int = 0  # as in a ring: all rings share it
    _next: dict[str, tuple[int, int]] = field(default_factory=dict)  # epoch and offset by ring name

    @classmethod
    def empty(cls, seed: int = 0, **options: Any) -> Written:
        files = SimFiles(Random(seed))
        log = make_log(files, **options)
        log.recover()
        return cls(files, log)

    def add(
        self, name: str, epoch: int, payloads: list[bytes], *, first: int | None = None, flags: int = 0
    ) -> Range:
        """Queues one run of records; it begins where the ring ends in the log, or at `first`."""
        before, offset = self._next.get(name, (0, 0))
        offset = offset if first is None else first
        if before != epoch or first is not None:
            self.log.join(name, epoch, offset)
        self._next[name] = epoch, offset + len(payloads)
        key = name.encode()
        made = b"".join(
            encode(number, payload, epoch=epoch, key=key, timestamp_ns=1_000 + number, flags=flags)
            for number, payload in enumerate(payloads, offset)
        )
        its = self.records.setdefault((name, epoch), {})
        its.update({number: made[begin:end] for number, begin, end in records_in(made)})
        found = run_of(made, epoch, position=self.position)
        self.position += len(made)
        self.log.append(self.log._ids[name], [found])
        return found

    def add_in_place(self, name: str, epoch: int, payload: bytes) -> Range:
        """One record that only its extent covers."""
        return self.add(name, epoch, [payload], flags=FLAG_UNCHECKED)

    def sync(self) -> None:
        self.log.write()
        self.log.sync()


def recovered(files: SimFiles, **options: Any) -> tuple[Log, RecoveryReport]:
    """The log on that disk after a start."""
    log = make_log(files, **options)
    return log, log.recover()


def disk_of(log: Log) -> SimFiles:
    """The simulated disk under a log."""
    assert isinstance(log.files, SimFiles)
    return log.files


def read_all(log: Log | LogReader, name: str, epoch: int, limit_bytes: int = 1 << 16) -> dict[int, bytes]:
    """Every record of a ring and epoch that the log gives, by offset."""
    found: dict[int, bytes] = {}
    offset = 0
    while ranges := log.read(name, epoch, offset, limit_bytes):
        for it in ranges:
            assert it.offset >= offset
            assert it.epoch == epoch
            its = records_in(bytes(it.view))
            assert [number for number, _, _ in its] == list(range(it.offset, it.offset + it.count))
            found.update({number: bytes(it.view[begin:end]) for number, begin, end in its})
            offset = it.offset + it.count
    return found


def typical(seed: int = 0) -> Written:
    """A closed log of three small segments: two rings, runs of all sizes, one record filled in place."""
    random = Random(seed)
    written = Written.empty(seed, segment_bytes=9216)
    for step in range(9):
        for name, epoch in (("a-0", 7), ("b-0", 7)):
            sizes = random.choices((0, 1, 40, 150), k=random.randrange(1, 5))
            written.add(name, epoch, [random.randbytes(size) for size in sizes])
        if step == 5:
            written.add_in_place("a-0", 7, random.randbytes(4500))
        written.sync()
    written.log.close()
    return written
