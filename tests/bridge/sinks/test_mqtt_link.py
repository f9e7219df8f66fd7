"""The connection of the MQTT sink to brokers that refuse it, end it, or break the protocol."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bridge.errors import SinkUnavailable
from bridge.sinks.mqtt import MqttSink
from bridge.sinks.mqtt_commands import Commands
from edge.mqtt import ConnAck, Connect, Disconnect, Properties, PubAck, Publish, ReasonCode, SubAck, Subscribe
from tests.support.drained_files import EPOCH, drained_file_of, records_of
from tests.support.scripted_broker import Peer, scripted

SETTLED_S = 20.0
FAILURES = 1_100  # 2.0 ** 1024 is no float

ENDS: dict[str, tuple[Callable[[Peer], None], str]] = {
    "a reason": (
        lambda peer: peer.send(Disconnect(ReasonCode.QUOTA_EXCEEDED, Properties(reason_string="too much"))),
        "quota exceeded: too much",
    ),
    "the end of the file": (Peer.close, "closed the connection"),
    "a reset": (Peer.abort, "connection"),
    "a packet that no broker sends": (lambda peer: peer.send_bytes(b"\xc0\x00"), "PingReq"),
    "a malformed packet": (lambda peer: peer.send_bytes(b"\xff\xff\xff\xff\xff"), "ended"),
}


@pytest.mark.parametrize("way", ENDS)
async def test_records_under_way_fail_with_the_reason_and_arrive_over_the_next_connection(way: str) -> None:
    end, reason = ENDS[way]
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            peer, _ = await asyncio.gather(broker.accepted(), asyncio.to_thread(sink.begin, "edge-1"))
            future = sink.send(records_of(drained_file_of(1, 2)))
            for _ in range(2):
                await peer.expect(Publish)
            end(peer)
            with pytest.raises(SinkUnavailable, match=reason) as caught:
                await asyncio.to_thread(future.result, SETTLED_S)
            assert sink.url in str(caught.value)
            assert "check the network" in caught.value.hint
            peer, _ = await asyncio.gather(broker.accepted(), asyncio.to_thread(sink.begin, "edge-1"))
            future = sink.send(records_of(drained_file_of(1, 2)))
            for _ in range(2):
                publish = await peer.expect(Publish)
                assert publish.packet_id is not None
                peer.send(PubAck(publish.packet_id))
            assert list(await asyncio.to_thread(future.result, SETTLED_S)) == []
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_refused_connection_names_the_reason_and_the_remedy() -> None:
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            accepting = asyncio.create_task(broker.accepted(reason_code=ReasonCode.NOT_AUTHORIZED))
            with pytest.raises(SinkUnavailable, match="not authorized") as caught:
                await asyncio.to_thread(sink.begin, "edge-1")
            await accepting
            assert "password" in caught.value.hint
        finally:
            await asyncio.to_thread(sink.close)


async def test_acknowledgements_in_one_piece_with_the_reason_of_the_end_do_not_settle_the_rest() -> None:
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            peer, _ = await asyncio.gather(broker.accepted(), asyncio.to_thread(sink.begin, "edge-1"))
            future = sink.send(records_of(drained_file_of(1, 3)))
            sent = [await peer.expect(Publish) for _ in range(3)]
            assert sent[0].packet_id is not None
            peer.send(PubAck(sent[0].packet_id), Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
            with pytest.raises(SinkUnavailable, match="server shutting down"):
                await asyncio.to_thread(future.result, SETTLED_S)
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_record_that_is_late_although_it_was_sent_alone_is_named_and_gets_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.sinks.mqtt.ACK_TIMEOUT_S", 0.1)
    monkeypatch.setattr("bridge.sinks.mqtt.TICK_S", 0.05)
    named = f"record 3 of edge-1/default/0/{EPOCH}, with 1 bytes, was not acknowledged"
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            for last, keep_alive_s, reason, hint in (
                (4, 20, "no acknowledgement for 0.1 s", "check the network"),
                (3, 20, named, "it gets 0.2 s now"),
                (3, 40, named, "it gets 0.4 s now"),
            ):
                begun = asyncio.create_task(asyncio.to_thread(sink.begin, "edge-1"))
                peer = await broker.connection()
                assert (await peer.expect(Connect)).keep_alive_s == keep_alive_s
                peer.send(ConnAck(session_present=False))
                await begun
                future = sink.send(records_of(drained_file_of(3, last)))
                with pytest.raises(SinkUnavailable, match=reason) as caught:
                    await asyncio.to_thread(future.result, SETTLED_S)
                assert hint in caught.value.hint
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_record_has_the_usual_time_again_when_one_of_the_late_ones_size_has_arrived_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each connection that breaks without a word costs minutes, for as long as the bridge runs."""
    monkeypatch.setattr("bridge.sinks.mqtt.TICK_S", 0.05)
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            for timeout_s, length, keep_alive_s in ((0.1, 9, 20), (60, 8, 40), (60, 9, 40), (60, 1, 20)):
                monkeypatch.setattr("bridge.sinks.mqtt.ACK_TIMEOUT_S", timeout_s)
                begun = asyncio.create_task(asyncio.to_thread(sink.begin, "edge-1"))
                peer = await broker.connection()
                assert (await peer.expect(Connect)).keep_alive_s == keep_alive_s
                peer.send(ConnAck(session_present=False))
                await begun
                future = sink.send(records_of(drained_file_of(length, length, payload=bytes)))
                published = await peer.expect(Publish)
                if timeout_s < 1:
                    with pytest.raises(SinkUnavailable, match="it was sent alone"):
                        await asyncio.to_thread(future.result, SETTLED_S)
                    continue
                assert published.packet_id is not None
                peer.send(PubAck(published.packet_id))
                await asyncio.to_thread(future.result, SETTLED_S)
                lost = sink.send(records_of(drained_file_of(4, 4)))
                await peer.expect(Publish)
                peer.abort()
                with pytest.raises(SinkUnavailable, match=r"closed the connection|broke"):
                    await asyncio.to_thread(lost.result, SETTLED_S)
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_broker_that_was_away_for_days_is_connected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands need a connection at all times; the bound of the pause must not outgrow a float."""
    monkeypatch.setattr("bridge.sinks.mqtt.RETRY_MAX_S", 0.0)
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {"commands": "cmd/#", "local": broker.url})
        try:
            beginning = asyncio.create_task(asyncio.to_thread(sink.begin, "edge-1"))
            for _ in range(FAILURES):
                (await broker.connection()).abort()
            with pytest.raises(SinkUnavailable):
                await beginning
            peer = await broker.accepted()
            await peer.expect(Subscribe)
            peer.send(SubAck(1, (ReasonCode.GRANTED_QOS_1,)))
            await asyncio.to_thread(sink.begin, "edge-1")
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_mistake_with_one_record_leaves_out_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    made, mistakes = MqttSink._publish, [RuntimeError("an error of no known class")]

    def mistaken(sink: MqttSink, sending: Any, message: Any, packet_id: int) -> Publish | None:
        if message.offset == 2 and mistakes:
            raise mistakes.pop()
        return made(sink, sending, message, packet_id)

    monkeypatch.setattr(MqttSink, "_publish", mistaken)
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            await asyncio.gather(broker.accepted(), asyncio.to_thread(sink.begin, "edge-1"))
            with pytest.raises(RuntimeError, match="no known class"):
                await asyncio.to_thread(sink.send(records_of(drained_file_of(1, 3))).result, SETTLED_S)
            peer, _ = await asyncio.gather(broker.accepted(), asyncio.to_thread(sink.begin, "edge-1"))
            sink.send(records_of(drained_file_of(1, 3)))
            assert [(await peer.expect(Publish)).payload for _ in range(3)] == [b"1", b"2", b"3"]
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_mistake_of_the_connection_is_reported_and_the_next_begin_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mistaken(sink: MqttSink, packet: PubAck) -> None:
        raise RuntimeError("an error of no known class")

    monkeypatch.setattr(MqttSink, "_acknowledged", mistaken)
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {})
        try:
            for _ in range(2):
                peer, _ = await asyncio.gather(broker.accepted(), asyncio.to_thread(sink.begin, "edge-1"))
                future = sink.send(records_of(drained_file_of(1, 1)))
                publish = await peer.expect(Publish)
                peer.send(PubAck(publish.packet_id or 0))
                with pytest.raises(RuntimeError, match="no known class"):
                    await asyncio.to_thread(future.result, SETTLED_S)
        finally:
            await asyncio.to_thread(sink.close)


async def test_an_answer_to_the_wrong_number_of_filters_is_an_error_of_the_broker() -> None:
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {"commands": "cmd/#", "local": "mqtt://127.0.0.1:1"})
        try:
            for codes in [(ReasonCode.GRANTED_QOS_1,) * 2, (ReasonCode.GRANTED_QOS_1,)]:
                begun = asyncio.create_task(asyncio.to_thread(sink.begin, "edge-1"))
                peer = await broker.accepted()
                subscribe = await peer.expect(Subscribe)
                peer.send(SubAck(subscribe.packet_id, codes))
                if len(codes) == 1:
                    await begun
                    continue
                with pytest.raises(SinkUnavailable, match="2 reason codes for 1 filter"):
                    await begun
        finally:
            await asyncio.to_thread(sink.close)


async def test_the_end_of_the_delivery_of_commands_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def mistaken(commands: Commands, packet: Publish) -> None:
        raise RuntimeError("an error of no known class")

    monkeypatch.setattr(Commands, "_publish", mistaken)
    monkeypatch.setattr("bridge.sinks.mqtt.TICK_S", 0.01)
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {"commands": "cmd/#", "local": "mqtt://127.0.0.1:1"})
        try:
            begun = asyncio.create_task(asyncio.to_thread(sink.begin, "edge-1"))
            for number in range(2):
                peer = await broker.accepted(session_present=number > 0)
                subscribe = await peer.expect(Subscribe)
                peer.send(SubAck(subscribe.packet_id, (ReasonCode.GRANTED_QOS_1,)))
                await begun
                peer.send(Publish("cmd/valve", b"open", 1, packet_id=7))
                assert await peer.next() is None  # not acknowledged: it comes again
        finally:
            await asyncio.to_thread(sink.close)


async def test_a_broker_that_does_not_answer_the_subscription_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.sinks.mqtt_commands.ANSWER_TIMEOUT_S", 0.1)
    async with scripted() as broker:
        sink = MqttSink.of_url(broker.url, {"commands": "cmd/#", "local": "mqtt://127.0.0.1:1"})
        try:
            begun = asyncio.create_task(asyncio.to_thread(sink.begin, "edge-1"))
            await broker.accepted()
            with pytest.raises(SinkUnavailable, match="no answer to the subscription"):
                await begun
        finally:
            await asyncio.to_thread(sink.close)
