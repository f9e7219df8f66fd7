"""Background process: archiving and scrubbing at the lowest priority.

A process is used, not a thread.  A low-priority thread that holds the interpreter's lock would stop the
broker's threads while the scheduler keeps it waiting.  The process runs at the lowest processor priority and
at idle disk priority.  It does one job at a time and writes no log itself.  It ends with its parent: when
standard input ends, or during a job at the next window.

With SCHED_IDLE it would get no time at all on a machine that is busy for days, and the disk would fill up
without compression.

A process that is killed, for example for lack of memory, leaves an unfinished archive. The parent removes it:
the next attempt would leave another one, until the disk is full.

    parent -> child    one JSON object per line: Job
    child -> parent    one per line: {"done": ...} or {"failed": why, "kind": ...}, in the same order

Owns both ends of that protocol.  archive and scrub do the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from persistence.archive import Archived, archive_segment, temporary_name
from persistence.errors import ArchiveUnavailable, FormatError, LogError, NotArchived
from persistence.files import Files, FreshFiles
from persistence.maintenance.scrub import RateLimitedFiles, ScrubResult, scrub_archive, scrub_segment
from persistence.processor_priority import LOWEST, lower_priority
from persistence.segment.scan import DamagedRange

STOP_S = 10.0  # before it is killed: only an unfinished file can be lost
IOPRIO_IDLE = 3 << 13  # class idle
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "armv7l": 314}


class Job(NamedTuple):
    """One unit of work."""

    kind: Literal["archive", "scrub_segment", "scrub_archive"]
    directory: str
    base: int
    ends_at: int  # of the segment
    bytes_per_s: int = 0  # limit of the read rate; 0: none


class TaskFailed(NamedTuple):
    """A job that failed."""

    kind: Literal["never", "later"]  # never: permanent for this segment; later: the obstacle may disappear
    reason: str


class Worker(Protocol):
    """Interface of an executor for one job at a time."""

    def start(self, job: Job) -> None:
        """Start the job."""

    def result(self) -> Archived | ScrubResult | TaskFailed | None:
        """Result of the job; None while it runs."""

    def close(self) -> None:
        """Stop the current job."""


def do_job(files: Files, job: Job, stopped: Any) -> Archived | ScrubResult | TaskFailed:
    """Archive or scrub; the job ends early when `stopped` returns True."""
    paced: Files = RateLimitedFiles(files, job.bytes_per_s, stopped) if job.bytes_per_s else files
    try:
        if job.kind == "archive":
            return archive_segment(paced, job.directory, job.base, job.ends_at, stopped=stopped)
        if job.kind == "scrub_segment":
            return scrub_segment(paced, job.directory, job.base, job.ends_at)
        return scrub_archive(paced, job.directory, job.base)
    except (NotArchived, ArchiveUnavailable, FormatError) as error:
        return TaskFailed("never", str(error))
    except (LogError, OSError) as error:
        return TaskFailed("later", str(error))


class BackgroundProcess:
    """Executes jobs in a process of idle priority, which starts with the first job."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path()  # of the last job
        self._answer = b""

    def start(self, job: Job) -> None:
        """See Worker.  Raises OSError if no process could be started."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._spawn()
        assert self._process.stdin is not None
        self._directory = Path(job.directory)
        with contextlib.suppress(BrokenPipeError):  # result() detects it
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def result(self) -> Archived | ScrubResult | TaskFailed | None:
        """See Worker."""
        process = self._process
        if process is None:
            return TaskFailed("later", "nothing was begun")
        assert process.stdout is not None
        while select.select([process.stdout], [], [], 0)[0]:
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                self.close()
                return TaskFailed("later", "the process that does such work has ended")
            self._answer += data
        line, newline, rest = self._answer.partition(b"\n")
        if not newline:
            return None
        self._answer = rest
        return _unpacked(json.loads(line))

    def close(self) -> None:
        """See Worker."""
        process, self._process, self._answer = self._process, None, b""
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):
            for path in self._directory.glob(temporary_name("*", process.pid)):
                path.unlink()

    def _spawn(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-m", "persistence.maintenance.background_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )


def _packed(result: Archived | ScrubResult | TaskFailed) -> bytes:
    return json.dumps([type(result).__name__, *result]).encode() + b"\n"


def _unpacked(fields: list[Any]) -> Archived | ScrubResult | TaskFailed:
    kind, *values = fields
    if kind == "Archived":
        return Archived(*values)
    if kind == "ScrubResult":
        base, archived, length, places, parts = values
        return ScrubResult(base, archived, length, tuple(DamagedRange(*place) for place in places), parts)
    return TaskFailed(*values)


# ---- the child ----


def _give_way() -> None:
    """Set the lowest priority that the system permits; failures are ignored."""
    lower_priority(LOWEST)
    number = IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, IOPRIO_IDLE)


def main() -> None:
    """Main function of the child process."""
    parent = os.getppid()
    _give_way()
    files = FreshFiles()
    for line in sys.stdin.buffer:
        result = do_job(files, Job(*json.loads(line)), lambda: os.getppid() != parent or _input_ended())
        sys.stdout.buffer.write(_packed(result))
        sys.stdout.buffer.flush()


def _input_ended() -> bool:
    """True if the parent has closed the input and waits for no answer."""
    return any(event & select.POLLHUP for _, event in _INPUT.poll(0))


_INPUT = select.poll()
_INPUT.register(0, select.POLLHUP)

if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
