"""A journal that is full and cannot be let go of: nobody is told anything until it can; nothing is lost."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from edge.mqtt import ConnAck, Connect, PubAck, Publish, Subscribe, Subscription
from edge.state import keeper
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire

JOURNAL_BYTES = 1 << 16
BATCH = 50


def reader(bench: Bench) -> Wire:
    wire = bench.wire()
    wire.send(Connect("reader", clean_start=False))
    return wire


def publish(publisher: Wire, first: int) -> int:
    """A batch from that number on; how many are acknowledged by now."""
    numbers = range(first, first + BATCH)
    publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=n % 60_000 + 1) for n in numbers))
    return len(publisher.received())


def flood(publisher: Wire) -> tuple[int, int]:
    """Batches until one is not acknowledged as a whole; how many messages were sent, and acknowledged."""
    sent = acknowledged = 0
    while acknowledged == sent:
        acknowledged += publish(publisher, sent)
        sent += BATCH
        assert sent < 50_000, "the journal has no end"
    return sent, acknowledged


def everything(client: Wire) -> list[int]:
    """All that there is for it, acknowledged."""
    found: list[int] = []
    while packets := [it for it in client.received() if isinstance(it, Publish)]:
        found += [int(bytes(it.payload)) for it in packets]
        client.send(*(PubAck(it.packet_id) for it in packets))
    return found


def no_room(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_flood_waits_for_a_checkpoint_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench = lives.start()
        reader(bench).send(Subscribe(1, (Subscription("t", 1),)))
        publisher = bench.client("publisher")
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "write_checkpoint", no_room)
            sent, acknowledged = flood(publisher)
            assert publish(publisher, sent) == 0
            sent += BATCH
            assert lives.journal_end() <= 2 * JOURNAL_BYTES
        bench.settle(2_000)  # it is tried again
        acknowledged += len(publisher.received())
        assert acknowledged == sent
        assert everything(reader(lives.restart())) == list(range(sent))


def test_what_is_let_go_of_meanwhile_costs_nobody_anything() -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench = lives.start()
        reader(bench).send(Subscribe(1, (Subscription("t", 1),)))
        publisher = bench.client("publisher")
        for first in range(0, 20_000, BATCH):
            assert publish(publisher, first) == BATCH
        assert bench.broker.keeper.checkpoints > 3
        assert lives.journal_end() > 3 * JOURNAL_BYTES
        assert everything(reader(lives.restart())) == list(range(20_000))


def test_what_is_acknowledged_while_the_journal_is_full_outlives_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What does not fit is thrown away for a checkpoint that says it; less, which would fit, must not go
    before that is there: a restart would take what is missing for done.
    """
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench = lives.start()
        reader(bench).send(Subscribe(1, (Subscription("t", 1),)))
        publisher = bench.client("publisher")
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "write_checkpoint", no_room)
            sent, acknowledged = flood(publisher)
            for _ in range(20):
                bench.settle(100)
                publisher.send(Publish("t", b"%d" % sent, 1, packet_id=sent % 60_000 + 1))
                sent += 1
                acknowledged += len(publisher.received())
            lives.kill()
        assert everything(reader(lives.start()))[:acknowledged] == list(range(acknowledged))


def test_a_client_is_told_of_nothing_that_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench = lives.start()
        reader(bench).send(Subscribe(1, (Subscription("t", 1),)))
        publisher = bench.client("publisher")
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "write_checkpoint", no_room)
            first = 0
            while publish(publisher, first) == BATCH:
                first += BATCH
            late = bench.wire()
            late.send(Connect("late", clean_start=False))
            bench.settle(5_000)
            assert late.received() == []
        bench.settle(2_000)
        assert isinstance(late.answer(), ConnAck)
