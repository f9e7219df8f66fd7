"""Honest clients, as a process of their own: is each of their messages delivered, and how soon?

    python -m tests.support.honest_clients PORT CLIENTS RATE

Each client subscribes to a topic of its own and publishes to it, QoS 1.  RATE messages a second in all leave
on schedule, whether or not earlier ones have arrived, so that a stall is seen in all that it delays.  Says
"ready"; then, for every line on its standard input, a line of JSON about the time since the last one:

    {"sent": 500, "lost": 0, "p50_ms": 0.1, "p99_ms": 0.4, "max_ms": 1.2}

`lost` counts what has not arrived PATIENCE_S after it was due; a client that is cut off ends the process.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time

from edge.mqtt import Connect, PubAck, Publish, Subscribe, Subscription, encode
from tests.support.frames import first_packet

PATIENCE_S = 10.0
STAMP = struct.Struct("<Qd")


class Client:
    """One socket, which publishes to itself."""

    def __init__(self, port: int, number: int) -> None:
        self.topic = f"honest/{number}"
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(encode(Connect(f"honest-{os.getpid()}-{number}")))
        self.socket.sendall(encode(Subscribe(1, (Subscription(self.topic, 1),))))
        self.rest = b""
        self._identifier = 0

    def publish(self, payload: bytes) -> None:
        """Send a message of QoS 1."""
        self._identifier = self._identifier % 65535 + 1
        self.socket.sendall(encode(Publish(self.topic, payload, 1, packet_id=self._identifier)))

    def arrived(self) -> list[bytes]:
        """Payloads that have come; they are acknowledged."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"{self.topic} was cut off")
        self.rest += data
        found = []
        while (first := first_packet(self.rest)) is not None:
            packet, self.rest = first
            if isinstance(packet, Publish):
                self.socket.sendall(encode(PubAck(packet.packet_id)))
                found.append(bytes(packet.payload))
        return found


class Crowd:
    """All clients, their schedule, and the messages in flight."""

    def __init__(self, port: int, count: int, rate: float) -> None:
        self.clients = [Client(port, number) for number in range(count)]
        self._step_s = 1 / rate
        self._due_s = time.monotonic() + 0.1
        self._sent = 0
        self._waiting: dict[int, float] = {}
        self._taken_s: list[float] = []
        self._lost = 0
        self.selector = selectors.DefaultSelector()
        self.selector.register(sys.stdin, selectors.EVENT_READ)
        for client in self.clients:
            self.selector.register(client.socket, selectors.EVENT_READ, client)

    def run(self) -> None:
        """Until standard input ends."""
        while True:
            for key, _ in self.selector.select(max(0.0, self._due_s - time.monotonic())):
                if key.data is None:
                    if not os.read(0, 1024):
                        return
                    self._report()
                    continue
                for payload in key.data.arrived():
                    number, due_s = STAMP.unpack(payload)
                    if self._waiting.pop(number, None) is not None:
                        self._taken_s.append(time.monotonic() - due_s)
            self._send_due()

    def _send_due(self) -> None:
        while (now_s := time.monotonic()) >= self._due_s:
            self._waiting[self._sent] = self._due_s
            self.clients[self._sent % len(self.clients)].publish(STAMP.pack(self._sent, self._due_s))
            self._sent += 1
            self._due_s += self._step_s
        while self._waiting and now_s - next(iter(self._waiting.values())) > PATIENCE_S:
            del self._waiting[next(iter(self._waiting))]
            self._lost += 1

    def _report(self) -> None:
        taken = sorted(self._taken_s) or [0.0]
        row = {"sent": len(self._taken_s) + self._lost, "lost": self._lost}
        shares = (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))
        times = {
            name: round(taken[min(int(share * len(taken)), len(taken) - 1)] * 1000, 3)
            for name, share in shares
        }
        print(json.dumps(row | times), flush=True)
        self._taken_s, self._lost = [], 0


def main() -> None:
    """The process."""
    port, count, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    crowd = Crowd(port, count, rate)
    print("ready", flush=True)
    crowd.run()


if __name__ == "__main__":
    main()
