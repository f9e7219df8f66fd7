"""Exit statuses of the command `brim`: one table for all verbs, the help text and the reference pages.

Verbs that judge stored records, such as `brim spark gaps`, have statuses of their own: their help lists them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class Exit(IntEnum):
    """Exit status of a verb, and its meaning."""

    meaning: str

    OK = 0, "done"
    INCOMPLETE = 1, "done, and something is missing or needs attention"
    USAGE = 2, "not done: the arguments, the configuration or the machine do not allow it"
    CANNOT_CONNECT = 3, "no broker or bridge is reachable, or the connection broke"
    REFUSED = 4, "refused by the broker or bridge; of `run`: ended by the watchdog"
    TIMEOUT = 5, "time over (`sub -W`, `sql --time-limit`)"
    LOST = 6, "records were lost before they were drained (`status`, `bridge status`)"
    CONFIGURATION = 78, "not started: the configuration, or a file of users or rules, is not valid (`run`)"
    INTERRUPTED = 130, "interrupted"

    def __new__(cls, value: int, meaning: str) -> Self:
        """A status with its meaning."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member
