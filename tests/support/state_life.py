"""One life of a broker on a damaged state, in a process of its own, and all that its users can see.

The process is forked from one that has imported everything, and puts the broker together as `brim run` does
(edge/server/server.py).  Different from a real process: no command line, no signals, no log on standard error
(lines are collected), and Python's modules are loaded already.  Segments are checked in this process: another
one would import all modules again, which takes as long as all the rest.

Clients connect as users would: a new one publishes and is served, kept sessions come back, retained messages
are requested, rings and logs are read, and the bridge drains.
"""

import asyncio
import faulthandler
import logging
import os
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

import bridge.drain.bridge
import bridge.drain.control_socket
import bridge.sinks.directory  # noqa: F401
import edge.log.maintenance
import edge.server.consumers
import edge.server.epoch_traces
import edge.server.retention_holds
from edge.local.protocol import Connection, Report, Status
from edge.mqtt import (
    PingReq,
    PingResp,
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
from persistence.files import FreshFiles
from ringbuf import Batch, Ring
from ringbuf.errors import RingError
from tests.support.drained_files import offsets_drained
from tests.support.in_process_worker import InProcessWorker
from tests.support.mqtt_socket import SocketClient
from tests.support.state_base import (
    GROUP,
    HALF_ID,
    HALF_TOPIC,
    KEPT,
    READERS,
    RINGS,
    config_of,
    payload_of,
)

LIFE_S = 60.0  # then it hangs
ANSWER_S = 10.0
LAST = 999_999  # number of a message that ends what a session waited for


@dataclass
class Seen:
    """Messages that users have seen."""

    trouble: list[str] = field(default_factory=list)  # it does not start, or does not serve
    lines: list[str] = field(default_factory=list)  # of the log, from WARNING up
    present: list[str] = field(default_factory=list)  # sessions that were there
    delivered: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)  # by session
    retained: dict[str, bytes] = field(default_factory=dict)
    rings: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    logs: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    floor: int = -1  # of the consumer group; -1: the group is not known
    drained: dict[str, int] = field(default_factory=dict)  # "stream epoch offset" -> how often, if not once
    drained_count: int = 0
    epochs: dict[str, int] = field(default_factory=dict)  # by ring
    lost: dict[str, int] = field(default_factory=dict)  # of the status


def live(place: Path, retained: int, *, stops: bool = True) -> Seen:
    """Start a broker in `place`, look at it, and stop it, or end it at once; in a child process.

    `retained`: so many messages are retained; 0: in a second life, where the publisher has nothing to repeat.
    """
    stacks = _stacks_of(place)
    stacks.touch()
    config_of(place)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _live_and_exit(place, retained, writing, stops=stops)
    os.close(writing)
    data, deadline = b"", time.monotonic() + LIFE_S
    hangs = False
    try:
        while select.select([reading], [], [], max(deadline - time.monotonic(), 0))[0]:
            part = os.read(reading, 1 << 20)
            data += part
            if not part:
                break
        hangs = time.monotonic() >= deadline
    finally:  # SystemExit, too: the campaign ends
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGABRT if hangs else signal.SIGKILL)  # SIGABRT: its stacks are written
        _, status = os.waitpid(child, 0)
    try:
        return msgspec.msgpack.decode(data, type=Seen)
    except msgspec.MsgspecError:
        text = f"the process ended with status {status} after {len(data)} bytes: {stacks.read_text()}"
        return Seen(trouble=[text])
    finally:
        stacks.unlink()


def _stacks_of(place: Path) -> Path:
    """File for the stacks of all threads of a life that takes too long or crashes."""
    return place.with_name(f"{place.name}-stacks")


def _live_and_exit(place: Path, retained: int, writing: int, *, stops: bool) -> NoReturn:
    seen = Seen()
    stacks = _stacks_of(place).open("w")
    faulthandler.enable(stacks)  # dump_traceback_later() would wait for a thread that only the parent has
    try:
        vars(edge.log.maintenance)["BackgroundProcess"] = partial(InProcessWorker, FreshFiles())
        logging.getLogger().handlers = [_Collected(seen)]
        logging.getLogger().setLevel(logging.WARNING)
        asyncio.run(_life(place, retained, seen, writing if not stops else -1))
        _write(seen, writing)
    except BaseException:  # noqa: BLE001  Whatever it is, the parent has to know.
        seen.trouble.append(traceback.format_exc(limit=-6))
        _write(seen, writing)


def _write(seen: Seen, writing: int) -> NoReturn:
    data = memoryview(msgspec.msgpack.encode(seen))
    while data:
        data = data[os.write(writing, data) :]
    os._exit(0)


class _Collected(logging.Handler):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.lines.append(f"{record.levelname} {record.getMessage()}")
        if record.exc_info:
            text = "".join(traceback.format_exception(*record.exc_info, limit=-6))
            self._seen.trouble.append(f"traceback in the log: {text}")


async def _life(place: Path, retained: int, seen: Seen, writing: int) -> None:
    """Ends the process, with a word to `writing`, or stops the broker where that is -1."""
    failures: list[str] = []
    broker = BrokerServer(config_of(place), "test", lambda: failures.append("the MQTT thread died"))
    await broker.__aenter__()
    await asyncio.to_thread(_Users(place, retained, broker, seen).look)
    seen.trouble += failures
    if writing >= 0:
        _write(seen, writing)
    await broker.__aexit__()


class _Users:
    """Actions of users, on a separate thread."""

    def __init__(self, place: Path, retained: int, broker: BrokerServer, seen: Seen) -> None:
        self._place, self._retained, self._broker, self._seen = place, retained, broker, seen
        self._port = broker.listener.addresses[0].port

    def look(self) -> None:
        """Everything; each look says by itself what went wrong."""
        looks: list[Callable[[], None]] = [self._read_rings, self._be_served]
        looks += [self._half_published, self._ask_retained] if self._retained else []
        looks += [self._come_back, self._read_logs, self._report, self._drain]
        for it in looks:
            try:
                it()
            except (AssertionError, EOFError, OSError) as error:
                self._seen.trouble.append(f"{it.__name__.strip('_')}: {error!r}")

    def _client(self, name: str, **more: Any) -> SocketClient:
        return SocketClient(self._port, name, **more)

    def _be_served(self) -> None:
        """A new client publishes to each stream, is acknowledged, and receives what it published."""
        with self._client("probe") as client:
            topics = [f"{ring.removesuffix('-0')}/p" for ring in RINGS]
            client.send(Subscribe(1, tuple(Subscription(it, 1) for it in topics)))
            _expect(client, SubAck)
            for number, topic in enumerate(topics, 1):
                client.send(Publish(topic, payload_of(topic, 0), qos=1, packet_id=number))
            wanted: Counter[object] = Counter({PubAck: len(topics)} | dict.fromkeys(topics, 1))
            while wanted.total():
                packet = client.next(ANSWER_S)
                assert packet is not None, f"not served: {wanted} did not come"
                if isinstance(packet, Publish):
                    assert bytes(packet.payload) == payload_of(packet.topic, 0), packet
                    client.send(PubAck(packet.packet_id))
                wanted[packet.topic if isinstance(packet, Publish) else type(packet)] -= 1
                wanted = +wanted

    def _half_published(self) -> None:
        """The publisher sends its message of QoS 2 again, as it has not heard that it is complete."""
        with self._client("publisher", clean_start=False, properties=KEPT) as client:
            if client.session_present:
                self._seen.present.append("publisher")
                again = Publish(HALF_TOPIC, payload_of(HALF_TOPIC, 0), qos=2, packet_id=HALF_ID, dup=True)
                client.send(again)
                _expect(client, PubRec)
                client.send(PubRel(HALF_ID))
                _expect(client, PubComp)
                with Ring.attach(self._place / "run" / "memory-0") as ring:
                    stored = [key for key, _ in _records_in(ring) if key == HALF_TOPIC]
                assert len(stored) < 2, "a message of QoS 2 was stored twice"

    def _ask_retained(self) -> None:
        """All that is retained comes before a message that this client retains and subscribes to last."""
        topic = f"{RINGS[0].removesuffix('-0')}/p"
        with self._client("retained") as client:
            client.send(Publish(topic, payload_of(topic, 0), qos=1, packet_id=1, retain=True))
            _expect(client, PubAck)
            client.send(Subscribe(1, (Subscription("lazy/r/#", 0),)), Subscribe(2, (Subscription(topic, 0),)))
            while (packet := client.next(ANSWER_S)) is not None:
                if isinstance(packet, Publish) and packet.topic == topic:
                    return
                if isinstance(packet, Publish):
                    self._seen.retained[packet.topic] = bytes(packet.payload)
            raise AssertionError("a message that was just retained did not come")

    def _come_back(self) -> None:
        with self._client("ender") as ender:
            for name in [*READERS, "flight"]:
                with self._client(name, clean_start=False, properties=KEPT) as client:
                    if client.session_present:
                        self._seen.present.append(name)
                        self._seen.delivered[name] = self._delivered(client, ender, name)

    def _delivered(self, client: SocketClient, ender: SocketClient, name: str) -> list[tuple[str, bytes]]:
        """All up to a message that is published now."""
        topic = "safe/f" if name == "flight" else f"{name.partition(' ')[0]}/a/last"
        last = payload_of(topic, LAST)
        ender.send(Publish(topic, last, qos=1, packet_id=1))
        _expect(ender, PubAck)
        client.send(PingReq())
        found: list[tuple[str, bytes]] = []
        while (packet := client.next(ANSWER_S)) is not None:
            if isinstance(packet, Publish):
                client.send(PubRec(packet.packet_id) if packet.qos == 2 else PubAck(packet.packet_id))
                if bytes(packet.payload) == last:
                    return found
                found.append((packet.topic, bytes(packet.payload)))
            elif isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
        self._seen.lines.append(f"USER the subscription of {name} is gone")
        return found

    def _read_rings(self) -> None:
        for name in RINGS:
            with Ring.attach(self._place / "run" / name) as ring:
                self._seen.epochs[name] = ring.epoch
                try:
                    self._seen.rings[name] = _records_in(ring)
                except RingError as error:
                    self._seen.trouble.append(f"ring {name} cannot be read: {error!r}")

    def _read_logs(self) -> None:
        assert self._broker.logs is not None
        reader = self._broker.logs.reader
        for name in RINGS[1:]:
            found = self._seen.logs[name] = []
            for epoch, first, end in reader.epochs(name):
                offset = first
                while offset < end and (runs := reader.read(name, epoch, offset, 1 << 20)):
                    for run in runs:
                        found += _records_of(Batch.of(bytes(run.view), run.epoch, run.offset, None))
                    offset = runs[-1].offset + runs[-1].count

    def _report(self) -> None:
        with Connection(self._place / "run") as control:
            report = control.request(Status(), Report).report
        self._seen.lost = report["lost"]
        for group in report["consumers"]:
            if group["name"] == GROUP:
                places = [it for it in group["places"] if it["ring"] == "lazy-0"]
                self._seen.floor = min((it["floor"] for it in places), default=0)

    def _drain(self) -> None:
        deadline = time.monotonic() + ANSWER_S
        while True:
            with Connection(self._place / "run") as control:
                state = control.request(Status(), Report).report["bridges"][0]
            if state["condition"] in {"failed", "stopped"} or state["last_error"]:
                self._seen.trouble.append(f"bridge: {state['condition']}: {state['last_error']}")
                return
            if not state["lag_records"]:
                break
            if time.monotonic() > deadline:
                self._seen.trouble.append(f"the bridge does not drain: {state}")
                return
            time.sleep(0.01)
        for place, offsets in offsets_drained(self._place / "sink").items():
            self._seen.drained_count += len(offsets)
            for offset, times in Counter(offsets).items():
                if times > 1:
                    self._seen.drained[f"{place} {offset}"] = times


def _expect(client: SocketClient, kind: type[object]) -> None:
    """The next packet of that kind; others are of what else the client has subscribed to."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        packet = client.next(max(deadline - time.monotonic(), 0))
        assert packet is not None, f"no {kind.__name__}"
        if isinstance(packet, kind):
            return
        assert isinstance(packet, Publish | PingResp), packet


def _records_in(ring: Ring) -> list[tuple[str, bytes]]:
    with ring.reader(start="oldest", overrun="count", with_slot=False) as reader:
        found: list[tuple[str, bytes]] = []
        while len(batch := reader.read_many(1000)):
            found += _records_of(batch)
    return found


def _records_of(batch: Any) -> list[tuple[str, bytes]]:
    return [(bytes(it.key).decode(), bytes(it)) for it in batch]
