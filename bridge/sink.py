"""Sink interface: the part to implement for a new destination.

There are two kinds. A UnitSink stores drained files, each under a name that is a function of its content, so
a repeated put stores nothing twice. A RecordSink passes records on, one by one, with their identity.

A sink is one file in bridge/sinks that imports its client library when it is opened, and a line in
open_sink(). docs/how-to/write-a-sink.md has an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

from bridge.errors import BadName, SinkUnavailable
from bridge.installation import Holder
from bridge.records import Records, Rejected
from bridge.unit import Unit

__all__ = ["Leasing", "RecordSink", "Sink", "UnitSink", "open_sink", "open_unit_sink", "shown"]

FORMATS: Mapping[str, str] = {  # values of the option `format`
    "brim": "Drained files (default).",
    "parquet": "Parquet files; needs the extra `spark`.",
}
OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "memory")


class UnitSink(Protocol):
    """Store for drained files that keeps a name once.

    Guarantees of the caller
      * A name determines the content.  A unit from which put() did not return is put again, maybe by another
        process, maybe days later, with the same name and the same bytes.  The bytes of compressed files and
        Parquet files may differ after a library has changed: unit.is_held_by() compares a stored file.
      * The caller reuses the memory of a unit as soon as put() has returned.

    Duties of the sink
      * put() may run on several threads at once, for different units, and may end in any order.
      * put() returns only when the unit is safe in the store: after that, ring and log may forget it.
      * A unit is visible whole or not at all, to every reader, and only once, for any number of puts.
      * put() ends: every wait in it has a limit, of about half a minute.
      * Errors are SinkUnavailable (the drain waits and tries again, for days) or SinkBlocked (it stops until
        an operator has acted), with the remedy as hint.
    """

    @property
    def url(self) -> str:
        """Destination for people and for the checkpoint, without secrets."""

    def begin(self, edge: str) -> None:
        """Begin a drain of this edge: check that a put() would probably work now.

        If possible, the sink excludes other drains of this edge until close(): two of them would give the
        same numbers to different units. Raises SinkUnavailable with the remedy, and is then called again.
        """

    def put(self, unit: Unit) -> None:
        """Store the unit; return when it is safe. Raises SinkUnavailable, SinkBlocked."""

    def names(self, prefix: str) -> Iterator[str]:
        """Stored names that begin with `prefix`, in any order.

        Called for all names of an edge, "edge=.../", when a checkpoint is new, to continue behind them.
        Called for the names of one number, "edge=.../dt=.../0000000000000007-", at each start; and after a
        crash, to find out whether a unit that can no longer be read has arrived. Raises SinkUnavailable.
        """

    def close(self) -> None:
        """Close connections and descriptors. May be called twice."""


@runtime_checkable
class Leasing(Protocol):
    """Sink that excludes other drains of an edge."""

    def hold_as(self, holder: Holder) -> None:
        """Take leases for this holder from now on; called before begin()."""


@runtime_checkable
class RecordSink(Protocol):
    """Destination for single records: a broker, a queue.

    It cannot list the records that it has. So a record may arrive twice after a crash or an outage: at most
    up to the resend limit (bridge/resend.py). The identity of a record (edge, epoch, partition, offset) is
    sent with it, in headers or properties, for readers that must not count twice.

    Guarantees of the caller
      * One thread calls begin(), send() and close().
      * Records of a partition are sent in the order of their offsets.  With a backlog, live records are sent
        in parallel (settings.py, live_share), each of the two in order.  After a failure, all records behind
        the last contiguous acknowledgement are sent again in that order, once every send() is settled.
      * The memory of the records belongs to the sink until the Future is settled.

    Duties of the sink
      * send() takes the records and returns at once.  Several may be outstanding, and may be acknowledged in
        any order, from any thread.
      * The Future gets a result only when all of the records are safe at the destination, or rejected for
        good.  Each rejected record is named, with a reason for people.
      * The Future is settled within about half a minute, with a result or an error, and at the latest by
        close().  It fails with SinkUnavailable (tried again, for days) or SinkBlocked; hint: the remedy.
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

    def send(self, records: Records) -> Future[Sequence[Rejected]]:
        """Send records. Raises SinkUnavailable: none of them was taken, send them again."""

    def close(self) -> None:
        """Close connections, threads and descriptors. May be called twice."""


Sink: TypeAlias = UnitSink | RecordSink


def open_sink(url: str, options: Mapping[str, str] | None = None) -> Sink:
    """The sink for `url`; nothing is contacted yet.

    file:///srv/lake              a local directory (bridge/sinks/directory.py)
    s3://bucket/prefix            and gs://, az://, abfss://, memory:///: object stores
                                  (bridge/sinks/objects.py); `options` are those of obstore, such as region
                                  or endpoint.  For both: format = "parquet" (bridge/sinks/parquet.py)
    kafka://host:9092/topic       Kafka (bridge/sinks/kafka.py); `options` are those of librdkafka
    mqtt://host:1883              and mqtts://: another MQTT broker (bridge/sinks/mqtt.py, with its `options`)

    Raises BadName: no sink has this scheme, or the options are wrong; SinkUnavailable: its library is
    missing.  Neither names user or password.
    """
    try:
        return _opened(url, options)
    except (BadName, SinkUnavailable) as error:
        who = urlsplit(url).netloc.rpartition("@")[0]
        if not who:
            raise
        text, hint = (said.replace(f"{who}@", "") for said in (str(error), error.hint))
        raise type(error)(text, hint=hint) from None


def shown(url: str) -> str:
    """The URL without its secrets."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _opened(url: str, options: Mapping[str, str] | None) -> Sink:
    scheme = urlsplit(url).scheme
    if scheme in {"file", *OBJECT_STORES}:
        return _open_files(url, scheme, dict(options or {}))
    if scheme == "kafka":
        from bridge.sinks.kafka import KafkaSink

        return KafkaSink.of_url(url, options or {})
    if scheme in {"mqtt", "mqtts"}:
        from bridge.sinks.mqtt import MqttSink

        return MqttSink.of_url(url, options or {})
    schemes = ("file", *OBJECT_STORES, "kafka", "mqtt", "mqtts")
    known = ", ".join(f"{known}://" for known in schemes)
    raise BadName(f"no sink for {url!r}", hint=f"a sink's URL begins with one of {known}")


def _open_files(url: str, scheme: str, options: dict[str, str]) -> UnitSink:
    form = options.pop("format", "brim")
    if form not in FORMATS:
        raise BadName(f"{url}: format is {form!r}", hint='write "brim" or "parquet"')
    store: UnitSink
    if scheme == "file":
        from bridge.sinks.directory import DirectorySink

        store = DirectorySink.of_url(url, options)
    else:
        from bridge.sinks.objects import ObjectSink

        store = ObjectSink.of_url(url, options)
    if form == "brim":
        return store
    from bridge.sinks.parquet import ParquetSink

    return ParquetSink(store)


def open_unit_sink(url: str, options: Mapping[str, str] | None = None) -> UnitSink:
    """As open_sink(), for a store of files only. Raises BadName for others, too."""
    sink = open_sink(url, options)
    if isinstance(sink, RecordSink):
        sink.close()
        raise BadName(f"{url!r} takes records, not files", hint="name a directory or an object store")
    return sink
