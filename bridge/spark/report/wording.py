"""Numbers, durations and times as short text."""

from __future__ import annotations

from datetime import UTC, datetime


def count_in_words(count: float) -> str:
    """A count as short text: 7, 1.2 k, 3.4 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return f"{count:.0f}"


def seconds_in_words(seconds: float) -> str:
    """A duration as short text: 0.4 s, 12 s, 3.5 min, 2.0 h, 4.1 d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def moment(seconds: float) -> str:
    """A time, UTC: 2026-01-31 12:00:00."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def shortened(text: str, length_max: int) -> str:
    """The text, or its beginning and end with a mark between them."""
    if len(text) <= length_max:
        return text
    head = (length_max - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length_max - 1 - head) :]}"
