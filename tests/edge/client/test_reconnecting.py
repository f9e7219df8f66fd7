"""Reconnection of the client: messages sent again, subscriptions renewed, calls that fail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import edge.client
from edge.client import Client, Reconnect
from edge.client.errors import (
    ConnectionLost,
    ConnectRefused,
    DeliveryUnknown,
    PublishRefused,
    SubscribeRefused,
    TakenOver,
)
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
)
from tests.support.mosquitto import BINARY, Mosquitto
from tests.support.scripted_broker import Peer, ScriptedBroker, scripted
from tests.support.waiting import PATIENCE_S

SOON = Reconnect(first_s=0.01, max_s=0.02)


@asynccontextmanager
async def connected(**options: object) -> AsyncIterator[tuple[ScriptedBroker, Peer, Client]]:
    """A client of a scripted broker, and the broker's end of its connection."""
    async with scripted() as broker:
        client = edge.client.connect(broker.url, **options)  # type: ignore[arg-type]
        connecting = asyncio.create_task(client.__aenter__())
        peer = await broker.accepted()
        await connecting
        try:
            yield broker, peer, client
        finally:
            await client.close()


async def grant(peer: Peer, code: ReasonCode = ReasonCode.GRANTED_QOS_1) -> Subscribe:
    subscribe = await peer.expect(Subscribe)
    peer.send(SubAck(subscribe.packet_id, (code,) * len(subscribe.subscriptions)))
    return subscribe


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  There is no event to wait for.
            await asyncio.sleep(0.001)


# ---- without reconnecting --------------------------------------------------------------------------


async def test_whoever_waits_learns_that_the_connection_is_lost() -> None:
    async with connected() as (_, peer, client):
        messages = client.subscribe("a")
        receiving = asyncio.create_task(anext(messages))
        await grant(peer)
        publishing = asyncio.create_task(client.publish("a", b"x", qos=1))
        await peer.expect(Publish)
        peer.abort()
        for task in (receiving, publishing):
            with pytest.raises(ConnectionLost):
                await task
        with pytest.raises(ConnectionLost):
            await client.publish("a")
        with pytest.raises(ConnectionLost):
            await client.subscribe("b").start()


async def test_messages_before_the_end_are_still_handed_out() -> None:
    async with connected() as (_, peer, client):
        messages = client.subscribe("a")
        starting = asyncio.create_task(messages.start())
        await grant(peer)
        await starting
        peer.send(Publish("a", b"1"), Publish("a", b"2"))
        peer.close()
        assert [(await anext(messages)).payload for _ in range(2)] == [b"1", b"2"]
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await anext(messages)


async def test_a_broker_that_breaks_the_protocol_is_left_and_named() -> None:
    async with connected() as (_, peer, client):
        publishing = asyncio.create_task(client.publish("a", b"x", qos=1))
        await peer.expect(Publish)
        peer.send_bytes(b"\x36\x00")
        with pytest.raises(ConnectionLost, match=r"\[MQTT-3\.3\.1-4\]"):
            await publishing
        assert await peer.next() is None


async def test_an_mqtt_5_broker_is_told_what_it_did_wrong() -> None:
    async with connected(version=Version.V5, receive_maximum=1) as (_, peer, _):
        peer.send(Publish("a", qos=1, packet_id=1), Publish("a", qos=1, packet_id=2))
        assert await peer.expect(Disconnect) == Disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


async def test_a_broker_that_falls_silent_is_given_up() -> None:
    async with connected(keep_alive_s=1) as (_, peer, client):
        messages = client.subscribe("a")
        receiving = asyncio.create_task(anext(messages))
        await grant(peer)
        await peer.expect(PingReq)
        with pytest.raises(ConnectionLost, match=r"\[MQTT-3\.12\.4-1\] nothing received for"):
            await receiving


async def test_an_mqtt_5_broker_may_say_why_it_closes() -> None:
    async with connected(version=Version.V5) as (_, peer, client):
        messages = client.subscribe("a")
        receiving = asyncio.create_task(anext(messages))
        await grant(peer)
        peer.send(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
        with pytest.raises(ConnectionLost, match="ended the connection: server shutting down"):
            await receiving


# ---- refusals of MQTT 5 ----------------------------------------------------------------------------


async def test_a_refused_subscription_says_which_and_gives_back_the_others() -> None:
    async with connected(version=Version.V5) as (_, peer, client):
        starting = asyncio.create_task(client.subscribe("open", "closed", qos=1).start())
        subscribe = await peer.expect(Subscribe)
        peer.send(SubAck(subscribe.packet_id, (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED)))
        unsubscribe = await peer.expect(Unsubscribe)
        peer.send(UnsubAck(unsubscribe.packet_id, (ReasonCode.SUCCESS,) * 2))
        with pytest.raises(SubscribeRefused, match="'closed' was refused: not authorized"):
            await starting
        assert unsubscribe.topic_filters == ("open", "closed")


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck), (2, PubRec)])
async def test_a_refused_message_says_why(qos: int, answer: type[PubAck | PubRec]) -> None:
    async with connected(version=Version.V5) as (_, peer, client):
        publishing = asyncio.create_task(client.publish("a", b"x", qos))
        packet = await peer.expect(Publish)
        peer.send(answer(packet.packet_id, ReasonCode.QUOTA_EXCEEDED))
        with pytest.raises(PublishRefused, match="'a' was refused: quota exceeded") as refused:
            await publishing
        assert "full ring or disk" in refused.value.hint
        assert client.in_flight == 0


async def test_the_brokers_receive_maximum_is_respected() -> None:
    async with scripted() as broker:
        client = edge.client.connect(broker.url, version=Version.V5)
        connecting = asyncio.create_task(client.__aenter__())
        peer = await broker.accepted(properties=Properties(receive_maximum=1))
        await connecting
        publishing = [asyncio.create_task(client.publish("a", str(n), 1)) for n in range(2)]
        first = await peer.expect(Publish)
        await client.publish("a", b"not at QoS 1")
        assert (await peer.expect(Publish)).qos == 0
        peer.send(PubAck(first.packet_id))
        peer.send(PubAck((await peer.expect(Publish)).packet_id))
        await asyncio.gather(*publishing)
        await client.close()


async def test_a_message_that_the_broker_cannot_take_fails_alone() -> None:
    async with scripted() as broker:
        client = edge.client.connect(broker.url, version=Version.V5)
        connecting = asyncio.create_task(client.__aenter__())
        await broker.accepted(properties=Properties(maximum_packet_size_bytes=100))
        await connecting
        for qos in (0, 1):
            with pytest.raises(edge.mqtt.ProtocolError, match="exceeds the peer's 100"):
                await client.publish("a", bytes(200), qos)
        assert client.connected
        assert client.in_flight == 0
        await client.close()


# ---- reconnecting ----------------------------------------------------------------------------------


async def test_unacknowledged_messages_are_sent_again_with_dup_in_order() -> None:
    async with connected(reconnect=SOON, clean_start=False, client_id="c") as (broker, peer, client):
        publishing = [
            asyncio.create_task(client.publish("a", str(n), qos)) for n, qos in enumerate((1, 2, 1, 2))
        ]
        sent = [await peer.expect(Publish) for _ in publishing]
        peer.send(PubAck(sent[0].packet_id), PubRec(sent[1].packet_id))
        await peer.expect(PubRel)
        peer.abort()
        returned = await broker.accepted(session_present=True)
        again = [await returned.next() for _ in range(3)]
        assert again == [
            Publish("a", b"2", 1, dup=True, packet_id=sent[2].packet_id),
            Publish("a", b"3", 2, dup=True, packet_id=sent[3].packet_id),
            PubRel(sent[1].packet_id),
        ]
        returned.send(PubAck(sent[2].packet_id), PubRec(sent[3].packet_id), PubComp(sent[1].packet_id))
        await returned.expect(PubRel)
        returned.send(PubComp(sent[3].packet_id))
        await asyncio.gather(*publishing)
        assert client.reconnects == 1


async def test_a_lost_session_leaves_only_the_half_done_qos_2_in_doubt() -> None:
    async with connected(reconnect=SOON) as (broker, peer, client):
        publishing = [
            asyncio.create_task(client.publish("a", str(n), qos)) for n, qos in enumerate((1, 2, 2))
        ]
        sent = [await peer.expect(Publish) for _ in publishing]
        peer.send(PubRec(sent[2].packet_id))
        await peer.expect(PubRel)
        peer.abort()
        returned = await broker.accepted(session_present=False)
        again = [await returned.expect(Publish) for _ in range(2)]
        assert [(p.payload, p.dup) for p in again] == [(b"0", True), (b"1", True)]
        with pytest.raises(DeliveryUnknown):
            await publishing[2]
        returned.send(PubAck(again[0].packet_id), PubRec(again[1].packet_id))
        returned.send(PubComp((await returned.expect(PubRel)).packet_id))
        await asyncio.gather(*publishing[:2])


async def test_subscriptions_are_made_again_when_the_broker_has_forgotten_them() -> None:
    async with connected(reconnect=SOON) as (broker, peer, client):
        one, two = client.subscribe("a", "b", qos=1), client.subscribe("b", "c", qos=2)
        for messages in (one, two):
            starting = asyncio.create_task(messages.start())
            await grant(peer)
            await starting
        peer.abort()
        returned = await broker.accepted()
        again = await grant(returned)
        assert set(again.subscriptions) == {Subscription("a", 1), Subscription("b", 2), Subscription("c", 2)}
        returned.send(Publish("c", b"x"))
        assert (await anext(two)).payload == b"x"


async def test_subscriptions_are_not_made_again_in_a_session_that_was_kept() -> None:
    async with connected(reconnect=SOON, clean_start=False, client_id="c") as (broker, peer, client):
        messages = client.subscribe("a", qos=1)
        starting = asyncio.create_task(messages.start())
        await grant(peer)
        await starting
        peer.abort()
        returned = await broker.accepted(session_present=True)
        returned.send(Publish("a", b"x"))
        assert (await anext(messages)).payload == b"x"
        await client.publish("end")
        await returned.expect(Publish)


async def test_a_request_without_an_answer_is_made_again() -> None:
    async with connected(reconnect=SOON) as (broker, peer, client):
        starting = asyncio.create_task(client.subscribe("a", qos=1).start())
        first = await peer.expect(Subscribe)
        peer.abort()
        returned = await broker.accepted()
        assert await grant(returned) == first
        await starting


async def test_a_subscription_that_is_refused_after_a_reconnect_ends() -> None:
    async with connected(reconnect=SOON) as (broker, peer, client):
        messages = client.subscribe("a", qos=1)
        starting = asyncio.create_task(messages.start())
        await grant(peer)
        await starting
        peer.abort()
        returned = await broker.accepted()
        await grant(returned, ReasonCode.UNSPECIFIED_ERROR)
        with pytest.raises(SubscribeRefused):
            await anext(messages)


async def test_publishing_waits_for_the_connection() -> None:
    async with connected(reconnect=SOON) as (broker, peer, client):
        peer.abort()
        returned = await broker.connection()
        await returned.expect(Connect)
        publishing = [asyncio.create_task(client.publish("a", b"x", qos)) for qos in (0, 1)]
        await asyncio.sleep(0)
        assert not client.connected
        returned.send(ConnAck())
        packets = [await returned.expect(Publish) for _ in range(2)]
        assert sorted(packet.qos for packet in packets) == [0, 1]
        returned.send(*(PubAck(packet.packet_id) for packet in packets if packet.qos))
        await asyncio.gather(*publishing)


async def test_a_cancelled_publish_leaves_the_queue_but_not_the_window() -> None:
    async with connected(window=1) as (_, peer, client):
        sent = asyncio.create_task(client.publish("a", b"sent", 1))
        first = await peer.expect(Publish)
        waits = asyncio.create_task(client.publish("a", b"waits", 1))
        await asyncio.sleep(0)
        for task in (waits, sent):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert client.in_flight == 1
        third = asyncio.create_task(client.publish("a", b"third", 1))
        peer.send(PubAck(first.packet_id))
        packet = await peer.expect(Publish)
        assert packet.payload == b"third"
        peer.send(PubAck(packet.packet_id))
        await third


async def test_answers_to_what_was_cancelled_do_not_end_the_connection() -> None:
    async with connected() as (_, peer, client):
        starting = asyncio.create_task(client.subscribe("a", qos=1).start())
        subscribe = await peer.expect(Subscribe)
        starting.cancel()
        delivered = await client.submit("a", b"x", 1)
        delivered.cancel()
        publish = await peer.expect(Publish)
        peer.send(SubAck(subscribe.packet_id, (ReasonCode.GRANTED_QOS_1,)), PubAck(publish.packet_id))
        later = asyncio.create_task(client.publish("a", b"y", 1))
        peer.send(PubAck((await peer.expect(Publish)).packet_id))
        await later
        assert client.connected


async def test_another_client_of_the_same_name_is_not_thrown_out_again() -> None:
    async with connected(reconnect=SOON, version=Version.V5) as (_, peer, client):
        messages = client.subscribe("a")
        receiving = asyncio.create_task(anext(messages))
        await grant(peer)
        peer.send(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
        with pytest.raises(TakenOver):
            await receiving


async def test_a_refusal_that_will_not_change_ends_reconnecting() -> None:
    async with connected(reconnect=SOON) as (broker, peer, client):
        publishing = asyncio.create_task(client.publish("a", b"x", 1))
        await peer.expect(Publish)
        peer.abort()
        await broker.accepted(reason_code=ReasonCode.SERVER_UNAVAILABLE)
        await broker.accepted(reason_code=ReasonCode.NOT_AUTHORIZED)
        with pytest.raises(ConnectRefused):
            await publishing


async def test_attempts_run_out() -> None:
    async with connected(reconnect=Reconnect(first_s=0.001, attempts=2)) as (broker, peer, client):
        publishing = asyncio.create_task(client.publish("a", b"x", 1))
        await peer.expect(Publish)
        peer.abort()
        for _ in range(2):
            await broker.accepted(reason_code=ReasonCode.SERVER_UNAVAILABLE)
        with pytest.raises(ConnectRefused):
            await publishing


async def test_the_first_connection_may_be_tried_again_too() -> None:
    async with scripted() as broker:
        again = Reconnect(first_s=0.01, at_start=True)
        connecting = asyncio.create_task(edge.client.connect(broker.url, reconnect=again).__aenter__())
        (await broker.connection()).close()
        await broker.accepted()
        client = await connecting
        assert client.reconnects == 0
        await client.close()


async def test_closing_while_reconnecting_ends_it() -> None:
    async with connected(reconnect=Reconnect(first_s=1000.0)) as (_, peer, client):
        publishing = [asyncio.create_task(client.publish("a", b"x", qos)) for qos in (0, 1)]
        await peer.expect(Publish)
        peer.abort()
        late = asyncio.create_task(client.subscribe("b").start())
        await until(lambda: not client.connected)
        await client.close()
        for task in (*publishing[1:], late):
            with pytest.raises(ConnectionLost, match="the client is closed"):
                await task


async def test_qos_1_that_waits_for_room_comes_once_after_a_reconnect() -> None:
    async with connected(reconnect=SOON, clean_start=False, client_id="c", queue_limit=1) as (
        broker,
        peer,
        client,
    ):
        messages = client.subscribe("a", qos=1)
        starting = asyncio.create_task(messages.start())
        await grant(peer)
        await starting
        peer.send(*(Publish("a", b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)))
        assert await peer.next() == PubAck(1)
        peer.abort()
        returned = await broker.accepted(session_present=True)
        await until(lambda: client.reconnects == 1)
        returned.send(*(Publish("a", b"%d" % n, 1, dup=True, packet_id=n) for n in (2, 3)))
        assert [(await anext(messages)).text for _ in range(3)] == ["1", "2", "3"]
        assert [await returned.next() for _ in range(2)] == [PubAck(2), PubAck(3)]


async def test_qos_2_comes_once_however_often_it_is_sent() -> None:
    async with connected(reconnect=SOON, clean_start=False, client_id="c") as (broker, peer, client):
        messages = client.subscribe("a", qos=2)
        starting = asyncio.create_task(messages.start())
        await grant(peer, ReasonCode.GRANTED_QOS_2)
        await starting
        peer.send(Publish("a", b"1", 2, packet_id=9))
        assert await peer.next() == PubRec(9)
        peer.abort()
        returned = await broker.accepted(session_present=True)
        returned.send(Publish("a", b"1", 2, dup=True, packet_id=9), Publish("a", b"2", 2, packet_id=10))
        assert [await returned.next() for _ in range(2)] == [PubRec(9), PubRec(10)]
        returned.send(PubRel(9))
        assert await returned.next() == PubComp(9)
        assert [(await anext(messages)).text for _ in range(2)] == ["1", "2"]


@pytest.mark.skipif(BINARY is None, reason="needs mosquitto: apt-get install mosquitto")
async def test_nothing_acknowledged_is_lost_while_a_real_broker_goes_and_comes(tmp_path: Path) -> None:
    """mosquitto is stopped in order, so it keeps its session; the publisher continues all the while."""
    broker = Mosquitto(tmp_path, "persistence true", f"persistence_location {tmp_path}/")
    broker.start()
    try:
        again = Reconnect(first_s=0.02, max_s=0.05)
        async with (
            edge.client.connect(broker.url, clean_start=False, client_id="to", reconnect=again) as receiver,
            edge.client.connect(broker.url, clean_start=False, client_id="from", reconnect=again) as sender,
            receiver.subscribe("n", qos=1) as messages,
        ):
            for number in range(300):
                if number in {100, 200}:
                    broker.stop()
                    broker.start()
                await sender.publish("n", str(number), qos=1)
            seen: set[int] = set()
            async with asyncio.timeout(PATIENCE_S):
                while len(seen) < 300:
                    seen.add(int((await anext(messages)).text))
            assert sender.reconnects == 2
            assert receiver.reconnects >= 1
    finally:
        broker.stop()
