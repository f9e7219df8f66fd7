"""A log behind the rings of a Bench: real files, written when a test says so, read by the broker's thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from persistence import Log, LoggedRing, LogWriter
from tests.support.mqtt_bench import Bench, OwnPartition
from tests.support.waiting import PATIENCE_S


class ColdLog:
    """The log, and what has come back from it."""

    def __init__(self, bench: Bench, log: Log, partitions: list[OwnPartition]) -> None:
        self.log = log
        self._bench = bench
        self._writer = LogWriter(log)
        self._arrived: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        for partition in partitions:
            self._writer.add(LoggedRing(partition.ring, "interval"))
        bench.broker.backfill.read_from(log.reader.read_at)
        self._broker_thread = threading.get_ident()
        bench.broker.call = self._call

    def _call(self, function: Callable[[], object]) -> None:
        """Keep calls of the log's thread until `settle`; the broker's own run as without a log."""
        own = threading.get_ident() == self._broker_thread
        (self._bench.calls.append if own else self._arrived.put)(function)

    def write(self) -> None:
        """Bring into the log what the rings hold, which gives their room back."""
        assert self._writer.finish()
        self.log.run_maintenance()  # Whose retention it is.

    def settle(self) -> None:
        """Until no session waits for the log."""
        self._bench.settle()
        while self._bench.broker.backfill.reading:
            self._arrived.get(timeout=PATIENCE_S)()
            self._bench.settle()

    def close(self) -> None:
        """After the broker has stopped reading."""
        self._bench.broker.backfill.stop()
        self._writer.close()
        self.log.close()

    @classmethod
    @contextmanager
    def behind(
        cls, bench: Bench, directory: Path, *partitions: OwnPartition, **options: int
    ) -> Iterator[ColdLog]:
        """A log in `directory` of these partitions, or of the bench's own; `options` of Log."""
        log = Log(directory, **options)  # type: ignore[arg-type]
        log.recover()
        cold = cls(bench, log, list(partitions) or [bench.partition])
        try:
            yield cold
        finally:
            cold.close()
