"""paho against the broker on a real port, in both versions."""

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from edge.mqtt import PingReq, PingResp, Subscribe, Subscription, Version
from tests.support.mqtt_served import Served
from tests.support.paho_client import Paho
from tests.support.waiting import PATIENCE_S

Pahos = Callable[..., Paho]

BOTH = pytest.mark.parametrize("version", [Version.V311, Version.V5])


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_subscribes(there: Served, paho: Pahos, qos: int, version: Version) -> None:
    reader = paho("r", qos=qos, topic="t/#", version=version)
    writer = paho("w", version=version)
    for i in range(200):
        writer.publish("t/x", b"%d" % i, qos)
    assert [reader.next() for _ in range(200)] == [("t/x", b"%d" % i, qos, False) for i in range(200)]


def test_paho_comes_back_to_its_session_and_misses_nothing(there: Served, paho: Pahos) -> None:
    reader, writer = paho("r", clean=False, topic="t"), paho("w")
    writer.publish("t", b"1")
    assert reader.next()[1] == b"1"
    reader.stop()
    for i in range(2, 150):
        writer.publish("t", b"%d" % i, 1 + i % 2)
    reader = paho("r", clean=False)
    assert reader.session_present
    assert [reader.next()[1] for _ in range(2, 150)] == [b"%d" % i for i in range(2, 150)]


def test_paho_is_taken_over_by_a_client_of_its_name(there: Served, paho: Pahos) -> None:
    first = paho("same")
    lost: queue.Queue[Any] = queue.Queue()
    first.client.on_disconnect = lambda *_: lost.put(True)
    first.client.reconnect_delay_set(600, 600)
    with there.client("same"):
        assert lost.get(timeout=PATIENCE_S)
    first.stop()


def test_a_message_that_one_client_left_unacknowledged_is_redelivered_to_the_next(
    there: Served, paho: Pahos
) -> None:
    with there.client("s", clean_start=False) as raw:
        raw.send(Subscribe(1, (Subscription("t", 1),)))
        raw.packet()
        writer = paho("w")
        writer.publish("t", b"not acknowledged")
        assert raw.publish().payload == b"not acknowledged"
    reader = paho("s", clean=False)
    assert reader.session_present
    assert reader.next() == ("t", b"not acknowledged", 1, False)
    reader.stop()
    writer.stop()
    with there.client("s", clean_start=False) as last:
        last.send(PingReq())
        assert last.packet() == PingResp()  # and nothing before it


# ---- MQTT 5 ----


def properties_of(packet: str, **given: Any) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made = Properties(getattr(PacketTypes, packet))
    for name, value in given.items():
        setattr(made, name, value)
    return made


def test_paho_sends_properties_and_gets_them_unchanged(there: Served, paho: Pahos) -> None:
    given: dict[str, Any] = {
        "UserProperty": [("a", "1"), ("b", "2"), ("a", "3")],
        "ContentType": "text/plain",
        "ResponseTopic": "r/t",
        "CorrelationData": b"\0\1\2",
        "PayloadFormatIndicator": 1,
    }
    reader = paho("r", version=Version.V5, topic="t/#")
    writer = paho("w", version=Version.V5)
    writer.publish("t/x", "grün".encode(), properties=properties_of("PUBLISH", **given))
    message = reader.message()
    assert {name: getattr(message.properties, name) for name in given} == given


def test_paho_sees_the_identifiers_of_all_its_subscriptions_that_match(there: Served, paho: Pahos) -> None:
    reader = paho("r", version=Version.V5)
    for identifier, topic in ((7, "t/+"), (300, "t/#")):
        reader.client.subscribe(
            topic, 1, properties=properties_of("SUBSCRIBE", SubscriptionIdentifier=identifier)
        )
        reader.subscribed.get(timeout=PATIENCE_S)
    writer = paho("w", version=Version.V5)
    writer.publish("t/x", b"once")
    writer.publish("t/y", b"twice")
    seen = [reader.message() for _ in range(2)]
    assert [(it.payload, sorted(it.properties.SubscriptionIdentifier)) for it in seen] == [
        (b"once", [7, 300]),
        (b"twice", [7, 300]),
    ]


def test_a_message_for_paho_expires_while_it_is_away(there: Served, paho: Pahos) -> None:
    session = properties_of("CONNECT", SessionExpiryInterval=60)
    reader = paho("r", version=Version.V5, topic="t", properties=session)
    reader.stop()
    writer = paho("w", version=Version.V5)
    writer.publish("t", b"short", properties=properties_of("PUBLISH", MessageExpiryInterval=1))
    writer.publish("t", b"long", properties=properties_of("PUBLISH", MessageExpiryInterval=1000))
    time.sleep(1.1)  # what is tested is the passing of a real second
    reader = paho("r", version=Version.V5, clean=False, properties=session)
    assert reader.session_present
    message = reader.message()
    assert message.payload == b"long"
    assert 900 < message.properties.MessageExpiryInterval < 1000
