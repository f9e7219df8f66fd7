"""One broker with a listener of every kind, and byte streams to each: what a test sends arrives as MQTT.

    with transports() as there:                    # a broker; kinds: KINDS
        with there.connected("wss") as stream:     # TLS and WebSocket are shaken hands already
            stream.send(b"\\x10...")               # blocking; split as the test likes: one send is one frame
            answer = stream.recv(65536)            # some bytes; b"" at the end, also when it was reset
            stream.end()                           # nothing more comes from us; recv() still works
            stream.reset()                         # lost without a word (TCP RST where there is TCP)

Streams time out after PATIENCE_S with TimeoutError.  RawClient(0, stream=...) speaks packets over one.  The
certificates are made once for the test run; `authority()` is the client's side of them.
"""

import atexit
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Protocol, Self, TypeVar

import trustme
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from edge.config.listener import Listener as Settings
from edge.config.listener import Tls
from edge.engine.engine import listener_of
from edge.mqtt import ConnAck, Connect
from tests.support.directories import memory_directory
from tests.support.mqtt_served import Served, served
from tests.support.mqtt_socket import RawClient
from tests.support.waiting import PATIENCE_S

KINDS = ("tcp", "unix", "tls", "mtls", "ws", "wss", "proxy", "proxy-tls", "proxy-wss")
TLS_KINDS = ("tls", "mtls", "wss", "proxy-tls", "proxy-wss")
PROXY_HEADER = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes([192, 0, 2, 7, 127, 0, 0, 1]) + b"\x12\x67\7\x5b"


class Authority:
    """A certificate authority, a server's certificate and a client's, in files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self.ca_file = self.directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))
        self.certificate_file, self.key_file = self.issue("server", "127.0.0.1", "localhost", "::1")
        self.client_certificate_file, self.client_key_file = self.issue("client", common_name="press-7")

    def issue(
        self, name: str, *identities: str, common_name: str | None = None, **more: Any
    ) -> tuple[Path, Path]:
        """Certificate and key, in files named after `name`."""
        made = self._ca.issue_cert(*(identities or (f"{name}@example.org",)), common_name=common_name, **more)
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(b"".join(it.bytes() for it in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return certificate, key

    def context(self, *, certificate: bool = False) -> ssl.SSLContext:
        """A client's: it trusts this authority, and shows the client's certificate if asked to."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if certificate:
            context.load_cert_chain(self.client_certificate_file, self.client_key_file)
        return context

    def tls(self, **more: Any) -> Tls:
        """Settings of a listener."""
        return Tls(self.certificate_file, self.key_file, **more)


@cache
def authority() -> Authority:
    """The one of this test run."""
    directory = mkdtemp(prefix="brim-tls-")
    atexit.register(rmtree, directory, ignore_errors=True)
    return Authority(Path(directory))


@cache
def client_context(mutual: bool) -> ssl.SSLContext:
    """A client's context, made once: that takes as long as half a handshake."""
    return authority().context(certificate=mutual)


class Closeable(Protocol):
    """Anything that owns a socket."""

    def close(self) -> None: ...


Owner = TypeVar("Owner", bound=Closeable)


@contextmanager
def closed_on_error(owner: Owner) -> Iterator[Owner]:
    """Close `owner` if the block fails: a handshake that times out must not leak the socket."""
    try:
        yield owner
    except BaseException:
        owner.close()
        raise


class Stream:
    """A blocking byte stream over a socket: plain, Unix or TLS."""

    def __init__(self, client: socket.socket) -> None:
        client.settimeout(PATIENCE_S)
        self.socket = client

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def recv(self, most: int) -> bytes:
        """Some of it; b"": the broker has closed the connection."""
        try:
            return self.socket.recv(most)
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    def end(self) -> None:
        """Nothing more comes from here."""
        if isinstance(self.socket, ssl.SSLSocket):
            raise NotImplementedError(
                "Python's TLS cannot read after its own close_notify; use another transport"
            )
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Gone, without a goodbye."""
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """As a program that ends: the connection is closed without DISCONNECT.  May be called twice."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WebSocketStream(Stream):
    """The same through WebSocket; each send() is one binary frame.  `code`: why the broker has closed it."""

    def __init__(
        self,
        client: socket.socket,
        path: str = "/mqtt",
        subprotocol: str | None = "mqtt",
        origin: str = "",
        host: str = "localhost",
    ) -> None:
        super().__init__(client)
        offered = [Subprotocol(subprotocol)] if subprotocol else None
        self.protocol = ClientProtocol(parse_uri(f"ws://{host}{path}"), subprotocols=offered)
        request = self.protocol.connect()
        if origin:
            request.headers["Origin"] = origin
        self.protocol.send_request(request)
        self._flush()
        self._received = b""
        self.status = 0  # of the answer to the request
        with closed_on_error(self):
            self._shake_hands()

    def _shake_hands(self) -> None:
        while not self.status:
            data = super().recv(65_536)
            if not data:
                break
            self._receive(data)

    def _flush(self) -> None:
        for data in filter(None, self.protocol.data_to_send()):
            with suppress(ConnectionError):  # the broker has closed: recv() tells
                self.socket.sendall(data)

    def _receive(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Response):
                self.status = event.status_code
            elif isinstance(event, Frame) and event.opcode in {Opcode.BINARY, Opcode.CONT}:
                self._received += event.data
        self._flush()

    @property
    def code(self) -> int | None:
        """Of the broker's close frame, once it has come."""
        closed = self.protocol.close_rcvd
        return None if closed is None else closed.code

    def send(self, data: bytes) -> None:
        self.protocol.send_binary(data)
        self._flush()

    def send_frame(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> None:
        """Any frame, also one that MQTT forbids."""
        self.socket.sendall(Frame(opcode, data, fin).serialize(mask=True))

    def recv(self, most: int) -> bytes:
        while not self._received:
            data = super().recv(65_536)
            if not data:
                return b""
            self._receive(data)
        found, self._received = self._received[:most], self._received[most:]
        return found

    def end(self) -> None:
        self.protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._flush()


class Transports:
    """A started broker; `number[kind]` is the number of that listener."""

    def __init__(self, there: Served, settings: dict[str, Settings]) -> None:
        self.there = there
        self.number = {kind: index + 1 for index, kind in enumerate(settings)}  # 0 is Served's own

    def port(self, kind: str) -> int:
        """Of a listener that has one."""
        return self.there.listener.addresses[self.number[kind]].port

    def limits(self, kind: str) -> Any:
        """Its mq_listener: limits, and what it counts."""
        return listener_of(self.there.engine, self.number[kind])

    def reload_certificates(self) -> list[str]:
        """As a reload does: read all, and use them unless there is a mistake. Returns the mistakes."""
        contexts, mistakes = self.there.listener.read_certificates()
        if not mistakes:
            self.there.listener.apply_certificates(contexts)
        return mistakes

    def path(self) -> str:
        """Of the Unix socket."""
        return self.there.listener.addresses[self.number["unix"]].path

    def dial(self, kind: str) -> socket.socket:
        """A connected socket, before any handshake."""
        if kind == "unix":
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(PATIENCE_S)
            client.connect(self.path())
            return client
        client = socket.create_connection(("127.0.0.1", self.port(kind)), PATIENCE_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def connected(self, kind: str) -> Stream:
        """A stream that MQTT may be spoken on."""
        client = self.dial(kind)
        if kind.startswith("proxy"):
            client.sendall(PROXY_HEADER)
        if kind in TLS_KINDS:  # it closes the socket if it fails
            client = client_context(kind == "mtls").wrap_socket(client, server_hostname="127.0.0.1")
        return WebSocketStream(client) if kind.endswith(("ws", "wss")) else Stream(client)

    def client(self, kind: str, client_id: str = "c", **fields: Any) -> RawClient:
        """A stream whose CONNECT was accepted, speaking packets."""
        with closed_on_error(RawClient(0, stream=self.connected(kind))) as client:
            client.send(Connect(client_id, **fields))
            answer = client.packet()
            assert isinstance(answer, ConnAck)
            assert not answer.reason_code.failed
        return client


def settings_of(kind: str, directory: Path, **more: Any) -> Settings:
    """A [[listener]] of that kind."""
    fields: dict[str, Any] = {"port": 0, **more}
    if kind == "unix":
        fields["path"] = directory / "mqtt.sock"
    if kind in TLS_KINDS:
        usual = authority().tls(client_ca_file=authority().ca_file if kind == "mtls" else None)
        fields.setdefault("tls", usual)
    if kind.endswith(("ws", "wss")):
        fields["transport"] = "websocket"
    return Settings(**fields, proxy_protocol=kind.startswith("proxy"))


@contextmanager
def transports(*kinds: str, listener: dict[str, Any] | None = None, **broker: Any) -> Iterator[Transports]:
    """A broker with these listeners, or all KINDS.

    `listener`: settings that each of them has; `broker`: as for served().
    """
    with memory_directory() as directory:
        settings = {kind: settings_of(kind, directory, **(listener or {})) for kind in kinds or KINDS}
        with served(listeners=tuple(settings.values()), **broker) as there:
            yield Transports(there, settings)
