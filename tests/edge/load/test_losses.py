"""Messages that a broker loses, doubles or leaves unanswered: counted and reported; no run waits forever."""

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from edge.load import SCENARIOS, Generator, LoadError, LoadTarget, NothingListens, Result, Scenario, measure
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Version,
    encode,
)
from tests.support.ports import free_port
from tests.support.scripted_broker import Peer, ScriptedBroker, scripted

PATIENCE_S = 0.3  # the scripted brokers answer at once, or never

PUBLISH = dataclasses.replace(SCENARIOS["publish"], qos=(1,), messages=50, window=50)
PAIR = dataclasses.replace(SCENARIOS["pair"], qos=(1,), messages=50, window=50, outstanding=0)

Answers = Callable[[Packet], list[Packet]]


async def serve(peer: Peer, answers: Answers, deliver_to: Callable[[], Peer] | None = None) -> None:
    """Until the client is gone.  A PUBLISH among the answers goes to `deliver_to`."""
    while (packet := await peer.next()) is not None:
        for answer in answers(packet):
            receiver = deliver_to() if isinstance(answer, Publish) and deliver_to else peer
            receiver.send(answer)


def obliging(packet: Packet) -> list[Packet]:
    """Answers of a broker that loses no message."""
    if isinstance(packet, Connect):
        return [ConnAck()]
    if isinstance(packet, Subscribe):
        return [SubAck(packet.packet_id, tuple(ReasonCode(it.qos) for it in packet.subscriptions))]
    if isinstance(packet, PingReq):
        return [PingResp()]
    return [PubAck(packet.packet_id)] if isinstance(packet, Publish) else []


async def measured(scenario: Scenario, answers: Answers, version: Version = Version.V311) -> Result:
    """Against a broker that answers so; what is published goes to the client that has subscribed."""
    async with scripted() as broker:
        target = LoadTarget(port=broker.port, version=version)
        run = asyncio.create_task(asyncio.to_thread(measure, target, scenario, patience_s=PATIENCE_S))
        served = await attend(broker, scenario, answers)
        result = await run
        await asyncio.gather(*served)
        return result


async def attend(broker: ScriptedBroker, scenario: Scenario, answers: Answers) -> list[asyncio.Task[None]]:
    subscribers: list[Peer] = []

    async def one(peer: Peer) -> None:
        def watching(packet: Packet) -> list[Packet]:
            if isinstance(packet, Subscribe):
                subscribers.append(peer)
            return answers(packet)

        with suppress(ConnectionError):  # who is interrupted leaves without reading the rest
            await serve(peer, watching, lambda: subscribers[0])

    clients = scenario.publishers + scenario.subscribers
    return [asyncio.create_task(one(await broker.connection())) for _ in range(clients)]


async def test_acknowledgements_that_never_come_are_counted() -> None:
    def every_tenth_is_swallowed(packet: Packet) -> list[Packet]:
        return [] if isinstance(packet, Publish) and packet.packet_id % 10 == 0 else obliging(packet)

    result = await measured(PUBLISH, every_tenth_is_swallowed)
    assert (result.sent, result.acknowledged, result.unacknowledged) == (50, 45, 5)
    assert "5 never acknowledged" in result.remarks()
    assert not result.clean


async def test_a_window_that_stays_full_stops_the_publisher() -> None:
    def silent(packet: Packet) -> list[Packet]:
        return [] if isinstance(packet, Publish) else obliging(packet)

    result = await measured(dataclasses.replace(PUBLISH, window=7, messages=0, duration_s=0.2), silent)
    assert (result.sent, result.unacknowledged) == (7, 7)


async def test_a_receive_maximum_makes_the_window_smaller() -> None:
    def three_at_once(packet: Packet) -> list[Packet]:
        if isinstance(packet, Connect):
            return [
                ConnAck(properties=Properties(server_keep_alive_s=60, receive_maximum=3, reason_string="x"))
            ]
        return [] if isinstance(packet, Publish) else obliging(packet)

    scenario = dataclasses.replace(PUBLISH, messages=0, duration_s=0.2)
    result = await measured(scenario, three_at_once, Version.V5)
    assert (result.sent, result.unacknowledged) == (3, 3)


async def test_a_refused_message_is_counted_and_frees_its_place() -> None:
    def quota(packet: Packet) -> list[Packet]:
        if isinstance(packet, Publish) and packet.packet_id == 3:
            return [PubAck(3, ReasonCode.QUOTA_EXCEEDED)]
        return obliging(packet)

    result = await measured(PUBLISH, quota, Version.V5)
    assert (result.sent, result.refused, result.unacknowledged) == (50, 1, 0)


def forwarding(change: Callable[[list[Publish]], list[Publish]], count: int = 50) -> Answers:
    """Keeps back what is published until it is `count`, and delivers what `change` makes of it."""
    kept: list[Publish] = []

    def answers(packet: Packet) -> list[Packet]:
        if not isinstance(packet, Publish):
            return obliging(packet)
        kept.append(msgspec.structs.replace(packet, payload=bytes(packet.payload)))
        return [PubAck(packet.packet_id), *(change(kept) if len(kept) == count else ())]

    return answers


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda all_of: all_of, (0, 0, 0, 0)),
        (lambda all_of: [it for at, it in enumerate(all_of) if at % 10 != 5], (5, 0, 0, 0)),
        (lambda all_of: [*all_of, all_of[7], all_of[49]], (0, 0, 2, 0)),
        (lambda all_of: [all_of[1], all_of[0], *all_of[2:]], (0, 0, 0, 1)),
        (lambda all_of: all_of[:-1], (1, 0, 0, 0)),
        (lambda all_of: all_of[1:], (1, 0, 0, 0)),
        (lambda all_of: list(reversed(all_of)), (0, 0, 0, 49)),
    ],
    ids=["nothing", "every tenth lost", "two doubled", "two swapped", "last lost", "first lost", "reversed"],
)
async def test_losses_duplicates_and_order_are_told_apart(
    change: Callable[[list[Publish]], list[Publish]], found: tuple[int, ...]
) -> None:
    result = await measured(PAIR, forwarding(change))
    assert (result.lost, result.missing, result.duplicates, result.disordered) == found
    assert result.clean == (not any(found))


async def test_a_gap_longer_than_what_is_remembered_leaves_nothing_behind() -> None:
    """256 numbers are remembered: after the jump to 700, those from 448 on, of which none has come."""

    def with_a_jump(all_of: list[Publish]) -> list[Publish]:
        return [*all_of[:256], all_of[700], all_of[450], all_of[690], all_of[450]]

    scenario = dataclasses.replace(PAIR, messages=701, window=701)
    result = await measured(scenario, forwarding(with_a_jump, 701))
    assert (result.delivered, result.lost) == (259, 701 - 259)
    assert (result.duplicates, result.disordered) == (1, 2)


async def test_what_waits_while_the_broker_pauses_is_late_by_the_schedule() -> None:
    """A hundred messages are due in 0.1 s; the second is answered after 0.2 s, and all wait for it."""
    paused = False

    async def pausing(peer: Peer, subscriber: Peer) -> None:
        nonlocal paused
        while (packet := await peer.next()) is not None:
            if isinstance(packet, Publish):
                subscriber.send(msgspec.structs.replace(packet, payload=bytes(packet.payload)))
                if not paused:
                    paused = True
                    await asyncio.sleep(0.2)
            for answer in obliging(packet):
                peer.send(answer)

    scenario = dataclasses.replace(PAIR, window=1, messages=0, rate=1_000.0, duration_s=0.1)
    async with scripted() as broker:
        run = asyncio.create_task(asyncio.to_thread(measure, LoadTarget(port=broker.port), scenario))
        peers = [await broker.connection() for _ in range(2)]
        for peer in peers:
            await peer.expect(Connect)
            peer.send(ConnAck())
        subscriber = peers[1]
        peer_tasks = [
            asyncio.create_task(pausing(peers[0], subscriber)),
            asyncio.create_task(serve(subscriber, obliging)),
        ]
        result = await run
        await asyncio.gather(*peer_tasks)
    assert (result.delivered, result.unsent, result.clean) == (100, 0, True)
    assert result.latency.percentile(50) >= 100_000_000


async def test_what_qos_0_loses_is_no_error() -> None:
    answers = forwarding(
        lambda all_of: [msgspec.structs.replace(it, qos=0, packet_id=0) for it in all_of[2:]]
    )
    result = await measured(dataclasses.replace(PAIR, subscribe_qos=0), answers)
    assert (result.lost, result.missing, result.clean) == (0, 2, True)
    assert "2 not delivered, as QoS 0 allows" in result.remarks()


async def test_a_publisher_that_waits_for_a_lost_delivery_goes_on_after_a_second() -> None:
    def swallowing(packet: Packet) -> list[Packet]:
        if not isinstance(packet, Publish):
            return obliging(packet)
        again = msgspec.structs.replace(packet, payload=bytes(packet.payload))
        return [PubAck(packet.packet_id), *([again] if packet.payload[8] else [])]  # all but number 0

    result = await measured(dataclasses.replace(PAIR, outstanding=1, messages=3), swallowing)
    assert (result.sent, result.lost, result.stalls) == (3, 1, 1)


async def test_messages_of_another_run_are_not_taken_for_ours() -> None:
    def strange(packet: Packet) -> list[Packet]:
        if isinstance(packet, Publish):
            theirs = bytes([packet.payload[0] ^ 1]) + bytes(packet.payload[1:])
            return [PubAck(packet.packet_id), msgspec.structs.replace(packet, payload=theirs)]
        return obliging(packet)

    result = await measured(PAIR, strange)
    assert (result.received, result.foreign, result.delivered, result.lost) == (50, 50, 0, 50)


async def test_a_connection_that_breaks_is_counted_and_ends_its_part() -> None:
    async with scripted() as broker:
        target = LoadTarget(port=broker.port, version=Version.V5)
        run = asyncio.create_task(asyncio.to_thread(measure, target, PUBLISH, patience_s=PATIENCE_S))
        peer = await broker.accepted()
        await peer.expect(Publish)
        peer.send(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
        result = await run
    assert (result.disconnects, result.clean) == (1, False)
    assert "1 connections broken" in result.remarks()


@pytest.mark.parametrize(
    "data",
    [
        b"\x40\x02\x00\x07",
        b"\xf0\x00",
        b"\x30\xff\xff\xff\xff\x7f",
        b"\x90\x03\x00\x01\x00",
        b"\x36\x02\x00\x00",
    ],
)
async def test_bytes_that_make_no_sense_end_the_connection(data: bytes) -> None:
    async with scripted() as broker:
        scenario = dataclasses.replace(PUBLISH, messages=1)
        run = asyncio.create_task(
            asyncio.to_thread(measure, LoadTarget(port=broker.port), scenario, patience_s=PATIENCE_S)
        )
        peer = await broker.accepted()
        await peer.expect(Publish)
        peer.send_bytes(data)
        assert (await run).protocol_errors == 1


@pytest.mark.parametrize(
    ("version", "answer", "words"),
    [
        (Version.V311, ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED), "not authorized"),
        (Version.V5, ConnAck(reason_code=ReasonCode.BANNED), "banned"),
    ],
)
async def test_a_broker_that_refuses_says_why(version: Version, answer: ConnAck, words: str) -> None:
    async with scripted() as broker:
        target = LoadTarget(port=broker.port, version=version)
        run = asyncio.create_task(asyncio.to_thread(measure, target, PUBLISH))
        peer = await broker.connection()
        await peer.expect(Connect)
        peer.send_bytes(encode(answer, version))
        with pytest.raises(LoadError, match=f"refuses CONNECT of 1 of 1 clients: {words}"):
            await run


async def test_a_subscription_that_is_refused_is_said() -> None:
    def refusing(packet: Packet) -> list[Packet]:
        if isinstance(packet, Subscribe):
            return [SubAck(packet.packet_id, (ReasonCode.UNSPECIFIED_ERROR,))]
        return obliging(packet)

    with pytest.raises(LoadError, match="refuses SUBSCRIBE of 1 of 2 clients"):
        await measured(PAIR, refusing)


def test_nobody_there_is_said_with_a_remedy(tmp_path: Path) -> None:
    port = free_port()
    for target in (
        LoadTarget(port=port),
        LoadTarget(path=str(tmp_path / "none")),
        LoadTarget(path="@brim-none"),
    ):
        with pytest.raises(NothingListens, match="no broker listens on") as error:
            measure(target, PUBLISH)
        assert "brim run" in error.value.hint


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = LoadTarget(port=server.getsockname()[1])
        with (
            Generator(target, PUBLISH) as crowd,
            pytest.raises(LoadError, match="0 of 1 clients were connected"),
        ):
            crowd.connect(patience_s=0.2)


async def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    broker = ScriptedBroker()
    server = await asyncio.start_unix_server(broker.arrive, tmp_path / "socket")
    target = LoadTarget(path=str(tmp_path / "socket"))
    run = asyncio.create_task(asyncio.to_thread(measure, target, PUBLISH, patience_s=PATIENCE_S))
    tasks = await attend(broker, PUBLISH, obliging)
    assert (await run).acknowledged == 50
    await asyncio.gather(*tasks)
    server.close()
    broker.close()  # Python 3.12 and later: the server waits for its connections
    await server.wait_closed()
    await asyncio.sleep(0)


async def test_an_interrupted_run_tells_what_there_was() -> None:
    interrupted = threading.Event()

    def interrupt(crowd: Generator) -> None:
        if sum(crowd.counters.sent):
            interrupted.set()
            raise KeyboardInterrupt

    async with scripted() as broker:
        target = LoadTarget(port=broker.port)
        scenario = dataclasses.replace(PUBLISH, messages=0, rate=100.0, duration_s=60.0)
        run = asyncio.create_task(asyncio.to_thread(measure, target, scenario, interrupt))
        tasks = await attend(broker, scenario, obliging)
        result = await run
        await asyncio.gather(*tasks)
    assert interrupted.is_set()
    assert result.interrupted
    assert result.sent > 0
    assert "interrupted: the result so far" in result.remarks()
