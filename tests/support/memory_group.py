"""A control group with a limit of memory.  Only root can make one, and not in each container."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

TOP = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A group of that directory, of version 1 or 2."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        directory.mkdir()
        first = (directory / "memory.limit_in_bytes").exists()
        limit = directory / ("memory.limit_in_bytes" if first else "memory.max")
        limit.write_text(str(limit_bytes))
        self._events = directory / ("memory.oom_control" if first else "memory.events")

    def kills(self) -> int:
        """Processes that the kernel has ended for lack of memory."""
        lines = (line.split() for line in self._events.read_text().splitlines())
        return sum(int(number) for name, number in lines if name == "oom_kill")

    def remove(self) -> None:
        """Remove it, once its processes have ended."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            with suppress(OSError):
                self.directory.rmdir()
                return


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """A group without processes, next to the group of the tests."""
    top = TOP / "memory" if (TOP / "memory").is_dir() else TOP
    group = top / f"brim-test-{os.getpid()}"
    try:
        made = MemoryGroup(group, limit_bytes)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"NOT TESTED: no control group with a limit of memory can be made here, be root: {error}")
    try:
        yield made
    finally:
        made.remove()
