"""Small rings, and what tests of the ring do again and again."""

import os
from pathlib import Path

from ringbuf import Reader, Ring, Writer
from ringbuf.constants import HEADER_BYTES
from ringbuf.ring import ring_file

CAPACITY_BYTES = 1 << 16  # the smallest there is: laps come soon


def new_ring(
    directory: Path, *, capacity_bytes: int = CAPACITY_BYTES, epoch: int = 7, name: str = "ring"
) -> Ring:
    """An empty ring in `directory`, written by this process."""
    return Ring.create(directory / name, capacity_bytes=capacity_bytes, epoch=epoch)


def payload_of(offset: int, length: int = 200) -> bytes:
    """Bytes that show a record's offset and length: no two records of a lap look alike."""
    return (offset.to_bytes(8, "little") * (length // 8 + 1))[:length]


def publish_to_lap(writer: Writer, laps: float = 1.0, length: int = 200) -> None:
    """Publish until the ring has been filled `laps` times more."""
    capacity = writer.record_max_bytes * 4
    end = writer.end_position + int(capacity * laps)
    while writer.end_position < end:
        assert writer.publish(payload_of(writer.end_offset, length)) is not None


def fill(writer: Writer, length: int = 1000) -> int:
    """Publish until the ring is full; how many went in."""
    count = 0
    while writer.publish(payload_of(writer.end_offset, length)) is not None:
        count += 1
    return count


def drained(reader: Reader) -> list[bytes]:
    """The payloads of all that is there to read."""
    found = []
    while (record := reader.poll()) is not None:
        found.append(record.bytes())
    return found


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes of the ring file of `path`, in place, as a broken or hostile process would."""
    descriptor = os.open(ring_file(path), os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)


def ring_bytes(path: Path) -> bytes:
    """The whole ring file, header first."""
    return ring_file(path).read_bytes()


def records_of(path: Path) -> bytes:
    """The part of the ring file that holds records."""
    return ring_bytes(path)[HEADER_BYTES:]
