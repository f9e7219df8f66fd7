"""Errors of the log.

    LogError
        LogLocked         another process (or another Log of this one) writes this log
        LogClosed         used after close()
        EpochConflict     a ring that contradicts the log's records under its name; .name, .epoch
        TooManyRings      more rings than one log thread can wait for
        FormatError       bytes that are not a valid segment header, extent, catalogue or archive
            FutureFormat  a later format version than this program reads
        ArchiveUnavailable  pyarrow is not installed
        NotArchived       a segment that stays uncompressed; the message has the cause
        Stopped           a stop was requested before the work was done

Disk errors are not among them.  They stay OSError (NoDiskRoom is one) up to LogWriter, which alone decides
about them (log_writer.py).  Damage in files is not an error: it is counted, copied to quarantine, skipped.
"""

from __future__ import annotations

import errno


class NoDiskRoom(OSError):
    """A new segment would leave fewer than `floor` bytes of the disk free (free_disk_space.py)."""

    def __init__(self, floor: int) -> None:
        super().__init__(errno.ENOSPC, f"{floor} bytes of the disk are kept free")

    def __str__(self) -> str:
        return str(self.strerror)


class LogError(Exception):
    """Base of errors of the log that the operator, or the caller of this package, must fix."""


class LogLocked(LogError):
    """Another process, or another Log of this process, writes this log."""


class LogClosed(LogError):
    """The log has been closed."""


class EpochConflict(LogError):
    """The log has records of `name` that cannot come from the same ring."""

    def __init__(self, message: str, *, name: str, epoch: int) -> None:
        super().__init__(message)
        self.name = name
        self.epoch = epoch


class TooManyRings(LogError):
    """Limit of rings per log thread exceeded."""


class FormatError(LogError):
    """The bytes are invalid: wrong magic, version, checksum or lengths."""


class ArchiveUnavailable(LogError):
    """Archives cannot be written or read, because pyarrow is missing."""


class NotArchived(LogError):
    """A segment that cannot be archived, or not at present."""


class Stopped(LogError):
    """A stop was requested; the work is not finished."""


class FutureFormat(FormatError):
    """A later version of the program wrote this."""


def is_process_limit(error: Exception) -> bool:
    """True if too many files are open: this says nothing about the file that could not be opened."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}


def is_thread_limit(error: BaseException) -> bool:
    """True if no more threads may be started, of this process or its user."""
    return type(error) is RuntimeError and "can't start new thread" in str(error)
