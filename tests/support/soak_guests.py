"""Guests of the soak: sessions that come and go, as a process of their own, with a ledger.

    python -m tests.support.soak_guests PORT THREADS OPERATIONS_PER_SECOND SEED

Each thread has guests of MQTT 3.1.1 and 5, with sessions that are kept and that are not, and one feeder that
publishes to them, receives their wills, and is never away.  A guest connects, is taken over, is fed while it
is there or away, collects, and leaves with or without DISCONNECT.  What the feeder was acknowledged must
reach the guest if it has a session; QoS 2 once.  A will arrives if, and only if, its client was lost.  A line
on standard input ends it: then all guests collect, and it prints its ledger, a line of JSON.
"""

import json
import socket
import sys
import threading
import time
from collections import Counter
from random import Random

from edge.mqtt import (
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from edge.mqtt.properties import NO_PROPERTIES
from tests.support.mqtt_socket import SocketClient
from tests.support.outside_client import Lost

GUESTS = 12  # of a thread
EXPIRY_S = 3_600
FEED_MAX = 20
PATIENCE_S = 60.0
SHARED = 30


class Talk(SocketClient):
    """A connection that acknowledges what it is sent, and keeps it in `got`."""

    def __init__(
        self, port: int, client_id: str, opened: set[int], version: Version, **fields: object
    ) -> None:
        self.got: list[Publish] = []
        self.acknowledges = True
        self._open = opened  # QoS 2 identifiers of the session that wait for PUBREL
        super().__init__(port, client_id, version, keep_alive_s=0, **fields)  # a guest may wait for minutes
        # A close with unread input discards what was not sent yet, such as a DISCONNECT.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_for(self, kind: type[Packet], identifier: int | None = None) -> Packet:
        """The next packet of that kind.  Raises Lost: it does not come."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            packet = self.next(max(deadline - time.monotonic(), 0))
            if packet is None:
                raise Lost(f"no {kind.__name__} in {PATIENCE_S} s")
            if isinstance(packet, kind) and identifier in (None, getattr(packet, "packet_id", None)):
                return packet
            self._take(packet)

    def take_until(self, count: int) -> None:
        """Until so many messages are in `got`.  Raises Lost."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.got) < count:
            packet = self.next(max(deadline - time.monotonic(), 0))
            if packet is None:
                raise Lost(f"{len(self.got)} of {count} messages came in {PATIENCE_S} s")
            self._take(packet)

    def settle(self) -> None:
        """Take what was sent before now."""
        self.send(PingReq())
        self.wait_for(PingResp)

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        """And wait for the answer."""
        self.send(Subscribe(1, (Subscription(topic_filter, qos),)))
        answer = self.wait_for(SubAck)
        assert isinstance(answer, SubAck)
        assert not any(it.failed for it in answer.reason_codes), answer

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, PubRel):
            self._open.discard(packet.packet_id)
            self.send(PubComp(packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.qos == 2 and packet.packet_id in self._open:
                self.send(PubRec(packet.packet_id))
                return
            if packet.qos == 2:
                self._open.add(packet.packet_id)
            self.got.append(packet)
            if packet.qos and self.acknowledges:
                self.send((PubAck, PubRec)[packet.qos - 1](packet.packet_id))


class Feeder:
    """Publishes to guests, and receives their wills."""

    def __init__(self, port: int, name: str) -> None:
        self._talk = Talk(port, f"feeder-{name}", set(), Version.V5)
        self._talk.subscribe(f"guest/{name}/will", 1)
        self._identifier = 0
        self.longest_s = 0.0

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Until it is acknowledged."""
        self._identifier = identifier = self._identifier % 65_535 + 1
        began_s = time.monotonic()
        self._talk.send(Publish(topic, payload, qos, retain, packet_id=identifier))
        if qos == 2:
            self._talk.wait_for(PubRec, identifier)
            self._talk.send(PubRel(identifier))
        self._talk.wait_for(PubComp if qos == 2 else PubAck, identifier)
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def wills(self, count: int) -> Counter[bytes]:
        """All that have come, which must be so many at least."""
        self._talk.take_until(count)
        self._talk.settle()
        return Counter(bytes(it.payload) for it in self._talk.got)

    def close(self) -> None:
        """Without a word."""
        self._talk.close()


class Guest:
    """One client, over all its connections."""

    def __init__(self, name: str, group: str, number: int) -> None:
        self.name, self.topic = name, f"guest/{group}/in/{number}"
        self.version = Version.V5 if number % 2 else Version.V311
        self.kept = number % 4 < 2
        self.qos = 1 + (number // 4) % 2
        self.talk: Talk | None = None
        self.has_session = False
        self.expected: list[bytes] = []  # what is to come, in order
        self.will = b""
        self.opened: set[int] = set()
        self._will_topic = f"guest/{group}/will"

    def connect(self, port: int, will: bytes) -> None:
        """A new connection, in place of one that is there.  Raises Lost."""
        present = self.kept and self.has_session
        if not present:
            self.opened.clear()
            self.expected.clear()
        properties = NO_PROPERTIES
        if self.kept and self.version is Version.V5:
            properties = Properties(session_expiry_interval_s=EXPIRY_S)
        last_will = Will(self._will_topic, will, 1) if will else None
        before = self.talk
        self.talk = Talk(
            port,
            self.name,
            self.opened,
            self.version,
            clean_start=not self.kept,
            properties=properties,
            will=last_will,
        )
        if before is not None:
            before.close()
        self.will = will
        if self.talk.session_present != present:
            raise Lost(f"{self.name}: session present {self.talk.session_present}, and not {present}")
        if not present:
            self.talk.subscribe(self.topic, self.qos)
        self.has_session = True

    def collect(self) -> int:
        """Take all that is expected; how many.  Raises Lost."""
        assert self.talk is not None
        self.talk.take_until(len(set(self.expected)))
        self.talk.settle()
        got = [bytes(it.payload) for it in self.talk.got]
        if self.qos == 2 and len(got) != len(set(got)):
            raise Lost(f"{self.name}: a message of QoS 2 came twice")
        if missing := set(self.expected) - set(got):
            raise Lost(f"{self.name}: {len(missing)} acknowledged messages did not come")
        if beyond := set(got) - set(self.expected):
            raise Lost(f"{self.name}: {sorted(beyond)[:3]} came, and was not for it")
        self.talk.got.clear()
        self.expected.clear()
        return len(got)

    def leave(self, *, goodbye: bool) -> None:
        """The connection ends."""
        assert self.talk is not None
        if goodbye:
            self.talk.send(Disconnect())
        self.talk.close()
        self.talk, self.will = None, b""
        self.has_session = self.kept
        if not self.kept:
            self.expected.clear()


class House:
    """A thread's guests, and what happens to them."""

    def __init__(self, port: int, number: int, rate: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.over = False
        self.longest_s = 0.0  # from CONNECT to SUBACK
        self._port, self._name, self._pause_s = port, str(number), 1 / rate
        self._random = Random(f"{seed}/{number}")
        self.feeder = Feeder(port, self._name)
        self._guests = [Guest(f"guest-{number}-{n}", self._name, n) for n in range(GUESTS)]
        self._wills: Counter[bytes] = Counter()
        self._number = 0
        self._retained: dict[str, bytes] = {}

    def run(self) -> None:
        """Until `over`; then what is left is collected."""
        try:
            while not self.over:
                act = self._random.choices(
                    [self._come, self._feed, self._collect, self._leave, self._retain, self._share],
                    [6, 8, 4, 5, 1, 0.3],
                )[0]
                act(self._random.choice(self._guests))
                time.sleep(self._random.uniform(0, 2 * self._pause_s))
            self._end()
        except (Lost, AssertionError, OSError, EOFError) as error:
            self.wrong.append(f"guests {self._name}: {type(error).__name__} {error}")
        finally:
            for guest in self._guests:
                if guest.talk is not None:
                    guest.talk.close()
            self.feeder.close()

    def _next(self) -> bytes:
        self._number += 1
        return b"%d" % self._number

    def _come(self, guest: Guest) -> None:
        if guest.talk is not None and self._random.random() < 0.8:
            return
        if guest.talk is not None:  # taken over: its will is published, and what it got is gone with it
            self.counts["taken over"] += 1
            if not guest.kept:
                guest.expected.clear()
            else:
                self.counts["collected"] += guest.collect()
            self._lost(guest)
        began_s = time.monotonic()
        guest.connect(self._port, self._next() if self._random.random() < 0.4 else b"")
        self.counts["connections"] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def _lost(self, guest: Guest) -> None:
        if guest.will:
            self._wills[guest.will] += 1

    def _feed(self, guest: Guest) -> None:
        for _ in range(self._random.randint(1, FEED_MAX)):
            payload = self._next()
            self.feeder.publish(guest.topic, payload, guest.qos)
            self.counts["fed"] += 1
            if guest.has_session:
                guest.expected.append(payload)

    def _collect(self, guest: Guest) -> None:
        if guest.talk is not None:
            self.counts["collected"] += guest.collect()

    def _leave(self, guest: Guest) -> None:
        if guest.talk is None:
            return
        if guest.talk.got or not guest.kept:  # what it has taken it has acknowledged
            self.counts["collected"] += guest.collect()
        goodbye = self._random.random() < 0.5
        if not goodbye:
            self._lost(guest)
        guest.leave(goodbye=goodbye)
        self.counts["left" if goodbye else "lost"] += 1

    def _retain(self, _: Guest) -> None:
        topic = f"guest/{self._name}/retained/{self._random.randrange(20)}"
        payload = self._next() if self._random.random() < 0.8 else b""
        self.feeder.publish(topic, payload, 1, retain=True)
        reader = Talk(self._port, f"reader-{self._name}", set(), Version.V311)
        reader.subscribe(topic, 1)
        reader.settle()
        got = [bytes(it.payload) for it in reader.got]
        reader.close()
        if got != [payload] * bool(payload):
            raise Lost(f"{topic} retains {got}, and not {payload!r}")
        self.counts["retained"] += 1

    def _share(self, _: Guest) -> None:
        """One member takes some, acknowledges none and leaves; the other must get all that it had."""
        topic = f"guest/{self._name}/shared"
        members = [Talk(self._port, f"member-{self._name}-{n}", set(), Version.V5) for n in range(2)]
        for member in members:
            member.subscribe(f"$share/group-{self._name}/{topic}", 1)
        members[0].acknowledges = False
        sent = {self._next() for _ in range(SHARED)}
        for payload in sent:
            self.feeder.publish(topic, payload, 1)
        members[0].settle()
        members[0].close()
        members[1].take_until(SHARED)
        got = {bytes(it.payload) for it in members[1].got}
        members[1].close()
        if got != sent:
            raise Lost(f"{len(sent - got)} messages of a group did not come")
        self.counts["shared"] += SHARED

    def _end(self) -> None:
        for guest in self._guests:
            if guest.talk is None:
                guest.connect(self._port, b"")
            self.counts["collected"] += guest.collect()
            guest.leave(goodbye=True)
        wills = self.feeder.wills(self._wills.total())
        if wills != self._wills:
            raise Lost(f"wills: {self._wills - wills} did not come, {wills - self._wills} came beyond")
        self.counts["wills"] += wills.total()


def main() -> None:
    """The process."""
    port, threads, rate, seed = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    houses = [House(port, number, rate / threads, seed) for number in range(threads)]
    running = [threading.Thread(target=house.run) for house in houses]
    for thread in running:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    for house in houses:
        house.over = True
    for thread in running:
        thread.join()
    counts: Counter[str] = Counter()
    for house in houses:
        counts += house.counts
    longest_s = max(max(it.feeder.longest_s, it.longest_s) for it in houses)
    wrong = [text for house in houses for text in house.wrong]
    print(json.dumps({"counts": counts, "wrong": wrong, "longest_ms": round(longest_s * 1000)}), flush=True)


if __name__ == "__main__":
    main()
