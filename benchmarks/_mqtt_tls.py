"""TLS and WebSocket clients of the MQTT benchmark, in Python: the work for one message is prepared.

    python -m benchmarks._mqtt_tls PORT COUNT [idle]    COUNT handshakes with CONNECT, after a line of input

A process of its own makes handshakes and prints their seconds, so that its threads delay no other client of
the benchmark. Bulk data are blocks of prepared packets, which OpenSSL encrypts at more than a gigabyte a
second. A paced message costs this side more than it costs the generator in C, for each broker alike. A
handshake costs a client 1.7 times what it costs a broker in OpenSSL itself, so two cores bound tls_handshakes
on both sides; tls_handshakes_per_cpu_s is of the broker only.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks._mqtt_process import ROOT, Broker
from benchmarks._mqtt_tests import Figure
from edge.load import Histogram
from edge.mqtt import Connect, Subscribe, Subscription, encode

TOPIC = b"bench/0000/00000/t00"
PAYLOAD_BYTES = 64
MESSAGE = bytes((0x30, 2 + len(TOPIC) + PAYLOAD_BYTES, 0, len(TOPIC))) + TOPIC + b"x" * PAYLOAD_BYTES
PINGREQ, PINGRESP_BYTES = b"\xc0\x00", 2
CONNACK_BYTES, SUBACK_BYTES = 4, 5
BLOCK_MESSAGES = 700  # nearly 64 KiB
RATE = 1_000
SPIN_NS = 100_000
PATIENCE_S = 20.0
PENDING = 16
MASK = bytes.fromhex("37fa213d")
UPGRADE = (
    "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def context() -> ssl.SSLContext:
    """Context of a client that accepts the certificate of the benchmark."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


def take(connection: socket.socket, count: int) -> None:
    """Receive this number of bytes."""
    while count:
        data = connection.recv(count)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        count -= len(data)


def tls_client(port: int, client_id: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A connected client. Raises OSError."""
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = tls.wrap_socket(plain)
        connection.sendall(encode(Connect(client_id, keep_alive_s=0)))
        take(connection, CONNACK_BYTES)
    except BaseException:
        plain.close()
        raise
    return connection


# ---- one publisher, one subscriber, paced ----


@contextmanager
def pair(broker: Broker) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """A publisher and a subscriber; the subscriber does not block."""
    tls = context()
    with tls_client(broker.ports.tls, "p", tls) as publisher, tls_client(broker.ports.tls, "s", tls) as other:
        other.sendall(encode(Subscribe(1, (Subscription(TOPIC.decode(), 0),))))
        take(other, SUBACK_BYTES)
        other.setblocking(False)
        yield publisher, other


def receive_one(subscriber: ssl.SSLSocket) -> None:
    """Wait awake for one message. Raises TimeoutError."""
    missing, until = len(MESSAGE), time.monotonic() + PATIENCE_S
    while missing:
        try:
            missing -= len(subscriber.recv(missing))
        except ssl.SSLWantReadError:
            if time.monotonic() > until:
                raise TimeoutError("a message was not delivered") from None


def paced(broker: Broker, duration_s: float) -> tuple[Histogram, float]:
    """Latencies at 1,000 a second, and the broker's processor us per message.

    A message waits for the delivery of the one before, so its time counts from its sending.
    """
    times: list[int] = []
    with pair(broker) as (publisher, subscriber):
        broker.settle()  # its start has rows of its own
        cpu_s, begun = broker.cpu_s(), time.monotonic_ns()
        for number in range(int(RATE * duration_s)):
            due = begun + number * 1_000_000_000 // RATE
            while (left := due - time.monotonic_ns()) > 0:
                if left > SPIN_NS:
                    time.sleep((left - SPIN_NS) / 1e9)
            sent = time.monotonic_ns()
            publisher.sendall(MESSAGE)
            receive_one(subscriber)
            times.append(time.monotonic_ns() - sent)
        cpu_s = broker.cpu_s() - cpu_s
    return Histogram.of(times), cpu_s / len(times) * 1e6


def tls_p50(broker: Broker, duration_s: float) -> Figure:
    """Median latency."""
    found, cpu_us = paced(broker, duration_s)
    return Figure(found.percentile(50), cpu_us)


def tls_cpu(broker: Broker, duration_s: float) -> Figure:
    """Processor time per message, in us."""
    _, cpu_us = paced(broker, duration_s)
    return Figure(cpu_us, cpu_us)


# ---- bulk ----


def ingest(
    broker: Broker, connection: socket.socket, block: bytes, ping: bytes, answer: int, s: float
) -> Figure:
    """Messages per second in blocks, until the answer to a ping."""
    broker.settle()
    count, cpu_s, begun = 0, broker.cpu_s(), time.monotonic()
    while time.monotonic() < begun + s:
        connection.sendall(block)
        count += BLOCK_MESSAGES
    connection.sendall(ping)
    take(connection, answer)
    seconds = time.monotonic() - begun
    return Figure(count / seconds, (broker.cpu_s() - cpu_s) / count * 1e6)


def tls_ingest(broker: Broker, duration_s: float) -> Figure:
    """Messages per second of one publisher, by TLS."""
    with tls_client(broker.ports.tls, "bulk", context()) as connection:
        return ingest(broker, connection, MESSAGE * BLOCK_MESSAGES, PINGREQ, PINGRESP_BYTES, duration_s)


def frame(packet: bytes) -> bytes:
    """A masked binary frame of a packet with less than 126 bytes."""
    masked = bytes(byte ^ key for byte, key in zip(packet, itertools.cycle(MASK), strict=False))
    return bytes((0x82, 0x80 | len(packet))) + MASK + masked


def ws_ingest(broker: Broker, duration_s: float) -> Figure:
    """Messages per second of one publisher, by WebSocket, a frame for each."""
    with socket.create_connection(("127.0.0.1", broker.ports.ws), PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(UPGRADE.format(port=broker.ports.ws).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(1)
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            raise ConnectionError(answer.decode(errors="replace").partition("\r\n")[0])
        connection.sendall(frame(encode(Connect("bulk", keep_alive_s=0))))
        take(connection, 2 + CONNACK_BYTES)
        block = frame(MESSAGE) * BLOCK_MESSAGES
        return ingest(broker, connection, block, frame(PINGREQ), 2 + PINGRESP_BYTES, duration_s)


# ---- handshakes ----


def handshakes(port: int, count: int) -> float:
    """Seconds for `count` handshakes with CONNECT, PENDING at once."""
    tls, numbers = context(), iter(range(count))

    def work() -> None:
        for number in numbers:  # next() of one iterator is safe in threads
            tls_client(port, f"hello{number}", tls).close()

    threads = [threading.Thread(target=work) for _ in range(PENDING)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begun


class HandshakeProcess:
    """A process that is ready to make handshakes; `idle`: in the time that no other process needs."""

    def __init__(self, port: int, count: int, *, idle: bool = False) -> None:
        command = [sys.executable, "-m", "benchmarks._mqtt_tls", str(port), str(count), *["idle"][:idle]]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def run(self) -> float:
        """Make the handshakes. Returns seconds."""
        found, _ = self._process.communicate("\n")
        return float(found)


def tls_handshakes(broker: Broker, count: int) -> Figure:
    """Handshakes with CONNECT per second."""
    process = HandshakeProcess(broker.ports.tls, count)
    broker.settle()
    cpu_s = broker.cpu_s()
    seconds = process.run()
    broker.settle()
    return Figure(count / seconds, (broker.cpu_s() - cpu_s) / count * 1e6)


def tls_handshakes_per_cpu_s(broker: Broker, count: int) -> Figure:
    """Handshakes with CONNECT, per second of the broker's processor."""
    cpu_us = tls_handshakes(broker, count).cpu_us
    return Figure(1e6 / cpu_us, cpu_us)


def main() -> None:
    """Run the process."""
    port, count = map(int, sys.argv[1:3])
    if sys.argv[3:] == ["idle"]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("ready", flush=True)
    sys.stdin.readline()
    print(handshakes(port, count))


if __name__ == "__main__":
    main()
