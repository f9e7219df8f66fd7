"""Argument types: validate each value while argparse reads it.

Each raises ArgumentTypeError with the value and the allowed ones; argparse prints it with the usage.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from edge.config.directories import INSTANCE
from edge.config.units import InvalidUnit, milliseconds_of, size_of

PORT_MAX = 65_535


def directory(text: str) -> Path:
    """An absolute path; Path("") would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a directory")
    return Path(text).absolute()


def instance(text: str) -> str:
    """Name of an instance: part of directory and unit names."""
    if not INSTANCE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"invalid name {text[:40]!r} (allowed: 1 to 32 of a-z, 0-9, . - and _, a letter or digit first)"
        )
    return text


def port(text: str) -> int:
    """A port to connect to."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"invalid port {text[:20]!r} (allowed: 1 to {PORT_MAX})")
    return int(text)


def remap(text: str) -> tuple[str, str]:
    """OLD=NEW: two beginnings of topics."""
    old, equals, new = text.partition("=")
    if not (old and equals):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not OLD=NEW, such as '$tenant/acme/=acme/'")
    return old, new


def positive(text: str) -> float:
    """A number above 0, not infinite."""
    number = _number(text)
    if number is None or not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number above 0")
    return number


def speed(text: str) -> float:
    """A factor of the original speed of records."""
    from edge.consumers.replay_clock import SPEED_MAX, SPEED_MIN  # not needed to serve the first client

    number = _number(text)
    if number is None or not SPEED_MIN <= number <= SPEED_MAX:
        limits = f"{SPEED_MIN:g} to {SPEED_MAX:,.0f}"
        raise argparse.ArgumentTypeError(f"invalid speed {text[:20]!r} (allowed: {limits})")
    return number


def at_least_one(text: str) -> int:
    """A count."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """Seconds, of a number or a duration such as "500 ms" or "1 h"."""
    number = _number(text)
    if number is not None and math.isfinite(number):
        return number
    try:
        return float(milliseconds_of(text) / 1000)
    except InvalidUnit as error:
        raise argparse.ArgumentTypeError(f"{error}, or a number of seconds") from error


def percent(text: str) -> int:
    """A part of a whole, from 1 to 100."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= 100):
        raise argparse.ArgumentTypeError(f"invalid percentage {text[:20]!r} (allowed: 1 to 100)")
    return int(text)


def positive_seconds(text: str) -> float:
    """As seconds(), above 0."""
    if (value := seconds(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a time above 0")
    return value


def whole_seconds(text: str) -> int:
    """Seconds without a fraction."""
    value_s = seconds(text)
    if value_s != int(value_s):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number of seconds")
    return int(value_s)


def size(text: str) -> int:
    """Bytes, of a whole number or a size such as "64 KiB"."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    try:
        return size_of(text)
    except InvalidUnit as error:
        raise argparse.ArgumentTypeError(f"{error}, or a number of bytes") from error


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
