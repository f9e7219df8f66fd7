"""brim topics and brim retained, against a broker that runs."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.config.directories import control_socket
from edge.local.protocol import ClearRetained
from edge.local.shm_subscription import ShmSubscription
from edge.local.topic_census import TopicCensus
from edge.mqtt import Properties, PubAck, Publish, Subscribe, Subscription, encode
from edge.rpc.protocol import encode as request_bytes
from ringbuf import WakeupThread
from tests.edge.cli.test_clients import FOREIGN
from tests.support.abuse import connected
from tests.support.brim_process import BrimProcess
from tests.support.children import Child
from tests.support.mqtt_socket import SocketClient

SETTINGS = "[[stream]]\nname = 'fast'\ntopics = ['fast/#']\npartitions = 2\nring_bytes = 1048576\n"


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as broker:
        yield broker
    WakeupThread.of_process().close()  # started by a window, and shared by all subscriptions of this process


def brim(capsys: pytest.CaptureFixture[str], broker: BrimProcess, *words: str) -> tuple[int, str, str]:
    status = main([*words, "--runtime-dir", str(broker.runtime_dir)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def rows(
    capsys: pytest.CaptureFixture[str], broker: BrimProcess, *words: str
) -> dict[str, dict[str, object]]:
    status, out, _ = brim(capsys, broker, *words, "--json")
    assert status == 0
    return {row["topic"]: row for row in map(json.loads, out.splitlines())}


def publish(broker: BrimProcess, *messages: Publish) -> None:
    """Publish with QoS 1, and wait for all acknowledgements."""
    with SocketClient(broker.port, "publisher") as client:
        client.send(*(replace(message, qos=1, packet_id=n) for n, message in enumerate(messages, 1)))
        for _ in messages:
            assert isinstance(client.receive(), PubAck)


def test_topics_are_counted_and_shown_as_a_tree(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(
        broker,
        *(Publish("plant/press/7", b"%d" % n) for n in range(5)),
        Publish("plant/press/8", b"x", retain=True),
        Publish("plant", b"\xff"),
        Publish("fast/a", b"1"),
        Publish("fast/b", b"2"),
    )
    found = rows(capsys, broker, "topics")
    assert {topic: (row["count"], row["retained"]) for topic, row in found.items()} == {
        "plant/press/7": (5, False), "plant/press/8": (1, True), "plant": (1, False), "fast/a": (1, False),
        "fast/b": (1, False),
    }  # fmt: skip
    assert found["plant/press/7"]["payload"] == "4"
    assert (found["plant"]["payload"], found["plant"]["encoding"]) == ("/w==", "base64")
    assert set(rows(capsys, broker, "topics", "plant/+/8", "fast/b")) == {"plant/press/8", "fast/b"}
    lines = brim(capsys, broker, "topics")[1].splitlines()
    assert [line[:11].rstrip() for line in lines[1:]] == [
        "fast", "  a", "  b", "plant", "  press", "    7", "    8",
    ]  # fmt: skip
    assert lines[4].split()[1:3] == ["3", "7"]  # topics and messages below plant, with its own
    assert len(brim(capsys, broker, "topics", "--depth", "1")[1].splitlines()) == 3
    assert set(rows(capsys, broker, "topics", "--depth", "2")) == {
        "plant", "plant/press/#", "fast/a", "fast/b",
    }  # fmt: skip
    sorted_lines = brim(capsys, broker, "topics", "--sort", "count", "--limit", "1")[1].splitlines()
    assert sorted_lines[1].startswith("plant/press/7")
    assert sorted_lines[2] == "and 4 more; see --limit"


def test_a_topic_that_the_ring_has_lost_is_shown_by_its_retained_message(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(broker, Publish("fast/kept", b"old", retain=True))
    for _ in range(60):
        publish(broker, *(Publish(f"fast/{n}", bytes(8_000)) for n in range(10)))
    found = rows(capsys, broker, "topics", "fast/#")
    assert (found["fast/kept"]["count"], found["fast/kept"]["payload"]) == (0, "old")
    assert found["fast/kept"]["retained"] is True


def test_a_window_counts_new_messages_only(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    publish(broker, Publish("a", b"1"))
    assert rows(capsys, broker, "topics", "--window", "1ms") == {}
    with ShmSubscription("#", runtime_dir=broker.runtime_dir, start="latest") as subscription:
        census = TopicCensus(topics_max=2)
        census.begin(subscription.places())
        publish(broker, *(Publish(f"t/{n}", b"12") for n in (1, 2, 3, 1)))
        census.read_all(subscription)
    assert {topic: (it.count, it.size_bytes) for topic, it in census.items()} == {
        "t/1": (2, 4),
        "t/2": (1, 2),
    }
    assert census.others == 1  # the limit of topics


def test_hostile_topics_and_values_do_not_reach_the_terminal(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(broker, Publish("a/\u202e/x", b"\x1b]0;owned\x07\xff", retain=True))
    for words in (("topics",), ("topics", "--flat"), ("retained",)):
        out = brim(capsys, broker, *words)[1]
        assert r"\x1b]0;owned\x07\xff" in out
        assert r"\u202e" in out
        assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_retained_messages_are_listed_printed_and_cleared(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = Properties(content_type="text/plain")
    publish(broker, *(Publish(f"r/{n:04}", b"%d" % n, retain=True) for n in range(1_000)))
    publish(broker, Publish("one", b"x" * 76_800, retain=True, properties=properties))
    found = rows(capsys, broker, "retained")
    assert len(found) == 1_001  # several pages
    assert found["r/0999"]["payload"] == "999"
    assert found["one"]["size_bytes"] == 76_800
    assert found["one"]["properties"] == {"content_type": "text/plain"}
    table = brim(capsys, broker, "retained", "--sort", "size", "--limit", "1")[1].splitlines()
    assert table[1].startswith("one ")
    assert table[1].split()[2:4] == ["75", "KiB"]
    assert brim(capsys, broker, "retained", "get", "r/0007") == (0, "7\n", "")
    status, _, error = brim(capsys, broker, "retained", "get", "one")
    assert (status, "cut at 64 KiB" in error) == (Exit.INCOMPLETE, True)
    assert brim(capsys, broker, "retained", "get", "none")[0] == Exit.INCOMPLETE
    assert "brim retained get plant/1/setpoint" in brim(capsys, broker, "retained", "get")[2]
    with connected(broker.port, "watcher") as watcher:
        watcher.sendall(encode(Subscribe(1, (Subscription("one", 0),))))
        received = 0
        while received < 76_800 + 14:  # SUBACK, header, topic and payload
            received += len(watcher.recv(1 << 20))
        assert brim(capsys, broker, "retained", "clear", "r/#") == (
            0,
            "1,000 retained messages of r/# cleared\n",
            "",
        )
        assert brim(capsys, broker, "retained", "clear", "one")[0] == 0
        assert watcher.recv(10) == b"\x30\x05\x00\x03one"  # subscribers get the empty message
    assert rows(capsys, broker, "retained") == {}
    assert brim(capsys, broker, "retained", "clear", "$SYS/#")[1].startswith("0 retained")
    assert rows(capsys, broker, "retained", "ls", "$SYS/broker/version")
    broker.kill()
    broker.start()
    assert rows(capsys, broker, "retained") == {}


def test_wrong_filters_are_refused(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("topics", "a/#/b"),
        ("retained", "ls", "a+"),
        ("retained", "clear"),
        ("topics", "--window", "0"),
    ):
        try:
            assert brim(capsys, broker, *words)[0] == Exit.USAGE
        except SystemExit as end:
            assert end.code == Exit.USAGE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
async def test_another_user_may_not_clear(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    publish(broker, Publish("r", b"x", retain=True))
    broker.runtime_dir.chmod(0o777)
    path = control_socket(broker.runtime_dir)
    path.chmod(0o777)
    with Child(FOREIGN, path, request_bytes(ClearRetained("#")).hex()) as foreign:
        assert "may not clear retained messages" in await asyncio.to_thread(foreign.line)
    assert set(rows(capsys, broker, "retained")) == {"r"}
