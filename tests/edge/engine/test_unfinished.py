"""Packets that are not whole: their memory is bounded, for all clients together, and comes back."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from edge.engine.engine import EngineLimits
from edge.mqtt import Connect, Disconnect, PingReq, PingResp, PubAck, Publish, ReasonCode, Version, encode
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_served import Served, served
from tests.support.mqtt_socket import RawClient
from tests.support.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20
LIMIT = 2 * MIB
SLACK = MIB  # one read, and what a buffer grows ahead


@pytest.fixture
def there() -> Iterator[Served]:
    with served(engine=EngineLimits(unfinished_max_bytes=LIMIT)) as broker:
        yield broker


def part_of(packet: Publish | Connect, share: float, version: Version = Version.V5) -> bytes:
    data = encode(packet, version)
    return data[: int(len(data) * share)]


def started(there: Served, down: ExitStack, count: int, size: int) -> list[RawClient]:
    """Clients that have sent half of a packet of `size` bytes."""
    clients = [down.enter_context(there.client(f"half-{n}", version=Version.V5)) for n in range(count)]
    for client in clients:
        client.socket.setblocking(False)  # what the broker does not read stays with the kernel
        client.socket.send(part_of(Publish("t", bytes(size)), 0.5))
        client.socket.setblocking(True)
    return clients


def unfinished(there: Served) -> int:
    return there.stats.gauges()["unfinished_bytes"]


def test_their_memory_is_bounded_and_comes_back(there: Served) -> None:
    with ExitStack() as down:
        started(there, down, 100, 200 * KIB)
        wait_until(lambda: there.stats.totals()["input_waits"] > 0)
        assert 3 * LIMIT / 4 <= unfinished(there) < LIMIT + SLACK
    wait_until(lambda: unfinished(there) == 0)


def test_small_messages_pass_while_the_memory_is_taken(there: Served) -> None:
    with ExitStack() as down, there.client("honest") as honest:
        started(there, down, 100, 200 * KIB)
        wait_until(lambda: there.stats.totals()["input_waits"] > 0)
        for number in range(1, 200):
            honest.send(Publish("t", bytes(number * 10), 1, packet_id=number))
            assert honest.packet() == PubAck(number)


def test_old_packets_end_for_one_that_makes_progress_and_the_client_is_told(there: Served) -> None:
    with ExitStack() as down, there.client("honest") as honest:
        clients = started(there, down, 25, 200 * KIB)
        wait_until(lambda: there.stats.totals()["input_waits"] > 0)
        honest.send(Publish("t", bytes(150 * KIB), 1, packet_id=1))
        assert honest.packet() == PubAck(1)
        assert there.stats.closed()["unfinished"] > 0
        told = clients[0].packet()  # its packet began first
        assert isinstance(told, Disconnect)
        assert told.reason_code is ReasonCode.QUOTA_EXCEEDED


def test_before_log_in_the_memory_is_bounded_as_well_and_goes_first(there: Served) -> None:
    with ExitStack() as down, there.client("honest") as honest:
        accepted = started(there, down, 10, 200 * KIB)
        strangers = [down.enter_context(RawClient(there.port)) for _ in range(40)]
        for stranger in strangers:
            stranger.socket.sendall(part_of(Connect("c", password=bytes(65_000), username="u" * 60_000), 0.9))
        wait_until(lambda: unfinished(there) >= 3 * LIMIT / 4)
        assert unfinished(there) < LIMIT + SLACK
        honest.send(Publish("t", bytes(150 * KIB), 1, packet_id=1))
        assert honest.packet() == PubAck(1)
        for client in accepted:
            client.socket.sendall(encode(Publish("t", bytes(200 * KIB)), Version.V5)[-100 * KIB :])
        assert there.stats.closed()["unfinished"] > 0


def test_more_whole_packets_at_once_than_fit_all_arrive(there: Served) -> None:
    def publish(client: RawClient) -> None:
        for number in (1, 2):
            client.send(Publish("t", bytes(300 * KIB), 1, packet_id=number))
            assert client.packet() == PubAck(number)

    with ExitStack() as down:
        clients = [down.enter_context(there.client(f"c{n}")) for n in range(40)]
        threads = [threading.Thread(target=publish, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            client.send(PingReq())
            assert client.packet() == PingResp()
    wait_until(lambda: unfinished(there) == 0)
    assert there.stats.totals()["published"] == 80
    assert there.stats.closed()["unfinished"] == 0


def own_bytes(process: psutil.Process) -> int:
    """Resident bytes without shared memory, where the pages of rings are touched after the start."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def test_the_memory_of_the_process_comes_back_when_the_clients_have_left(
    runtime_directory: Path, tmp_path: Path
) -> None:
    data = part_of(Publish("t", bytes(MIB)), 0.5, Version.V311)
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        process = psutil.Process(broker.pid)
        before = own_bytes(process)
        with ExitStack() as down:
            for number in range(300):
                connected = down.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
                connected.sendall(encode(Connect(f"c{number}", keep_alive_s=0)) + data)
            wait_until(lambda: own_bytes(process) > before + 120 * MIB)
        wait_until(lambda: own_bytes(process) < before + 64 * MIB)
