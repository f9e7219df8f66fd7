"""Programs without asyncio: an MQTT client, and subscriptions, by `brim`."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brim
from brim import errors
from tests.support.brim_process import BrimProcess
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until


def url(broker: BrimProcess) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


def test_messages_come_in_order_and_iteration_ends_with_the_client(broker: BrimProcess) -> None:
    before = threading.active_count()
    with brim.connect(url(broker), version=5) as client:
        assert client.connected
        messages = client.subscribe("a/+", qos=1)
        assert messages.read() is None
        delivered = [client.submit(f"a/{number}", str(number)) for number in range(1_000)]
        for future in delivered:
            future.result(PATIENCE_S)
        taken = [next(messages) for _ in range(1_000)]
        assert [message.payload for message in taken] == [str(number).encode() for number in range(1_000)]
        assert {message.qos for message in taken} == {1}
        assert messages.read(0.05) is None
        assert client.in_flight == 0
        client.publish("a/last", "x", qos=1)
        wait_until(lambda: len(messages) == 1)
    assert [message.topic for message in messages] == ["a/last"]  # it had come; the client has ended
    assert messages.read(1.0) is None
    assert not client.connected
    client.close()
    assert threading.active_count() == before


def test_a_subscription_in_a_with_block_unsubscribes(broker: BrimProcess) -> None:
    with brim.connect(url(broker)) as client:
        with client.subscribe("a") as messages:
            client.publish("a", "1", qos=1)
            assert next(messages).text == "1"
        client.publish("a", "2", qos=1)
        assert list(messages) == []
        assert client.dropped == 0


def test_an_aborted_connection_leaves_a_will_and_a_closed_one_does_not(broker: BrimProcess) -> None:
    before = threading.active_count()
    with brim.connect(url(broker)) as watcher, watcher.subscribe("will/#", qos=1) as wills:
        with brim.connect(url(broker), will=brim.Will("will/closed", b"x", 1)):
            pass
        aborted = brim.connect(url(broker), will=brim.Will("will/aborted", b"x", 1))
        with aborted:
            aborted.abort()
            assert not aborted.connected
        assert next(wills).topic == "will/aborted"
    assert threading.active_count() == before


def test_bad_arguments_are_value_errors_and_nothing_is_sent(broker: BrimProcess) -> None:
    with pytest.raises(ValueError, match="not the address of an MQTT broker"):
        brim.connect("http://127.0.0.1")
    with pytest.raises(ValueError, match="keep_alive_s"):
        brim.connect(url(broker), keep_alive_s=-1)
    with brim.connect(url(broker)) as client:
        with pytest.raises(ValueError, match="wildcard"):
            client.publish("a/#", "x")
        with pytest.raises(errors.InvalidRequest):
            client.publish("a", "x", qos=3)
        with pytest.raises(ValueError, match="#"):
            client.subscribe("a/#/b")
        with pytest.raises(errors.InvalidOption, match="no topic filter"):
            client.subscribe()
        client.publish("a", "x", qos=1)


def test_a_client_outside_its_block_says_so(broker: BrimProcess) -> None:
    client = brim.connect(url(broker))
    with pytest.raises(errors.NotOpen, match="not open"):
        client.publish("a", "x")
    with pytest.raises(RuntimeError):
        brim.consumer("g", "a").read()


def test_a_call_in_a_callback_of_the_client_is_refused_instead_of_waiting_for_itself(
    broker: BrimProcess,
) -> None:
    refused: list[BaseException] = []
    over = threading.Event()

    with brim.connect(url(broker)) as client:

        def again(_: object) -> None:
            try:
                client.publish("a", "again")
            except errors.NotOpen as error:
                refused.append(error)
            over.set()

        client.submit("a", "x").add_done_callback(again)
        assert over.wait(20)
    assert len(refused) <= 1  # none if the future had ended before: then this thread runs the callback


def test_an_unreachable_broker_is_a_connection_error(tmp_path: Path) -> None:
    before = threading.active_count()
    with (
        pytest.raises(ConnectionError, match="connection refused"),
        brim.connect(f"mqtt://127.0.0.1:{free_port()}"),
    ):
        pass
    assert threading.active_count() == before
    with pytest.raises(ConnectionError, match="no broker answers"), brim.subscribe("a", runtime_dir=tmp_path):
        pass
    with pytest.raises(ConnectionError), brim.producer("cam", runtime_dir=tmp_path):
        pass
    lonely = brim.consumer("g", "a", runtime_dir=tmp_path, connect_timeout_s=0.1)
    with pytest.raises(errors.BrokerUnreachable), lonely:
        pass


def test_a_message_that_nobody_acknowledges_is_a_timeout(runtime_directory: Path, tmp_path: Path) -> None:
    with (
        BrimProcess(runtime_directory, tmp_path, bridge=False) as broker,
        brim.connect(url(broker), reconnect=brim.Reconnect()) as client,
    ):
        broker.kill()
        wait_until(lambda: not client.connected)
        with pytest.raises(TimeoutError, match=r"no acknowledgement of a message to 'a' in 0\.1 s"):
            client.publish("a", "x", qos=1, timeout_s=0.1)


@pytest.mark.parametrize("ahead", [0, -1])
def test_a_consumer_that_would_fetch_nothing_is_refused(ahead: int) -> None:
    with pytest.raises(ValueError, match=rf"invalid ahead {ahead} \(allowed: 1 or more\)"):
        brim.consumer("g", "a", ahead=ahead)
    with pytest.raises(errors.InvalidArgument):
        brim.asyncio.consumer("g", "a", ahead=ahead)


def test_records_come_by_shared_memory_and_by_zeromq_without_asyncio(broker: BrimProcess) -> None:
    where = broker.runtime_dir
    with (
        brim.subscribe("cam/#", runtime_dir=where) as memory,
        brim.subscribe_zmq("cam/#", runtime_dir=where) as copies,
        brim.producer("cam", runtime_dir=where) as writer,
    ):
        assert memory.read() is None
        assert copies.read(0.01) is None
        arrival = None
        while arrival is None:  # ZeroMQ drops what comes before the broker knows the subscription
            writer.publish(b"frame", key="cam/1")
            arrival = copies.read(0.05)
        assert arrival[0] == "cam/1"
        assert bytes(arrival[2]) == b"frame"
        batch = memory.read(20.0)
        assert batch is not None
        assert bytes(batch[0]) == b"frame"
        writer.publish(b"next", key="cam/2")
        assert next(topic for topic, _, _ in copies if topic != "cam/1") == "cam/2"
        assert copies.gaps == 0


async def test_a_producer_with_asyncio_never_waits_for_readers(broker: BrimProcess) -> None:
    async with (
        brim.asyncio.subscribe("cam/#", runtime_dir=broker.runtime_dir) as memory,
        brim.asyncio.producer("other", runtime_dir=broker.runtime_dir) as writer,
    ):
        assert await memory.read() is None
        assert writer.publish(b"frame", key="cam/1") == 0
        batch = await memory.read(20.0)
        assert batch is not None
        assert [bytes(record) for record in batch] == [b"frame"]
        assert await memory.read(0.01) is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"group": "a b"}, "invalid group name 'a b'"),
        ({"mode": "first"}, r"invalid mode 'first' \(allowed: 'ordered', 'queue'\)"),
        ({"filters": ["a"] * 257}, r"257 topic filters \(allowed: 256\)"),
    ],
)
def test_a_name_that_no_broker_accepts_is_refused_before_a_connection(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=text):
        brim.consumer(**{"group": "g", "filters": "a", **arguments})


def test_an_endpoint_that_cannot_be_is_refused_and_nothing_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    uses: list[Callable[[], object]] = [
        lambda: brim.subscribe_zmq("a", endpoint="here"),
        lambda: brim.consumer("g", "a", endpoint="here").__enter__(),
        lambda: brim.reader("a", endpoint="here").__enter__(),
        lambda: brim.publish([(brim.Letter("a"), "x")], endpoint="here"),
    ]
    for use in uses:
        with pytest.raises(errors.InvalidArgument, match="invalid endpoint 'here'"):
            use()
    with pytest.raises(errors.InvalidArgument, match="invalid receive_high_water -1"):
        brim.subscribe_zmq("a", receive_high_water=-1)
    assert len(os.listdir("/proc/self/fd")) == before
