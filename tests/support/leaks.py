"""Resources of a process, and those that a test left behind.

Looks at file descriptors, threads, child processes and files in shared memory, as the kernel reports them, so
that C code and libraries are seen as well.
"""

import gc
import multiprocessing.resource_tracker
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.directories import left_in_memory

# How long something may take to go away by itself: threads and sockets of libraries end after the call that
# ends them has returned.  It is waited for only when something is left.
GRACE_S = 3.0


@dataclass(frozen=True)
class Holdings:
    """Resources of this process at one moment; each part by a readable name."""

    descriptors: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls) -> "Holdings":
        """As it is."""
        threads = frozenset(f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate())
        return cls(frozenset(_descriptors()), threads, frozenset(_children()), left_in_memory())

    def since(self, before: "Holdings", *, only_outside: bool) -> list[str]:
        """Resources that were not there before, sorted; `only_outside`: those that outlive this process."""
        left = (self.children - before.children) | (self.files - before.files)
        if not only_outside:
            left |= (self.descriptors - before.descriptors) | (self.threads - before.threads)
        return sorted(left)


def left_since(before: Holdings, *, only_outside: bool = False) -> list[str]:
    """New resources that stay: garbage is collected first, and GRACE_S given."""
    deadline = time.monotonic() + GRACE_S
    while left := Holdings.now().since(before, only_outside=only_outside):
        if time.monotonic() >= deadline:
            break
        if gc.collect() == 0:  # it is not garbage: it may still go away by itself
            time.sleep(0.01)
    return left


def _descriptors() -> Iterator[str]:
    tracker = getattr(multiprocessing.resource_tracker._resource_tracker, "_fd", None)
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # The listing's own.
            continue
        if int(name) != tracker:
            yield f"file descriptor {name}: {target}"


def _children() -> Iterator[str]:
    """Processes that this one started, the dead but not yet waited for among them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # There are none: nothing of /proc need be read.
        return
    tracker = getattr(multiprocessing.resource_tracker._resource_tracker, "_pid", None)
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            pids = listing.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # The thread has ended.
            continue
        for pid in pids:
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except FileNotFoundError:
                continue
            if int(pid) != tracker:  # It stays as long as the process, by design.
                yield f"child process {pid}: {name}"
