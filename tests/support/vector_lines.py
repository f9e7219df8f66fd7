"""Lines for vectors: to a Bench, without sockets and with a settable clock; and over TCP, to any broker."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from edge.engine.engine import EngineLimits
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_transports import Stream, Transports
from tests.support.vector_run import Line, Silence
from tests.support.waiting import PATIENCE_S

# What the vectors suppose of the broker.  Receive and topic alias maximum are Mosquitto's defaults.
ENGINE = EngineLimits(receive_max=20, alias_max=10)


class BenchLine:
    """A connection of a Bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._wire = bench.wire()
        self._came = b""

    def send(self, data: bytes) -> None:
        """Parsed at once.  What is for it comes before the answers, as a socket would have it by now."""
        if self._wire.is_open:
            self._came += self._wire.bytes_received()
            self._wire.raw(data)

    def receive(self) -> bytes:
        """Received bytes; no more are to come."""
        data, self._came = self._came + self._wire.bytes_received(), b""
        if not data and self._wire.is_open:
            raise Silence
        return data

    def drop(self) -> None:
        """As the loop would see it."""
        if self._wire.is_open:
            self._wire.drop()

    def close(self) -> None:
        """Drop and free it."""
        self.drop()
        self._bench.engine.forget(self._wire.handle)


class TcpLine:
    """A socket."""

    def __init__(self, connected: socket.socket, patience_s: float = PATIENCE_S) -> None:
        self.socket = connected
        connected.settimeout(patience_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """All of it; or as much as the broker took before it closed."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next received bytes."""
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:
            return b""
        except TimeoutError:
            raise Silence from None

    def drop(self) -> None:
        """End of file for the broker, which then closes: so that it is known to have noticed."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """At once."""
        self.socket.close()


class StreamLine:
    """A stream over some transport."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def send(self, data: bytes) -> None:
        """All of it; or as much as the broker took before it closed."""
        with suppress(ConnectionError, ssl.SSLError):
            self._stream.send(data)

    def receive(self) -> bytes:
        """The next received bytes."""
        try:
            return self._stream.recv(1 << 16)
        except TimeoutError:
            raise Silence from None

    def drop(self) -> None:
        """End of file for the broker, without a goodbye of TLS; it has noticed when it ends its side."""
        with suppress(OSError):
            if isinstance(self._stream.socket, ssl.SSLSocket):
                self._stream.socket.shutdown(socket.SHUT_WR)  # bare of TLS from now on
                while self._stream.socket.recv(1 << 16):
                    pass
            else:
                self._stream.end()

    def close(self) -> None:
        """At once."""
        self._stream.close()


@contextmanager
def bench_lines() -> Iterator[tuple[Bench, Callable[[], Line], Callable[[float], None]]]:
    """(the Bench, a new connection to it, let seconds pass)."""
    with Bench(engine=ENGINE, capacity_bytes=1 << 22) as bench:
        yield bench, lambda: BenchLine(bench), lambda seconds: _pass(bench, seconds)


def _pass(bench: Bench, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        bench.settle(100)


def tcp_dial(port: int, host: str = "127.0.0.1", patience_s: float = PATIENCE_S) -> Callable[[], Line]:
    """Makes connections to a TCP port."""
    return lambda: TcpLine(socket.create_connection((host, port), PATIENCE_S), patience_s)


def stream_dial(there: Transports, kind: str) -> Callable[[], Line]:
    """Makes connections of that kind, shaken hands already."""
    return lambda: StreamLine(there.connected(kind))
