"""Fetches that wait: for partitions that come to their group or member, or until their peer reads."""

from pathlib import Path
from typing import Any

import pytest

from edge.consumers.outbox import PEER_MAX_BYTES
from edge.consumers.protocol import (
    VERSION,
    Alive,
    Fetch,
    Fetched,
    Heartbeat,
    Join,
    Joined,
    Leave,
    RequestMessage,
)
from edge.consumers.registry import RingEntry
from edge.consumers.ring_source import RingSource
from edge.rpc.protocol import encode
from ringbuf import Ring
from tests.support.consumer_desk import Desk


def begin(desk: Desk, kind: type[RequestMessage], number: int, *arguments: Any, **named: Any) -> None:
    desk.coordinator.receive(b"peer", encode(kind(number, VERSION, *arguments, **named)))
    desk.turn()


def rings_of(answers: list[Any], number: int) -> list[str]:
    """Rings of the records in the answer to a fetch."""
    (fetched,) = [it for it in answers if isinstance(it, Fetched) and it.id == number]
    return [batch.ring for batch in fetched.batches]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_fetch_that_waits_gets_the_partition_of_a_member_that_left_or_was_silent(
    runtime_directory: Path, leaves: bool
) -> None:
    with Desk(runtime_directory, rings=2) as desk:
        ann = desk.ask(Join, Joined, "g", ("a/#",), session_ms=1_000).member
        bob = desk.ask(Join, Joined, "g", ("a/#",), session_ms=3_600_000).member
        (ring,) = desk.ask(Heartbeat, Alive, "g", ann).rings
        begin(desk, Fetch, 901, "g", bob, max_wait_ms=60_000)
        desk.publish("x", ring=int(ring.removeprefix("some-")))
        desk.turn()
        assert desk.answers() == []
        if leaves:
            begin(desk, Leave, 902, "g", ann)
        else:
            desk.turn(2.0)
        assert rings_of(desk.answers(), 901) == [ring]


def test_a_fetch_that_waits_gets_records_of_a_ring_that_is_added(runtime_directory: Path) -> None:
    with Desk(runtime_directory) as desk:
        member = desk.ask(Join, Joined, "g", ("a/#",)).member
        begin(desk, Fetch, 901, "g", member, max_wait_ms=60_000)
        desk.rings.append(Ring.create(runtime_directory / "later-0", capacity_bytes=1 << 16, epoch=1))
        assert desk.rings[-1].writer().publish(b"x", key="a/1") is not None
        desk.coordinator.add_ring(RingEntry(RingSource(desk.rings[-1]), "later", ("a/#",)))
        desk.turn()
        assert rings_of(desk.answers(), 901) == ["later-0"]


def test_a_fetch_that_waits_gets_records_soon_after_its_peer_has_read_its_answers(
    runtime_directory: Path,
) -> None:
    with Desk(runtime_directory) as desk:
        member = desk.ask(Join, Joined, "g", ("a/#",)).member
        desk.coordinator.outbox.hold(b"peer", PEER_MAX_BYTES)
        desk.publish("x")
        begin(desk, Fetch, 901, "g", member, max_wait_ms=60_000)
        assert desk.answers() == []
        desk.coordinator.outbox.release(b"peer", PEER_MAX_BYTES)
        desk.turn(0.1)
        assert rings_of(desk.answers(), 901) == ["some-0"]
