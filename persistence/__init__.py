"""Log of ring records on disk: optional, and able to prove which records were durable.

    log = Log("/var/lib/brim/log")
    report = log.recover()                         # never refuses; report.rings: next offset of each ring
    thread = LogThread(log, [Source(ring, "disk")], on_durable=listener.wake)
    thread.start()
    ...
    log.read("telemetry-0", epoch, offset, 1 << 20)
    thread.stop()
    log.close()

Records are written as they are in the ring, without a new serialisation.  Formats: format.py.  A start
decides by format.py ("Proof") and recovery.py which records to keep.  The package knows rings and files, but
no topics or sockets.
"""

from persistence.errors import EpochConflict, LogClosed, LogError, LogLocked, TooManyRings
from persistence.files import Files, OsFiles
from persistence.log.group_commit import LogWriter, Source
from persistence.log.log import Log
from persistence.log.recovery import RecoveryReport
from persistence.log.thread import LogThread
from persistence.read.log_reader import Epoch, LogReader, RingEnd
from persistence.segment.scan import DamagedRange
from persistence.stats import LogState, LogStats

__all__ = [
    "DamagedRange",
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
