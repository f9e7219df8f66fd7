"""The retained message of a topic as `brim retained` reads it: whole or cut, with its properties."""

import pytest

from tests.support.mqtt_bench import BEGIN_NS, Bench

PROPERTIES = b"\x05\x03\x00\x02ab"  # a content type
LENGTHS = (1, 7, 8, 31, 32, 33, 500, 70_000)
EVERY_BYTE = 2**32 - 1


def topic_of(bench: Bench, name: str) -> int:
    topic = bench.broker.router.topic_of(name)
    assert topic is not None
    return topic


def put(bench: Bench, name: str, payload: bytes, properties: bytes = b"") -> int:
    """The topic, which retains this message at QoS 1."""
    topic = topic_of(bench, name)
    bench.engine.retain(topic, payload, 1, properties, BEGIN_NS, b"", b"")
    return topic


@pytest.mark.parametrize("properties", [b"", PROPERTIES], ids=["plain", "properties"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_payload_is_read_up_to_the_length_asked_for(bench: Bench, length: int, properties: bytes) -> None:
    payload = bytes(number % 251 for number in range(length))
    topic = put(bench, "a/" + "b" * (length % 9), payload, properties)
    for payload_max in (0, 1, length - 1, length, length + 1, EVERY_BYTE):
        message = bench.engine.retained_message(topic, payload_max)
        assert message is not None
        flags, *rest = message
        assert flags & 1 == 1
        assert rest == [BEGIN_NS, properties, length, payload[:payload_max], False]


def test_a_topic_without_a_retained_message_has_none(bench: Bench) -> None:
    assert bench.engine.retained_message(topic_of(bench, "never"), EVERY_BYTE) is None
    topic = put(bench, "cleared", b"x")
    put(bench, "cleared", b"")
    assert bench.engine.retained_message(topic, EVERY_BYTE) is None


def test_a_replaced_message_is_read_and_not_the_one_before(bench: Bench) -> None:
    for payload in (b"long" * 1_000, b"short"):
        topic = put(bench, "t", payload)
        message = bench.engine.retained_message(topic, EVERY_BYTE)
        assert message is not None
        assert message[4] == payload


def test_a_topic_that_does_not_exist_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="there is no topic 1048576"):
        bench.engine.retained_message(1 << 20, 1)
