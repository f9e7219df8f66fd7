"""Numbers with units, for people."""

from __future__ import annotations


def bytes_in_words(count: float) -> str:
    """Text of a size: `64 MiB`, `1.5 KiB`."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count, unit = count / 1024, larger
    return f"{count:,.0f} {unit}" if count >= 100 or count == int(count) else f"{count:.1f} {unit}"


def count_in_words(count: float) -> str:
    """Text of a number: `1,234,567`; a fraction only below ten."""
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def counted(count: float, noun: str) -> str:
    """Number and noun: `1 record`, `1,234 records`."""
    return f"{count_in_words(count)} {noun}{'' if count == 1 else 's'}"


def micros_in_words(micros: float) -> str:
    """Text of a duration: `256 µs`, `4.1 ms`, `2.0 s`."""
    if micros < 1000:
        return f"{micros:.0f} µs"
    return f"{micros / 1000:.3g} ms" if micros < 1_000_000 else f"{micros / 1_000_000:.2g} s"


def seconds_in_words(seconds: float) -> str:
    """Text of a duration: `3 d 4 h`, `12 min 5 s`, `1 h`, `0.4 s`; the two largest units, without zeros."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    amounts, rest = [], int(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        amounts.append((rest // length, unit))
        rest %= length
    first = next(place for place, (count, _) in enumerate(amounts) if count)
    return " ".join(f"{count} {unit}" for count, unit in amounts[first : first + 2] if count)
