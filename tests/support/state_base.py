"""State of a broker with something of everything, made once by a real process: what damage is tried on.

    PLACE/run      the runtime directory: rings, cursor files, the spill file
    PLACE/state    the state directory: log, sessions, retained messages, offsets, epochs, bridge checkpoint
    PLACE/sink     drained files

The broker serves three streams (memory: process, lazy: interval, safe: disk), kept sessions with queues of
QoS 1 and 2 and messages in flight, retained messages, a consumer group and a bridge; then it is killed at
rest, killed while it is busy, or stopped.  Every payload has its topic, its number and a checksum: a receiver
can tell if it was published.  The log is not scrubbed: a scrub could report damage in place of the reader
that skips it.

Bridge snapshots hold the sink's place, so every case runs in the place where the base was made.  Layouts
are the same each time; times, epochs and checksums are not.
"""

import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from brim import consumer
from edge.config.loader import parse
from edge.config.schema import Config
from edge.local.protocol import Connection, Report, Status
from edge.mqtt import Properties, PubAck, PubComp, Publish, PubRec, PubRel, Subscribe, Subscription
from persistence.segment.footer import FOOTER_MAGIC
from tests.support.children import ModuleChild
from tests.support.drained_files import offsets_drained
from tests.support.mqtt_socket import SocketClient
from tests.support.waiting import wait_until

Ending = Literal["killed", "stopped", "busy"]

SETTINGS = """
edge_id = "here"
runtime_dir = "{place}/run"
state_dir = "{place}/state"
[[listener]]
port = {port}
[sys]
interval_s = 0
[sessions]
journal_bytes = 1048576
[zmq]
enabled = false
[consumers]
enabled = true
[log]
segment_bytes = 1048576
scrub_bytes_per_s = 0
retain_bytes = 1073741824
disk_warn_percent = 101
disk_delete_percent = 101
disk_read_only_percent = 101
[[stream]]
name = "memory"
topics = ["memory/#"]
ring_bytes = 131072
durability = "process"
[[stream]]
name = "lazy"
topics = ["lazy/#"]
ring_bytes = 262144
durability = "interval"
sync_interval_ms = 5
sync_bytes = 16384
[[stream]]
name = "safe"
topics = ["safe/#"]
ring_bytes = 131072
durability = "disk"
[[stream]]
name = "default"
topics = ["#"]
ring_bytes = 131072
[[bridge]]
name = "lake"
to = "file://{place}/sink"
streams = ["safe"]
linger_ms = 20
file_bytes = 16384
"""

KEPT = Properties(session_expiry_interval_s=3600)
READERS = {  # kept sessions: what they subscribe to, at which QoS
    "memory reader": ("memory/a/#", 1),
    "lazy reader": ("lazy/a/#", 1),
    "safe reader": ("safe/a/#", 2),
}
RINGS = ("memory-0", "lazy-0", "safe-0")
QUEUED = 150  # messages that wait for each session
IN_FLIGHT = 5
HURRIED = 120  # messages without a pause
FILLER_BYTES = 12_000  # of messages between, which fill the log and make rings go round
GROUP = "billing"
HALF_TOPIC, HALF_ID = "memory/c", 77


class Message(NamedTuple):
    """One that was published."""

    topic: str
    payload: bytes


def payload_of(topic: str, number: int, length: int = 200) -> bytes:
    """The payload of message `number` of a topic: different from all others."""
    body = f"{topic} {number} ".encode()
    body += bytes((number + it) % 251 for it in range(length - len(body) - 8))
    return body + b"%08x" % zlib.crc32(body)


def says_the_truth(topic: str, payload: bytes) -> bool:
    """True if the payload is complete and was published to that topic."""
    body, checksum = payload[:-8], payload[-8:]
    return checksum == b"%08x" % zlib.crc32(body) and body.startswith(topic.encode() + b" ")


@cache
def config_of(place: Path, port: int = 0) -> Config:
    """Configuration of the broker.  Kept: a process that is forked does not parse it again."""
    return parse(SETTINGS.format(place=place, port=port))


@dataclass
class Base:
    """State of the broker at its end."""

    ending: Ending
    waiting: dict[str, list[Message]]  # by kept session, in order
    sent: dict[str, list[Message]]  # by ring, from offset 0 on
    retained: dict[str, bytes] = field(default_factory=dict)
    in_flight: list[Message] = field(default_factory=list)  # of session "flight": QoS 2, not answered
    committed: int = 0  # records of lazy that the group is done with
    hurried: list[Message] = field(default_factory=list)  # the last ones, without a pause
    perhaps: list[Message] = field(default_factory=list)  # sent and not acknowledged when it was killed


class _Life:
    """One life of the broker, and the publisher that it serves.  A context manager."""

    def __init__(self, base: Base, place: Path, ending: Ending) -> None:
        self.base, self.place, self._ending = base, place, ending
        self._file = place / "brim.toml"
        self._file.write_text(SETTINGS.format(place=place, port=0))
        self._child = ModuleChild("edge", "run", "--config", self._file)
        try:
            self._child.lines_until("ready")
            self._control = Connection(place / "run")
            self.port = int(str(self.report()["listeners"][0]).rpartition(":")[2])
            self.client = self.session("publisher")
        except BaseException:
            self._child.kill()
            raise

    def report(self) -> dict[str, Any]:
        """The broker's status."""
        return self._control.request(Status(), Report).report

    def session(self, name: str) -> SocketClient:
        """A client whose session is kept."""
        return SocketClient(self.port, name, clean_start=False, properties=KEPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.client.close()
        self._control.close()
        self._file.unlink()
        if kind is not None or self._ending != "stopped":
            self._child.kill()
            return
        code, _, errors = self._child.stop()
        assert code == 0, errors

    def publish(
        self, topic: str, number: int, length: int = 200, *, retain: bool = False, qos: int = 1
    ) -> Message:
        """Returns when the exchange is over."""
        message = Message(topic, payload_of(topic, number, length))
        self.client.send(Publish(topic, message.payload, qos=qos, retain=retain, packet_id=1))
        if qos == 2:
            assert isinstance(self.client.receive(), PubRec)
            self.client.send(PubRel(1))
        answer = self.client.receive()
        assert isinstance(answer, PubComp if qos == 2 else PubAck), answer
        self.base.sent[f"{topic.partition('/')[0]}-0"].append(message)
        return message

    def fill(self, numbers: range) -> None:
        """Publish what sessions wait for, and other messages between."""
        for number in numbers:
            for name, waiting in self.base.waiting.items():
                waiting.append(self.publish(f"{name.partition(' ')[0]}/a/{number % 7}", number))
            self.publish(f"lazy/b/{number % 3}", number, FILLER_BYTES)
            if number % 4 == 1:  # the ring goes round: what waits there is copied to the spill file
                self.publish("memory/b", number, FILLER_BYTES)
            if number % 4 == 0:
                message = self.publish(f"lazy/r/{number % 30}", number, retain=True)
                self.base.retained[message.topic] = message.payload

    def settle(self) -> None:
        """Returns when everything is where it will be: synced, indexed, drained."""
        for condition in (self._is_durable, self._is_indexed, self._is_drained):
            wait_until(condition)

    def _is_durable(self) -> bool:
        logged = [it for it in self.report()["rings"] if it["durability"] != "process"]
        return not any(it["not_durable_bytes"] for it in logged)

    def _is_indexed(self) -> bool:
        files = sorted((self.place / "state" / "log").glob("*.log"))
        return all(FOOTER_MAGIC in it.read_bytes() for it in files[:-1])

    def _is_drained(self) -> bool:
        found = offsets_drained(self.place / "sink")
        return sum(map(len, found.values())) == len(self.base.sent["safe-0"])


def make_base(place: Path, ending: Ending) -> Base:
    """Let a broker live twice in `place`, which is empty, and end it."""
    (place / "run").mkdir(mode=0o750)
    base = Base(ending, {name: [] for name in READERS}, {name: [] for name in RINGS})
    with _Life(base, place, "stopped") as life:
        for name, (topic_filter, qos) in READERS.items():
            with life.session(name) as client:
                client.send(Subscribe(1, (Subscription(topic_filter, qos),)))
                client.receive()
        life.fill(range(QUEUED // 2))
        _commit_some(life)
        life.settle()
    with _Life(base, place, ending) as life:
        _put_in_flight(life)
        life.fill(range(QUEUED // 2, QUEUED))
        _publish_half(life)
        if ending == "busy":
            _hurry(life)
        else:
            life.settle()
    for socket in (place / "run").glob("*.sock"):  # of the one that was killed
        socket.unlink()
    return base


def _put_in_flight(life: _Life) -> None:
    """Messages of QoS 2 that a session has received, and has not answered."""
    with life.session("flight") as client:
        client.send(Subscribe(1, (Subscription("safe/f", 2),)))
        client.receive()
        for number in range(IN_FLIGHT):
            life.base.in_flight.append(life.publish("safe/f", number, qos=2))
            packet = client.receive()
            assert isinstance(packet, Publish)
            assert packet.qos == 2


def _publish_half(life: _Life) -> None:
    """A message of QoS 2 whose PUBREL has not been sent."""
    message = Message(HALF_TOPIC, payload_of(HALF_TOPIC, 0))
    life.client.send(Publish(*message, qos=2, packet_id=HALF_ID))
    assert isinstance(life.client.receive(), PubRec)
    life.base.sent["memory-0"].append(message)


def _hurry(life: _Life) -> None:
    """Messages without a pause, and an end while acknowledgements come."""
    base, names = life.base, [*READERS]
    messages: list[tuple[str, Message]] = []
    for number in range(QUEUED, QUEUED + HURRIED):
        name = names[number % len(names)]
        topic = f"{name.partition(' ')[0]}/a/{number % 7}"
        messages.append((name, Message(topic, payload_of(topic, number))))
    sent = [Publish(*message, qos=1, packet_id=index) for index, (_, message) in enumerate(messages, 1)]
    life.client.send(*sent)
    acknowledged: set[int] = set()
    while len(acknowledged) < HURRIED // 2:
        packet = life.client.receive()
        assert isinstance(packet, PubAck)
        acknowledged.add(packet.packet_id)
    for index, (name, message) in enumerate(messages, 1):
        if index not in acknowledged:
            base.perhaps.append(message)
            continue
        base.waiting[name].append(message)
        base.hurried.append(message)
        base.sent[f"{name.partition(' ')[0]}-0"].append(message)


def _commit_some(life: _Life) -> None:
    with consumer(GROUP, "lazy/#", start="oldest", runtime_dir=life.place / "run") as records:
        batch = records.read(20.0)
        assert batch is not None
        acknowledged = [it.offset for it in batch][: len(batch) // 2]
        records.ack(batch, acknowledged)
        life.base.committed = acknowledged[-1] + 1
