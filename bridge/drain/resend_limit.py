"""Resend limit: bounds the records that arrive twice at a sink that has no names for its records.

Such a sink, for example Kafka or MQTT, cannot list the records that it has. After a kill -9 of the bridge all
records behind the saved checkpoint are sent again. This module owns their number and their bytes: files in
flight, and acknowledged files that the saved checkpoint does not have yet.

Invariant: a file is begun only if both sums, with that file, are at most `records_max` and `bytes_max`. A
record larger than `bytes_max` is sent without others. So the bound holds at each instruction, in any state of
sink and disk.

A sink gives up records that it could not send within half a minute. On a narrow line these would be the same
records each time. So a failure divides the records and bytes that may be in flight by FAILED_DIVISOR, down to
one record, and each file that took less than FAST_S adds half of its own size, up to the limits.

Never sends and never saves; drain.py saves when is_due() is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from bridge.drain.settings import BridgeSettings
from bridge.format.record_batch import RecordBatch
from bridge.format.write_intent import WriteIntent
from bridge.source.partition_source import cut

FILE_MIN_BYTES = 4 << 10  # the minimum of file_bytes in edge/config/schema.py
FAILED_DIVISOR, FAST_S = 4, 4.0
SHARE_MIN = 2**-20


class ResendFile(Protocol):
    """A file in flight, as in_flight.InFlightFile has it."""

    intent: WriteIntent
    took_s: float

    @property
    def length(self) -> int:
        """Bytes of its records; 0: the records were not read again yet."""


class ResendLimit:
    """Records and bytes that would be sent again after a kill. Belongs to one thread."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max, self._bytes_max = records_max, bytes_max
        self._records = self._bytes = 0  # acknowledged, and not saved
        self._share = 1.0  # of both limits: may be in flight now

    def part_of(self, batch: RecordBatch, under_way: Iterable[ResendFile]) -> RecordBatch | None:
        """The first part of the batch that may be a file now; None: not even the first record fits."""
        records, length = self._sums(under_way)
        while not self._fits(records + batch.count, length + batch.length):
            if batch.count == 1:
                return None if records else batch
            # Seldom: the batch was read by its bytes.
            batch = cut(batch, batch.first_offset + batch.count // 2 - 1)
        return batch

    def has_room(self, settings: BridgeSettings, under_way: Iterable[ResendFile]) -> bool:
        """True if a whole file fits."""
        records, length = self._sums(under_way)
        return not records or self._fits(records + settings.file_records, length + settings.file_bytes)

    def _fits(self, records: int, length: int) -> bool:
        return records <= self._share * self._records_max and length <= self._share * self._bytes_max

    def acknowledged(self, file: ResendFile) -> None:
        """Add a file that the sink has acknowledged, as it has all files before."""
        self._records += _count(file)
        self._bytes += file.length
        if file.took_s < FAST_S:
            share = max(_count(file) / self._records_max, file.length / self._bytes_max)
            self._share = min(self._share + share / 2, 1.0)

    def failed(self) -> None:
        """Record that the sink has given up files in flight."""
        self._share = max(self._share / FAILED_DIVISOR, SHARE_MIN)

    def saved(self) -> None:
        """Reset the sums: the checkpoint on disk has all acknowledged files."""
        self._records = self._bytes = 0

    def is_due(self) -> bool:
        """True if a save would free half of the limit. The other half is in flight meanwhile."""
        return 2 * self._records >= self._records_max or 2 * self._bytes >= self._bytes_max

    def _sums(self, under_way: Iterable[ResendFile]) -> tuple[int, int]:
        records, length = self._records, self._bytes
        for file in under_way:
            records += _count(file)
            length += file.length
        return records, length


def bounded(settings: BridgeSettings, files: int) -> BridgeSettings:
    """The settings with files so small that `files` of them fit into the resend limit."""
    return replace(
        settings,
        file_records=min(settings.file_records, max(settings.resend_max_records // files, 1)),
        file_bytes=min(settings.file_bytes, max(settings.resend_max_bytes // files, FILE_MIN_BYTES)),
    )


def _count(file: ResendFile) -> int:
    return file.intent.last_offset - file.intent.first_offset + 1
