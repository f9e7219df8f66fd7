"""The connection of the MQTT sink to brokers that refuse it, end it, or break the protocol."""

import asyncio
from collections.abc import Callable

import pytest

from bridge.errors import SinkUnavailable
from bridge.sinks.mqtt import MqttSink
from edge.mqtt import Disconnect, Properties, PubAck, Publish, ReasonCode, SubAck, Subscribe
from tests.support.drained_files import drained_file_of, records_of
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
