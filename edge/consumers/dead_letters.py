"""Dead letters: records without acknowledgement after the last try, published to a separate topic.

Topic: {dead_letter_topic}/{group}/{topic}, like any message, so a [[stream]] may store them, and a group may
consume them. That of a tenant's record begins with the prefix of the tenant ($tenant/NAME/), so only its
clients see it, and its quota of topics counts. Payload, QoS and MQTT 5 properties are the record's; user
properties are added:
    brim-group, brim-ring, brim-epoch, brim-offset    the group, and the place of the record
    brim-tries                                        number of deliveries
    brim-cause                                        cause of the last failed try

A record is done when its dead letter is stored. A record that cannot be published is dropped, and counted:
its topic would be too long, it was a dead letter of the same group before, or a local producer gave it the
name of a tenant's topic.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from msgspec.structs import replace

from edge.auth.tenant_names import prefix_in
from edge.consumers.ack_tracker import Span
from edge.consumers.faults import Faults
from edge.consumers.fetch import RETRY_S
from edge.consumers.group_partition import GroupPartition
from edge.consumers.groups import ConsumerGroup
from edge.consumers.log_read_thread import LogReadThread
from edge.consumers.registry import GroupRegistry
from edge.consumers.ring_source import Overwritten, RingRecords
from edge.logging_setup import pairs
from edge.mqtt.errors import ProtocolError, Version
from edge.mqtt.primitives import Body
from edge.mqtt.properties import NO_PROPERTIES, In, Properties, decode_properties, record_properties
from ringbuf import FLAG_EXPIRY, FLAG_QOS, Batch, Record
from ringbuf.errors import Corrupt

log = logging.getLogger(__name__)

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 256

Fate = Literal["stored", "refused", "full"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to store. `properties` as in a record, `expires` if one of them is an expiry.

    `prefix`: that of a tenant (edge.auth.tenant_names). Messages of clients have none.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    expires: bool = False
    prefix: str = ""

    @property
    def full_name(self) -> str:
        """The topic with the prefix of the tenant."""
        return self.prefix + self.topic


class Outlet(Protocol):
    """Function that stores messages as the broker does."""

    def __call__(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None], /) -> None:
        """Store messages. `done` is called later on the calling thread, with the fate of each message."""


class DeadLetterPublisher:
    """Publisher of the dead letters of all groups."""

    def __init__(
        self,
        registry: GroupRegistry,
        log_reads: LogReadThread,
        outlet: Outlet,
        clock: Callable[[], float],
        counts: Counter[str],
        faults: Faults,
    ) -> None:
        self._registry = registry
        self._log_reads = log_reads
        self._outlet = outlet
        self._clock = clock
        self._counts = counts
        self._faults = faults

    def begin_due(self, now_s: float) -> None:
        """Begin with the records that are dead by now: one run of records of each partition at a time."""
        for group, partition in self._registry.partitions():
            if partition.publishing_dead_letters or partition.retry_s > now_s:
                continue
            dead = partition.tracker.dead()
            if not dead:
                continue
            with self._contained(group, partition):
                self._begin(group, partition, dead[0])

    def _contained(self, group: ConsumerGroup, partition: GroupPartition) -> AbstractContextManager[None]:
        """Limit an exception to this partition, which is tried again after RETRY_S."""

        def again(_: Exception) -> None:
            partition.publishing_dead_letters, partition.retry_s = False, self._clock() + RETRY_S

        return self._faults.contained(f"dead letters of group {group.name}", again)

    def _begin(self, group: ConsumerGroup, partition: GroupPartition, span: Span) -> None:
        entry = self._registry.rings[partition.ring]
        if not self._registry.settings.dead_letter_topic:
            partition.tracker.bury(span.first, span.end)
            return
        partition.publishing_dead_letters = True
        count = min(span.end - span.first, BATCH_RECORDS)
        publish = partial(self._take, group, partition, span)
        if partition.epoch == entry.source.epoch:
            records = entry.source.read(span.first, BATCH_BYTES, count)
            if not isinstance(records, Overwritten):
                publish(records)
                return
        read = partial(entry.source.read_log, partition.epoch, span.first, BATCH_BYTES, count)
        self._log_reads.submit(read, publish)

    def _take(
        self,
        group: ConsumerGroup,
        partition: GroupPartition,
        span: Span,
        records: RingRecords | OSError | None,
    ) -> None:
        with self._contained(group, partition):
            self._publish(group, partition, span, records)

    def _publish(
        self,
        group: ConsumerGroup,
        partition: GroupPartition,
        span: Span,
        records: RingRecords | OSError | None,
    ) -> None:
        group.changes += 1
        if isinstance(records, OSError):
            partition.publishing_dead_letters, partition.retry_s = False, self._clock() + RETRY_S
            return
        first = span.first
        if records is None or records.offset >= span.end:
            partition.publishing_dead_letters = False
            partition.tracker.skip(first, span.end)
            return
        try:
            missing = {
                offset
                for begin, count in partition.tracker.missing(records.offset, min(records.end, span.end))
                for offset in range(begin, begin + count)
            }
            letters = [
                letter
                for record in Batch.of(records.data, records.epoch, records.offset, None)
                if record.offset in missing and (letter := self._letter(group, partition, span, record))
            ]
        except Corrupt:
            partition.publishing_dead_letters = False
            partition.tracker.skip(first, min(records.end, span.end))
            return
        end = min(records.end, span.end)
        partition.dead_letters_not_logged += len(letters)
        if partition.may_log_dead_letters():  # a group may have thousands a second
            count, partition.dead_letters_not_logged = partition.dead_letters_not_logged, 0
            details = {"group": group.name, "ring": partition.ring, "offset": first, "records": count}
            log.warning("dead letters queued %s", pairs(**details, cause=span.cause))
        self._outlet(letters, partial(self._done, group, partition, first, end))

    def _letter(
        self, group: ConsumerGroup, partition: GroupPartition, span: Span, record: Record
    ) -> Outgoing | None:
        dead_letter_topic = self._registry.settings.dead_letter_topic
        full_name = record.key.decode(errors="replace")
        prefix = prefix_in(full_name)
        topic = full_name[len(prefix) :]
        is_foreign = prefix and self._registry.rings[partition.ring].is_of_producer
        if is_foreign or group.name in _groups_in(topic, dead_letter_topic):
            self._counts["dead_letters_dropped"] += 1
            return None
        known = _properties_of(record)
        added = (
            ("brim-group", group.name),
            ("brim-ring", partition.ring),
            ("brim-epoch", str(partition.epoch)),
            ("brim-offset", str(record.offset)),
            ("brim-tries", str(span.tries)),
            ("brim-cause", span.cause),
        )
        properties = record_properties(replace(known, user=(*known.user, *added)))
        expires = bool(record.flags & FLAG_EXPIRY) and known.message_expiry_interval_s is not None
        return Outgoing(
            f"{dead_letter_topic}/{group.name}/{topic}",
            bytes(record),
            record.flags & FLAG_QOS,
            properties=properties,
            expires=expires,
            prefix=prefix,
        )

    def _done(
        self, group: ConsumerGroup, partition: GroupPartition, first: int, end: int, fates: list[Fate]
    ) -> None:
        partition.publishing_dead_letters = False
        group.changes += 1
        if "full" in fates:  # repeating stored ones is better than losing one
            partition.retry_s = self._clock() + RETRY_S
            return
        _count(self._counts, fates)
        partition.tracker.bury(first, end)


def _count(counts: Counter[str], fates: Iterable[Fate]) -> None:
    for fate in fates:
        counts["dead_letters" if fate == "stored" else "dead_letters_dropped"] += 1


def _groups_in(topic: str, dead_letter_topic: str) -> Iterator[str]:
    """Groups in which a record died, by its topic; dead letters of dead letters have several."""
    while topic.startswith(f"{dead_letter_topic}/"):
        group, _, topic = topic[len(dead_letter_topic) + 1 :].partition("/")
        yield group


def _properties_of(record: Record) -> Properties:
    wire = record.properties
    if not wire:
        return NO_PROPERTIES
    try:
        properties = decode_properties(Body(wire, Version.V5), In.PUBLISH)
        # these two belong to one delivery, not to a record
        return replace(properties, topic_alias=None, subscription_identifiers=())
    except ProtocolError:  # from a local producer, which may write anything
        return NO_PROPERTIES
