"""Failed deliveries are counted on disk: a broker that crashes does not give a record new attempts."""

from pathlib import Path

from edge.config.schema import Consumers
from edge.consumers.ack_tracker import AckTracker, Rules
from edge.mqtt.errors import Version
from edge.mqtt.primitives import Body
from edge.mqtt.properties import In, decode_properties
from tests.support.consumer_desk import Desk


def test_tries_are_counted_over_the_lives_of_the_broker(runtime_directory: Path) -> None:
    with Desk(runtime_directory) as desk:
        ann = desk.member(mode="queue")
        desk.publish(*(b"%d" % number for number in range(5)))
        for tries in range(5):
            batches = []
            while (batch := ann.take()) is not None:
                batches.append(batch)
            assert {it.tries for it in batches if 2 in range(it.offset, it.offset + it.count)} == {tries}
            for batch in batches:
                offsets = range(batch.offset, batch.offset + batch.count)
                if 2 in offsets:
                    ann.nack(batch, [2])
                ann.ack(batch, [offset for offset in offsets if offset != 2])
            desk.turn()
            desk.end()
            desk.start()
            ann = desk.member(mode="queue")
        desk.turn()
        (letter,) = desk.published
        assert letter.payload == b"2"
        assert (
            dict(decode_properties(Body(letter.properties, Version.V5), In.PUBLISH).user)["brim-tries"] == "5"
        )
        assert ann.all() == []


def test_a_record_that_was_not_given_back_does_not_die_with_its_neighbour() -> None:
    tracker = AckTracker(0, Rules(ordered=False, tries_max=1, spans_max=8))
    tracker.deliver(0, 100, "ann", 0.0)
    given_back = range(0, 100, 2)
    tracker.give_back([(offset, 1) for offset in given_back], "ann", 0.0, None)
    dead = {offset for span in tracker.dead() for offset in range(span.first, span.end)}
    assert dead
    assert dead <= set(given_back)


def test_a_record_behind_a_dead_one_comes_again_and_has_all_its_tries(runtime_directory: Path) -> None:
    with Desk(runtime_directory, settings=Consumers(tries_max=1)) as desk:
        ann = desk.member()
        desk.publish(b"0", b"1")
        batch = ann.take()
        assert batch is not None
        assert batch.count == 2
        ann.nack(batch, [0])
        ann.nack(batch, [1])
        desk.turn(0.1)
        assert [letter.payload for letter in desk.published] == [b"0"]
        again = ann.take()
        assert again is not None
        assert (again.offset, again.count, again.tries) == (1, 1, 0)
