"""Consumers of a group, for programs without asyncio: one thread, no event loop.

    with Consumer("billing", "plant/#") as records:
        for batch in records:
            for record in batch:
                handle(record.key, bytes(record))
            records.ack(batch)

Members of a group share its partitions; the broker keeps the position of the group.  Records that are not
acknowledged come again.  A consumer finds its broker again by itself; records that it had in hand then may
come a second time.

In `ordered` groups (the default) records of one topic come in order, one member at a time; in `queue` groups
each member takes what comes next, in no particular order.

client_asyncio.py has the form for asyncio, with the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge.config.directories import StrPath
from edge.consumers.ack_result import AckResult
from edge.consumers.client_socket import REPLY_TIMEOUT_S, RequestClient
from edge.consumers.client_state import ConsumerBatch
from edge.consumers.consumer_connection import ConsumerConnection
from edge.consumers.core_connection import SLICE_S, BlockingConnection, check_argument
from edge.consumers.protocol import (
    LETTERS_MAX,
    NUMBER_MAX,
    VERSION,
    Acknowledgement,
    Letter,
    Publish,
    Published,
)
from edge.local.curve_keys import Curve
from edge.mqtt import check_name, payload_bytes
from ringbuf import Record


class Consumer(ConsumerConnection[AckResult], BlockingConnection[ConsumerBatch]):
    """A member of `group`, which gets the records of the topics that `filters` match.

    Iterate with `for` inside `with`; iteration does not end. All members have the same `mode` and filters.
    `start`: first record of a group that the broker does not know yet: "oldest", "latest", an offset (in each
    partition), or a datetime (local, if it has no time zone). `name` is for people. `session_s`: the
    broker gives the records of a member that is silent for so long to others; a member without asyncio is
    silent while the program works on a batch, so choose more than a batch takes. `batch_bytes`: about as much
    comes at once, and at most `batch_records` unless that is 0. `ahead`: number of batches fetched ahead of
    their use, at least 1. `in_flight_max`: most records that this member has without an acknowledgement,
    fetched ahead or in hand; 0: no limit. `priority`: in ordered groups the members with the highest one
    share the partitions, and the others stand by; in queues a waiting member with a higher one is first.

    `lease_s`, `tries_max` (0: no limit), `backoff_s`, `backoff_max_s`: settings of the group, instead of
    those of [consumers] in the configuration file. `speed`: the group replays records at the original speed
    times this, 0.001 to 1,000,000; all members together, so each record comes when it is due; 0: as fast as
    possible. None: the setting of the group. Members that name a value name the same one.

    Raises InvalidArgument. Entering raises BrokerUnreachable, or Refused: the group has other filters or
    settings, or is full.
    """

    def working(self) -> None:
        """Extend the lease of all records that this member has: to consumers.lease_ms from now."""
        self._opened()
        request = self._core.working()
        if request is not None:
            self._core.queue(request, wait=False)
            self._step(0.0)

    def _request(
        self, request: Acknowledgement, batch: ConsumerBatch, selection: list[Record | int] | None
    ) -> AckResult:
        self._opened()
        number = self._core.queue(request, wait=True)
        try:
            while (answer := self._core.answers[number]) is None:
                self._step(0.0)
                if self._core.is_lost(number):
                    break
                self._step(SLICE_S)
        finally:
            self._core.answers.pop(number, None)
        return self._result(request, answer, batch, selection)


def publish(
    letters: Sequence[tuple[Letter, bytes | str]],
    *,
    runtime_dir: StrPath | None = None,
    endpoint: str = "",
    curve: Curve | None = None,
    timeout_s: float = REPLY_TIMEOUT_S,
) -> int:
    """Store messages as if a client had published them, and return the number of stored ones.

    It is lower than that of `letters` if a ring or its log had no room, or a message is larger than a record
    of its ring may be.

    Blocks until they are as durable as a PUBACK promises: at "upstream" until the sinks have them.

    A Letter has the topic, and optionally a time before which consumers do not get it. Raises
    InvalidArgument, BrokerUnreachable, Refused; ProtocolError for an invalid topic (wildcards, for example);
    TypeError for a payload that is neither bytes nor str. After an exception nothing is stored; after
    NoAnswer, at the end of `timeout_s`, the messages may be.
    """
    check_argument("number of letters", len(letters), 1, LETTERS_MAX, "publish more in several calls")
    for letter, _ in letters:
        check_name(letter.topic)
        check_argument("qos", letter.qos, 0, 2)
        check_argument("not_before_ns", letter.not_before_ns or 0, 0, NUMBER_MAX, "choose a time since 1970")
    frames = [payload_bytes(payload) for _, payload in letters]
    with RequestClient(runtime_dir, endpoint=endpoint, curve=curve) as client:
        request = Publish(client.number(), VERSION, tuple(letter for letter, _ in letters))
        return client.request(request, Published, frames, timeout_s)[0].stored
