"""A client that loses a permission while the broker is down: its queue and subscriptions deliver nothing."""

from edge.mqtt import Connect, Disconnect, Publish, Subscribe, Subscription, Version
from edge.mqtt.properties import Properties
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import AllButSecret


def come(bench: Bench) -> Wire:
    wire = bench.wire(Version.V5)
    properties = Properties(session_expiry_interval_s=3600)
    wire.send(Connect("c", clean_start=False, version=Version.V5, properties=properties))
    return wire


def publish(bench: Bench, *topics: str, retain: bool = False) -> None:
    publisher = bench.client("publisher")
    for number, topic in enumerate(topics, 1):
        publisher.send(Publish(topic, topic.encode(), 1, packet_id=number, retain=retain))
    publisher.drop()


def topics(client: Wire) -> list[str]:
    return [it.topic for it in client.received() if isinstance(it, Publish)]


def test_who_lost_a_right_while_the_broker_was_down_gets_nothing_of_it() -> None:
    rules = AllButSecret()
    with Lives(access=rules) as lives:
        bench = lives.start()
        client = come(bench)
        client.send(Subscribe(1, (Subscription("#", 1),)), Disconnect())
        publish(bench, "open", retain=True)
        publish(bench, "shut", "open", "shut")
        rules.secret = "shut"
        bench = lives.restart()
        publish(bench, "shut", "open")
        client = come(bench)
        assert topics(client) == ["open", "open", "open"]
        publish(bench, "shut", "open")
        assert topics(client) == ["open"]


def test_who_keeps_its_rights_gets_it_all() -> None:
    with Lives(access=AllButSecret()) as lives:
        client = come(lives.start())
        client.send(Subscribe(1, (Subscription("#", 1),)), Disconnect())
        assert lives.bench is not None
        publish(lives.bench, "open", "shut")
        assert topics(come(lives.restart())) == ["open", "shut"]
