"""`brim` with an impatient watchdog, and one of several mistakes that stop service: $MISTAKE.

deaf         requests for a snapshot are ignored, so a full journal waits for one
mute         no snapshot is begun at all
asleep       a publish to a topic that begins with "$sleep/" puts the MQTT thread to sleep
grasping     the same, and the thread keeps the interpreter's lock meanwhile
nodding      as asleep, for NOD_S
no disk      snapshots cannot be written while there is a file "no-disk" in the state directory
"""

import ctypes
import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from edge.broker.dispatcher import Broker
from edge.cli import main
from edge.engine.engine import EventKind
from edge.server import watchdog
from edge.session_store import journal_writer
from edge.session_store.journal_writer import SessionJournal
from edge.session_store.snapshot_file import write_snapshot

TICKS = watchdog.Ticks(tick_ms=50, serve=5, report=10, exit=40)
NOD_S = 1.2  # between Ticks.report and Ticks.exit


def deaf(handle: Callable[..., None]) -> Callable[..., None]:
    def handled(self: Broker, kind: int, connection: int, detail: int, data: bytes) -> None:
        if kind != EventKind.JOURNAL:
            handle(self, kind, connection, detail, data)

    return handled


def sleeping(topic: Callable[..., None], sleep: Callable[[], object]) -> Callable[..., None]:
    def handled(self: Broker, connection: int, data: bytes) -> None:
        if data.startswith(b"$sleep/"):
            sleep()
        topic(self, connection, data)

    return handled


def failing(write: Callable[..., int]) -> Callable[..., int]:
    def written(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.exists(os.path.join(os.environ["STATE"], "no-disk")):
            raise OSError(errno.EIO, "Input/output error")
        return write(path, *arguments, **options)

    return written


def plant(mistake: str) -> None:
    """One of them."""
    watchdog.Ticks = lambda: TICKS  # type: ignore[assignment, misc]
    sleeps: dict[str, Callable[[], object]] = {
        "asleep": lambda: time.sleep(3_600),
        "grasping": lambda: ctypes.PyDLL(None).sleep(3_600),
        "nodding": lambda: time.sleep(NOD_S),
    }
    if mistake == "deaf":
        Broker._handle = deaf(Broker._handle)  # type: ignore[method-assign]
    elif mistake == "mute":
        SessionJournal.save_snapshot = lambda self, **_: None  # type: ignore[method-assign]
    elif mistake in sleeps:
        Broker._topic = sleeping(Broker._topic, sleeps[mistake])  # type: ignore[method-assign]
    elif mistake == "no disk":
        journal_writer.write_snapshot = failing(write_snapshot)  # type: ignore[attr-defined]


if __name__ == "__main__":
    plant(os.environ["MISTAKE"])
    sys.exit(main())
