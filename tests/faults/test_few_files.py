"""A broker that may open few files: it starts and stays, or the error names the limit and the remedy."""

import errno
import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.cli.run_process import _lacks_files
from edge.config.limits import Limits
from edge.config.schema import Config, Durability, Local, Log, Sessions, Stream, Zmq
from edge.errors import EdgeError
from edge.mqtt import ConnAck, Connect, PubAck, Publish, ReasonCode, SubAck, Subscribe, Subscription, encode
from edge.transport.descriptors import METRICS, OF_ENDPOINT, OF_LOG, OF_RING, PEERS, budget
from tests.support.brim_process import LIMITED, BrimProcess
from tests.support.mqtt_socket import SocketClient
from tests.support.project import ROOT
from tests.support.waiting import wait_until

FEW = 72
FEW_FOR_PEERS = 100
GONE = 64  # partitions
SETTINGS = """
[limits]
packet_max_bytes = 8192
topic_max_bytes = 1024
[[stream]]
name = "t"
topics = ["t/#"]
durability = "disk"
partitions = 32
ring_bytes = 65536
sync_bytes = 16384
"""


def test_the_table_of_descriptors_has_room_for_all_clients_before_they_come(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """While clients connect, each doubling of the table would stop the MQTT thread for 5 to 24 ms."""
    with BrimProcess(runtime_directory, tmp_path, "[limits]\nconnections_max = 3000\n") as broker:
        lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    sizes = [int(line.split()[1]) for line in lines if line.startswith("FDSize:")]
    assert sizes[0] >= 3000


def test_too_few_files_are_said_and_what_was_acknowledged_before_is_there_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as broker:
        with SocketClient(broker.port, "c") as client:
            client.send(Publish("t/1", b"kept", 1, True, packet_id=1))
            assert client.receive() == PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        broker.kill()
        command = f"ulimit -n {FEW} && exec {sys.executable} -m edge run --config {tmp_path / 'brim.toml'}"
        refused = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert refused.returncode == 2, refused.stderr
        assert f"brim run: {FEW} files may be open, too few to start" in refused.stderr
        assert "ulimit -Hn" in refused.stderr
        assert "Traceback" not in refused.stderr
        broker.start()
        with SocketClient(broker.port, "c") as client:
            client.send(Subscribe(1, (Subscription("t/#", 1),)))
            assert isinstance(client.receive(), SubAck)
            message = client.receive()
            assert isinstance(message, Publish)
            assert bytes(message.payload) == b"kept"


def test_rings_of_a_removed_stream_cost_no_retained_message_where_few_files_may_be_open(
    runtime_directory: Path, tmp_path: Path
) -> None:
    topics = [f"gone/{number}" for number in range(4 * GONE)]
    settings = f'[[stream]]\nname = "gone"\ntopics = ["gone/#"]\npartitions = {GONE}\nring_bytes = 65536\n'
    with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
        with SocketClient(broker.port, "p") as client:
            for topic in topics:
                client.send(Publish(topic, b"x", 1, True, packet_id=1))
                assert client.receive() == PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        broker.kill()
    with (
        BrimProcess(runtime_directory, tmp_path, bridge=False, open_files=2 * GONE) as broker,
        SocketClient(broker.port, "s") as client,
    ):
        client.send(Subscribe(1, (Subscription("gone/#"),)))
        assert isinstance(client.receive(), SubAck)
        received = [client.receive() for _ in topics]
    assert {packet.topic for packet in received if isinstance(packet, Publish)} == set(topics)


def _caused(by: BaseException) -> BaseException:
    try:
        try:
            raise by
        except BaseException as error:
            raise EdgeError("cannot bind there") from error
    except EdgeError as error:
        return error


@pytest.mark.parametrize(
    ("number", "lacks"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EIO, False)]
)
def test_what_led_to_an_error_is_looked_at(number: int, lacks: bool) -> None:
    assert _lacks_files(OSError(number, "")) is lacks
    assert _lacks_files(_caused(OSError(number, ""))) is lacks
    assert _lacks_files(_caused(ImportError())) is False


@pytest.mark.parametrize("open_files", [64, 128])
def test_connections_until_refusal_leave_the_broker_its_own_descriptors(
    runtime_directory: Path, tmp_path: Path, open_files: int
) -> None:
    settings = "[sys]\ninterval_s = 1\n"
    with (
        BrimProcess(runtime_directory, tmp_path, settings, bridge=False, open_files=open_files) as broker,
        SocketClient(broker.port, "honest") as client,
        ExitStack() as down,
    ):
        for _ in range(2 * open_files):
            down.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert isinstance(client.receive(), PubAck)
        client.send(Subscribe(1, (Subscription("$SYS/broker/uptime"),)))
        assert isinstance(client.receive(), SubAck)
        assert isinstance(client.receive(), Publish)  # what is retained
        assert isinstance(client.receive(), Publish)  # the next update, which reads /proc
        assert len(os.listdir(f"/proc/{broker.pid}/fd")) < open_files
        command = [sys.executable, "-m", "edge", "status", "--runtime-dir", str(runtime_directory)]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        down.close()
        wait_until(lambda: _is_let_in(broker.port))


@pytest.mark.parametrize("name", ["zmq.sock", "consumers.sock"])
def test_peers_that_connect_before_a_zeromq_service_starts_leave_it_its_descriptors(
    runtime_directory: Path, tmp_path: Path, name: str
) -> None:
    """The first of them starts the service, and libzmq ends a process without a descriptor."""
    with (
        BrimProcess(runtime_directory, tmp_path, bridge=False, open_files=FEW_FOR_PEERS) as broker,
        SocketClient(broker.port, "honest") as client,
        ExitStack() as down,
    ):
        for _ in range(2 * FEW_FOR_PEERS):
            peer = down.enter_context(socket.socket(socket.AF_UNIX))
            peer.setblocking(False)
            with suppress(BlockingIOError):  # the backlog is full
                peer.connect(str(runtime_directory / name))
        threads = Path(f"/proc/{broker.pid}/task")
        wait_until(lambda: "ZMQbg/IO/0" in {it.read_text().strip() for it in threads.glob("*/comm")})
        down.close()
        command = [sys.executable, "-m", "edge", "status", "--runtime-dir", str(runtime_directory)]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert isinstance(client.receive(), PubAck)


def _is_let_in(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(encode(Connect("later")))
        return client.recv(4) == encode(ConnAck(False))
    return False


@pytest.mark.parametrize("open_files", [18, 20, 24, 30, 50])  # libzmq ended the process where it had none
def test_a_start_with_too_few_files_names_the_limit_and_the_remedy(
    runtime_directory: Path, tmp_path: Path, open_files: int
) -> None:
    config = tmp_path / "brim.toml"
    config.write_text(
        f'runtime_dir = "{runtime_directory}"\nstate_dir = "{tmp_path}"\n[[listener]]\nport = 0\n'
    )
    command = [sys.executable, "-c", LIMITED, str(open_files), "run", "--config", str(config)]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2, refused.stderr
    assert f"brim run: {open_files} files may be open, too few to start" in refused.stderr
    assert "LimitNOFILE=" in refused.stderr
    assert "Traceback" not in refused.stderr


@given(
    st.integers(20, 200_000),
    st.integers(1, 100_000),
    st.integers(1, 4_096),
    st.booleans(),
)
def test_all_parts_together_never_get_more_descriptors_than_are_left(
    allowed: int, clients: int, local: int, zmq: bool
) -> None:
    config = Config(
        limits=Limits(connections_max=clients), local=Local(connections_max=local), zmq=Zmq(enabled=zmq)
    )
    opened, endpoints = 28, 1 + zmq  # consumers have one, too
    try:
        given_out = budget(config, allowed, opened)
    except EdgeError as error:
        assert allowed < 100, error
        return
    others = given_out.local + given_out.metrics + endpoints * given_out.peers + given_out.producers * OF_RING
    assert opened + OF_ENDPOINT * endpoints + others + given_out.clients <= allowed
    assert min(given_out.clients, given_out.local, given_out.metrics, given_out.peers) >= 1
    if allowed >= clients + local + METRICS + 2 * PEERS + 1_000:
        assert (given_out.clients, given_out.local) == (clients, local)


LOGGED = Stream(name="a", topics=("a",), durability=Durability.INTERVAL)
ISOLATED = Stream(name="b", topics=("b",), durability=Durability.DISK, isolated=True, partitions=3)
NO_PRODUCERS = Local(producers_max=0)


def given_out(config: Config, of_producer: int) -> int:
    """Descriptors of all parts together, where clients get fewer than they may have."""
    given = budget(config, 400, 28)
    assert given.clients < config.limits.connections_max
    endpoints = config.zmq.enabled + config.consumers.enabled
    others = given.local + given.metrics + given.peers * endpoints + given.producers * of_producer
    return others + given.clients


@pytest.mark.parametrize(
    ("logs", "settings"),
    [
        (1, {"sessions": Sessions(durability="disk")}),
        (0, {"sessions": Sessions(durability="disk", keep=False)}),
        (2, {"stream": (LOGGED,)}),
        (5, {"stream": (LOGGED,), "log": Log(workers=4)}),
        (2, {"stream": (LOGGED,), "sessions": Sessions(keep=False), "local": Local(producers_max=1)}),
        (4, {"stream": (ISOLATED,), "log": Log(workers=4)}),
    ],
)
def test_each_log_has_its_descriptors(logs: int, settings: dict[str, Any]) -> None:
    """Of workers, isolated rings, sessions and producers; clients get what is left."""
    settings = {"local": NO_PRODUCERS, **settings}
    without, config = Config(local=settings["local"]), Config(**settings)
    assert given_out(without, OF_RING) - given_out(config, OF_RING) == OF_LOG * logs


def test_an_isolated_producer_has_a_log() -> None:
    config = Config(stream=(ISOLATED,), sessions=Sessions(keep=False), local=Local(producers_max=1))
    without = msgspec.structs.replace(config, local=NO_PRODUCERS)
    assert budget(config, 400, 28).producers == 1
    assert given_out(without, OF_RING) == given_out(config, OF_RING + OF_LOG)


def test_the_soft_limit_is_raised_to_what_the_broker_may_need(
    runtime_directory: Path, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
            raised, _ = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised >= min(hard, 10_000 + 2 * PEERS)
