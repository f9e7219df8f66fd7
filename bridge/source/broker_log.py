"""Logs of a broker in another process, as the bridge reads them. Never writes, and takes no lock of a log."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from persistence.files import OsFiles
from persistence.read.directories import logs_in, may_have
from persistence.read.log_reader import Epoch, LogReader
from persistence.read.merged_reader import MergedReader, foreign_rings
from ringbuf import Range


class BrokerLog:
    """Logs of a broker in another process. Each call looks up the range that is durable now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._readers: dict[Path, LogReader] = {}
        self._foreign: dict[Path, set[str]] = {}
        self._merged = MergedReader(self._looked)

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """See RecordLog."""
        return self._merged.read(ring_name, epoch, offset, limit_bytes)

    def epochs(self, ring_name: str) -> list[Epoch]:
        """See RecordLog."""
        return self._merged.epochs(ring_name)

    def _looked(self, ring_name: str) -> list[LogReader]:
        ranges = []
        for place in logs_in(self._directory):
            expected = may_have(self._directory, place, ring_name)
            if not expected and ring_name not in self._foreign.get(place, (ring_name,)):
                continue
            reader = self._readers.setdefault(place, LogReader(OsFiles(), str(place)))
            with suppress(FileNotFoundError):  # the broker has not created it yet
                reader.refresh()
                if place not in self._foreign:
                    self._foreign[place] = foreign_rings(self._directory, place, reader)
                if expected or ring_name in self._foreign[place]:
                    ranges.append(reader)
        return ranges
