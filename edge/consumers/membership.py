"""Membership: state and requests that both forms of a consumer share.  Opens the socket and never waits."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

import zmq

from edge.consumers.ack_result import AckResult, result_of
from edge.consumers.core import ConsumerBatch, ConsumerCore, Settings
from edge.consumers.groups import Mode
from edge.consumers.messages import Acked, Answer, Asked, Commit
from edge.consumers.wire import Curve, Wire, endpoint_of
from edge.directories import StrPath
from edge.errors import InvalidArgument, NotOpen
from edge.local_client import checked_filters
from ringbuf import Record

__all__ = ["SLICE_S", "Membership", "offset_after"]

SLICE_S = 0.1  # the longest sleep: then the connection is looked at


class Membership:
    """A member of a consumer group.  Arguments: see client.consumer()."""

    def __init__(
        self,
        group: str,
        filters: str | Iterable[str],
        *,
        mode: Mode,
        start: Literal["oldest", "latest"],
        name: str,
        session_s: float,
        batch_bytes: int,
        ahead: int,
        connect_timeout_s: float,
        runtime_dir: StrPath | None,
        endpoint: str,
        curve: Curve | None,
    ) -> None:
        if ahead < 1:
            hint = "a consumer that fetches nothing ahead receives nothing"
            raise InvalidArgument(f"invalid ahead {ahead} (allowed: 1 or more)", hint=hint)
        found = checked_filters(filters)
        self._core = ConsumerCore(Settings(group, found, mode, start, name, session_s, batch_bytes, ahead))
        self._endpoint = endpoint_of(runtime_dir, endpoint)
        self._curve = curve
        self._connect_timeout_s = connect_timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._wire: Wire | None = None

    @property
    def joined(self) -> bool:
        """True while the broker counts this consumer as a member."""
        return self._core.joined

    @property
    def rings(self) -> tuple[str, ...]:
        """The partitions that this member has."""
        return self._core.rings

    @property
    def refused(self) -> int:
        """Number of records whose acknowledgement was refused because it came too late."""
        return self._core.refused

    def _result(
        self, request: Asked, answer: Answer | None, batch: ConsumerBatch, chosen: list[Record | int] | None
    ) -> AckResult:
        asked = batch.records if chosen is None else chosen
        result = result_of(answer, asked, named=not isinstance(request, Commit))
        if not isinstance(answer, Acked):
            self._core.refused += result.refused
        return result

    def _opened(self) -> Wire:
        if self._wire is None:
            raise NotOpen("the consumer is not open", hint="use it inside `with` or `async with`")
        return self._wire

    def _exchange(self) -> float:
        """Send what is to be sent and take what has come; seconds until that is worth doing again."""
        wire, core = self._opened(), self._core
        now_s = time.monotonic()
        while (received := wire.receive()) is not None:
            core.take(*received, now_s)
        for request in core.requests(now_s, connected=wire.connected):
            if not wire.send(request):
                core.unsent(request)
        return min(max(core.due_s(now_s) - now_s, 0.0), SLICE_S)

    def _open(self) -> None:
        self._context = zmq.Context()
        self._wire = Wire(self._context, self._endpoint, self._curve)

    def _say_goodbye(self) -> bool:
        leave = self._core.leave()
        return leave is not None and self._wire is not None and self._wire.send(leave)

    def _close(self) -> None:
        if self._wire is not None and self._context is not None:
            self._wire.close()
            self._context.term()
            self._wire = self._context = None

    def _raise_refusal(self) -> None:
        if self._core.refusal is not None:
            raise self._core.refusal


def offset_after(batch: ConsumerBatch, last: Record | int | None) -> int:
    """The offset after the last record of a commit; `last` None: after the batch."""
    if last is None:
        return batch.offset + batch.count
    return (last if isinstance(last, int) else last.offset) + 1
