"""How records get to each kind of sink: built into a file and put, or filtered and sent one by one.

Owns the threads that put() runs on, and what was made of a batch for its sink.  Never decides what is sent or
when, never retries.

Files are built, compressed and put by as many threads as there may be units under way: checksums, zstd and
writing do without the GIL, so that reading the next unit goes on meanwhile.  A file is built as soon as it is
decided on, while the intent to put it is being written down.  With one unit at a time there is no thread: the
bridge's own does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bridge.errors import BadName, SinkError
from bridge.records import Records, Rejected, unchanged
from bridge.settings import BridgeSettings
from bridge.sink import RecordSink, Sink, UnitSink
from bridge.transform import Pipeline, load
from bridge.unit import Batch, Intent, Unit, build, compressed
from persistence.archive.zstd import check_available
from persistence.errors import ArchiveUnavailable

__all__ = ["Parcel", "RecordShipping", "Shipping", "UnitShipping", "check"]

T = TypeVar("T")


def check(settings: BridgeSettings, sink: Sink) -> None:
    """Whether this can be shipped to that sink as the settings say.  Raises BadName, BadTransform."""
    if settings.chooses_topics and not isinstance(sink, RecordSink):
        raise BadName(
            f"{sink.url} takes files, which hold whole streams: no topics, remap or transform",
            hint="give these topics a stream of their own, and name it in streams",
        )
    if settings.transform:
        load(settings.transform)
    if settings.compress == "zstd":
        try:
            check_available()
        except ArchiveUnavailable as error:
            raise BadName('compress = "zstd" wants a library', hint=str(error)) from error


@dataclass(slots=True)
class Parcel:
    """One unit on its way: what is sent, and what was made of it."""

    intent: Intent
    batch: Batch
    unit: Future[Unit] | None = None  # what is, or has been, built
    records: Records | None = None
    rejected: tuple[Rejected, ...] = ()  # before it was sent, by a plug-in
    length: int = 0  # bytes that went to the sink


class Shipping(Protocol):
    """One of the two ways."""

    begins: bool  # whether a unit is written down before it is sent: it has a name that must stay the same

    def prepare(self, parcel: Parcel) -> None:
        """It will be sent, but may not yet be: do what can be done before."""

    def ship(self, parcel: Parcel) -> Future[Sequence[Rejected]]:
        """Send it.  The Future fails with SinkError; so may this."""

    def close(self) -> None:
        """What is under way has ended."""


class _Here(Executor):
    """Runs what it is given at once, on the thread that asks."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except SinkError as error:
            future.set_exception(error)
        return future


class UnitShipping:
    """To a store of files."""

    begins = True

    def __init__(self, settings: BridgeSettings, sink: UnitSink) -> None:
        self._edge, self._sink = settings.edge_id, sink
        name = f"brim-put-{settings.name}"
        self._executor: Executor = (
            ThreadPoolExecutor(settings.window, name) if settings.window > 1 else _Here()
        )

    def prepare(self, parcel: Parcel) -> None:
        """See Shipping."""
        parcel.unit = self._executor.submit(self._built, parcel.intent, parcel.batch)

    def ship(self, parcel: Parcel) -> Future[Sequence[Rejected]]:
        """See Shipping."""
        if parcel.unit is None:
            self.prepare(parcel)
        assert parcel.unit is not None
        return self._executor.submit(self._put, parcel, parcel.unit)

    def _built(self, intent: Intent, batch: Batch) -> Unit:
        unit = build(self._edge, intent, batch)
        return compressed(unit) if intent.compressed else unit

    def _put(self, parcel: Parcel, built: Future[Unit]) -> Sequence[Rejected]:
        unit = built.result()  # it was begun before: threads take in turn what they are given
        parcel.length = unit.length
        self._sink.put(unit)
        return ()

    def close(self) -> None:
        """See Shipping."""
        self._executor.shutdown()


class RecordShipping:
    """To a sink that takes records."""

    begins = False

    def __init__(self, settings: BridgeSettings, sink: RecordSink) -> None:
        self._edge, self._sink = settings.edge_id, sink
        self._pipeline = Pipeline(settings)

    def prepare(self, parcel: Parcel) -> None:
        """See Shipping."""

    def ship(self, parcel: Parcel) -> Future[Sequence[Rejected]]:
        """See Shipping."""
        if parcel.records is None:
            parcel.records, parcel.rejected = self._made(parcel)
        parcel.length = parcel.records.length
        if parcel.records.count == 0:
            nothing: Future[Sequence[Rejected]] = Future()
            nothing.set_result(())
            return nothing
        return self._sink.send(parcel.records)

    def _made(self, parcel: Parcel) -> tuple[Records, tuple[Rejected, ...]]:
        intent = parcel.intent
        batches, rejected = self._pipeline.run(parcel.batch)
        return (
            Records(
                self._edge,
                intent.stream,
                intent.partition,
                intent.epoch,
                intent.first_offset,
                intent.last_offset,
                parcel.batch.length,
                batches,
                self._pipeline.topic_of or unchanged,
                intent.lost,
            ),
            rejected,
        )

    def close(self) -> None:
        """See Shipping."""
