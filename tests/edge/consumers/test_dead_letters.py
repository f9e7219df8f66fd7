"""Dead letters: records without acknowledgement after the last try."""

from unittest.mock import Mock

import pytest

from edge.config.schema import Consumers
from edge.consumers.protocol import GroupList, Groups
from edge.mqtt.errors import Version
from edge.mqtt.primitives import Body
from edge.mqtt.properties import In, decode_properties
from tests.support.consumer_desk import Desk, Talker


def test_a_record_that_is_never_acknowledged_becomes_a_dead_letter_and_says_why(desk):
    ann = desk.member(mode="queue")
    desk.publish("good", "bad", flags=1)
    for _ in range(5):
        for batch in iter(ann.take, None):
            for it in batch:
                if bytes(it) == b"bad":
                    ann.nack(batch, [it.offset], delay_s=0.0)
                else:
                    ann.ack(batch, [it.offset])
        desk.turn(0.06)
    assert ann.all() == []
    (letter,) = desk.published
    assert (letter.topic, letter.payload, letter.qos) == ("dead/g/a/1", b"bad", 1)
    user = dict(decode_properties(Body(letter.properties, Version.V5), In.PUBLISH).user)
    assert user == {
        "brim-group": "g",
        "brim-ring": "some-0",
        "brim-epoch": "1",
        "brim-offset": "1",
        "brim-tries": "5",
        "brim-cause": "no good",
    }
    (place,) = desk.ask(Groups, GroupList).groups[0].places
    assert (place.lag, place.counts["dead"]) == (0, 1)


def test_the_last_try_of_a_record_is_made_alone(desk):
    ann = desk.member(mode="queue")
    desk.publish("good", "bad", "good")
    for _ in range(4):
        batch = ann.got()
        assert len(batch) == 3
        ann.nack(batch, delay_s=0.0)
    sizes = []
    while (batch := ann.take()) is not None:
        sizes.append(len(batch))
        ann.nack(batch, delay_s=0.0) if bytes(batch[0]) == b"bad" else ann.ack(batch)
    desk.turn(0.1)
    assert sizes == [1, 1, 1]
    assert [it.payload for it in desk.published] == [b"bad"]


def test_dead_letters_are_one_line_of_the_log_in_ten_seconds(desk, caplog):
    ann = desk.member(mode="queue")
    desk.publish(*["bad"] * 20)
    while len(desk.published) < 20:
        while (batch := ann.take()) is not None:
            ann.nack(batch, delay_s=0.0)
        desk.turn(0.06)
    assert caplog.text.count("dead letters queued") == 1


def dead_letter_without_room(desk: Desk) -> Talker:
    """The member of a record that failed for the last time: its dead letter has no room, the next has."""
    desk.fates = lambda _: "full"
    ann = desk.member(mode="queue")
    desk.publish("bad")
    for _ in range(5):
        ann.nack(ann.got(), delay_s=0.0)
    desk.turn(0.1)
    desk.fates = lambda _: "stored"
    return ann


def test_a_dead_letter_for_which_there_is_no_room_waits(desk):
    dead_letter_without_room(desk)
    assert desk.published == []
    desk.turn(1.1)
    assert [it.payload for it in desk.published] == [b"bad"]


def test_a_failed_attempt_is_forgotten_after_its_pause(desk, monkeypatch):
    """Otherwise each waiting fetch of the group would be tried 20 times a second for ever."""
    ann = dead_letter_without_room(desk)
    desk.turn(1.1)
    desk.turn(0.1)
    assert len(desk.published) == 1
    assert ann.take() is None, "its fetch waits"
    takes = Mock(side_effect=desk.coordinator._fetch_reader.take)
    monkeypatch.setattr(desk.coordinator._fetch_reader, "take", takes)
    for _ in range(6):
        desk.turn(0.06)
    assert takes.call_count == 0
    desk.publish("good")
    assert ann.all() == [b"good"]


def test_a_dead_letter_that_dies_again_is_dropped_and_counted(desk):
    ann = desk.member(mode="queue", filters=("a/#", "dead/#"))
    desk.publish("bad", topic="dead/g/a/1")
    for _ in range(5):
        ann.nack(ann.got(), delay_s=0.0)
    desk.turn(0.1)
    assert desk.published == []
    assert desk.coordinator.counts["dead_letters_dropped"] == 1


def test_a_record_becomes_a_dead_letter_of_each_group_once(desk):
    """Two groups that fail with all records do not pass dead letters to each other without end."""
    ann = desk.member(mode="queue", filters=("a/#", "dead/#"))
    for topic in ("dead/h/dead/g/a/1", "dead/h/a/dead/g/1", "dead/gg/a/1"):
        desk.publish("bad", topic=topic)
    for _ in range(20):
        if (batch := ann.take()) is not None:
            ann.nack(batch, delay_s=0.0)
        desk.turn(0.1)
    assert [it.topic for it in desk.published] == ["dead/g/dead/h/a/dead/g/1", "dead/g/dead/gg/a/1"]
    assert desk.coordinator.counts["dead_letters_dropped"] == 1


@pytest.mark.parametrize("by_producer", [False, True])
def test_a_dead_letter_of_a_tenant_stays_in_its_name_space(runtime_directory, by_producer):
    """A local producer may write any name, but does not reach tenants."""
    topics = None if by_producer else ("#", "$tenant/acme/#")
    with Desk(runtime_directory, settings=Consumers(tries_max=1), topics=topics) as desk:
        ann = desk.member(mode="queue", filters=("#", "$tenant/#"))
        names = (
            "$tenant/acme/dead/g/a",
            "$tenant/acme/$tenant/other/a",
            "$tenant/acme/a",
            "a/$tenant/acme/b",
        )
        for topic in names:
            desk.publish("bad", topic=topic)
        while (batch := ann.take()) is not None:
            ann.nack(batch, delay_s=0.0)
        desk.turn(1.0)
        letters = [(it.prefix, it.topic) for it in desk.published]
        plain = ("", "dead/g/a/$tenant/acme/b")
        own = [("$tenant/acme/", "dead/g/$tenant/other/a"), ("$tenant/acme/", "dead/g/a")]
        assert letters == ([plain] if by_producer else [*own, plain])
        assert desk.coordinator.counts["dead_letters_dropped"] == (3 if by_producer else 1)


def test_without_a_topic_for_them_dead_records_are_dropped(runtime_directory):
    with Desk(runtime_directory, settings=Consumers(tries_max=1, dead_letter_topic="")) as desk:
        ann = desk.member()
        desk.publish("bad", "good")
        ann.nack(ann.got(), [0])
        desk.turn(0.1)
        assert ann.all() == [b"good"]
        assert desk.published == []
