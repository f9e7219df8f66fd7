"""In-flight window of the bridge: files that were begun and are not all acknowledged, in the order of their
intents.

A file here is one drained file, or one batch of records for a record sink. Owns that order and the fate of
each file: acknowledged in any order, removed only from the front, sent again after a failure. Never decides
what is sent, and saves nothing.

After a failure only the first failed file is sent again. The others follow when the sink has taken it, so a
sink that is away gets one request at a time. A sink that keeps an order of its own gets all files again, from
the first that it did not acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from bridge.drain.sender import Shipment
from bridge.errors import SinkBlocked, SinkError
from bridge.format.sink_batch import Rejected
from bridge.format.write_intent import WriteIntent
from bridge.source.partition_source import RecordBuffer, RingName


@dataclass(eq=False, slots=True)
class InFlightFile:
    """One file in flight."""

    intent: WriteIntent
    buffer: RecordBuffer | None = None  # memory of its records
    backlog: bool = False  # newer records of the partition are drained already
    shipment: Shipment | None = None  # None: its records must be read again, after a crash
    future: Future[Sequence[Rejected]] | None = None  # while the sink has it
    sent_at: float = 0.0
    took_s: float = 0.0
    acknowledged: bool = False
    rejected: tuple[Rejected, ...] = ()

    @property
    def name(self) -> RingName:
        """Name of the partition."""
        return RingName(self.intent.stream, self.intent.partition)

    @property
    def length(self) -> int:
        """Bytes of its records; 0: they must be read again."""
        return self.shipment.batch.length if self.shipment else 0


@dataclass
class InFlightWindow:
    """Files in flight in their order. Belongs to one thread."""

    files: list[InFlightFile] = field(default_factory=list)
    probing: bool = False  # a file failed, and none has succeeded since
    failed: bool = False  # as probing, but also while the first file after a rewind has no answer yet
    rewinding: bool = False  # all files that were not acknowledged are sent again once none is in flight

    def __len__(self) -> int:
        return len(self.files)

    def of(self, name: RingName) -> Iterator[InFlightFile]:
        """The files of one partition."""
        return (file for file in self.files if file.name == name)

    @property
    def outstanding(self) -> int:
        """Number of files that the sink has."""
        return sum(1 for file in self.files if file.future is not None)

    @property
    def restoring(self) -> bool:
        """True if files of a crash remain: the next file may have to declare their ranges."""
        return any(file.shipment is None for file in self.files)

    def to_send(self) -> list[InFlightFile]:
        """Files to send now."""
        waiting = [file for file in self.files if file.future is None and not file.acknowledged]
        if self.rewinding:
            return []
        if self.probing:
            return waiting[:1] if self.outstanding == 0 else []
        return waiting

    def take_answers(self, now: float, acknowledged: Callable[[InFlightFile], object]) -> SinkError | None:
        """Collect finished sends. Return the most serious failure, or None."""
        failure: SinkError | None = None
        for file in self.files:
            future = file.future
            if future is None or not future.done():
                continue
            file.future = None
            try:
                rejected = future.result()
            except SinkError as error:
                if failure is None or isinstance(error, SinkBlocked):
                    failure = error
                continue
            file.acknowledged, file.took_s = True, now - file.sent_at
            file.rejected = tuple(rejected)
            self.probing = self.failed = False
            acknowledged(file)
        self.probing |= failure is not None
        self.failed |= failure is not None
        return failure

    def rewound(self) -> bool:
        """True if the window was emptied to begin again behind the last acknowledged file."""
        if not self.rewinding or self.outstanding:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget all files: their records are decided again. The sink has none of them."""
        self.files.clear()
        self.rewinding = self.probing = False

    def finished(self) -> Iterator[InFlightFile]:
        """Remove acknowledged files from the front; the caller completes each before it takes the next."""
        while self.files and self.files[0].acknowledged:
            yield self.files[0]
            del self.files[0]
