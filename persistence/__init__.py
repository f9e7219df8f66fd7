"""Partitions as files: optional, and able to prove what it kept.

    log = Log("/var/lib/brim/log")
    report = log.recover()                         # never refuses: report.rings says where each ring goes on
    thread = LogThread(log, [Source(ring, "disk")], on_durable=listener.wake)
    thread.start()
    ...
    log.read("telemetry-0", epoch, offset, 1 << 20)
    thread.stop()
    log.close()

Records are written as they stand in the ring: nothing is serialised again.  Formats: format.py.  How a start
decides what to keep: format.py ("Proof") and recovery.py.  It knows rings and files; no topics, no sockets.
"""

from persistence.errors import EpochConflict, LogClosed, LogError, LogLocked, TooManyRings
from persistence.files import Files, OsFiles
from persistence.log import Log
from persistence.reading import Epoch, LogReader, RingEnd
from persistence.recovery import RecoveryReport
from persistence.scan import Damage
from persistence.stats import LogState, LogStats
from persistence.thread import LogThread
from persistence.writer import LogWriter, Source

__all__ = [
    "Damage",
    "Epoch",
    "EpochConflict",
    "Files",
    "Log",
    "LogClosed",
    "LogError",
    "LogLocked",
    "LogReader",
    "LogState",
    "LogStats",
    "LogThread",
    "LogWriter",
    "OsFiles",
    "RecoveryReport",
    "RingEnd",
    "Source",
    "TooManyRings",
]
