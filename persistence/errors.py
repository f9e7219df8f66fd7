"""What can go wrong in the log, as classes.

    LogError
        LogLocked         another process (or another Log of this one) writes this log
        LogClosed         used after close()
        EpochConflict     a ring that contradicts what the log holds under its name; .name, .epoch
        TooManyRings      more rings than one log thread waits for
        FormatError       bytes that are no segment header, extent, catalogue or archive of ours
            FutureFormat  they are, but of a later version than this program reads
        ArchiveUnavailable  the compressor is not installed
        NotArchived       a segment that stays as it is; the message says why
        Stopped           somebody asked to stop before it was done

Errors of the disk are not among them: they stay OSError (NoRoom is one), on their way to LogWriter, which
alone decides what becomes of them (writer.py).  Damage in files is no error either: it is counted, kept aside
and skipped.
"""

from __future__ import annotations

import errno

__all__ = [
    "ArchiveUnavailable",
    "EpochConflict",
    "FormatError",
    "FutureFormat",
    "LogClosed",
    "LogError",
    "LogLocked",
    "NoRoom",
    "NotArchived",
    "Stopped",
    "TooManyRings",
]


class NoRoom(OSError):
    """A segment would leave fewer than `floor` bytes of the disk free (free_room.py)."""

    def __init__(self, floor: int) -> None:
        super().__init__(errno.ENOSPC, f"{floor} bytes of the disk are kept free")

    def __str__(self) -> str:
        return str(self.strerror)


class LogError(Exception):
    """Something about the log that whoever runs the broker, or calls this package, must change."""


class LogLocked(LogError):
    """Somebody else writes this log."""


class LogClosed(LogError):
    """The log has been closed."""


class EpochConflict(LogError):
    """The log already holds records of `name` that cannot be of the same ring."""

    def __init__(self, message: str, *, name: str, epoch: int) -> None:
        super().__init__(message)
        self.name = name
        self.epoch = epoch


class TooManyRings(LogError):
    """A log thread waits for at most so many rings."""


class FormatError(LogError):
    """These bytes are not what they should be: wrong magic, version, checksum or lengths."""


class ArchiveUnavailable(LogError):
    """Archives cannot be written or read here, for want of zstd."""


class NotArchived(LogError):
    """A segment that cannot be archived, or not now."""


class Stopped(LogError):
    """It was asked to stop, and has not done what it began."""


class FutureFormat(FormatError):
    """A later version of the program wrote this."""
