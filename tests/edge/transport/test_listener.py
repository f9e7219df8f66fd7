"""The broker on a real port: sockets, the loop, its thread, and what a socket can do to it."""

import itertools
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from edge.auth.interfaces import ClientInfo, anonymous_allowed
from edge.broker.dispatcher import Broker, BrokerLimits
from edge.engine.engine import EngineLimits, counters_of, engine_of
from edge.errors import PortTaken
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    ReasonCode,
    Will,
    encode,
)
from edge.transport.listener import EVENTS_AT_A_TIME, Listener
from edge.transport.refusals import Refusals
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import OwnPartition
from tests.support.mqtt_served import served
from tests.support.mqtt_socket import RawClient
from tests.support.recording_authenticator import RecordingAuthenticator
from tests.support.waiting import PATIENCE_S, wait_until


def has_input(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_connacks_are_sent_before_the_decisions_about_many_other_clients() -> None:
    """All CONNECTs arrive while the broker's thread is busy."""
    sent_bytes: list[int] = []  # by the broker, at each decision

    class Counting(RecordingAuthenticator):
        def authenticate(self, client: ClientInfo, password: bytes | None) -> bool:
            sent_bytes.append(counters_of(there.engine).bytes_out)
            return super().authenticate(client, password)

    with served(authenticator=Counting()) as there, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(there.port)) for _ in range(3 * EVENTS_AT_A_TIME)]
        stack.enter_context(there.client("last", username="u"))  # so the others have been accepted
        sent_bytes.clear()

        def connect() -> None:
            for number, client in enumerate(clients):
                client.send(Connect(f"c{number}", username="u"))

        there.ask(connect)
        for client in clients:
            assert isinstance(client.packet(), ConnAck)
    assert sent_bytes[-1] > sent_bytes[0]


def test_messages_go_from_socket_to_socket_in_order() -> None:
    with served() as there, there.client("r") as reader, there.client("w") as writer:
        reader.subscribe("t/#", 1)
        count = 5_000
        for begin in range(0, count, 100):
            writer.send(
                *(
                    Publish(f"t/{i % 7}", b"%d" % i, i % 2, packet_id=i % 2 * (i + 1))
                    for i in range(begin, begin + 100)
                )
            )
        for i in range(count):
            packet = reader.publish()
            assert (packet.topic, packet.payload, packet.qos) == (f"t/{i % 7}", b"%d" % i, i % 2)
            if packet.qos:
                reader.send(PubAck(packet.packet_id))
        for i in range(1, count, 2):
            assert writer.packet() == PubAck(i + 1)


def test_packets_may_come_in_single_bytes() -> None:
    with served() as there, RawClient(there.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in encode(Connect("c")) + encode(Publish("t", b"hello", 1, packet_id=3)) + encode(PingReq()):
            client.socket.send(bytes([byte]))
        assert [client.packet() for _ in range(3)] == [ConnAck(), PubAck(3), PingResp()]
        assert there.records() == [("t", b"hello")]


def test_a_message_of_a_megabyte_passes() -> None:
    payload = bytes(range(256)) * 4000
    with served(capacity_bytes=1 << 23) as there, there.client("r") as reader, there.client("w") as writer:
        reader.subscribe("big", 1)
        for i in range(1, 6):
            writer.send(Publish("big", payload, 1, packet_id=i))
            assert writer.packet() == PubAck(i)
        for _ in range(5):
            packet = reader.publish()
            assert packet.payload == payload
            reader.send(PubAck(packet.packet_id))
        reader.ping()


def test_a_refusal_can_be_read_although_the_client_has_sent_more() -> None:
    limits = BrokerLimits(client_id_max_bytes=256)
    with served(limits=limits) as there, RawClient(there.port) as client:
        client.socket.sendall(encode(Connect("x" * 300)) + encode(Publish("t", bytes(60_000))) * 3)
        assert client.packet() == ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        assert client.packet() is None
        assert there.records() == []


def test_a_malformed_packet_closes_its_connection_and_no_other() -> None:
    with served() as there, there.client("good") as good, there.client("bad") as bad:
        good.subscribe("t")
        bad.socket.sendall(b"\x30\x00")
        assert bad.packet() is None
        good.send(Publish("t", b"still here"))
        assert good.publish().payload == b"still here"


def test_keep_alive_closes_whoever_is_silent() -> None:
    with served() as there, there.client("watcher", keep_alive_s=0) as watcher:
        watcher.subscribe("gone")
        with there.client("c", keep_alive_s=1, will=Will("gone", b"c")) as silent:
            assert silent.packet() is None
            assert watcher.publish().payload == b"c"
            assert there.stats.closed()["keep alive"] == 1


def test_a_connection_that_says_nothing_is_closed() -> None:
    with served(engine=EngineLimits(connect_timeout_ms=300)) as there, RawClient(there.port) as silent:
        assert silent.packet() is None
        assert there.stats.closed()["connect timeout"] == 1


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    with served(engine=EngineLimits(connections_max=3)) as there:
        clients = [there.client(f"c{i}") for i in range(3)]
        with RawClient(there.port) as surplus:
            assert surplus.packet() is None
        clients.pop().close()
        wait_until(lambda: there.stats.gauges()["connections"] == 2)
        clients.append(there.client("c9"))
        assert there.stats.closed()["limit"] == 1
        for client in clients:
            client.close()


@pytest.mark.parametrize("words", [(), (Disconnect(),)], ids=["lost", "disconnected"])
def test_a_client_gets_the_place_of_one_that_has_just_left(words: tuple[Disconnect, ...]) -> None:
    with served(engine=EngineLimits(connections_max=20)) as there:
        clients = [there.client(f"c{i}") for i in range(20)]
        for number in range(0, 300, 3):
            leaving = [clients.pop(0) for _ in range(3)]
            for client in leaving:
                client.send(*words)
                client.close()
            clients += [there.client(f"d{number + i}") for i in range(3)]
        assert there.stats.closed()["limit"] == 0
        for client in clients:
            client.close()


@pytest.mark.parametrize("words", [(), (Disconnect(),)], ids=["lost", "disconnected"])
def test_a_place_that_was_left_while_the_broker_read_nothing_goes_to_the_client_that_waits(
    words: tuple[Disconnect, ...],
) -> None:
    """The 50 ms of the wait end on a broker that is busy."""
    with served(engine=EngineLimits(connections_max=1)) as there, there.client("c") as client:

        def leave(refused: int) -> bool:  # On the thread of the broker, which reads no socket meanwhile.
            if there.stats.closed()["limit"] > refused:  # the test itself came too late
                return False
            client.send(*words)
            client.close()
            time.sleep(0.06)
            return True

        for refused in itertools.count():
            with RawClient(there.port) as waiting:
                waiting.send(Connect("waits"))
                if there.ask(partial(leave, refused)):
                    assert isinstance(waiting.packet(), ConnAck)
                    break


def test_refused_connections_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with served(engine=EngineLimits(connections_max=1)) as there, there.client("c"):
        refusals = Refusals(there.engine)
        for _ in range(5):
            with RawClient(there.port) as surplus:
                assert surplus.packet() is None
            refusals.log_refusals()
        assert there.stats.closed()["limit"] == 5
        assert [it for it in caplog.messages if "refused=" in it] == [
            "connections refused; raise connections_max of [limits] or the listener refused=1 connections=1"
        ]


def test_a_disconnect_cancels_the_will_although_messages_for_the_client_are_reset() -> None:
    with served() as there, there.client("watcher") as watcher:
        watcher.subscribe("gone/#")
        client = there.client("c", will=Will("gone/c", b"bye"))
        client.subscribe("t")
        there.ask(partial(there.listener.broker.publish, "t", b"never read"))
        wait_until(partial(has_input, client.socket))

        def leave_and_publish() -> None:  # On the thread of the broker, which reads no socket meanwhile.
            client.send(Disconnect())
            client.close()
            there.listener.broker.publish("t", b"into the closed socket")

        there.ask(leave_and_publish)
        wait_until(lambda: there.stats.gauges()["connections"] == 1)
        there.ask(partial(there.listener.broker.publish, "gone/last", b"."))
        assert watcher.publish().topic == "gone/last"


@pytest.mark.parametrize("how", ["fin", "reset"])
def test_a_lost_connection_publishes_its_will(how: str) -> None:
    with served() as there, there.client("watcher") as watcher:
        watcher.subscribe("gone/#")
        client = there.client("c", will=Will("gone/c", b"bye"))
        if how == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert watcher.publish().payload == b"bye"


def test_a_session_is_taken_over_and_goes_on() -> None:
    with served() as there, there.client("w") as writer, there.client("r", clean_start=False) as old:
        old.subscribe("t", 1)
        writer.send(Publish("t", b"1", 1, packet_id=1))
        assert old.publish().payload == b"1"  # and does not acknowledge it
        with there.client("r", clean_start=False) as new:
            assert new.session_present
            assert old.packet() is None
            again = new.publish()
            assert (again.payload, again.dup) == (b"1", True)


class NoMemory(logging.Handler):
    """Handler in a process without memory for a line."""

    def emit(self, record: logging.LogRecord) -> None:
        raise MemoryError


@pytest.fixture
def no_line_fits() -> Iterator[None]:
    """No memory for the log lines of the broker's thread."""
    handler, names = NoMemory(), ("edge.transport.listener", "edge.broker.dispatcher")
    for name in names:
        logging.getLogger(name).addHandler(handler)
    yield
    for name in names:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.usefixtures("no_line_fits")
def test_a_defect_that_ends_the_thread_is_reported_without_memory_for_a_log_line() -> None:
    with served() as there:
        reported = threading.Event()
        there.listener.on_failure = reported.set

        def fail() -> float:
            raise MemoryError

        there.ask(lambda: setattr(there.listener.broker, "tick", fail))
        assert reported.wait(PATIENCE_S)


@pytest.mark.usefixtures("no_line_fits")
def test_an_event_that_fails_without_memory_for_a_log_line_ends_only_its_connection() -> None:
    class Failing(RecordingAuthenticator):
        def authenticate(self, client: ClientInfo, password: bytes | None) -> bool:
            raise MemoryError

    failed = threading.Event()

    def fail(*_: object, **__: object) -> None:
        failed.set()
        raise MemoryError

    with served(authenticator=Failing(), engine=EngineLimits(connect_timeout_ms=3_600_000)) as there:
        for _ in range(2):
            with RawClient(there.port) as client:
                client.send(Connect("c", username="ann"))
                assert client.packet() is None
        there.ask(lambda: setattr(there.listener.broker, "_end", fail))
        with RawClient(there.port) as client:
            client.send(Connect("c", username="ann"))
            assert failed.wait(PATIENCE_S)
            there.ask(lambda: None)  # the thread runs


def test_an_idle_broker_sleeps() -> None:
    with served() as there:
        clients = [there.client(f"c{i}", keep_alive_s=60) for i in range(50)]
        clients[0].ping()
        before = there.stats.totals()["wakeups"]
        threading.Event().wait(2.0)  # what is measured, not waited for
        assert there.stats.totals()["wakeups"] - before < 10
        for client in clients:
            client.close()


def test_a_hundred_clients_come_and_go_and_leave_nothing() -> None:
    with served() as there:
        for round_number in range(3):
            clients = [there.client(f"c{i}") for i in range(100)]
            for client in clients:
                client.subscribe(f"t/{round_number}/#")
            for client in clients:
                client.send(Disconnect())
                assert client.packet() is None
                client.close()
        wait_until(lambda: there.stats.gauges()["connections"] == 0)
        now = there.stats.gauges()
        assert (now["sessions"], now["queues_bytes"]) == (0, 0)


# ---- listening and stopping ----


def test_a_port_that_is_taken_is_an_error_with_a_remedy() -> None:
    with served() as there:
        engine = engine_of()
        listener = Listener(engine, Broker(engine, lambda topic: there.partition))
        with pytest.raises(PortTaken, match=f"port {there.port} of 127.0.0.1 is in use"):
            listener.listen("127.0.0.1", there.port)
        listener.stop()
        del listener, engine


@pytest.mark.parametrize(
    ("host", "configured", "allowed"),
    [
        ("127.0.0.1", None, True),
        ("127.8.9.1", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("::", None, False),
        ("192.168.1.5", None, False),
        ("192.168.1.5", True, True),
        ("127.0.0.1", False, False),
    ],
)
def test_anybody_may_come_in_on_loopback_only_unless_it_is_written(
    host: str, configured: bool | None, allowed: bool
) -> None:
    assert anonymous_allowed(host, configured) is allowed


def test_each_listener_has_its_own_policy() -> None:
    with (
        memory_directory() as directory,
        Ring.create(directory / "t-0", capacity_bytes=1 << 16, epoch=1) as ring,
    ):
        partition = OwnPartition("t-0", ring, ring.writer())
        engine = engine_of()
        listener = Listener(engine, Broker(engine, {"t": partition}.__getitem__))
        _, free = listener.listen("127.0.0.1", 0)
        _, strict = listener.listen("127.0.0.1", 0, allow_anonymous=False)
        _, six = listener.listen("::1", 0)
        listener.start()
        try:
            for port, code in ((free, ReasonCode.SUCCESS), (strict, ReasonCode.NOT_AUTHORIZED)):
                with RawClient(port) as client:
                    client.send(Connect("c"))
                    assert client.packet() == ConnAck(False, code)
            with socket.create_connection(("::1", six)) as client_six:
                client_six.sendall(encode(Connect("c6")))
                assert client_six.recv(4) == encode(ConnAck())
        finally:
            listener.stop()
            del listener, engine


def test_a_stop_closes_every_connection_and_publishes_the_wills() -> None:
    with served() as there:
        client = there.client("c", will=Will("gone", b"bye"))
        there.listener.stop()
        assert client.packet() is None
        client.close()
        assert there.records() == [("gone", b"bye")]
        there.listener.stop()
        there.listener.call(lambda: None)
        there.listener.wake()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", there.port))


def test_what_is_queued_for_a_client_is_sent_before_a_stop() -> None:
    with served() as there, there.client() as client:
        client.subscribe("t")
        for i in range(100):
            there.listener.publish("t", b"%d" % i)
        there.listener.stop()
        assert [client.publish().payload for _ in range(100)] == [b"%d" % i for i in range(100)]
