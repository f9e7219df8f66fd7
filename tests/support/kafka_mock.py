"""Kafka for tests: the mock brokers that are built into librdkafka, with the real protocol on loopback; and
looking into a topic from outside."""

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

DEADLINE_S = 30.0
quiet = logging.getLogger("tests.kafka")

# A process of their own: they keep sockets of clients that have gone, and can be killed.
BROKERS = """
import sys
from confluent_kafka import Producer
owner = Producer({"test.mock.num.brokers": int(sys.argv[1]), "log_level": 0})
print(",".join(f"{it.host}:{it.port}" for it in owner.list_topics(timeout=30).brokers.values()), flush=True)
sys.stdin.read()
"""


@contextmanager
def mock_brokers(count: int = 1) -> Iterator[str]:
    """The addresses of brokers that live as long as the context."""
    command = [sys.executable, "-c", BROKERS, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def stalling_line(servers: str) -> Iterator[tuple[str, threading.Event]]:
    """The address of a line to one mock broker, which carries nothing there while the event is not set."""
    host, _, port = servers.partition(":")
    carries = threading.Event()
    carries.set()
    threads: list[threading.Thread] = []
    clients: list[socket.socket] = []
    with socket.create_server((host, 0)) as listener:
        # Metadata has the address of the broker, with the port in four bytes.
        its, here = (host.encode() + end.to_bytes(4, "big") for end in (int(port), listener.getsockname()[1]))

        def carry(source: socket.socket, to: socket.socket, *, there: bool) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    if there:
                        carries.wait()
                    to.sendall(data if there else data.replace(its, here))
            for end in (source, to):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def serve(client: socket.socket) -> None:
            with client, socket.create_connection((host, int(port))) as broker:
                back = threading.Thread(target=carry, args=(broker, client), kwargs={"there": False})
                back.start()
                carry(client, broker, there=True)
                back.join()

        def accept() -> None:
            with suppress(OSError):
                while True:
                    clients.append(listener.accept()[0])
                    threads.append(threading.Thread(target=serve, args=(clients[-1],)))
                    threads[-1].start()

        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield f"{host}:{listener.getsockname()[1]}", carries
        finally:
            carries.set()
            for end in (listener, *clients):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def messages(servers: str, topic: str, count: int) -> list[Message]:
    """The messages of a topic, at least `count` of them, by its partitions in their order."""
    config = {"bootstrap.servers": servers, "group.id": "test", "enable.partition.eof": True}
    consumer = Consumer(config, logger=quiet)
    found: list[Message] = []
    ended: set[int] = set()
    try:
        partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        deadline = time.monotonic() + DEADLINE_S
        while (len(ended) < len(partitions) or len(found) < count) and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.name() == "_PARTITION_EOF":
                    ended.add(message.partition() or 0)
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))


def headers_of(message: Message) -> dict[str, Any]:
    return dict(message.headers() or {})
