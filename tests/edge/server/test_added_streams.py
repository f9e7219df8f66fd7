"""Added streams: a reload gives a running broker new rings, with clients at work, or changes nothing."""

import asyncio
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

import brim
from edge.config.listener import Listener
from edge.config.schema import Config, Stream
from edge.errors import EdgeError
from edge.local.protocol import Connection, Reload, Reloaded
from edge.local.zmq_stats import ZmqStats
from edge.mqtt import (
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from edge.server.server import BrokerServer
from edge.transport.descriptors import OF_RING
from tests.edge.server.test_live_configuration import Desk, traffic
from tests.support.brim_process import BrimProcess
from tests.support.drained_files import payloads_drained
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.small_disk import small_disk
from tests.support.waiting import until, wait_until

PLANT = '[[stream]]\nname = "plant"\ntopics = ["plant/#"]\n'
LOGGED = '[[stream]]\nname = "logged"\ntopics = ["logged/#"]\ndurability = "disk"\n'
KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval_s=3600)}


@pytest.fixture
def desk(runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with BrimProcess(runtime_directory, tmp_path, LOGGED, bridge=False) as broker:
        yield Desk(broker, tmp_path, capsys)


def records_of(desk: Desk) -> dict[str, int]:
    """Number of records in each ring."""
    return {ring["name"]: ring["end_offset"] for ring in desk.request()["rings"]}


def publish(client: SocketClient, topic: str, *payloads: int, retain: bool = False) -> None:
    """Publish with QoS 1, and wait for each acknowledgement."""
    for number in payloads:
        client.send(Publish(topic, str(number).encode(), 1, retain, packet_id=1))
        assert isinstance(client.receive(), PubAck)


def subscribe(client: SocketClient, *filters: str, qos: int = 1) -> None:
    client.send(Subscribe(1, tuple(Subscription(topic_filter, qos) for topic_filter in filters)))
    assert isinstance(client.receive(), SubAck)


def receive(client: SocketClient, count: int) -> list[int]:
    """The next messages, which are acknowledged."""
    numbers = []
    for _ in range(count):
        message = client.receive()
        assert isinstance(message, Publish), message
        numbers.append(int(message.payload))
        if message.packet_id:
            client.send(PubAck(message.packet_id))
    return numbers


def files(desk: Desk) -> set[str]:
    return {file.name for file in desk.broker.runtime_dir.iterdir()}


def descriptors(desk: Desk) -> int:
    return len(os.listdir(f"/proc/{desk.broker.pid}/fd"))


# ---- topics that are known ----


@pytest.mark.parametrize("durability", ["process", "interval", "disk", 'disk"\nvisible = "durable'])
async def test_a_known_topic_moves_to_an_added_stream_in_order(desk: Desk, durability: str) -> None:
    count = [0]
    async with traffic(desk, count):
        result = await asyncio.to_thread(desk.reload, f'{PLANT}durability = "{durability}"\npartitions = 3\n')
        assert (result["failed"], result["needs_restart"]) == ([], [])
        assert "stream.plant" in result["applied"]
        before = await asyncio.to_thread(records_of, desk)
        sent = count[0]
        await until(lambda: count[0] > sent + 20)
    after = records_of(desk)
    assert after["default-0"] == before["default-0"]
    moved = sum(after[f"plant-{index}"] for index in range(3))
    assert moved == count[0] - after["default-0"]
    assert moved > 20


def test_a_topic_goes_to_the_partition_that_a_restart_gives_it(desk: Desk) -> None:
    topics = [f"plant/{number}" for number in range(600)]
    with SocketClient(desk.broker.port, "p") as client:
        for topic in topics:
            publish(client, topic, 0)
        desk.reload(PLANT + "partitions = 7\n")
        for topic in topics:
            publish(client, topic, 1)
        moved = {name: end for name, end in records_of(desk).items() if name.startswith("plant")}
    desk.broker.kill()
    desk.broker.start()
    with SocketClient(desk.broker.port, "p") as client:
        for topic in topics:
            publish(client, topic, 2)
    assert {name: records_of(desk)[name] for name in moved} == {name: 2 * end for name, end in moved.items()}


def test_an_earlier_stream_keeps_its_topics(desk: Desk) -> None:
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "logged/1", 0)
        result = desk.reload('[[stream]]\nname = "later"\ntopics = ["logged/#", "+/+"]\n')
        assert result["failed"] == []
        publish(client, "logged/1", 1)
        publish(client, "x/1", 1)
    assert records_of(desk) == {"logged-0": 2, "later-0": 1, "default-0": 0}


# ---- sessions ----


def test_a_kept_session_gets_all_records_in_order_after_a_kill(desk: Desk) -> None:
    """Records in flight and queued in the earlier ring, then records in the added one; then kill -9."""
    with SocketClient(desk.broker.port, "kept", **KEPT) as kept:
        subscribe(kept, "plant/+/temp", "plant/#")
        with SocketClient(desk.broker.port, "p") as client:
            publish(client, "plant/1/temp", *range(10))
            in_flight = [kept.receive() for _ in range(10)]
    assert all(isinstance(message, Publish) for message in in_flight)
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1/temp", *range(10, 20))
        assert desk.reload(PLANT)["failed"] == []
        publish(client, "plant/1/temp", *range(20, 30))
        desk.broker.kill()
    desk.broker.start()
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1/temp", *range(30, 40))
    with SocketClient(desk.broker.port, "kept", **KEPT) as kept:
        assert kept.session_present
        assert receive(kept, 40) == list(range(40))
        assert kept.next(0.1) is None
    assert records_of(desk) == {"logged-0": 0, "plant-0": 20, "default-0": 20}


def test_messages_in_flight_to_a_client_are_acknowledged_after_the_reload(desk: Desk) -> None:
    with (
        SocketClient(desk.broker.port, "s") as subscriber,
        SocketClient(desk.broker.port, "p") as client,
    ):
        subscribe(subscriber, "plant/#", qos=2)
        client.send(Publish("plant/1", b"0", 2, packet_id=1))
        assert isinstance(client.receive(), PubRec)
        first = subscriber.receive()
        assert isinstance(first, Publish)
        assert desk.reload(PLANT + 'durability = "disk"\n')["failed"] == []
        subscriber.send(PubRec(first.packet_id))
        assert isinstance(subscriber.receive(), PubRel)
        subscriber.send(PubComp(first.packet_id))
        client.send(Publish("plant/1", b"0", 2, dup=True, packet_id=1))  # a repetition: not stored again
        assert isinstance(client.receive(), PubRec)
        client.send(PubRel(1))
        assert isinstance(client.receive(), PubComp)
        client.send(Publish("plant/1", b"1", 2, packet_id=1))
        assert isinstance(client.receive(), PubRec)
        second = subscriber.receive()
        assert isinstance(second, Publish)
        assert second.payload == b"1"
    assert records_of(desk) == {"logged-0": 0, "plant-0": 1, "default-0": 1}


def test_a_shared_subscription_gets_each_message_once(desk: Desk) -> None:
    with (
        SocketClient(desk.broker.port, "a", **KEPT) as one,
        SocketClient(desk.broker.port, "b", **KEPT) as other,
        SocketClient(desk.broker.port, "p") as client,
    ):
        for member in (one, other):
            subscribe(member, "$share/g/plant/#")
        publish(client, "plant/1", *range(10))
        assert desk.reload(PLANT)["failed"] == []
        publish(client, "plant/1", *range(10, 20))
        numbers = receive(one, 10), receive(other, 10)
        assert sorted(numbers[0] + numbers[1]) == list(range(20))
        assert numbers == (sorted(numbers[0]), sorted(numbers[1]))
        assert (one.next(0.1), other.next(0.1)) == (None, None)


@pytest.mark.parametrize("killed", [True, False])
def test_a_restart_restores_the_newest_retained_message(desk: Desk, killed: bool) -> None:
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1", 1, retain=True)
        publish(client, "plant/2", 1, retain=True)
        assert desk.reload(PLANT)["failed"] == []
        publish(client, "plant/1", 2, retain=True)
        with SocketClient(desk.broker.port, "s") as subscriber:
            subscribe(subscriber, "plant/#")
            assert receive(subscriber, 2) == [2, 1]
    if killed:
        desk.broker.kill()
    else:
        desk.broker.stop()
    desk.broker.start()
    with SocketClient(desk.broker.port, "s") as subscriber:
        subscribe(subscriber, "plant/1", "plant/2")
        assert sorted(receive(subscriber, 2)) == [1, 2]
        subscribe(subscriber, "plant/1")
        assert receive(subscriber, 1) == [2]


def test_acknowledged_records_of_an_added_stream_survive_the_loss_of_memory(desk: Desk) -> None:
    isolated = '[[stream]]\nname = "apart"\ntopics = ["apart/#"]\ndurability = "disk"\nisolated = true\n'
    assert desk.reload(isolated + PLANT + 'durability = "disk"\n')["failed"] == []
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1", 1, retain=True)
        publish(client, "apart/1", 2, retain=True)
    desk.broker.kill()
    shutil.rmtree(desk.broker.runtime_dir)
    desk.broker.runtime_dir.mkdir()
    desk.broker.start()
    with SocketClient(desk.broker.port, "s") as subscriber:
        subscribe(subscriber, "plant/#", "apart/#")
        assert sorted(receive(subscriber, 2)) == [1, 2]
    assert (desk.directory / "state" / "log" / "apart-0").is_dir()


@pytest.mark.parametrize("delay_ms", [0, 10, 20, 30, 45, 60, 80, 120])
def test_a_kill_during_the_reload_loses_no_acknowledged_record(desk: Desk, delay_ms: int) -> None:
    acknowledged: list[int] = []
    with SocketClient(desk.broker.port, "kept", **KEPT) as kept:
        subscribe(kept, "plant/#")

    def work() -> None:
        with suppress(EOFError, OSError), SocketClient(desk.broker.port, "p") as client:
            for number in itertools.count():
                publish(client, f"plant/{number % 300}", number)
                acknowledged.append(number)

    def reload() -> None:
        with suppress(EdgeError), Connection(desk.broker.runtime_dir) as connection:
            connection.request(Reload(), Reloaded)

    threads = [Thread(target=work), Thread(target=reload)]
    threads[0].start()
    wait_until(lambda: len(acknowledged) > 500)
    desk.write(PLANT + 'durability = "disk"\n')
    threads[1].start()
    time.sleep(delay_ms / 1000)
    desk.broker.kill()
    for thread in threads:
        thread.join()
    desk.broker.start()
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/end", 1_000_000)
    with SocketClient(desk.broker.port, "kept", **KEPT) as kept:
        numbers: list[int] = []
        while not numbers or numbers[-1] != 1_000_000:
            numbers += receive(kept, 1)
    more = [len(acknowledged)] if len(acknowledged) in numbers else []  # stored, and not acknowledged
    assert numbers == [*acknowledged, *more, 1_000_000]


def test_a_broker_stops_during_a_reload(desk: Desk) -> None:
    isolated = PLANT + 'durability = "disk"\nisolated = true\npartitions = 8\nring_bytes = 4194304\n'
    desk.write(isolated)
    os.kill(desk.broker.pid, signal.SIGHUP)
    desk.broker.stop()
    desk.broker.start()
    assert len(records_of(desk)) == 10


# ---- programs of this machine, and bridges ----


def test_programs_of_this_machine_read_the_rings_of_an_added_stream(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    settings = f'[zmq]\nenabled = true\nendpoint = "tcp://127.0.0.1:{port}"\n'
    with (
        BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker,
        brim.subscribe("plant/#", runtime_dir=runtime_directory) as plant,
        brim.subscribe("other/#", runtime_dir=runtime_directory) as other,
        brim.subscribe_zmq("plant/#", endpoint=f"tcp://127.0.0.1:{port}") as sockets,
        SocketClient(broker.port, "p") as client,
    ):
        desk = Desk(broker, tmp_path, capsys)
        wait_until(lambda: (desk.request()["zmq"] or {}).get("prefixes"))
        publish(client, "plant/1", 0)
        assert desk.reload(PLANT)["failed"] == []
        publish(client, "plant/1", 1)
        assert _read(plant, 2) == [0, 1]
        assert [int(bytes(payload)) for _, _, payload in islice(sockets, 2)] == [0, 1]
        assert "plant-0" not in other.places()
        with brim.producer("camera", stream="plant", runtime_dir=runtime_directory) as camera:
            camera.publish(b"2", "plant/camera")
            assert _read(plant, 1) == [2]


async def test_services_that_start_during_a_reload_serve_each_ring_once(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first connection comes when MQTT has the stream and the event loop does not know it yet."""
    config = Config(runtime_dir=runtime_directory, state_dir=tmp_path / "state", listener=(Listener(port=0),))
    added = replace(config, stream=(Stream(name="plant", topics=("plant/#",)), *config.stream))
    async with BrokerServer(config, "test", lambda: None, lambda: added) as broker:
        submit, services = broker.listener.submit, (broker._services._zmq, broker._services._consumers)

        def submit_and_connect(function: Callable[[], object]) -> Future[object]:
            monkeypatch.undo()
            future = submit(function)
            future.result()
            for service in services:
                assert service is not None
                asyncio.get_running_loop().remove_reader(service.listener.socket)
                service.start_now()
            return future

        monkeypatch.setattr(broker.listener, "submit", submit_and_connect)
        assert (await broker.reload()).failed == ()
        assert services[0] is not None
        assert services[0].service is not None
        await asyncio.to_thread(_publish_and_read_once, broker, services[0].service.stats)


def _publish_and_read_once(broker: BrokerServer, zmq: ZmqStats) -> None:
    directory = broker.config.runtime_dir
    with (
        brim.subscribe_zmq("plant/#", runtime_dir=directory) as sockets,
        brim.Consumer("group", "plant/#", runtime_dir=directory, start="oldest") as records,
        SocketClient(broker.listener.addresses[0].port, "p") as client,
    ):
        wait_until(lambda: zmq.prefixes > 0)
        publish(client, "plant/1", *range(5))
        assert [int(bytes(payload)) for _, _, payload in islice(sockets, 5)] == list(range(5))
        batch = records.read(5.0)
        assert batch is not None
        assert [int(bytes(record)) for record in batch] == list(range(5))[: len(batch)]


def _read(subscription: brim.Subscription, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        batch = subscription.read(timeout_s=5)
        assert batch is not None
        numbers += [int(bytes(record)) for record in batch]
    return numbers


def test_a_consumer_group_gets_the_records_of_an_added_stream(desk: Desk) -> None:
    directory = desk.broker.runtime_dir
    with (
        SocketClient(desk.broker.port, "p") as client,
        brim.Consumer("group", "plant/#", runtime_dir=directory, start="oldest") as records,
    ):
        publish(client, "plant/1", 0)
        assert desk.reload(PLANT + 'durability = "disk"\n')["failed"] == []
        publish(client, "plant/1", 1)
        assert brim.publish([(brim.Letter("plant/1"), b"2")], runtime_dir=directory) == 1
        numbers: list[int] = []
        for batch in records:
            numbers += [int(bytes(record)) for record in batch]
            records.ack(batch)
            if len(numbers) == 3:
                break
    assert numbers == [0, 1, 2]
    with brim.Consumer("group", "plant/#", runtime_dir=directory) as records:
        with SocketClient(desk.broker.port, "p") as client:
            publish(client, "plant/1", 3)
        assert [int(bytes(record)) for record in next(iter(records))] == [3]


def test_bridges_drain_an_added_stream_and_its_publishers_wait_for_them(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrimProcess(runtime_directory, tmp_path, LOGGED) as broker, SocketClient(broker.port, "p") as client:
        desk = Desk(broker, tmp_path, capsys)
        publish(client, "plant/1", 0)
        assert desk.reload(PLANT + 'durability = "upstream"\n')["failed"] == []
        publish(client, "plant/1", *range(1, 5))
        drained = list(map(int, payloads_drained(broker.sink)))
        assert set(drained) >= set(range(1, 5))
        assert list(desk.bridges()) == ["lake"]
        wait_until(lambda: sorted(map(int, payloads_drained(broker.sink))) == list(range(5)))


# ---- streams that need a restart ----


@pytest.mark.parametrize("durability", ["disk", "upstream"])
def test_the_first_stream_with_a_log_needs_a_restart(
    runtime_directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    durability: str,
) -> None:
    with BrimProcess(runtime_directory, tmp_path) as broker:
        desk = Desk(broker, tmp_path, capsys)
        result = desk.reload(f'{PLANT}durability = "{durability}"\n')
        assert "is the first with a log" in result["failed"][0]
        assert "stream.plant" in result["needs_restart"]
        assert result["applied"] == []
        assert set(records_of(desk)) == {"default-0"}


def test_hidden_records_would_be_overtaken_so_their_stream_loses_no_topics(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hiding = '[[stream]]\nname = "hiding"\ntopics = ["plant/#"]\ndurability = "disk"\nvisible = "durable"\n'
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        desk = Desk(broker, tmp_path, capsys)
        broker.stop()
        desk.write(hiding)
        broker.start()
        before = '[[stream]]\nname = "before"\ntopics = ["plant/1"]\n'
        result = desk.reload(before + hiding)
        assert "hidden records" in result["failed"][0]
        assert "before-0" not in records_of(desk)
        assert desk.reload(hiding + before)["failed"] == []  # takes nothing from it
        assert "before-0" in records_of(desk)


def test_the_session_journal_is_synced_as_at_the_start(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interval = '[[stream]]\nname = "interval"\ntopics = ["i/#"]\ndurability = "interval"\n'
    with BrimProcess(runtime_directory, tmp_path, interval, bridge=False) as broker:
        desk = Desk(broker, tmp_path, capsys)
        for settings in ('durability = "disk"\n', 'durability = "interval"\nsync_interval_ms = 10\n'):
            assert "session journal" in desk.reload(PLANT + settings)["failed"][0]
        assert desk.reload(PLANT + 'durability = "interval"\n')["failed"] == []
        assert set(records_of(desk)) == {"interval-0", "plant-0", "default-0"}


@pytest.mark.parametrize(
    "settings",
    [
        PLANT + LOGGED.replace("logged/#", "others/#"),
        PLANT + LOGGED.replace("disk", "process"),
        PLANT,
        LOGGED + '[[stream]]\nname = "default"\ntopics = ["#"]\nring_bytes = 16777216\n' + PLANT,
    ],
)
def test_no_stream_is_added_with_one_that_changes_or_ends(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str
) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        desk = Desk(broker, tmp_path, capsys)
        broker.stop()
        desk.write(LOGGED)
        broker.start()
        result = desk.reload(settings + "[limits]\ntopics_max = 7777\n")
        assert result["failed"] == []
        assert result["applied"] == ["limits.topics_max"]
        assert "stream.plant" in result["needs_restart"]
        assert set(records_of(desk)) == {"logged-0", "default-0"}


@pytest.mark.parametrize("name", ["plant-0", "plant@camera"])
def test_a_ring_of_an_earlier_run_is_left_to_a_restart(desk: Desk, name: str) -> None:
    """Sessions of that run may wait for its records."""
    desk.broker.stop()
    desk.write(PLANT)
    desk.broker.start()
    if "@" in name:
        with brim.producer("camera", stream="plant", runtime_dir=desk.broker.runtime_dir) as camera:
            camera.publish(b"0", "plant/1")
    else:
        with SocketClient(desk.broker.port, "p") as client:
            publish(client, "plant/1", 0)
    desk.broker.stop()  # removes rings without records
    desk.config.write_text(desk.config.read_text().replace(PLANT, ""))
    desk.broker.start()
    assert f"{name}.ring" in desk.reload(PLANT)["failed"][0]
    assert f"{name}.ring" in files(desk)
    desk.broker.stop()
    desk.broker.start()
    assert records_of(desk)[name] == 1


def test_the_rings_of_a_stream_with_a_longer_name_are_no_obstacle(desk: Desk) -> None:
    longer = '[[stream]]\nname = "plant-2"\ntopics = ["other/#"]\npartitions = 2\n'
    assert desk.reload(longer)["failed"] == []
    assert desk.reload(longer + PLANT)["failed"] == []
    assert set(records_of(desk)) == {"logged-0", "plant-2-0", "plant-2-1", "plant-0", "default-0"}


# ---- failures ----


async def test_a_reload_without_memory_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = 'durability = "disk"\nring_bytes = 1048576\n'
    apart = '[[stream]]\nname = "apart"\ntopics = ["apart/#"]\nisolated = true\n'
    large = '[[stream]]\nname = "large"\ntopics = ["large/#"]\nring_bytes = 33554432\n'
    small = PLANT + logged + apart + logged
    sizes = "[sessions]\njournal_bytes = 1048576\n[limits]\npacket_max_bytes = 65536\n"
    with (
        small_disk(tmp_path / "memory", 24 << 20) as memory,
        BrimProcess(memory, tmp_path, LOGGED + sizes, bridge=False) as broker,
    ):
        desk = Desk(broker, tmp_path, capsys)
        before, names, opened = desk.settings(), files(desk), 0
        async with traffic(desk, [0]):
            for _ in range(5):
                result = await asyncio.to_thread(desk.reload, small + large)
                assert "it is full" in result["failed"][0]
                assert result["applied"] == []
                assert desk.settings() == before
                assert files(desk) == names
                assert set(records_of(desk)) == {"logged-0", "default-0"}
                opened = opened or descriptors(desk)
            wait_until(lambda: descriptors(desk) <= opened)
        assert desk.reload(small)["failed"] == []  # the same names, after they were taken back
        with SocketClient(broker.port, "p") as client:
            publish(client, "plant/1", 0)
            publish(client, "apart/1", 0)


def test_many_reloads_leak_nothing(desk: Desk) -> None:
    settings, first = "", 0
    with SocketClient(desk.broker.port, "p") as client:
        for number in range(12):
            settings += PLANT.replace("plant", f"s{number}") + "ring_bytes = 4194304\n"
            assert desk.reload(settings)["failed"] == []
            publish(client, f"s{number}/1", 0)
            opened = descriptors(desk)
            first = first or opened
            for _ in range(3):
                assert desk.reload(settings) == {"applied": [], "failed": [], "needs_restart": []}
            wait_until(lambda: descriptors(desk) <= opened)  # noqa: B023
        assert opened - first <= 11 * OF_RING
    assert set(records_of(desk)) == {"logged-0", "default-0", *(f"s{number}-0" for number in range(12))}
    log = desk.broker.stop()
    assert "ERROR" not in log
    desk.broker.start()
    assert records_of(desk)["s11-0"] == 1


def test_more_rings_than_the_limit_are_a_mistake(desk: Desk) -> None:
    many = "".join(
        f'[[stream]]\nname = "s{number}"\ntopics = ["s{number}/#"]\npartitions = 60\nring_bytes = 4194304\n'
        for number in range(3)
    )
    names = files(desk)
    assert "limit of" in desk.reload(many)["failed"][0]
    assert files(desk) == names
