"""Paced work: pieces take turns, and have a share of the time."""

import asyncio
from functools import partial

import pytest

from edge.pace import REST, REST_MAX_S, PacedWork


class Clock:
    """A clock that asyncio.sleep() moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()

    async def sleep(seconds: float) -> None:
        made.now_s += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


async def begins(clock: Clock, *durations_s: float) -> list[float]:
    """Times at which pieces of work begin."""
    pace, times = PacedWork(clock), []

    async def piece(duration_s: float) -> None:
        times.append(round(clock() - 100.0, 6))
        clock.now_s += duration_s
        if duration_s == 0.002:
            raise ValueError

    for duration_s in durations_s:
        try:
            await pace.run(partial(piece, duration_s))
        except ValueError:
            continue
    assert not pace.is_free
    clock.now_s += REST_MAX_S
    assert pace.is_free
    return times


async def test_a_piece_is_followed_by_a_pause_in_proportion(clock: Clock) -> None:
    assert await begins(clock, 0.001, 0.001, 0.001) == [0.0, 0.01, 0.02]
    assert REST == 9


async def test_a_piece_that_fails_is_followed_by_a_pause_too(clock: Clock) -> None:
    assert await begins(clock, 0.002, 0.001) == [0.0, 0.02]


async def test_a_pause_is_bounded(clock: Clock) -> None:
    assert await begins(clock, 3.0, 0.001) == [0.0, 3.0 + REST_MAX_S]


async def test_pieces_take_turns_in_the_order_of_their_calls() -> None:
    pace, order, ready = PacedWork(), [], asyncio.Event()

    async def piece(number: int) -> int:
        order.append(number)
        await ready.wait()
        return number

    calls = [asyncio.create_task(pace.run(partial(piece, number))) for number in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order in ([], [0])
    ready.set()
    assert await asyncio.gather(*calls) == [0, 1, 2] == order
