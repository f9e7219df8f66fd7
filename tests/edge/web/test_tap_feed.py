"""Live taps: the places of one user and of the console, without a browser."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from edge.errors import BrokerUnreachable, Refused
from edge.web.tap_feed import TAPS_MAX, TAPS_OF_USER_MAX, Row, TapFeed
from tests.support.local_broker import LocalBroker, small_config
from tests.support.waiting import PATIENCE_S, until

Tap = AsyncGenerator[Row, None]
pytestmark = pytest.mark.usefixtures("wakeup_ends")


async def opened(feed: TapFeed, user: str, count: int = 1) -> list[Tap]:
    taps = [cast("Tap", feed.messages(("#",), PATIENCE_S, user)) for _ in range(count)]
    await asyncio.gather(*map(anext, taps))
    return taps


async def end(feed: TapFeed, *taps: Tap) -> None:
    """Close the taps, and wait for the threads that give their places back."""
    for tap in taps:
        await tap.aclose()
    await until(lambda: not feed._open)


async def test_the_places_of_a_user_are_bounded_and_free_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    async with LocalBroker(small_config(runtime_directory, tmp_path)):
        feed = TapFeed(runtime_directory)
        for _ in range(2):
            taps = await opened(feed, "ann", TAPS_OF_USER_MAX)
            with pytest.raises(Refused, match=f"{TAPS_OF_USER_MAX} taps of ann are open"):
                await opened(feed, "ann")  # its request may have found a place
            taps += await opened(feed, "eve", TAPS_MAX - TAPS_OF_USER_MAX)
            with pytest.raises(Refused, match=f"{TAPS_MAX} taps are open"):
                await opened(feed, "bob")
            await end(feed, *taps)


async def test_without_users_all_browsers_share_the_places(runtime_directory: Path, tmp_path: Path) -> None:
    async with LocalBroker(small_config(runtime_directory, tmp_path)):
        feed = TapFeed(runtime_directory)
        taps = await opened(feed, "", TAPS_MAX)
        with pytest.raises(Refused, match=f"{TAPS_MAX} taps are open"):
            await opened(feed, "")
        await end(feed, *taps)


async def test_a_tap_without_a_broker_keeps_no_place(runtime_directory: Path) -> None:
    feed = TapFeed(runtime_directory)
    for _ in range(TAPS_MAX + 1):
        with pytest.raises(BrokerUnreachable):
            await opened(feed, "ann")
        await end(feed)
