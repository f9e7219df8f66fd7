"""Drained files with messages as the demo's devices send them, made by hand."""

import json
from pathlib import Path

from bridge.format.file_builder import build
from bridge.format.record_batch import RecordBatch, RecordRun
from bridge.format.write_intent import WriteIntent
from ringbuf.record import encode

EPOCH = 7
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def drain(root: Path, drain_seq: int, first: int, count: int) -> Path:
    """A file with messages first .. first+count-1 of one device, one a second from minute 1 on."""
    records = b"".join(
        encode(
            n,
            json.dumps({"n": n, "value": float(n), "sent_ns": 0, "details": {}}).encode(),
            epoch=EPOCH,
            key=b"host/a/load",
            timestamp_ns=MINUTE + n * SECOND,
        )
        for n in range(first, first + count)
    )
    last, stamps = first + count - 1, (MINUTE + first * SECOND, MINUTE + (first + count - 1) * SECOND)
    batch = RecordBatch(EPOCH, first, last, *stamps, (RecordRun.of(memoryview(records)),))
    intent = WriteIntent(drain_seq, MINUTE, "vitals", 0, EPOCH, 0, None, first, last, (), ())
    file = build("edge", intent, batch)
    path = root / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(file.parts))
    return path
