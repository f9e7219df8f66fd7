"""Clients that others wrote, against the broker on a real port: mosquitto's, paho and amqtt's."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import subprocess
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from edge.mqtt import PingReq, PingResp, Subscribe, Subscription
from tests.support.mqtt_served import PATIENCE_S, Served, served

mosquitto = pytest.mark.mosquitto


@pytest.fixture
def there() -> Iterator[Served]:
    with served() as made:
        yield made


# ---- mosquitto_pub, mosquitto_sub ----


@contextlib.contextmanager
def mosquitto_sub(there: Served, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running mosquitto_sub, known as "sub", that has subscribed."""
    command = ["mosquitto_sub", "-p", str(there.port), "-i", "sub", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while not there.ask(partial(has_subscribed, there, "sub")):
            assert process.poll() is None, "mosquitto_sub has ended"
        yield process
    finally:
        process.kill()
        process.communicate()


def has_subscribed(there: Served, client_id: str) -> bool:
    session = there.listener.broker.sessions.get(client_id)
    return session is not None and bool(session.subscriptions)


def mosquitto_pub(there: Served, *options: str) -> None:
    subprocess.run(["mosquitto_pub", "-p", str(there.port), *options], check=True, timeout=PATIENCE_S)


@mosquitto
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311"])
def test_mosquitto_publishes_to_mosquitto_at_every_qos(there: Served, version: str) -> None:
    with mosquitto_sub(there, "-V", version, "-t", "a/+", "-q", "2", "-v", "-C", "3") as sub:
        for qos in "012":
            mosquitto_pub(there, "-V", version, "-t", f"a/{qos}", "-m", f"hello {qos}", "-q", qos)
        out, _ = sub.communicate(timeout=PATIENCE_S)
    assert out.splitlines() == ["a/0 hello 0", "a/1 hello 1", "a/2 hello 2"]
    assert there.records() == [(f"a/{qos}", b"hello %d" % qos) for qos in range(3)]


@mosquitto
def test_mosquitto_gets_what_was_retained(there: Served) -> None:
    mosquitto_pub(there, "-t", "state/door", "-m", "open", "-r", "-q", "1")
    mosquitto_pub(there, "-t", "state/lamp", "-m", "on", "-r")
    mosquitto_pub(there, "-t", "state/lamp", "-n", "-r")
    command = ["mosquitto_sub", "-p", str(there.port), "-t", "state/#", "-v", "-C", "1", "--retained-only"]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.stdout == "state/door open\n"


@mosquitto
def test_a_mosquitto_that_is_killed_has_its_will_published_and_harms_nobody(there: Served) -> None:
    with there.client("watcher") as watcher:
        watcher.send(Subscribe(1, (Subscription("gone"), Subscription("t"))))
        watcher.packet()
        with mosquitto_sub(there, "-t", "t", "--will-topic", "gone", "--will-payload", "killed") as sub:
            sub.kill()
            sub.wait()
        assert watcher.publish().payload == b"killed"
        mosquitto_pub(there, "-t", "t", "-m", "still here")
        assert watcher.publish().payload == b"still here"


@mosquitto
def test_mosquitto_comes_back_to_its_session(there: Served) -> None:
    command = ["mosquitto_sub", "-p", str(there.port), "-i", "sub", "-c", "-q", "1", "-t", "t/#", "-v"]
    subprocess.run([*command, "-E"], check=True, timeout=PATIENCE_S)  # subscribes and leaves
    for i in range(3):
        mosquitto_pub(there, "-t", f"t/{i}", "-m", f"{i}", "-q", "1")
    run = subprocess.run(
        [*command, "-C", "3"], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert run.stdout == "t/0 0\nt/1 1\nt/2 2\n"


@mosquitto
def test_mosquitto_sends_many_lines_and_all_arrive(there: Served) -> None:
    lines = "".join(f"line {i}\n" for i in range(2_000))
    with mosquitto_sub(there, "-t", "lines", "-q", "1", "-C", "2000") as sub:
        subprocess.run(
            ["mosquitto_pub", "-p", str(there.port), "-t", "lines", "-q", "1", "-l"],
            input=lines, text=True, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        out, _ = sub.communicate(timeout=PATIENCE_S)
    assert out == lines


# ---- paho ----


class Paho:
    """A paho client with its thread; what it receives is in `inbox`."""

    def __init__(
        self, there: Served, client_id: str, *, clean: bool = True, qos: int = 1, topic: str = ""
    ) -> None:
        from paho.mqtt import client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self.inbox: queue.Queue[tuple[str, bytes, int, bool]] = queue.Queue()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=clean)
        self.connected: queue.Queue[bool] = queue.Queue()
        self.subscribed: queue.Queue[int] = queue.Queue()
        self.client.on_message = lambda _c, _u, m: self.inbox.put(
            (m.topic, bytes(m.payload), m.qos, m.retain)
        )
        self.client.on_connect = lambda _c, _u, flags, _r, _p: self.connected.put(flags.session_present)
        self.client.on_subscribe = lambda _c, _u, mid, _r, _p: self.subscribed.put(mid)
        self.client.connect("127.0.0.1", there.port)
        self.client.loop_start()
        self.session_present = self.connected.get(timeout=PATIENCE_S)
        if topic:
            self.client.subscribe(topic, qos)
            self.subscribed.get(timeout=PATIENCE_S)

    def next(self) -> tuple[str, bytes, int, bool]:
        """The next message."""
        return self.inbox.get(timeout=PATIENCE_S)

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> None:
        """Publish, and wait until it is acknowledged."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE_S)

    def stop(self) -> None:
        """Say goodbye, and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_subscribes(there: Served, qos: int) -> None:
    reader, writer = Paho(there, "r", qos=qos, topic="t/#"), Paho(there, "w")
    for i in range(200):
        writer.publish("t/x", b"%d" % i, qos)
    assert [reader.next() for _ in range(200)] == [("t/x", b"%d" % i, qos, False) for i in range(200)]
    reader.stop()
    writer.stop()


def test_paho_comes_back_to_its_session_and_misses_nothing(there: Served) -> None:
    reader, writer = Paho(there, "r", clean=False, topic="t"), Paho(there, "w")
    writer.publish("t", b"1")
    assert reader.next()[1] == b"1"
    reader.stop()
    for i in range(2, 150):
        writer.publish("t", b"%d" % i, 1 + i % 2)
    reader = Paho(there, "r", clean=False)
    assert reader.session_present
    assert [reader.next()[1] for _ in range(2, 150)] == [b"%d" % i for i in range(2, 150)]
    reader.stop()
    writer.stop()


def test_paho_is_taken_over_by_a_client_of_its_name(there: Served) -> None:
    first = Paho(there, "same")
    lost: queue.Queue[Any] = queue.Queue()
    first.client.on_disconnect = lambda *_: lost.put(True)
    first.client.reconnect_delay_set(600, 600)
    with there.client("same"):
        assert lost.get(timeout=PATIENCE_S)
    first.stop()


# ---- amqtt's client ----


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_amqtt_publishes_and_subscribes(there: Served, qos: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from amqtt.client import MQTTClient

    config = {"auto_reconnect": False}
    reader, writer = MQTTClient("r", config=config), MQTTClient("w", config=config)
    await reader.connect(f"mqtt://127.0.0.1:{there.port}/")
    await writer.connect(f"mqtt://127.0.0.1:{there.port}/")
    assert await reader.subscribe([("t/+", qos)]) == [qos]
    for i in range(50):
        await writer.publish("t/x", b"%d" % i, qos=qos)
    got = []
    for _ in range(50):
        message = await asyncio.wait_for(reader.deliver_message(), PATIENCE_S)
        assert message is not None
        got.append((message.topic, bytes(message.data)))
    assert got == [("t/x", b"%d" % i) for i in range(50)]
    await writer.disconnect()
    await reader.disconnect()


# ---- one session, different clients ----


def test_a_message_that_one_client_left_unacknowledged_is_redelivered_to_the_next(there: Served) -> None:
    with there.client("s", clean_start=False) as raw:
        raw.send(Subscribe(1, (Subscription("t", 1),)))
        raw.packet()
        writer = Paho(there, "w")
        writer.publish("t", b"not acknowledged")
        assert raw.publish().payload == b"not acknowledged"
    reader = Paho(there, "s", clean=False)
    assert reader.session_present
    assert reader.next() == ("t", b"not acknowledged", 1, False)
    reader.stop()
    writer.stop()
    with there.client("s", clean_start=False) as last:
        last.send(PingReq())
        assert last.packet() == PingResp()  # and nothing before it
