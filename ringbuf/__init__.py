"""One partition in shared memory: a ring of records with one writer and any number of readers.

The ring holds bytes and offsets.  It knows no topics, sockets or logs.

    with Ring.create("/dev/shm/cam-0", capacity_bytes=1 << 26, epoch=1) as ring:
        writer = ring.writer()
        writer.publish(b"21.5", key="plant/1/temp")

    with Ring.attach("/dev/shm/cam-0") as ring:         # in another process
        for record in ring.reader(start="oldest"):
            print(record.offset, record.key, memoryview(record))

Guarantees of a ring
  - A reader sees a record completely or not at all, in order, with dense offsets.
  - Reading copies nothing: memoryview(record) is the ring's own memory, read-only.
  - A plain reader that the writer laps gets the number of lost records.  The writer never laps a blocking
    reader unless it has evicted that reader.
  - The ring survives the death of its writer at any instruction.  Ring.reattach() continues at the next
    offset.

Importing this package loads nothing, so that ringbuf.errors costs its users nothing else: the first use of a
name loads its module and the C core.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringbuf import errors
    from ringbuf.constants import (
        FLAG_EXPIRY,
        FLAG_PROPERTIES,
        FLAG_QOS,
        FLAG_RETAIN,
        FLAG_UNCHECKED,
        FORMAT_VERSION,
        RECORD_ALIGN,
        RECORD_HEADER_BYTES,
        REFUSAL_LOST,
        REFUSAL_NO_LOG,
        REFUSAL_NO_ROOM,
    )
    from ringbuf.errors import RingError
    from ringbuf.native import Batch, Claim, KeyFilter, Record, Writer
    from ringbuf.reader import Range, Reader
    from ringbuf.reader_wakeup import WakeupThread
    from ringbuf.record import bytes_of_records, copied, crc32, crc32c, scan_records
    from ringbuf.ring import Extremes, Ring, SlotInfo

__all__ = [
    "FLAG_EXPIRY",
    "FLAG_PROPERTIES",
    "FLAG_QOS",
    "FLAG_RETAIN",
    "FLAG_UNCHECKED",
    "FORMAT_VERSION",
    "RECORD_ALIGN",
    "RECORD_HEADER_BYTES",
    "REFUSAL_LOST",
    "REFUSAL_NO_LOG",
    "REFUSAL_NO_ROOM",
    "Batch",
    "Claim",
    "Extremes",
    "KeyFilter",
    "Range",
    "Reader",
    "Record",
    "Ring",
    "RingError",
    "SlotInfo",
    "WakeupThread",
    "Writer",
    "bytes_of_records",
    "copied",
    "crc32",
    "crc32c",
    "errors",
    "scan_records",
]

_HOMES = {
    "reader_wakeup": ("WakeupThread",),
    "native": ("Batch", "Claim", "KeyFilter", "Record", "Writer"),
    "errors": ("RingError",),
    "reader": ("Range", "Reader"),
    "record": ("bytes_of_records", "copied", "crc32", "crc32c", "scan_records"),
    "ring": ("Extremes", "Ring", "SlotInfo"),
}

if not TYPE_CHECKING:  # a type checker takes the imports above, and reports a name that is not there

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("ringbuf.errors")
        if name not in __all__:
            raise AttributeError(f"module 'ringbuf' has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "constants")
        value = globals()[name] = getattr(import_module(f"ringbuf.{home}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
