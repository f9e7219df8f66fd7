"""What a sink is: the one thing to write in order to drain to somewhere else.

There are two kinds.  A UnitSink stores drained files, each under a name that is a function of its content, so
that what is sent twice is there once.  A RecordSink passes records on, one by one, with their identity.

A sink is one file in bridge/sinks that imports its client library when it is opened, and a line in
open_sink().  docs/how-to/write-a-sink.md walks through one.
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

OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "memory")


class UnitSink(Protocol):
    """Where drained files go: a store that keeps a name once.

    What it may assume
      * A name decides the content.  A unit that put() did not return from comes again, perhaps from another
        process, perhaps after days, with the same name and the same bytes; compressed ones and Parquet with
        others, if a library has changed: unit.is_held_by() says whether what is there is the same.
      * The memory of a unit is the caller's again as soon as put() has returned.

    What it owes in return
      * put() may run on several threads at once, for different units, and they may end in any order.
      * put() returns when the unit is safe there, and no sooner: then the ring and the log may forget it.
      * A unit is there whole or not at all, for everybody who looks, and only once however often it is put.
      * put() ends: every wait in it has a limit, of about half a minute.
      * Errors are SinkUnavailable (the drain waits and tries again, for days) or SinkBlocked (it stops until
        somebody has acted), with the remedy as hint.
    """

    @property
    def url(self) -> str:
        """Where, for people and for the checkpoint; without secrets."""

    def begin(self, edge: str) -> None:
        """A drain of this edge begins: a put() now would probably work.

        A sink that can keeps other drains of this edge out until close(): two of them would give the same
        numbers to different units.  Raises SinkUnavailable with the remedy, and is then asked again.
        """

    def put(self, unit: Unit) -> None:
        """The unit is safe there.  Raises SinkUnavailable, SinkBlocked."""

    def names(self, prefix: str) -> Iterator[str]:
        """The names that are there and begin with `prefix`, in any order.

        Asked for all of an edge, "edge=.../", when a checkpoint is new, to go on behind what is there; for
        those of one number, "edge=.../dt=.../0000000000000007-", at each start, and after a crash, to learn
        whether a unit that can be read no more has arrived.  Raises SinkUnavailable.
        """

    def close(self) -> None:
        """Connections and descriptors are gone.  May be called twice."""


@runtime_checkable
class Leasing(Protocol):
    """A sink that keeps other drains of an edge out."""

    def hold_as(self, holder: Holder) -> None:
        """Take leases for this holder from now on; before begin()."""


@runtime_checkable
class RecordSink(Protocol):
    """Where records go one by one: a broker, a queue.

    It cannot be asked what it has, so a record may come there twice after a crash or an outage: at most one
    resend window (bridge/resend.py).  Its identity (edge, epoch, partition, offset) goes with it, in headers
    or properties, for readers that must not count twice.

    What it may assume
      * One thread calls begin(), send() and close().
      * Records of a partition come in the order of their offsets, but for a backlog: what comes in meanwhile
        goes beside it (settings.py, live_share), each of the two in order.  After a failure all that was not
        acknowledged without a gap comes again, in that order, once every send() has been settled.
      * The memory of the records is its own until the Future is settled.

    What it owes in return
      * send() takes the records and returns at once; several may be outstanding, and may be acknowledged in
        any order, from any thread.
      * The Future gets a result when all of the records are safe there, and no sooner, or rejected for good;
        each rejected one is named, and its reason is for people.
      * The Future is settled, for better or worse, within about half a minute, and by close() at the latest.
        It fails with SinkUnavailable (tried again, for days) or SinkBlocked, with the remedy as hint.
      * Records of one partition keep their order there, as far as the sink has one.
    """

    @property
    def url(self) -> str:
        """Where, for people and for the checkpoint; without secrets."""

    def begin(self, edge: str) -> None:
        """A drain of this edge begins, or goes on after a failure: a send() now would probably work.

        Raises SinkUnavailable with the remedy, and is then asked again; SinkBlocked.
        """

    def send(self, records: Records) -> Future[Sequence[Rejected]]:
        """Send them.  Raises SinkUnavailable: none of them has been taken, send them again."""

    def close(self) -> None:
        """Connections, threads and descriptors are gone.  May be called twice."""


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
    """The URL without what is secret in it."""
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
    if form not in {"brim", "parquet"}:
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
    """As open_sink(), where only a store of files will do.  Raises BadName for others, too."""
    sink = open_sink(url, options)
    if isinstance(sink, RecordSink):
        sink.close()
        raise BadName(f"{url!r} takes records, not files", hint="name a directory or an object store")
    return sink
