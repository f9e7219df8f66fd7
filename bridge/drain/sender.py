"""Delivery to both kinds of sink: a file is built and put, or records are filtered and sent one by one.

A file here is one drained file, or one batch of records for a record sink. Owns the threads on which put()
runs, and the form of a batch for its sink. Never decides what is sent or when: after a failure drain.py sends
the file again, and retries.py has the pauses.

Files are built, compressed and put by as many threads as there may be files in flight. Checksums, zstd and
writing release the GIL, so the next file is read meanwhile. A file is built as soon as its intent is decided,
while the intent is written to disk. With one file at a time there is no extra thread: the bridge's own does
the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bridge.drain.settings import BridgeSettings
from bridge.drain.transform import Pipeline, load
from bridge.errors import BadName, SinkError
from bridge.format.file_builder import DrainedFile, build, compressed
from bridge.format.record_batch import RecordBatch
from bridge.format.sink_batch import Rejected, SinkBatch, unchanged
from bridge.format.write_intent import WriteIntent
from bridge.format.zstd import check_available
from bridge.sinks.interface import Decoding, FileSink, RecordSink, Sink
from bridge.sinks.merging import merging_store

T = TypeVar("T")


def check(settings: BridgeSettings, sink: Sink) -> None:
    """Check that the sink supports these settings. Raises BadName, BadTransform."""
    if settings.chooses_topics and not isinstance(sink, RecordSink):
        raise BadName(
            f"{sink.url} takes files, which hold whole streams: no topics, remap or transform",
            hint="give these topics a stream of their own, and name it in streams",
        )
    if settings.transform:
        load(settings.transform)
    if settings.compress == "zstd":
        check_available()
    if settings.merge_after_s and merging_store(sink) is None:
        raise BadName(f"{sink.url} has no files to merge", hint="leave merge_after_s out")


def schema_of(sink: Sink) -> tuple[str, str]:
    """Id and text of the payload schema for new files; both are empty without a schema."""
    return sink.schema if isinstance(sink, Decoding) else ("", "")


@dataclass(slots=True)
class Shipment:
    """One file in flight: its records, and the form that was made for the sink."""

    intent: WriteIntent
    batch: RecordBatch
    file: Future[DrainedFile] | None = None  # its file, built or being built
    records: SinkBatch | None = None
    rejected: tuple[Rejected, ...] = ()  # by a plug-in, before sending
    length: int = 0  # bytes that went to the sink
    rescued: int = 0  # records with a value that does not fit the payload schema


class SinkDelivery(Protocol):
    """One of the two kinds of delivery."""

    uses_intents: bool  # True if a file is written down before it is sent: its name must stay the same
    schema: tuple[str, str]  # id and text of the payload schema of new files; empty: none

    def prepare(self, shipment: Shipment) -> None:
        """Do the work that is possible before the file may be sent."""

    def send(self, shipment: Shipment) -> Future[Sequence[Rejected]]:
        """Send the file. The Future fails with SinkError; the call may raise it too."""

    def close(self) -> None:
        """Wait until no file is in flight."""


class _InlineExecutor(Executor):
    """Executor that runs each call at once, on the calling thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except SinkError as error:
            future.set_exception(error)
        return future


class FileDelivery:
    """Delivery to a store of files."""

    uses_intents = True

    def __init__(self, settings: BridgeSettings, sink: FileSink) -> None:
        self._edge, self._sink = settings.edge_id, sink
        self.schema = schema_of(sink)
        name = f"brim-put-{settings.name}"
        self._executor: Executor = (
            ThreadPoolExecutor(settings.window, name) if settings.window > 1 else _InlineExecutor()
        )

    def prepare(self, shipment: Shipment) -> None:
        """See SinkDelivery."""
        shipment.file = self._executor.submit(self._built, shipment.intent, shipment.batch)

    def send(self, shipment: Shipment) -> Future[Sequence[Rejected]]:
        """See SinkDelivery."""
        if shipment.file is None:
            self.prepare(shipment)
        assert shipment.file is not None
        return self._executor.submit(self._put, shipment, shipment.file)

    def _built(self, intent: WriteIntent, batch: RecordBatch) -> DrainedFile:
        file = build(self._edge, intent, batch)
        return compressed(file) if intent.compressed else file

    def _put(self, shipment: Shipment, built: Future[DrainedFile]) -> Sequence[Rejected]:
        file = built.result()  # begun before: threads take tasks in their order
        shipment.length = file.length
        shipment.rescued = self._sink.put(file) or 0
        return ()

    def close(self) -> None:
        """See SinkDelivery."""
        self._executor.shutdown()


class RecordDelivery:
    """Delivery to a sink that takes records."""

    uses_intents = False
    schema = ("", "")

    def __init__(self, settings: BridgeSettings, sink: RecordSink) -> None:
        self._edge, self._sink = settings.edge_id, sink
        self._pipeline = Pipeline(settings)

    def prepare(self, shipment: Shipment) -> None:
        """See SinkDelivery."""

    def send(self, shipment: Shipment) -> Future[Sequence[Rejected]]:
        """See SinkDelivery."""
        if shipment.records is None:
            shipment.records, shipment.rejected = self._batch_for_sink(shipment)
        shipment.length = shipment.records.length
        if shipment.records.count == 0:
            nothing: Future[Sequence[Rejected]] = Future()
            nothing.set_result(())
            return nothing
        return self._sink.send(shipment.records)

    def _batch_for_sink(self, shipment: Shipment) -> tuple[SinkBatch, tuple[Rejected, ...]]:
        intent = shipment.intent
        batches, rejected = self._pipeline.run(shipment.batch)
        return (
            SinkBatch(
                self._edge,
                intent.stream,
                intent.partition,
                intent.epoch,
                intent.first_offset,
                intent.last_offset,
                shipment.batch.length,
                batches,
                self._pipeline.topic_of or unchanged,
                intent.lost,
            ),
            rejected,
        )

    def close(self) -> None:
        """See SinkDelivery."""
