"""Finding: the result of one check."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class Severity(IntEnum):
    """Result of a check; also the exit status of `brim doctor`, which is the worst one."""

    OK = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """`value`: as found; `limit`: as it should be; `fix`: the exact remedy, "" if all is well."""

    check: str
    state: Severity
    value: str
    limit: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Fields of --json."""
        state = self.state.name.lower()
        return {
            "check": self.check,
            "state": state,
            "value": self.value,
            "limit": self.limit,
            "fix": self.fix,
        }


def ok(check: str, value: str, limit: str = "") -> Finding:
    """A check that found nothing."""
    return Finding(check, Severity.OK, value, limit)


def warning(check: str, value: str, limit: str, fix: str) -> Finding:
    """A mistake that costs something, now or later."""
    return Finding(check, Severity.WARNING, value, limit, fix)


def error(check: str, value: str, limit: str, fix: str) -> Finding:
    """A mistake that ends the broker, or keeps it from starting."""
    return Finding(check, Severity.ERROR, value, limit, fix)


def nearest(path: Path) -> Path:
    """The path, or the first directory above it that exists and is not hidden from this user."""
    return next(one for one in (path, *path.parents) if os.path.exists(one))
