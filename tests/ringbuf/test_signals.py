"""Signals in waits: a Python handler runs while a wait lasts, and not after its time slice.

A thread sends a signal every few milliseconds, so none of these tests depends on when one of them comes.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ringbuf import Ring
from ringbuf.reader_wakeup import Sleeper

LONG_S = 60.0
ENOUGH = 20  # handlers that ran; a wait in slices of half a second runs 6 in WAIT_S
WAIT_S = 3.0


class Interrupted(Exception):
    """As KeyboardInterrupt: what a handler raises."""


@contextmanager
def ticking(handlers_max: int) -> Iterator[list[int]]:
    """A handler every 5 ms, which raises when it has run so often."""
    ran: list[int] = []
    ended = threading.Event()
    me = threading.get_ident()

    def handle(number: int, _: object) -> None:
        if not ended.is_set():
            ran.append(number)
            if len(ran) >= handlers_max:
                ended.set()
                raise Interrupted

    def tick() -> None:
        while not ended.wait(0.005):
            signal.pthread_kill(me, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        yield ran
    finally:
        ended.set()
        ticker.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("with_slot", [True, False])
def test_a_signal_ends_the_sleep_of_a_reader_that_waits(ring: Ring, with_slot: bool) -> None:
    reader = ring.reader(with_slot=with_slot, spin_ns=0)
    with ticking(ENOUGH), pytest.raises(Interrupted):
        reader.wait(WAIT_S)
    ring.writer().publish(b"x")
    assert reader.wait(WAIT_S)


WAITS: dict[str, Callable[[Ring], object]] = {
    "a sleeper": lambda ring: Sleeper().sleep([ring.reader(), ring.reader()], LONG_S),
    "a sleeper without readers": lambda _: Sleeper().sleep([], LONG_S),
    "a publisher that waits for the disk": lambda ring: ring.wait_durable(1 << 40, LONG_S),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_handler_may_end_a_long_wait(ring: Ring, name: str) -> None:
    with ticking(3), pytest.raises(Interrupted):
        WAITS[name](ring)


def test_signals_do_not_shorten_a_wait(ring: Ring) -> None:
    """A handler that returns lets it continue to its end, or to what it waits for."""
    sleeper, ran_before = Sleeper(), 0
    with ticking(1_000_000) as ran:
        while len(ran) < 3:
            assert not sleeper.sleep([ring.reader()], 0.05)
            assert not ring.wait_durable(1 << 40, 0.05)
            assert len(ran) > ran_before, "it returned before a single signal came"
            ran_before = len(ran)
        ring.writer().publish(b"x")
        sleeper.ring()
        assert sleeper.sleep([], LONG_S)
