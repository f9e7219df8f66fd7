"""Sizes and durations with units: "64 MiB", "7 d". Owns the units of configuration file and command line.

A plain number has the unit of its setting. A size or duration may also be a string with a unit:

    size       B; KB, MB, GB, TB (powers of 1000); KiB, MiB, GiB, TiB (powers of 1024)
    duration   ms, s, min, h, d (of 24 hours)

A space between number and unit is optional, and case does not matter. Numbers may have a fraction ("1.5 h").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

SIZES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
DURATIONS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s?([A-Za-z]+)", re.ASCII)


_ENDINGS = {
    "_bytes_per_s": "bytes/s",
    "_bytes_s": "bytes/s",
    "_bytes": "bytes",
    "_ms": "ms",
    "_s": "s",
    "_percent": "percent",
}


class InvalidUnit(ValueError):
    """A text that is not a size or duration. The message names the text and the allowed units."""


def unit_of(key: str) -> str:
    """Unit of a setting by the ending of its key: such as "bytes", "ms"; "" for none."""
    return next((unit for ending, unit in _ENDINGS.items() if key.endswith(ending)), "")


def size_of(text: str) -> int:
    """Number of bytes. Raises InvalidUnit."""
    amount = _amount(text, "size", SIZES, "64 MiB")
    if amount != int(amount):
        raise InvalidUnit(f"invalid size {_shown(text)}: {amount.normalize():f} bytes are not a whole number")
    return int(amount)


def milliseconds_of(text: str) -> Decimal:
    """Milliseconds, with their fraction. Raises InvalidUnit."""
    return _amount(text, "duration", DURATIONS, "7 d")


def _amount(text: str, kind: str, units: Mapping[str, int], example: str) -> Decimal:
    match = _AMOUNT.fullmatch(text.strip())
    known = {unit.lower(): length for unit, length in units.items()}
    if match is None or match[2].lower() not in known:
        allowed = f'allowed units: {", ".join(units)}; write it like "{example}"'
        raise InvalidUnit(f"invalid {kind} {_shown(text)} ({allowed})")
    return Decimal(match[1]) * known[match[2].lower()]


def _shown(text: str) -> str:
    """`text` for a message: short, and with control characters escaped."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")
