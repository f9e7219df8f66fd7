"""Reads without a group, by the coordinator: filters, waiting at the end, and limits of reads that wait."""

import pytest

from edge.consumers import reads
from edge.consumers.protocol import VERSION, Failed, Read, Records
from edge.consumers.ring_source import RingRecords, RingSource
from edge.rpc.protocol import encode
from ringbuf import Batch
from tests.support.consumer_desk import Desk
from tests.support.waiting import wait_until


def offsets(desk: Desk, answer: Records) -> list[int]:
    if answer.batch is None:
        return []
    (frame,) = desk.frames
    facts = answer.batch
    return [it.offset for it in Batch.of(frame, facts.epoch, facts.offset, None, facts.offset + facts.count)]


def begin(desk: Desk, number: int, **how: object) -> None:
    how = {"max_wait_ms": 400, **how}
    request = {"op": "read", "id": number, "version": VERSION, "ring": "some-0", **how}
    desk.coordinator.receive(b"peer", encode(request))
    desk.turn()


def test_a_read_with_filters_has_only_records_that_match_and_goes_past_the_others(desk):
    for number in range(6):
        desk.publish(str(number), topic=f"a/{number % 3}")
    answer = desk.ask(Read, Records, "some-0", epoch=1, offset=0, filters=("a/1", "a/2"))
    assert offsets(desk, answer) == [1, 2, 4, 5]
    assert (answer.next_epoch, answer.next_offset, answer.lost) == (1, 6, 0)
    answer = desk.ask(Read, Records, "some-0", epoch=1, offset=0, filters=("b",))
    assert (answer.batch, answer.next_offset, desk.frames) == (None, 6, [])


def test_a_place_of_an_earlier_state_of_the_broker_is_refused_with_both_epochs(desk):
    answer = desk.ask(Read, Failed, "some-0", epoch=5, offset=100)
    assert (answer.code, answer.error) == ("refused", "ring some-0 is in epoch 1, not yet in 5")
    assert "oldest" in answer.hint


def test_a_read_at_the_end_waits_for_a_record_and_no_longer_than_it_says(desk):
    begin(desk, 700, epoch=1, offset=0)
    assert desk.answer_to(700) is None
    assert desk.coordinator.waited_for
    desk.publish("x")
    desk.turn()
    answer = desk.answer_to(700)
    assert isinstance(answer, Records)
    assert (answer.next_offset, not desk.coordinator.waited_for) == (1, True)
    begin(desk, 701, epoch=1, offset=1)
    desk.turn(0.3)
    assert desk.answer_to(701) is None
    desk.turn(0.2)
    assert desk.answer_to(701) == Records(701, 1, 1)


def test_a_waiting_read_is_answered_as_soon_as_it_may_continue_even_without_a_match(desk):
    begin(desk, 702, epoch=1, offset=0, filters=("b",))
    desk.publish("x")
    desk.turn()
    assert desk.answer_to(702) == Records(702, 1, 1)


def test_a_read_without_patience_is_answered_at_once(desk):
    assert desk.ask(Read, Records, "some-0", epoch=1, offset=0) == Records(1, 1, 0)


def test_more_reads_than_may_wait_are_answered_at_once(desk, monkeypatch):
    monkeypatch.setattr(reads, "WAITING_EACH", 3)
    desk.end()
    desk.start()
    for number in range(800, 805):
        begin(desk, number, epoch=1, offset=0)
        assert isinstance(desk.answer_to(number), Records) == (number >= 803)
    assert len(desk.coordinator._reads) == 3
    desk.turn(0.5)
    for number in range(806, 809):
        begin(desk, number, epoch=1, offset=0)
        assert desk.answer_to(number) is None


def test_long_filters_of_waiting_reads_are_bounded(desk, monkeypatch):
    monkeypatch.setattr(reads, "WAITING_MAX_BYTES", 100_000)
    desk.end()
    desk.start()
    for number in range(810, 815):
        begin(desk, number, epoch=1, offset=0, filters=["a" * 40_000])
    assert len(desk.coordinator._reads) == 2


def test_a_waiting_read_whose_peer_reads_nothing_fails_when_its_turn_comes(desk):
    begin(desk, 703, epoch=1, offset=0)
    desk.coordinator.outbox.hold(b"peer", 64 << 20)
    desk.publish("x")
    desk.turn()
    answer = desk.answer_to(703)
    assert isinstance(answer, Failed)
    assert answer.code == "full"
    desk.coordinator.outbox.release(b"peer", 64 << 20)


def test_a_defect_in_a_waiting_read_is_answered_and_the_turn_continues(desk, monkeypatch):
    begin(desk, 700, epoch=1, offset=0)
    begin(desk, 701, epoch=1, offset=0, filters=("a/1",))
    give = desk.coordinator._reads._give

    def broken(read, records):
        if read.request.id == 700:
            raise RuntimeError("a defect")
        give(read, records)

    monkeypatch.setattr(desk.coordinator._reads, "_give", broken)
    desk.publish("x")
    desk.turn()
    answers = {answer.id: answer for answer in desk.answers()}
    assert isinstance(answers[701], Records)
    assert isinstance(answers[700], Failed)
    assert answers[700].error == "read failed in the broker: RuntimeError"
    assert not desk.coordinator.waited_for


def test_a_defect_after_a_read_of_the_log_is_answered(runtime_directory, monkeypatch):
    with Desk(runtime_directory, log=EmptyLog()) as desk:
        monkeypatch.setattr(desk.coordinator._reads, "_give", lambda *_: 1 / 0)
        begin(desk, 700, epoch=0, offset=0)

        def turned():
            desk.turn()
            return desk.answers()

        wait_until(turned)
        (answer,) = desk.answers()
        assert isinstance(answer, Failed)
        assert answer.error == "read failed in the broker: ZeroDivisionError"
        assert len(desk.coordinator._reads._of_log) == 0


class EmptyLog:
    def read(self, ring_name, epoch, offset, limit_bytes):
        return []

    def epochs(self, ring_name):
        return []

    def seek_time(self, ring_name, epoch, timestamp_ns):
        return None


def test_an_invalid_record_is_passed_over_and_counted_as_lost(desk, monkeypatch):
    desk.publish("0", "1", "2")
    (part,) = desk.rings[0].reader(with_slot=False, start="oldest").ranges(1 << 20)
    each = len(part.view) // 3
    damaged = bytearray(part.view)
    damaged[each + 33] ^= 1

    def read(self: RingSource, offset: int, *_: object) -> RingRecords:
        return RingRecords(1, offset, 3 - offset, bytes(damaged[offset * each :]))

    monkeypatch.setattr(RingSource, "read", read)
    first, second, third = (
        desk.ask(Read, Records, "some-0", epoch=1, offset=offset, filters=("a/1",)) for offset in range(3)
    )
    assert (first.next_offset, first.lost, first.batch.count) == (1, 0, 1)
    assert (second.next_offset, second.lost, second.batch) == (2, 1, None)
    assert (third.next_offset, third.lost, third.batch.count) == (3, 0, 1)


@pytest.mark.parametrize("filters", [["a/#/b"], ["a"] * 257])
def test_invalid_filters_are_refused(desk, filters):
    begin(desk, 704, epoch=1, offset=0, filters=filters)
    answer = desk.answer_to(704)
    assert isinstance(answer, Failed)
    assert answer.code in {"refused", "malformed"}
