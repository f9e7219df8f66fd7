"""Ended rings: partitions that the configuration no longer has, with records in a ring file or in the log.

Owns their sources. No record follows in such a ring. Groups and readers get the records that they have not
seen, as bridges and MQTT sessions do, and never wait for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.consumers.ring_source import Overwritten, ReadableLog, RingRecords, RingSource

if TYPE_CHECKING:
    from persistence.read.log_reader import Epoch


class EndedRing(RingSource):
    """Ring file without a writer. Closing the source closes the ring."""

    is_ended = True

    def close(self) -> None:
        """See RingSource."""
        super().close()
        self.ring.close()


class LogOnlyRing(RingSource):
    """Ring without a file: only the log has its records."""

    is_ended = True

    log: ReadableLog

    def __init__(self, name: str, log: ReadableLog, epoch: int, end_offset: int) -> None:
        self.name, self.log, self.epoch, self._end_offset = name, log, epoch, end_offset
        self._gap = ((0, 0), 0)

    def read(
        self, offset: int, limit_bytes: int, count: int | None = None
    ) -> RingRecords | Overwritten | None:
        """See RingSource. The log has all that there is."""
        return Overwritten(self._end_offset) if offset < self._end_offset else None

    def epochs(self) -> list[Epoch]:
        """See RingSource."""
        from persistence.read.log_reader import Epoch  # imports the log

        return self.log.epochs(self.name) or [Epoch(self.epoch, self._end_offset, self._end_offset)]

    def ends(self) -> tuple[int, int]:
        """See RingSource. Called each second for the lag of groups, so the log is not read."""
        return self._end_offset, self._end_offset

    def seek_time(self, timestamp_ns: int) -> tuple[int, int]:
        """See RingSource."""
        for epoch_info in self.log.epochs(self.name):
            offset = self.log.seek_time(self.name, epoch_info.epoch, timestamp_ns)
            if offset < epoch_info.end_offset:
                return epoch_info.epoch, offset
        return self.epoch, self._end_offset

    def close(self) -> None:
        """Nothing is open."""
