"""Logs on a real disk, with records whose topics and times a test has chosen."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from persistence import Log
from ringbuf.record import encode
from tests.support.log_simulation import run_of

NOON_NS = 1_700_000_000 * 10**9
MINUTE_NS = 60 * 10**9
EPOCH = 7


@dataclass(frozen=True)
class Kept:
    """A record to be kept, `minute` minutes after NOON_NS."""

    topic: str
    payload: bytes = b""
    minute: float = 0
    flags: int = 0
    properties: bytes = b""


def keep(
    directory: Path, ring: str, records: Iterable[Kept], *, first: int = 0, segment_bytes: int = 1 << 20
) -> None:
    """Puts these behind what the ring has in the log of `directory`, each in a run of its own, at `first` or
    later."""
    with Log(directory, segment_bytes=segment_bytes, retain_bytes=0, direct=False) as log:
        log.recover()
        end = log.ends().get(ring)
        offset = first if end is None else max(first, end.end_offset)
        ring_id = log.join(ring, EPOCH, offset)
        for number, it in enumerate(records, offset):
            made = encode(
                number,
                it.payload,
                epoch=EPOCH,
                key=it.topic.encode(),
                timestamp_ns=NOON_NS + int(it.minute * MINUTE_NS),
                flags=it.flags,
                properties=it.properties,
            )
            log.append(ring_id, [run_of(made, EPOCH, position=number * 4096)])
            log.write()
            log.sync()
