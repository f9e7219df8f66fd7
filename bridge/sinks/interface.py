"""Sink interface: the part to implement for a new destination.

There are two kinds. A FileSink stores drained files, each under a name that is a function of its content, so
a repeated put stores nothing twice. A RecordSink passes records on, one by one, with their identity.

A sink is one file in bridge/sinks that imports its client library when it is opened, and a line in
registry.py. docs/how-to/write-a-sink.md has an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

from bridge.format.file_builder import DrainedFile
from bridge.format.installation import Holder
from bridge.format.sink_batch import Rejected, SinkBatch


class Turn(NamedTuple):
    """Turn of a drain as the only one of an edge: random ids of this turn and of the one before it; "": not
    known.
    """

    own: str
    before: str


class FileSink(Protocol):
    """Store for drained files that keeps a name once.

    Guarantees of the caller
      * A name determines the content.  A file from which put() did not return is put again, maybe by another
        process, maybe days later, with the same name and the same bytes.  The bytes of compressed files and
        Parquet files may differ after a library has changed: file.is_held_by() compares a stored file.
      * The caller reuses the memory of a file as soon as put() has returned.

    Duties of the sink
      * put() may run on several threads at once, for different files, and may end in any order.
      * put() returns only when the file is safe in the store: after that, ring and log may forget it.
      * A file is visible whole or not at all, to every reader, and only once, for any number of puts.
      * put() ends: every wait in it has a limit, of about half a minute.
      * Errors are SinkUnavailable (the drain waits and tries again, for days) or SinkBlocked (it stops until
        an operator has acted), with the remedy as hint.
    """

    @property
    def url(self) -> str:
        """Destination for people and for the checkpoint, without secrets."""

    def begin(self, edge: str) -> Turn | None:
        """Begin a drain of this edge, or continue after a failure: check that a put() would probably work.

        If possible, the sink excludes other drains of this edge until close(): two of them would give the
        same numbers to different files. It then returns the turn of this one. If neither that turn nor the
        one before it is known, the drain looks up the numbers of its next files under every day. Raises
        SinkUnavailable with the remedy, and is then called again.
        """

    def put(self, file: DrainedFile) -> int | None:
        """Store the file; return when it is safe. Raises SinkUnavailable, SinkBlocked.

        Returns the number of records with a value that does not fit a payload schema, if the sink has one.
        """

    def names(self, prefix: str) -> Iterator[str]:
        """Stored names that begin with `prefix`, in any order.

        Called for all names of an edge, "edge=.../", when a checkpoint is new, to continue behind them.
        Called for the names of one number, "edge=.../dt=.../0000000000000007-", at the start if the sink is
        no MergingStore; and after a crash, to find out whether a file that can no longer be read has arrived.
        Raises SinkUnavailable.
        """

    def close(self) -> None:
        """Close connections and descriptors. May be called twice."""


@runtime_checkable
class Leasing(Protocol):
    """Sink that excludes other drains of an edge."""

    def hold_as(self, holder: Holder) -> None:
        """Take leases for this holder from now on; called before begin()."""


@runtime_checkable
class Decoding(Protocol):
    """Sink for files that decodes payloads by a payload schema.

    A write intent names the schema of its file, and the checkpoint holds that schema. So a file that is put
    again has the same columns, even if the configuration has changed.
    """

    @property
    def schema(self) -> tuple[str, str]:
        """Id and text of the schema for new files; both are empty without a schema."""

    def remember(self, schemas: Mapping[str, str]) -> None:
        """Add schemas of files in flight: text by id. Raises SinkBlocked: one is damaged."""

    def evolve(self, columns: Mapping[str, str]) -> dict[str, str]:
        """All columns of this drain with their types: `columns` of earlier files, and those of the schema.

        Raises SinkBlocked if readers cannot join the type of a column with its earlier type.
        """


@runtime_checkable
class Omitting(Protocol):
    """Sink that does not pass on each record, or each command that it receives."""

    @property
    def omitted(self) -> dict[str, int]:
        """Numbers of records and commands that were not passed on since the start, by cause."""


class StoredEntry(NamedTuple):
    """A stored file. `modified_s`: time at which it got its name, by the clock of the store."""

    path: str
    length: int
    modified_s: float

    def age_s(self, now_s: float) -> float:
        """Age at `now_s`. A time in the future counts too: after the clock was set back, a file must not wait
        for years.
        """
        return abs(now_s - self.modified_s)


@runtime_checkable
class MergingStore(FileSink, Protocol):
    """Store in which small files can be replaced by merged ones (bridge/drain/merger.py).

    Its methods may run on any thread, in parallel to put(). Each raises SinkUnavailable, also if another
    bridge drains the edge. Paths are relative to the root of the sink.
    """

    def days(self, edge: str) -> list[str]:
        """Days with a directory, such as "2026-01-31"."""

    def entries(self, prefix: str, after: str = "") -> Iterator[StoredEntry]:
        """Stored files below the directory `prefix`, which ends with /, with paths behind `after`, in any
        order.
        """

    def read(self, path: str, last: int | None = None) -> bytes:
        """The content of a file, or its last bytes. Raises DrainedFileError: the disk cannot read it."""

    def probe(self, edge: str) -> float:
        """The present time by the clock of the store, from an object that is written and removed."""

    def publish(self, staged: str, path: str) -> None:
        """Give a staged file its final name, too; nothing if it has that name. Returns when that is safe."""

    def remove(self, paths: Sequence[str]) -> None:
        """Remove the files that exist of these. All are of one edge."""


@runtime_checkable
class RecordSink(Protocol):
    """Destination for single records: a broker, a queue.

    It cannot list the records that it has. So a record may arrive twice after a crash or an outage: at most
    up to the resend limit (bridge/drain/resend_limit.py). The identity of a record (edge, epoch, partition,
    offset) is sent with it, in headers or properties, for readers that must not count twice.

    Guarantees of the caller
      * One thread calls begin(), send() and close().
      * Records of a partition are sent in the order of their offsets.  With a backlog, live records are sent
        in parallel (settings.py, live_share), each of the two in order.  After a failure, all records behind
        the last contiguous acknowledgement are sent again in that order, once every send() has been answered.
      * The memory of the records belongs to the sink until the Future is done.

    Duties of the sink
      * send() takes the records and returns at once.  Several may be outstanding, and may be acknowledged in
        any order, from any thread.
      * The Future gets a result only when all of the records are safe at the destination, or rejected for
        good.  Each rejected record is named, with a reason for people.
      * The Future is done within about half a minute, with a result or an error, and at the latest by
        close().  A record that is alone in flight may take minutes, on a slow line.  It fails with
        SinkUnavailable (tried again, for days) or SinkBlocked; hint: the remedy.
      * Records of one partition keep their order, if the destination has an order.
    """

    @property
    def url(self) -> str:
        """Destination for people and for the checkpoint, without secrets."""

    def begin(self, edge: str) -> None:
        """Begin a drain of this edge, or continue after a failure: check that a send() would probably work
        now.

        Raises SinkUnavailable with the remedy, and is then called again; SinkBlocked.
        """

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        """Send records. Raises SinkUnavailable: none of them was taken, send them again."""

    def close(self) -> None:
        """Close connections, threads and descriptors. May be called twice."""


Sink: TypeAlias = FileSink | RecordSink


def shown(url: str) -> str:
    """The URL without its secrets."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
