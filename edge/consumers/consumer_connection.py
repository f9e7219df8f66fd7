"""Connection of a consumer: arguments and requests that both forms share. Never waits."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar, get_args

from edge.config.directories import StrPath
from edge.consumers.ack_result import AckResult, Offsets, offset_of, result_of
from edge.consumers.client_socket import endpoint_of
from edge.consumers.client_state import ConsumerBatch, ConsumerCore, ConsumerSettings
from edge.consumers.core_connection import CoreConnection, check_argument, check_filters
from edge.consumers.delivery_settings import LIMITS, DeliverySettings, SettingName, invalid_value
from edge.consumers.groups import Mode
from edge.consumers.protocol import (
    BATCH_MAX_BYTES,
    GROUP_PATTERN,
    IN_FLIGHT_MAX,
    PRIORITY_MAX,
    SESSION_MAX_S,
    SESSION_MIN_S,
    Acked,
    Acknowledgement,
    Answer,
    Commit,
    RequestMessage,
)
from edge.consumers.replay_clock import SPEED_MAX, SPEED_MIN
from edge.consumers.start_place import GroupStart, start_place
from edge.errors import InvalidArgument, check_seconds
from edge.local.curve_keys import Curve
from ringbuf import Record

Result = TypeVar("Result")  # AckResult, or a coroutine of it


class ConsumerConnection(CoreConnection[ConsumerBatch], ABC, Generic[Result]):
    """A member of a consumer group.  Arguments: see client.Consumer."""

    _core: ConsumerCore

    def __init__(
        self,
        group: str,
        filters: str | Iterable[str],
        *,
        mode: Mode = "ordered",
        start: GroupStart = "latest",
        name: str = "",
        session_s: float = 10.0,
        batch_bytes: int = 1 << 20,
        batch_records: int = 0,
        ahead: int = 1,
        in_flight_max: int = 0,
        priority: int = 0,
        lease_s: float | None = None,
        tries_max: int | None = None,
        backoff_s: float | None = None,
        backoff_max_s: float | None = None,
        speed: float | None = None,
        connect_timeout_s: float = 5.0,
        runtime_dir: StrPath | None = None,
        endpoint: str = "",
        curve: Curve | None = None,
    ) -> None:
        _check_names(group, mode)
        if ahead < 1:
            hint = "a consumer that fetches nothing ahead receives nothing"
            raise InvalidArgument(f"invalid ahead {ahead} (allowed: 1 or more)", hint=hint)
        check_argument("batch_bytes", batch_bytes, 1, BATCH_MAX_BYTES)
        check_argument("session_s", session_s, SESSION_MIN_S, SESSION_MAX_S, "choose more than a batch takes")
        for limit, value in (("batch_records", batch_records), ("in_flight_max", in_flight_max)):
            check_argument(limit, value, 0, IN_FLIGHT_MAX, "0 is no limit")
        hint = "members with a higher priority come first"
        check_argument("priority", priority, -PRIORITY_MAX, PRIORITY_MAX, hint)
        core = ConsumerCore(
            ConsumerSettings(
                group,
                check_filters(filters),
                mode,
                start_place(start),
                name,
                session_s,
                batch_bytes,
                ahead,
                _delivery(lease_s, tries_max, backoff_s, backoff_max_s, speed),
                in_flight_max,
                batch_records,
                priority,
            )
        )
        super().__init__(core, endpoint_of(runtime_dir, endpoint), curve, connect_timeout_s)

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

    def ack(self, batch: ConsumerBatch, offsets: Offsets | None = None) -> Result:
        """Acknowledge these records of the batch (Records or offsets), or all: they are done.

        The result counts the accepted and the refused records; refused: another member has or did them, or
        the broker was lost (`cause`).  The broker does not forget what it accepted.
        """
        selection = None if offsets is None else list(offsets)
        return self._request(self._core.ack(batch, selection), batch, selection)

    def nack(
        self,
        batch: ConsumerBatch,
        offsets: Offsets | None = None,
        *,
        delay_s: float | None = None,
        cause: str = "",
    ) -> Result:
        """Give these records of the batch, or all, back: they come again.

        They come after `delay_s`, or a time that grows with each try.  In an ordered group all records behind
        the first of them come again too, in order.
        """
        if delay_s is not None:
            check_seconds("delay_s", delay_s)
        selection = None if offsets is None else list(offsets)
        return self._request(self._core.nack(batch, selection, delay_s, cause), batch, selection)

    def commit(self, batch: ConsumerBatch, last: Record | int | None = None) -> Result:
        """Acknowledge all records of the batch's ring up to and with `last`, or the batch (ordered groups).

        The result counts the records that were not acknowledged before.
        """
        end = batch.offset + batch.count if last is None else offset_of(last) + 1
        return self._request(self._core.commit(batch, end), batch, None)

    @abstractmethod
    def _request(
        self, request: Acknowledgement, batch: ConsumerBatch, selection: list[Record | int] | None
    ) -> Result:
        """Send a request and wait for its answer."""

    def _result(
        self,
        request: RequestMessage,
        answer: Answer | None,
        batch: ConsumerBatch,
        selection: list[Record | int] | None,
    ) -> AckResult:
        requested = batch.records if selection is None else selection
        result = result_of(answer, requested, named=not isinstance(request, Commit))
        if not isinstance(answer, Acked):
            self._core.refused += result.refused
        return result


def _check_names(group: str, mode: str) -> None:
    """Raise InvalidArgument for a name that the broker would not accept."""
    if not re.search(GROUP_PATTERN, group):
        hint = "write 1 to 64 of A-Z, a-z, 0-9, ., _ and -, a letter or digit first"
        raise InvalidArgument(f"invalid group name {group!r}", hint=hint)
    if mode not in (modes := get_args(Mode)):
        allowed = ", ".join(map(repr, modes))
        hint = "'ordered' keeps the order of each topic, 'queue' shares all records"
        raise InvalidArgument(f"invalid mode {mode!r} (allowed: {allowed})", hint=hint)


def _delivery(
    lease_s: float | None,
    tries_max: int | None,
    backoff_s: float | None,
    backoff_max_s: float | None,
    speed: float | None,
) -> DeliverySettings:
    """Delivery settings from the arguments of a consumer. Raises InvalidArgument."""
    if speed:
        hint = "1 is the original speed, 0 as fast as possible"
        check_argument("speed", speed, SPEED_MIN, SPEED_MAX, hint)
    times: dict[SettingName, float | None] = {
        "lease_ms": lease_s,
        "backoff_ms": backoff_s,
        "backoff_max_ms": backoff_max_s,
    }
    for name, value in times.items():
        if value is not None:
            low, high = (limit / 1000 for limit in LIMITS[name])
            check_argument(f"{name.removesuffix('ms')}s", value, low, high)
    lease_ms, backoff_ms, backoff_max_ms, speed_permille = map(
        _thousandths, (lease_s, backoff_s, backoff_max_s, speed)
    )
    settings = DeliverySettings(lease_ms, tries_max, backoff_ms, backoff_max_ms, speed_permille)
    if text := invalid_value(settings):
        raise InvalidArgument(text, hint="choose a value within the limits, or leave it out")
    return settings


def _thousandths(value: float | None) -> int | None:
    if value is None:
        return None
    return round(value * 1000)
