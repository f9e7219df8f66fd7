"""Log of ring records on disk: optional, and able to prove which records were durable.

    log = Log("/var/lib/brim/log")
    report = log.recover()                         # never refuses; report.rings: next offset of each ring
    thread = LogThread(log, [LoggedRing(ring, "disk")], on_durable=listener.wake)
    thread.start()
    ...
    log.read("telemetry-0", epoch, offset, 1 << 20)
    thread.stop()
    log.close()

Records are written as they are in the ring, without a new serialisation.  Formats: format.py.  A start
decides by format.py ("Proof") and recovery.py which records to keep.  The package knows rings and files, but
no topics or sockets.  processor_priority.py lets background work yield to other threads.

Importing this package loads nothing: the first use of a name loads its module.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persistence.errors import EpochConflict, LogClosed, LogError, LogLocked, TooManyRings
    from persistence.files import Files, OsFiles
    from persistence.log.log import Log
    from persistence.log.log_thread import LogThread
    from persistence.log.log_writer import LogAbsence, LoggedRing, LogWriter
    from persistence.log.recovery import RecoveryReport
    from persistence.read.log_reader import Epoch, LogReader, RingEnd
    from persistence.segment.scan import DamagedRange

__all__ = [
    "DamagedRange",
    "Epoch",
    "EpochConflict",
    "Files",
    "Log",
    "LogAbsence",
    "LogClosed",
    "LogError",
    "LogLocked",
    "LogReader",
    "LogThread",
    "LogWriter",
    "LoggedRing",
    "OsFiles",
    "RecoveryReport",
    "RingEnd",
    "TooManyRings",
]

_HOMES = {
    "errors": ("EpochConflict", "LogClosed", "LogError", "LogLocked", "TooManyRings"),
    "files": ("Files", "OsFiles"),
    "log.log_writer": ("LogAbsence", "LogWriter", "LoggedRing"),
    "log.log": ("Log",),
    "log.recovery": ("RecoveryReport",),
    "log.log_thread": ("LogThread",),
    "read.log_reader": ("Epoch", "LogReader", "RingEnd"),
    "segment.scan": ("DamagedRange",),
}

if not TYPE_CHECKING:  # a type checker takes the imports above, and reports a name that is not there

    def __getattr__(name: str) -> Any:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'persistence' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"persistence.{home}"), name)
        return value
