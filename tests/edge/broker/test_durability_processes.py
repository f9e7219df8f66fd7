"""Durability with a real broker, real disks that are full, and sinks that come late: what clients see."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from brim import Letter, producer
from brim import publish as publish_letters
from brim import subscribe as subscribe_shm
from edge.errors import NoAnswer, Refused
from edge.mqtt import PubAck, Publish, ReasonCode, SubAck, Subscribe, Subscription, Version
from persistence import Log
from persistence.read.log_reader import LogReader
from tests.support.children import ModuleChild
from tests.support.drained_files import payloads_drained
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.small_disk import fill, small_disk
from tests.support.status_report import report_of
from tests.support.waiting import PATIENCE_S, wait_until

NOBODY, QUOTA = ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.QUOTA_EXCEEDED
PAUSE_S = 0.3  # in which an acknowledgement would have come: a disk that works takes a few milliseconds


class Place:
    """Directories and a port for brokers that are killed and started again."""

    def __init__(self, runtime_dir: Path, directory: Path) -> None:
        self.runtime_dir = runtime_dir
        self.directory = directory
        self.port = free_port()
        self.log_dir = directory / "log"
        self.lake = directory / "lake"  # made by the test when the sink is to work
        self.floor_percent = 101  # of the disk: what is acknowledged is kept until the disk itself is full

    def write(self, settings: str) -> Path:
        """A configuration file."""
        names = {"edge_id": "here", "runtime_dir": self.runtime_dir, "state_dir": self.directory / "state"}
        lines = [f"{key} = {json.dumps(str(value))}" for key, value in names.items()]
        lines += [settings, f"[log]\ndirectory = {json.dumps(str(self.log_dir))}\nsegment_bytes = 1048576"]
        lines += [f"disk_{step}_percent = {self.floor_percent}" for step in ("warn", "delete", "read_only")]
        lines += [f"[[listener]]\nport = {self.port}", "[sys]\ninterval_s = 1"]
        path = self.directory / "brim.toml"
        path.write_text("\n".join(lines))
        return path

    @contextmanager
    def broker(self, settings: str) -> Iterator[ModuleChild]:
        """`brim run`, ready."""
        with ModuleChild("edge", "run", "--config", self.write(settings)) as child:
            child.lines_until("ready")
            yield child

    def client(self, client_id: str = "c", version: Version = Version.V5) -> SocketClient:
        return SocketClient(self.port, client_id, version)

    def status(self) -> dict[str, Any]:
        return report_of(self.runtime_dir)

    def bridge(self, linger_ms: int = 10, **more: object) -> str:
        """A [[bridge]] to the lake, below a directory that is missing until mount()."""
        facts = {"name": "lake", "to": (self.lake / "drained").as_uri(), "linger_ms": linger_ms, **more}
        return "\n".join(["[[bridge]]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())])


@pytest.fixture
def place(runtime_directory: Path, tmp_path: Path) -> Place:
    return Place(runtime_directory, tmp_path)


def stream(durability: str, **more: object) -> str:
    sizes = {"ring_bytes": 1 << 20, "sync_bytes": 1 << 18}
    facts = {"name": "t", "topics": ["t/#"], "durability": durability, **sizes, **more}
    limits = "[limits]\npacket_max_bytes = 131072\ntopic_max_bytes = 1024\n"
    lines = ["[[stream]]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
    small = '[[stream]]\nname = "default"\ntopics = ["#"]\nring_bytes = 1048576'
    return limits + "\n".join(lines) + "\n" + small


def publish(client: SocketClient, number: int, payload: bytes = b"x", topic: str = "t/1") -> None:
    client.send(Publish(topic, payload, 1, packet_id=number))


# ---- upstream ----


def test_publishers_wait_for_the_sink_and_status_says_so(place: Place) -> None:
    settings = stream("upstream") + "\n" + place.bridge(backoff_max_ms=500)
    with place.broker(settings) as broker, place.client() as client:
        for number in range(1, 4):
            publish(client, number)
        wait_until(lambda: place.status()["bridges"][0]["condition"] == "retrying")
        assert client.next(PAUSE_S) is None, "acknowledged, and the sink has nothing"
        status = place.status()
        assert status["mqtt"]["acks_waiting"] == 3
        assert status["upstream"]["t-0"]["lake"]["offset"] == 0
        shown = shown_status(place)
        assert shown.returncode == 1
        assert "upstream t-0: bridge lake lacks the last 3 records" in shown.stdout
        assert "WARNING  bridge lake is retrying" in shown.stdout
        place.lake.mkdir()
        assert [client.receive() for _ in range(3)] == [PubAck(number, NOBODY) for number in (1, 2, 3)]
        assert place.status()["upstream"]["t-0"]["lake"]["offset"] == 3
        assert "upstream t-0: bridge lake has all records" in shown_status(place).stdout
        assert broker.stop()[0] == 0


def test_a_local_publisher_waits_for_the_sink_and_holds_up_no_other_stream(place: Place) -> None:
    settings = stream("upstream") + "\n" + place.bridge(backoff_max_ms=500)
    disk = '[[stream]]\nname = "d"\ntopics = ["d"]\ndurability = "disk"\nring_bytes = 1048576'
    letter = [(Letter("t/1"), b"waits")]
    with place.broker(f"{settings}\n{disk}") as broker, ThreadPoolExecutor() as pool:
        with pytest.raises(NoAnswer):
            publish_letters(letter, runtime_dir=place.runtime_dir, timeout_s=PAUSE_S)
        waiting = pool.submit(publish_letters, letter, runtime_dir=place.runtime_dir, timeout_s=PATIENCE_S)
        wait_until(lambda: place.status()["bridges"][0]["lag_records"] == 2)
        assert publish_letters([(Letter("d"), b"x")], runtime_dir=place.runtime_dir) == 1
        assert not waiting.done(), "reported as stored, and the sink has nothing"
        place.lake.mkdir()
        assert waiting.result(PATIENCE_S) == 1
        assert list(payloads_drained(place.lake / "drained")).count(b"waits") == 2
        assert broker.stop()[0] == 0


def test_a_bridge_in_a_process_of_its_own_tells_the_broker(place: Place) -> None:
    """Also one that the broker finds running, and one that it has lost meanwhile."""
    place.lake.mkdir()
    settings = stream("upstream") + "\n" + place.bridge(in_broker=False)
    config = place.write(settings)
    with place.broker(settings) as broker, place.client() as client:
        publish(client, 1)
        assert client.next(PAUSE_S) is None, "acknowledged, and no bridge runs"
        with ModuleChild("edge", "bridge", "run", "lake", "--config", config) as bridge:
            assert client.receive() == PubAck(1, NOBODY)
            broker.kill()
            with place.broker(settings), place.client() as again:
                publish(again, 1)
                assert again.receive() == PubAck(1, NOBODY)
                assert bridge.stop()[0] == 0
                publish(again, 2)
                assert again.next(PAUSE_S) is None, "acknowledged, and the bridge has ended"


def test_what_another_user_says_of_a_bridge_is_not_believed(place: Place) -> None:
    """Covered by user ids, which a test as root can take: `nobody` may not read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os, sys; from pathlib import Path\n"
        "from edge.local.protocol import Connection, Done, Drained\n"
        "os.setuid(65534)\n"
        "Connection(Path(sys.argv[1])).request(Drained('lake', 't-0', 1, 99), Done)\n"
    )
    with place.broker(stream("upstream") + "\n" + place.bridge()) as broker:
        (place.runtime_dir / "control.sock").chmod(0o777)
        place.runtime_dir.chmod(0o777)
        said = subprocess.run(
            [sys.executable, "-c", code, str(place.runtime_dir)], capture_output=True, text=True, check=False
        )
        assert "may not report the progress of bridge 'lake'" in said.stderr
        broker.kill()


# ---- a disk that is full ----


def subscribed(client: SocketClient, *filters: str) -> SocketClient:
    client.send(Subscribe(1, tuple(Subscription(it, 1) for it in filters)))
    assert isinstance(client.receive(), SubAck)
    return client


def until_refused(client: SocketClient, payload: bytes, first: int = 1) -> tuple[list[int], PubAck]:
    """Publishes one after the other: the numbers that were acknowledged, and the first refusal."""
    acknowledged: list[int] = []
    for number in range(first, 60_000):
        publish(client, number, b"%08d" % number + payload)
        answer = client.receive()
        assert isinstance(answer, PubAck), answer
        if answer.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            return acknowledged, answer
        acknowledged.append(number)
    raise AssertionError("never refused")


def logged(place: Place, ring: str = "t-0") -> list[int]:
    """The numbers that the log holds, in order, after its broker has gone."""
    with Log(place.log_dir) as log:
        log.recover()
        return numbers_in(log.reader, ring)


def numbers_in(reader: LogReader, ring: str) -> list[int]:
    from ringbuf.record import decode

    found: list[int] = []
    for epoch, first, _ in reader.epochs(ring):
        offset = first
        while ranges := reader.read(ring, epoch, offset, 1 << 20):
            for it in ranges:
                data = bytes(it.view)
                while data:
                    record, length = decode(data, epoch)
                    found.append(int(record.payload[:8]))
                    data = data[length:]
            offset = ranges[-1].offset + ranges[-1].count
    return found


@pytest.mark.parametrize("durability", ["interval", "disk"])
def test_a_full_disk_refuses_publishers_says_why_and_resumes_by_itself(place: Place, durability: str) -> None:
    settings = stream(durability, sync_interval_ms=20)
    with small_disk(place.log_dir, 6 << 20) as disk, place.broker(settings) as broker:
        with place.client() as client, subscribed(place.client("sys"), "$SYS/broker/log/state") as watcher:
            assert told(watcher) == b"takes records"
            publish(client, 1, b"%08d" % 1)
            assert client.receive() == PubAck(1, NOBODY)
            filler = fill(disk)
            acknowledged, refusal = until_refused(client, bytes(50_000), first=2)
            assert refusal.reason_code == QUOTA
            told_until(watcher, b"takes no records: the disk is full (ENOSPC)")
            with place.client("old", Version.V311) as old:
                acknowledged += until_cut(old)
            wait_until(lambda: is_stuck(place))
            assert place.status()["log"]["reason"] == "the disk is full (ENOSPC)"
            filler.unlink()
            wait_until(lambda: not place.status()["log"]["read_only"])
            told_until(watcher, b"takes records")
            publish(client, 60_000, b"%08d" % 60_000)
            assert client.receive() == PubAck(60_000, NOBODY)
        assert broker.stop()[0] == 0
        kept = logged(place)
        assert set(acknowledged) | {1, 60_000} <= set(kept)
        assert kept == sorted(kept)


def test_on_a_full_disk_who_publishes_over_zeromq_is_answered_too(place: Place) -> None:
    """Also what waits for the log already when that fails, which is the first one here."""
    numbers, stored = itertools.count(), []

    def is_stored() -> bool:
        number = next(numbers)
        letters = [(Letter("t/1", 1), b"%08d" % number + bytes(50_000))]
        stored.extend([number] * publish_letters(letters, runtime_dir=place.runtime_dir))
        return stored[-1:] == [number]

    with small_disk(place.log_dir, 6 << 20) as disk, place.broker(stream("disk")) as broker:
        filler = fill(disk)
        wait_until(lambda: not is_stored())
        assert place.status()["log"]["reason"] == "the disk is full (ENOSPC)"
        filler.unlink()
        wait_until(is_stored)
        assert broker.stop()[0] == 0
        assert set(stored) <= set(logged(place))


def is_stuck(place: Place) -> bool:
    """True if the log has failed repeatedly: at first, removed segments still make some space."""
    return int(place.status()["log"]["failures"]) > 3


def until_cut(client: SocketClient) -> list[int]:
    """Publishes until the connection is closed without another word: the numbers that were acknowledged."""
    for number in range(30_000, 60_000):
        publish(client, number, b"%08d" % number + bytes(50_000))
        try:
            assert client.receive() == PubAck(number)
        except (EOFError, ConnectionResetError):
            return list(range(30_000, number))
    raise AssertionError("never cut")


def told_until(watcher: SocketClient, end: bytes) -> None:
    """Until a message ends so."""
    while not told(watcher).endswith(end):
        pass


def told(watcher: SocketClient) -> bytes:
    """The next message of a subscription."""
    message = watcher.receive()
    assert isinstance(message, Publish), message
    if message.qos:
        watcher.send(PubAck(message.packet_id))
    return bytes(message.payload)


# ---- a disk of which others need the rest ----


def test_the_log_leaves_the_disk_room_says_so_and_resumes_when_there_is_some(place: Place) -> None:
    """Acknowledged messages are in the log or counted as removed early; only the oldest are removed."""
    place.floor_percent = 50
    settings = DISK_STREAM + stream("interval", sync_interval_ms=20, retain_s=86_400)
    with small_disk(place.log_dir, 64 << 20) as disk, place.broker(settings) as broker:
        with place.client("t") as one, place.client("d") as other:
            publishers = {"t": Publisher(one, "t/1"), "d": Publisher(other, "d/1")}
            for _ in range(50):  # more than a segment
                assert all(it.publish(bytes(50_000)) == NOBODY for it in publishers.values())
            ballast = disk / "ballast"
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 33 << 20)
            for it in publishers.values():
                assert it.until_refused() == QUOTA
            assert place.status()["log"]["reason"] == f"{32 << 20} bytes of the disk are kept free (ENOSPC)"
            assert "WARNING  the log cannot be written" in shown_status(place).stdout
            assert os.statvfs(disk).f_bavail > 0, "the disk itself was full"
            ballast.unlink()
            for it in publishers.values():
                wait_until(it.is_acknowledged)
            assert not place.status()["log"]["read_only"]
        removed = place.status()["log"]["maintenance"]["forced_records"]
        assert broker.stop()[0] == 0
        for name, it in publishers.items():
            kept = logged(place, f"{name}-0")
            gone = set(it.acknowledged) - set(kept)
            assert len(gone) <= removed.get(name, 0)
            assert all(number < kept[0] for number in gone)


DISK_STREAM = """[[stream]]
name = "d"
topics = ["d/#"]
durability = "disk"
ring_bytes = 1048576
retain_s = 86400
"""


class Publisher:
    """Publishes one after the other; each message says its number, from 1 on."""

    def __init__(self, client: SocketClient, topic: str) -> None:
        self.acknowledged: list[int] = []
        self._client, self._topic = client, topic
        self._number = 0

    def publish(self, more: bytes = b"") -> ReasonCode:
        """Publish, and return the reason code of the broker."""
        self._number += 1
        publish(self._client, 1 + self._number % 60_000, b"%08d" % self._number + more, self._topic)
        answer = self._client.receive()
        assert isinstance(answer, PubAck), answer
        if answer.reason_code == NOBODY:
            self.acknowledged.append(self._number)
        return answer.reason_code

    def is_acknowledged(self) -> bool:
        """True if the next message is acknowledged."""
        return self.publish() == NOBODY

    def until_refused(self) -> ReasonCode:
        """The first answer that says no."""
        answers = (self.publish() for _ in range(200_000))  # the disk is looked at every few seconds
        return next(answer for answer in answers if answer != NOBODY)


def shown_status(place: Place) -> subprocess.CompletedProcess[str]:
    """`brim status`, for people."""
    command = [sys.executable, "-m", "edge", "status", "--runtime-dir", str(place.runtime_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# ---- visible = durable ----


def test_nobody_is_shown_what_the_disk_does_not_have(place: Place) -> None:
    """MQTT, shared memory, ZeroMQ and retained messages, next to a stream that shows at once."""
    settings = stream("disk", visible="durable", queue_timeout_ms=60_000)
    with small_disk(place.log_dir, 6 << 20) as disk, place.broker(settings) as broker:
        endpoint = place.status()["zmq"]["endpoint"]
        with (
            place.client() as client,
            subscribed(place.client("r"), "t/#", "u") as reader,
            subscribe_shm("t/#", runtime_dir=place.runtime_dir) as shm,
            zmq_subscriber(endpoint, place) as frames,
        ):
            client.send(Publish("t/1", b"0", 1, True, packet_id=1))
            assert client.receive() == PubAck(1)
            assert told(reader) == b"0"
            assert [bytes(it.bytes()) for it in next(shm)] == [b"0"]
            assert frames.recv_multipart()[2] == b"0"
            filler = fill(disk)
            last = flood(place, client, reader)
            client.send(Publish("u", b"quick", 0))
            while (payload := told(reader)) != b"quick":  # a stream that hides nothing does not wait
                last = payload  # what had room
            while shm.read() is not None or (frames.poll(0) and frames.recv_multipart()):
                pass
            assert reader.next(PAUSE_S) is None
            assert shm.read() is None
            assert not frames.poll(0)
            with subscribed(place.client("late"), "t/1") as late:
                assert told(late) == last, "a retained message was shown that the disk does not have"
            filler.unlink()
            shown = told(reader)
            assert (len(shown), shown > last) == (BIG, True)
            wait_until(lambda: (batch := shm.read()) is not None and len(bytes(batch[0].bytes())) == BIG)
            assert len(frames.recv_multipart()[2]) == BIG
        assert broker.stop()[0] == 0


BIG, MANY = 60_000, 14  # bytes; as the ring has room for, and no small room on the disk is enough for


@contextmanager
def zmq_subscriber(endpoint: str, place: Place) -> Iterator[zmq.Socket[bytes]]:
    """To topics that begin with t/, from now on."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, 20_000)
        socket.subscribe(b"t/")
        socket.connect(endpoint)
        wait_until(lambda: place.status()["zmq"]["prefixes"] == 1)
        yield socket


def flood(place: Place, client: SocketClient, reader: SocketClient) -> bytes:
    """Publishes large messages until the disk is full and MANY wait for it: the last one that was shown."""
    sent, shown, last = 0, 0, b"0"

    def is_full() -> bool:
        nonlocal sent, shown, last
        while (message := reader.next(0.0)) is not None:
            assert isinstance(message, Publish)
            shown, last = shown + 1, bytes(message.payload)
        if sent - shown < MANY:
            client.send(Publish("t/1", b"%08d" % sent + bytes(BIG - 8), 0, True))
            sent += 1
        return sent - shown == MANY and is_stuck(place)

    wait_until(is_full)
    return last


def test_records_that_were_committed_before_a_kill_are_shown_when_the_log_has_them(place: Place) -> None:
    """At interval the kill may come between commit and sync: the next start syncs, then shows."""
    settings = stream("interval", visible="durable", sync_interval_ms=3_600_000)
    with place.broker(settings) as broker, place.client() as client:
        client.send(Publish("t/1", b"kept", 1, True, packet_id=1))
        assert client.receive() == PubAck(1, NOBODY)
        with subscribed(place.client("r"), "t/1") as early:
            assert early.next(PAUSE_S) is None
        broker.kill()
    settings = stream("interval", visible="durable", sync_interval_ms=20)
    with place.broker(settings) as broker:
        with subscribed(place.client("r"), "t/1") as late:
            assert told(late) == b"kept"
        assert broker.stop()[0] == 0
    with Log(place.log_dir) as log:
        assert log.recover().rings["t-0"].end_offset == 1


# ---- local producers ----


def test_records_of_a_local_producer_survive_a_power_cut_by_the_durability_of_the_stream(
    place: Place,
) -> None:
    settings = stream("interval", sync_interval_ms=20, when_full="block")
    with place.broker(settings) as broker:
        with producer("cam", "t", runtime_dir=place.runtime_dir) as writer:
            for number in range(50):
                assert writer.publish(b"%08d" % number, key=b"t/cam") == number
        wait_until(lambda: logged_of_producers(place) == 50)
        broker.kill()
    for path in place.runtime_dir.iterdir():
        path.unlink()
    with place.broker(settings) as broker:
        with producer("cam", "t", runtime_dir=place.runtime_dir) as writer:
            assert writer.publish(b"%08d" % 50, key=b"t/cam") == 50, "offsets do not go on"
        wait_until(lambda: logged_of_producers(place) == 1)
        assert broker.stop()[0] == 0
    with Log(place.log_dir / "producers") as log:
        log.recover()
        assert numbers_in(log.reader, "t@cam") == list(range(51))


def logged_of_producers(place: Place) -> int:
    """Records in this life of the broker."""
    logs = place.status()["log"]["logs"]
    return sum(it["records"] for it in logs if it["directory"].endswith("/producers"))


def test_a_producer_is_refused_where_nothing_may_be_shown_early(place: Place) -> None:
    with place.broker(stream("disk", visible="durable")) as broker:
        refused = pytest.raises(Refused, match="producer ring shows committed records")
        with refused, producer("cam", "t", runtime_dir=place.runtime_dir):
            pass
        assert broker.stop()[0] == 0
