"""What a sink is: the one thing to write in order to drain to somewhere else.

A sink is one file in bridge/sinks that imports its client library when it is opened, and a line in
open_sink().  README, "Write a sink", walks through one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from bridge.errors import BadName
from bridge.unit import Unit

__all__ = ["Sink", "open_sink"]

OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "memory")


class Sink(Protocol):
    """Where drained files go.

    What a sink may assume
      * One thread calls it; the next call comes after the one before has returned or raised.
      * A name decides the content.  A unit that put() did not return from comes again, perhaps from another
        process, perhaps after days, with the same name and the same bytes.
      * Units of a partition come in the order of their offsets, all units in that of their drain_seq.
      * The memory of a unit is the caller's again as soon as put() has returned.

    What it owes in return
      * put() returns when the unit is safe there, and no sooner: then the ring and the log may forget it.
      * A unit is there whole or not at all, for everybody who looks, and only once however often it is put.
      * put() ends: every wait in it has a limit, of about half a minute.
      * Errors are SinkUnavailable (the drain waits and tries again, for days) or SinkConflict (it stops).
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
        """The unit is safe there.  Raises SinkUnavailable, SinkConflict."""

    def names(self, prefix: str) -> Iterator[str]:
        """The names that are there below `prefix`, "edge=.../" or "edge=.../dt=.../", in any order.

        Asked for when a checkpoint is new, to go on behind what is there, and after a crash, to learn whether
        a unit that can be read no more has arrived.  Raises SinkUnavailable.
        """

    def close(self) -> None:
        """Connections and descriptors are gone.  May be called twice."""


def open_sink(url: str, options: Mapping[str, str] | None = None) -> Sink:
    """The sink for `url`; nothing is contacted yet.

    file:///srv/lake              a local directory (bridge/sinks/directory.py)
    s3://bucket/prefix            and gs://, az://, abfss://, memory:///: object stores
                                  (bridge/sinks/objects.py); `options` are those of obstore, such as region
                                  or endpoint

    Raises BadName: no sink has this scheme, or the options are wrong; SinkUnavailable: its library is
    missing.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        from bridge.sinks.directory import DirectorySink

        return DirectorySink.of_url(url, options or {})
    if scheme in OBJECT_STORES:
        from bridge.sinks.objects import ObjectSink

        return ObjectSink.of_url(url, options or {})
    known = ", ".join(f"{known}://" for known in ("file", *OBJECT_STORES))
    raise BadName(f"no sink for {url!r}", hint=f"a sink's URL begins with one of {known}")
