"""Synced changes: changes that an operator requests, and the checks that a power cut cannot undo them.

A change may append records, such as one that clears a retained message, and entries of the session journal.
Publishers and clients wait for the logs of both by gates of the engine (ringbuf/c/mqtt/durable). Operators
wait by these checks, for the same logs. At `upstream`, too, the sync of the log counts: retained messages are
restored from it.

Owns nothing. Changes are made on the broker's thread; the checks may run on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from edge.broker.engine_rings import PartitionLike
from edge.config.schema import AckGate
from edge.session_store.journal_writer import SessionJournal
from ringbuf import Ring

T = TypeVar("T")

Ends = list[tuple[Ring, int]]


def with_ends(partitions: Iterable[PartitionLike], change: Callable[[], T]) -> tuple[T, Ends]:
    """Make a change. Returns its result, and the new ends of the synced rings that grew.

    Synced are the rings whose publishers wait for more than the ring.
    """
    synced = [entry for entry in partitions if entry.durability.ack_gate is not AckGate.NONE]
    # from the writer, because the ring's own values are updated once a batch
    before = [partition.writer.end_position for partition in synced]
    result = change()
    rows = zip(synced, before, strict=True)
    ends = [(partition.ring, partition.writer.end_position, begin) for partition, begin in rows]
    return result, [(ring, end) for ring, end, begin in ends if end != begin]


def unsynced(ends: Ends) -> list[str]:
    """Names of the rings whose log lacks records below these ends."""
    return [ring.name for ring, end in ends if ring.extremes().durable_position < end]


class SyncedChanges:
    """Changes of a broker's sessions and retained messages."""

    def __init__(
        self,
        journal: SessionJournal,
        partitions: Callable[[], Iterable[PartitionLike]],
        failure_of: Callable[[str], str] = lambda name: "",
    ) -> None:
        """Create the changes. `failure_of` returns the reason why the log of a ring accepts no records."""
        self._journal = journal
        self._partitions = partitions
        self._failure_of = failure_of

    def make(self, change: Callable[[], T]) -> tuple[T, Callable[[], str]]:
        """Make a change. The second value returns the reason why a power cut may still undo it, or ""."""
        result, ends = with_ends(self._partitions(), change)
        return result, partial(self._lacking, ends, self._journal.confirmation())

    def _lacking(self, ends: Ends, is_journaled: Callable[[], bool]) -> str:
        names, reason = unsynced(ends), ""
        if names:
            reason = next(filter(None, map(self._failure_of, names)), "")
        elif not is_journaled():
            names, reason = ["sessions"], self._journal.ack_failure or self._journal.failure
        return f"{', '.join(names)}: {reason or 'the log is not synced'}" if names else ""
