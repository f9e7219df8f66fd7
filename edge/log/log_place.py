"""Place in a log: an offset or a time, and the text that a person writes for it.

Owns the definition of a place. Reads no log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from edge.errors import EdgeError

PLACE_HELP = "an offset (5120), a time (2026-11-21T14:00 local, 2026-11-21T14:00Z UTC), -15m, or @SECONDS"
NANOSECOND_DIGITS = 9
_AGO = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_EPOCH = re.compile(r"@(\d+)(?:\.(\d{1,9}))?")
_FRACTION = re.compile(r"(\d{4}-?\d\d-?\d\d.\d\d:?\d\d:?\d\d)[.,](\d+)")  # of a second


class LogPlace(NamedTuple):
    """Begin or end: an offset of each ring, or a time; (None, None): the first record."""

    offset: int | None = None
    timestamp_ns: int | None = None


def place_of(text: str, option: str, now_s: Callable[[], float] = time.time) -> LogPlace:
    """Parse a place; "": no place. Raises EdgeError."""
    if not text:
        return LogPlace()
    if text.isascii() and text.isdigit():
        return LogPlace(offset=int(text))
    if match := _AGO.fullmatch(text):
        return LogPlace(timestamp_ns=int((now_s() - float(match[1]) * _SECONDS[match[2]]) * 1e9))
    if match := _EPOCH.fullmatch(text):
        return LogPlace(timestamp_ns=int(match[1]) * 10**9 + int((match[2] or "").ljust(9, "0")))
    fraction = _FRACTION.match(text)  # datetime cuts it after microseconds
    try:
        when = datetime.fromisoformat(fraction[1] + text[fraction.end() :] if fraction else text)
        nanoseconds = int(f"{fraction[2]:0<9}") if fraction else when.microsecond * 1000
        if fraction and len(fraction[2]) > NANOSECOND_DIGITS:
            raise ValueError("shorter than nanoseconds")
        return LogPlace(timestamp_ns=int(when.timestamp()) * 10**9 + nanoseconds)
    except (ValueError, OverflowError, OSError) as error:
        raise EdgeError(
            f"{option} {text!r} is neither an offset nor a time", hint=f"write {PLACE_HELP}"
        ) from error
