"""Ended rings: partitions that the configuration no longer has, with records in a ring file or in the log.

Owns their sources. No record follows in such a ring. Groups and readers get the records that they have not
seen, as bridges and MQTT sessions do, and never wait for the next one.

A ring file is open only during a read, on the thread that reads the log: a stream may have lost thousands of
partitions, and the budget of descriptors does not count them (transport/descriptors.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from edge.consumers.ring_source import Overwritten, ReadableLog, RingRecords, RingSource
from ringbuf import Range, Reader, Ring
from ringbuf.errors import NotARing, OffsetGone

if TYPE_CHECKING:
    from persistence.read.log_reader import Epoch

T = TypeVar("T")


class EndedRing(RingSource):
    """Ring without a writer. `last`: its last epoch; `log`: the log, or an EndedRingFile."""

    is_ended = True

    log: ReadableLog

    def __init__(self, name: str, log: ReadableLog, last: Epoch) -> None:
        self.name, self.log, self.epoch = name, log, last.epoch
        self._last = last
        self._gap = ((0, 0), 0)

    @classmethod
    def of_file(cls, path: Path, ring: Ring, log: ReadableLog | None, log_end: tuple[int, int]) -> EndedRing:
        """Source of the ring file at `path`, which is open as `ring` now, and of the log.

        The log may have later records, up to `log_end` (epoch, offset): the file may be an older copy.
        """
        from persistence.read.log_reader import Epoch  # imports the log

        extremes = ring.extremes()
        _, end_offset = max((ring.epoch, extremes.end_offset), log_end)
        last = Epoch(ring.epoch, extremes.oldest_offset, end_offset)
        return cls(ring.name, EndedRingFile(path, last, log), last)

    @classmethod
    def of_log(cls, name: str, log: ReadableLog, epoch: int, end_offset: int) -> EndedRing:
        """Source of a ring that has records only in the log, up to this offset of this epoch."""
        from persistence.read.log_reader import Epoch  # imports the log

        return cls(name, log, Epoch(epoch, end_offset, end_offset))

    def read(
        self, offset: int, limit_bytes: int, count: int | None = None
    ) -> RingRecords | Overwritten | None:
        """See RingSource. All records are read as those of the log."""
        return Overwritten(self._last.end_offset) if offset < self._last.end_offset else None

    def epochs(self) -> list[Epoch]:
        """See RingSource."""
        return self.log.epochs(self.name) or [self._last]

    def ends(self) -> tuple[int, int]:
        """See RingSource. Called each second for the lag of groups, so no file is read."""
        return self._last.first_offset, self._last.end_offset

    def seek_time(self, timestamp_ns: int) -> tuple[int, int]:
        """See RingSource."""
        for epoch_info in self.log.epochs(self.name):
            offset = self.log.seek_time(self.name, epoch_info.epoch, timestamp_ns)
            if offset < epoch_info.end_offset:
                return epoch_info.epoch, offset
        return self.epoch, self._last.end_offset

    def close(self) -> None:
        """Nothing is open."""


class EndedRingFile:
    """Records of a ring file without a writer, and of the log: `last` is the last epoch, of both."""

    def __init__(self, path: Path, last: Epoch, log: ReadableLog | None) -> None:
        self._path, self._last, self._log = path, last, log

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """See ReadableLog."""

        def copied(reader: Reader) -> list[Range]:
            with suppress(OffsetGone):  # the cursor is at the nearest offset
                reader.seek(offset)
            return [replace(part, view=memoryview(bytes(part.view))) for part in reader.ranges(limit_bytes)]

        in_file: list[Range] = self._in_file(epoch, copied, list[Range]())
        if self._log is None or (in_file and in_file[0].offset == offset):
            return in_file
        logged = self._log.read(ring_name, epoch, offset, limit_bytes)
        return logged if logged and (not in_file or logged[0].offset < in_file[0].offset) else in_file

    def epochs(self, ring_name: str) -> list[Epoch]:
        """See ReadableLog."""
        epochs, last = self._logged(ring_name), self._last
        if epochs and epochs[-1].epoch == last.epoch:
            last = last._replace(first_offset=min(epochs.pop().first_offset, last.first_offset))
        return [*epochs, last]

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        """See ReadableLog."""
        if self._log is not None and epoch != self._last.epoch:
            return self._log.seek_time(ring_name, epoch, timestamp_ns)

        def sought(reader: Reader) -> int:
            reader.seek_time(timestamp_ns)
            return min((part.offset for part in reader.ranges(1)), default=self._last.end_offset)

        in_file = self._in_file(epoch, sought, self._last.end_offset)
        for logged in self._logged(ring_name):
            if logged.epoch == epoch and self._log is not None:
                in_log = self._log.seek_time(ring_name, epoch, timestamp_ns)
                if in_log < logged.end_offset:
                    return min(in_file, in_log)
        return in_file

    def _logged(self, ring_name: str) -> list[Epoch]:
        return self._log.epochs(ring_name) if self._log is not None else []

    def _in_file(self, epoch: int, read: Callable[[Reader], T], otherwise: T) -> T:
        """Result of `read` with a cursor over the ring file; `otherwise`: it is gone, or has another epoch.

        Raises OSError, RingError.
        """
        with suppress(FileNotFoundError, NotARing), Ring.attach(self._path) as ring:
            if ring.epoch == epoch == self._last.epoch:
                with ring.reader(with_slot=False) as reader:
                    return read(reader)
        return otherwise
