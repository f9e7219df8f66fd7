"""RingPoll: other threads may wake it at any time, also while it is closed and after that."""

import os
import threading
from pathlib import Path

from edge.local.ring_poll import RingPoll
from ringbuf import WakeupThread

TIMES = 300


def wake_until(poll: RingPoll[None], begun: threading.Event, over: threading.Event) -> None:
    while not over.is_set():
        poll.wake()
        begun.set()


def test_a_poll_that_is_closed_is_woken_without_an_error() -> None:
    wakeup = WakeupThread()
    poll: RingPoll[None] = RingPoll(wakeup)
    poll.wake()
    poll.close()
    poll.wake()
    poll.close()
    wakeup.close()


def test_a_wake_never_writes_into_the_file_that_has_the_number_of_a_closed_poll(tmp_path: Path) -> None:
    wakeup = WakeupThread()
    path = tmp_path / "file"
    for _ in range(TIMES):
        poll: RingPoll[None] = RingPoll(wakeup)
        number, begun, over = poll.fileno(), threading.Event(), threading.Event()
        thread = threading.Thread(target=wake_until, args=(poll, begun, over))
        thread.start()
        begun.wait()
        poll.close()
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        assert file == number
        over.set()
        thread.join()
        os.close(file)
    wakeup.close()
    assert path.stat().st_size == 0
