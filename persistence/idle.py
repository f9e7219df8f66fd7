"""What has time: archiving and scrubbing, in a process of its own that gives way to everything else.

A process and not a thread, because whoever holds the interpreter's lock must not be made to wait by the
scheduler: a thread of low priority that holds it would stop the broker's.  It runs at the lowest priority for
processors and at idle priority for disks, does one job at a time, writes no log itself, and ends with whoever
started it: when standard input ends, or, under way, at the next window.

The lowest priority is nice 19, not SCHED_IDLE: that gets nothing at all on a machine that is busy for days,
whose disk would then fill up for want of compression.

    parent -> child    one JSON object a line: Job
    child -> parent    one a line: {"done": ...} or {"failed": why, "kind": ...}, in the same order

Owns both ends of that.  What a job does is archive's and scrub's.
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

from persistence.archive import Archived, archive_segment
from persistence.errors import ArchiveUnavailable, FormatError, LogError, NotArchived
from persistence.files import Files, FreshFiles
from persistence.scan import Damage
from persistence.scrub import Paced, Scrubbed, scrub_archive, scrub_segment

__all__ = ["Failed", "Here", "IdleProcess", "Job", "Worker"]

STOP_S = 10.0  # then it is killed: all that it could lose is a file that is not finished
IOPRIO_IDLE = 3 << 13  # class idle
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "armv7l": 314}


class Job(NamedTuple):
    """One thing to do."""

    kind: Literal["archive", "scrub_segment", "scrub_archive"]
    directory: str
    base: int
    ends_at: int  # of the segment
    bytes_per_s: int = 0  # to be read at most; 0: as it comes


class Failed(NamedTuple):
    """A job that could not be done."""

    kind: Literal["never", "later"]  # never: of this segment; later: what was in the way may go away
    reason: str


class Worker(Protocol):
    """Does one job at a time."""

    def start(self, job: Job) -> None:
        """Begins."""

    def result(self) -> Archived | Scrubbed | Failed | None:
        """What became of it; None: it is not done yet."""

    def close(self) -> None:
        """Ends what is under way."""


def _do(files: Files, job: Job, stopped: Any) -> Archived | Scrubbed | Failed:
    paced: Files = Paced(files, job.bytes_per_s, stopped) if job.bytes_per_s else files
    try:
        if job.kind == "archive":
            return archive_segment(paced, job.directory, job.base, job.ends_at, stopped=stopped)
        if job.kind == "scrub_segment":
            return scrub_segment(paced, job.directory, job.base, job.ends_at)
        return scrub_archive(paced, job.directory, job.base)
    except (NotArchived, ArchiveUnavailable, FormatError) as error:
        return Failed("never", str(error))
    except (LogError, OSError) as error:
        return Failed("later", str(error))


class Here:
    """Does jobs where it is called, on any files: for tests, and for commands of people who wait."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._result: Archived | Scrubbed | Failed | None = None

    def start(self, job: Job) -> None:
        """See Worker; it is done when this returns."""
        self._result = _do(self._files, job, lambda: False)

    def result(self) -> Archived | Scrubbed | Failed | None:
        """See Worker."""
        result, self._result = self._result, None
        return result

    def close(self) -> None:
        """See Worker."""


class IdleProcess:
    """Does jobs in a process of idle priority, which is started with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answer = b""

    def start(self, job: Job) -> None:
        """See Worker.  Raises OSError: no process could be started."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._spawn()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # result() finds it out
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def result(self) -> Archived | Scrubbed | Failed | None:
        """See Worker."""
        process = self._process
        if process is None:
            return Failed("later", "nothing was begun")
        assert process.stdout is not None
        while select.select([process.stdout], [], [], 0)[0]:
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                self.close()
                return Failed("later", "the process that does such work has ended")
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

    def _spawn(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-m", "persistence.idle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )


def _packed(result: Archived | Scrubbed | Failed) -> bytes:
    return json.dumps([type(result).__name__, *result]).encode() + b"\n"


def _unpacked(fields: list[Any]) -> Archived | Scrubbed | Failed:
    kind, *values = fields
    if kind == "Archived":
        return Archived(*values)
    if kind == "Scrubbed":
        base, archived, length, places, parts = values
        return Scrubbed(base, archived, length, tuple(Damage(*place) for place in places), parts)
    return Failed(*values)


# ---- the child ----


def _give_way() -> None:
    """The lowest priority that the system lets us have; none of it is vital."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(19)
    number = IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, IOPRIO_IDLE)


def main() -> None:
    """The child."""
    parent = os.getppid()
    _give_way()
    files = FreshFiles()
    for line in sys.stdin.buffer:
        result = _do(files, Job(*json.loads(line)), lambda: os.getppid() != parent or _input_ended())
        sys.stdout.buffer.write(_packed(result))
        sys.stdout.buffer.flush()


def _input_ended() -> bool:
    """Whether nobody is there any more who would want the answer."""
    return any(event & select.POLLHUP for _, event in _INPUT.poll(0))


_INPUT = select.poll()
_INPUT.register(0, select.POLLHUP)

if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
