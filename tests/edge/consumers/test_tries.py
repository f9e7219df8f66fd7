"""Failed deliveries are counted on disk: a broker that crashes does not give a record new attempts."""

from pathlib import Path

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
