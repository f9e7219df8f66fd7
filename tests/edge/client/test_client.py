"""The client against a real broker: mosquitto."""

import asyncio
from collections.abc import Iterator

import pytest

import edge.client
from edge.client import Message
from edge.client.errors import ConnectionLost
from edge.mqtt import Properties, ProtocolError, Version, Will
from tests.support.mosquitto import BINARY, Mosquitto, running
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(BINARY is None, reason="needs mosquitto: apt-get install mosquitto")

VERSIONS = pytest.mark.parametrize("version", [Version.V31, Version.V311, Version.V5], ids=lambda v: v.name)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running(tmp_path_factory.mktemp("mosquitto"), "max_inflight_messages 20") as started:
        yield started


async def take(subscription: edge.client.Subscription, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(subscription) for _ in range(count)]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_is_received(broker: Mosquitto, version: Version, qos: int) -> None:
    topic = f"{version.name}/{qos}"
    async with (
        edge.client.connect(broker.url, version=version) as client,
        client.subscribe(f"{version.name}/#", qos=2) as messages,
    ):
        await client.publish(topic, b"\x00\xff", qos)
        await client.publish(topic, "grün", qos)
        first, second = await take(messages, 2)
    assert (first.topic, first.payload, first.qos, first.retain) == (topic, b"\x00\xff", qos, False)
    assert (second.text, second.payload) == ("grün", "grün".encode())


async def test_the_example_of_the_package_works(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url, client_id="me") as client:
        await client.publish("plant/1/temp", b"21.5", qos=1, retain=True)
        async for message in client.subscribe("plant/+/temp", qos=1):
            assert (message.topic, message.payload, message.retain) == ("plant/1/temp", b"21.5", True)
            break
        await client.publish("plant/1/temp", b"", retain=True)


async def test_many_messages_arrive_in_order_at_every_qos(broker: Mosquitto) -> None:
    async with (
        edge.client.connect(broker.url) as sender,
        edge.client.connect(broker.url) as receiver,
        receiver.subscribe("order/#", qos=2) as messages,
    ):
        for qos in (0, 1, 2):
            for number in range(300):
                await sender.submit(f"order/{qos}", str(number), qos)
            received = await take(messages, 300)
            assert [message.text for message in received] == [str(number) for number in range(300)]
    assert receiver.dropped == 0


async def test_never_more_than_the_window_is_in_flight(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url, window=5) as client:
        highest = 0
        for number in range(100):
            await client.submit("window", str(number))
            highest = max(highest, client.in_flight)
    assert highest == 5


async def test_publishing_waits_for_room_in_the_window(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url, window=1) as client:
        await asyncio.gather(*(client.publish("window", str(number), qos=2) for number in range(20)))
        assert client.in_flight == 0


async def test_a_payload_of_megabytes_passes(broker: Mosquitto) -> None:
    payload = bytes(range(256)) * 7_000  # mosquitto 2.1 accepts packets of 2 MB
    async with edge.client.connect(broker.url) as client, client.subscribe("big", qos=1) as messages:
        await client.publish("big", payload, qos=1)
        (message,) = await take(messages, 1)
    assert message.payload == payload


async def test_subscriptions_of_one_client_each_get_their_own(broker: Mosquitto) -> None:
    async with (
        edge.client.connect(broker.url) as client,
        client.subscribe("own/a") as to_a,
        client.subscribe("own/b", "own/c") as to_bc,
    ):
        for name in ("a", "b", "c", "a"):
            await client.publish(f"own/{name}", name)
        assert [message.text for message in await take(to_a, 2)] == ["a", "a"]
        assert [message.text for message in await take(to_bc, 2)] == ["b", "c"]


async def test_leaving_a_subscription_unsubscribes_unless_another_wants_the_filter(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url) as client, client.subscribe("shared") as stays:
        async with client.subscribe("shared", "alone"):
            pass
        async with client.subscribe("end") as end:
            await client.publish("alone", b"for nobody")
            await client.publish("shared", b"for one")
            await client.publish("end")
            await take(end, 1)
        assert [message.text for message in await take(stays, 1)] == ["for one"]
        assert client.dropped == 0, "the broker still sends what nobody wants"


async def test_a_closed_subscription_ends_after_what_is_queued(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url) as client:
        async with client.subscribe("queued") as messages:
            await client.publish("queued", "1", qos=1)
            await client.publish("queued", "2", qos=1)
            await take(messages, 1)
        assert [message.text async for message in messages] == ["2"]


async def test_closing_the_client_ends_its_subscriptions(broker: Mosquitto) -> None:
    client = edge.client.connect(broker.url)
    async with client, client.subscribe("never") as messages:
        waiting = asyncio.create_task(anext(messages, None))
        await asyncio.sleep(0)
        await client.close()
        assert await waiting is None
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await client.publish("never", b"", qos=1)
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await client.publish("never", b"")


async def test_a_client_outside_its_context_says_so(broker: Mosquitto) -> None:
    client = edge.client.connect(broker.url)
    for qos in (0, 1):
        with pytest.raises(ConnectionLost, match="not connected") as error:
            await client.publish("a", b"", qos)
        assert "async with" in error.value.hint


async def test_what_may_not_be_sent_is_refused_here(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url) as client:
        with pytest.raises(ProtocolError, match=r"\[MQTT-3\.3\.2-2\]"):
            await client.publish("a/#")
        with pytest.raises(ProtocolError, match=r"\[MQTT-4\.7\.1-2\]"):
            client.subscribe("a/#/b")
        with pytest.raises(ProtocolError, match=r"\[MQTT-3\.3\.1-4\]"):
            await client.publish("a", qos=3)
        with pytest.raises(ValueError, match="at least one"):
            client.subscribe()
        await client.publish("a", b"the client still works", qos=2)
        assert client.in_flight == 0


async def test_the_will_is_published_when_a_client_dies_but_not_when_it_leaves(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url) as watcher, watcher.subscribe("will/#", qos=1) as wills:
        leaving = edge.client.connect(broker.url, will=Will("will/left", b"x", 1))
        async with leaving:
            pass
        dying = edge.client.connect(broker.url, will=Will("will/died", b"x", 1))
        async with dying:
            assert dying._link is not None
            dying._link.abort()
            (message,) = await take(wills, 1)
    assert message.topic == "will/died"


async def test_a_session_keeps_what_came_while_its_client_was_away(broker: Mosquitto) -> None:
    def session() -> edge.client.Client:
        return edge.client.connect(broker.url, client_id="sleeper", clean_start=False)

    async with session() as client:
        assert not client.session_present
        await client.subscribe("away", qos=1).start()
    async with edge.client.connect(broker.url) as sender:
        for number in range(5):
            await sender.publish("away", str(number), qos=1)
    async with session() as client:
        assert client.session_present
        async with client.subscribe("away", qos=1) as messages:
            assert [message.text for message in await take(messages, 5)] == list("01234")
    async with edge.client.connect(broker.url, client_id="sleeper") as client:
        assert not client.session_present


async def test_a_slow_reader_holds_qos_1_back_and_loses_nothing(broker: Mosquitto) -> None:
    async with (
        edge.client.connect(broker.url) as sender,
        edge.client.connect(broker.url, queue_limit=10) as receiver,
        receiver.subscribe("slow", qos=1) as messages,
        sender.subscribe("slow", qos=1) as fast,
    ):
        for number in range(80):
            await sender.submit("slow", str(number))
        await take(fast, 80)
        assert len(messages) < 80, "the broker holds back the rest"
        received = await take(messages, 80)
    assert [message.text for message in received] == [str(number) for number in range(80)]
    assert receiver.dropped == 0


async def test_a_slow_reader_loses_qos_0_and_is_told_how_much(broker: Mosquitto) -> None:
    async with (
        edge.client.connect(broker.url, queue_limit=10) as client,
        client.subscribe("fast", qos=0) as messages,
        client.subscribe("end") as end,
    ):
        for number in range(50):
            await client.publish("fast", str(number))
        await client.publish("end")
        await take(end, 1)
        assert messages.dropped == client.dropped == 40
        assert [message.text for message in await take(messages, 10)] == [str(n) for n in range(10)]


async def test_a_reader_that_publishes_from_its_loop_does_not_lock_itself_out(broker: Mosquitto) -> None:
    """Its own acknowledgements come in while its queue is full."""
    async with (
        edge.client.connect(broker.url, queue_limit=2) as client,
        client.subscribe("ask/#", qos=1) as questions,
        client.subscribe("answer/#", qos=1) as answers,
    ):
        for number in range(60):
            await client.submit(f"ask/{number}")
        for question in await take(questions, 60):
            await client.publish(f"answer/{question.topic}", b"yes", qos=2)
            await take(answers, 1)


async def test_an_idle_client_keeps_its_connection_by_pings(broker: Mosquitto) -> None:
    async with edge.client.connect(broker.url, client_id="idle", keep_alive_s=1) as client:
        await asyncio.to_thread(broker.wait_for_log, "Sending PINGRESP to idle", 2)
        assert client.connected


async def test_properties_of_mqtt_5_travel(broker: Mosquitto) -> None:
    given = Properties(content_type="text/plain", correlation_data=b"7", user=(("k", "v"), ("k", "w")))
    async with (
        edge.client.connect(broker.url, version=Version.V5) as client,
        client.subscribe("properties") as messages,
    ):
        await client.publish("properties", b"x", properties=given)
        (message,) = await take(messages, 1)
    assert message.properties == given
