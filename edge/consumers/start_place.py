"""First record in a ring for a group, or for a reader without a group: oldest, latest, an offset, or a time.

Owns that choice for joins and resets, and its form in Python: "oldest", "latest", an offset, or a datetime.
A time is that of the first record of then or later. A time in the future is refused: there is no such record.
No state; a time may read files of the log.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Final, Literal, NamedTuple

from edge.consumers.protocol import NotDone, StartWord
from edge.consumers.ring_source import RingSource
from edge.errors import InvalidArgument

GroupStart = Literal["oldest", "latest"] | int | dt.datetime

OFFSET_MAX = TIME_MAX_NS = (1 << 63) - 1
UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class StartPlace(NamedTuple):
    """Choice of the first record. `value`: the offset, or the time in ns since 1970."""

    to: StartWord
    value: int = 0


LATEST: Final = StartPlace("latest")


def start_place(start: GroupStart) -> StartPlace:
    """The choice in the form of the protocol. Raises InvalidArgument."""
    if isinstance(start, dt.datetime):
        return StartPlace("time", unix_ns(start))
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= OFFSET_MAX:
        return StartPlace("offset", start)
    if start == "oldest" or start == "latest":  # noqa: PLR1714 (mypy narrows only so)
        return StartPlace(start)
    raise InvalidArgument(
        f"invalid start {start!r} (allowed: 'oldest', 'latest', an offset from 0 on, a datetime)",
        hint="choose one of them",
    )


def unix_ns(moment: dt.datetime) -> int:
    """Nanoseconds since 1970. A time without a zone is local. Raises InvalidArgument."""
    try:
        since = moment.astimezone(dt.UTC) - UNIX_EPOCH
        ns = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    except (OverflowError, ValueError, OSError):  # there is no such time in UTC
        ns = -1
    if 0 <= ns <= TIME_MAX_NS:
        return ns
    text = f"invalid time {moment.isoformat()} (allowed: {time_words(0)} to {time_words(TIME_MAX_NS)})"
    raise InvalidArgument(text, hint="'oldest' is the first record, and 'latest' the next one")


def time_words(ns: int) -> str:
    """A time in ns since 1970, such as 2026-11-21T06:00:00Z."""
    return (UNIX_EPOCH + dt.timedelta(microseconds=ns // 1000)).isoformat().replace("+00:00", "Z")


def check_time(ns: int) -> None:
    """Raise NotDone for a time in the future."""
    now_ns = time.time_ns()
    if ns > now_ns:
        text = f"start time {time_words(ns)} is in the future: the broker's clock has {time_words(now_ns)}"
        raise NotDone(text, "refused", "choose an earlier time, or latest")


def oldest_in(source: RingSource) -> tuple[int, int]:
    """(epoch, offset) of the oldest record in ring or log."""
    if source.log is None:
        return source.epoch, source.ends()[0]
    first = source.epochs()[0]
    return first.epoch, first.first_offset


def place_in(source: RingSource, start: StartPlace) -> tuple[int, int]:
    """(epoch, offset) of the chosen record. Raises NotDone: the ring ends before the offset."""
    end = source.ends()[1]
    if start.to == "oldest":
        return oldest_in(source)
    if start.to == "latest":
        return source.epoch, end
    if start.to == "time":
        return source.seek_time(start.value)
    if start.value > end and source.is_ended:
        return source.epoch, end
    if start.value > end:
        text = f"ring {source.name} ends at offset {end}, before {start.value}"
        raise NotDone(text, "refused", "choose a lower one")
    for epoch in reversed(source.epochs()):
        if epoch.first_offset <= start.value:
            return epoch.epoch, start.value
    return oldest_in(source)
