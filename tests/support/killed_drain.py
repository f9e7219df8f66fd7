"""A process that forks drains and has each killed at a chosen line of the bridge.

    python -m tests.support.killed_drain RUNTIME_DIRECTORY ROOT FILE_BYTES WINDOW

For each line "K" on standard input it forks a process that drains until nothing waits, and kills itself, with
SIGKILL, before it executes the K-th line of Python in bridge/ (0: never).  Answers "killed", or "done N" with
the lines that it took.  ROOT is where lake and state are.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import bridge
from tests.support.bridges import drain, run_dry, settings

FOLDER = str(Path(bridge.__file__).parent)


class KillAt:
    """Counts lines of the bridge, and kills the process at one of them."""

    def __init__(self, line: int) -> None:
        self.kill_at = line
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def run(runtime: Path, root: Path, file_bytes: int, window: int, line: int) -> int:
    """One drain until nothing waits; the lines that it took."""
    counter = KillAt(line)
    threading.settrace(counter)  # the threads that put
    sys.settrace(counter)
    with drain(settings(runtime, root, file_bytes=file_bytes, window=window)) as drained:
        run_dry(drained)
    sys.settrace(None)
    return counter.lines


def serve(task: Callable[[str], int]) -> None:
    """Fork a process for the task of each line of standard input; print how it ended."""
    for command in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, str(task(command.rstrip("\n"))).encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        lines = os.read(reading, 100).decode()
        os.close(reading)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            print("killed", flush=True)
        else:
            assert status == 0, status
            print("done", lines, flush=True)


def main() -> None:
    runtime, root, file_bytes, window = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    serve(lambda command: run(runtime, root, file_bytes, window, int(command)))


if __name__ == "__main__":
    main()
