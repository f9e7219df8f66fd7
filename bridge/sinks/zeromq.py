"""The sink that is a Brim collector (bridge/collector.py), over ZeroMQ: the far side without a third party.

    zmq://host:5571, or zmq+ipc:///run/brim/collector.sock; options:

    server_key        of the collector, 40 characters: then all is encrypted (CURVE).  Wanted for any
                      collector that is not on this machine
    secret_key_file   this bridge's own certificate, if the collector lets in only some

Files go as they are, whole, and are acknowledged when the collector has them on its disk.  Each thread that
puts has a socket of its own; together they stay within the collector's credit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq

from bridge.collecting import CREDIT_BYTES, VERSION, is_private, pack, unpack
from bridge.errors import BadName, SinkBlocked, SinkConflict, SinkUnavailable
from bridge.sinks.lease import LocalName, this_machine
from bridge.unit import Unit

__all__ = ["ZmqSink"]

SEND_TIMEOUT_MS = 5_000  # for a connection
ANSWER_TIMEOUT_MS = 30_000
HEARTBEAT_MS = 5_000


class ZmqSink:
    """Drained files to the collector at `endpoint`, one of ZeroMQ's."""

    def __init__(
        self,
        url: str,
        endpoint: str,
        server_key: bytes = b"",
        keys: tuple[bytes, bytes] | None = None,
    ) -> None:
        self.url = url
        self._endpoint, self._server_key = endpoint, server_key
        self._keys = keys or (zmq.curve_keypair() if server_key else (b"", b""))
        self._context = zmq.Context()
        self._idle: list[zmq.Socket[bytes]] = []
        self._holder = this_machine()
        self._edge = ""
        self._name: LocalName | None = None
        self._credit = threading.Condition()
        self._credit_bytes, self._under_way_bytes = CREDIT_BYTES, 0
        self._closed = False

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> ZmqSink:
        """For zmq://host:port and zmq+ipc:///path.  Raises BadName."""
        parts = urlsplit(url)
        ipc = parts.scheme == "zmq+ipc"
        if (ipc and not parts.path) or (not ipc and ("@" in parts.netloc or ":" not in parts.netloc)):
            raise BadName(f"{url!r} is no collector", hint="write zmq://host:5571 or zmq+ipc:///path")
        endpoint = f"ipc://{parts.path}" if ipc else f"tcp://{parts.netloc}"
        if unknown := set(options) - {"server_key", "secret_key_file"}:
            raise BadName(f"{url}: no option {', '.join(sorted(unknown))}")
        key = options.get("server_key", "").encode()
        if not key and not is_private(endpoint):
            hint = "`brim collect` says its key: give it as option server_key"
            raise BadName(
                f"{url}: what leaves this machine is encrypted, and there is no server_key", hint=hint
            )
        if key and len(key) != 40:
            raise BadName(f"{url}: server_key has {len(key)} characters, and must have 40")
        return cls(url, endpoint, key, _own_keys(url, options.get("secret_key_file", "")))

    def begin(self, edge: str) -> None:
        """See UnitSink."""
        self._edge = edge
        if self._name is None:
            self._name = LocalName(f"{self.url}/edge={edge}", self._holder)
        answer = self._ask(pack(kind="hello", edge=edge, holder=self._holder, version=VERSION))
        with self._credit:
            self._credit_bytes = int(answer.get("credit_bytes", CREDIT_BYTES))
            self._credit.notify_all()

    def put(self, unit: Unit) -> None:
        """See UnitSink."""
        head = pack(kind="put", edge=unit.footer.edge, holder=self._holder, name=unit.name)
        with self._within_credit(unit.length):
            self._ask(head, b"".join(unit.parts))

    def names(self, prefix: str) -> Iterator[str]:
        """See UnitSink."""
        after, more, edge = "", True, prefix.partition("/")[0].removeprefix("edge=")
        while more:
            head = {"kind": "names", "edge": edge, "holder": self._holder, "prefix": prefix, "after": after}
            answer = self._ask(pack(**head))
            found, more = list(answer["names"]), bool(answer["more"]) and bool(answer["names"])
            yield from found
            after = found[-1] if found else ""

    def close(self) -> None:
        """See UnitSink."""
        if self._closed:
            return
        self._closed = True
        if self._idle:
            with suppress(zmq.ZMQError):
                bye = pack(kind="bye", edge=self._edge, holder=self._holder)
                self._idle[-1].send(bye, zmq.NOBLOCK)
        for socket in self._idle:
            socket.close(linger=500)
        self._idle.clear()
        self._context.term()
        if self._name is not None:
            self._name.release()

    @contextmanager
    def _within_credit(self, length: int) -> Iterator[None]:
        deadline = time.monotonic() + ANSWER_TIMEOUT_MS / 1000
        with self._credit:
            while self._under_way_bytes and self._under_way_bytes + length > self._credit_bytes:
                if not self._credit.wait(deadline - time.monotonic()):
                    raise SinkUnavailable(f"{self.url}: no credit left", hint="look at the collector")
            self._under_way_bytes += length
        try:
            yield
        finally:
            with self._credit:
                self._under_way_bytes -= length
                self._credit.notify_all()

    def _ask(self, head: bytes, content: bytes | None = None) -> dict[str, Any]:
        """The answer.  Raises SinkUnavailable, SinkBlocked."""
        try:
            socket = self._idle.pop()
        except IndexError:
            socket = self._connect()
        try:
            socket.send_multipart([head] if content is None else [head, content], copy=content is None)
            answer = unpack(socket.recv()) if socket.poll(ANSWER_TIMEOUT_MS) else None
        except zmq.ZMQError as error:
            socket.close(linger=0)
            text = "no collector" if isinstance(error, zmq.Again) else str(error)
            hint = "check the network, the collector and its server_key"
            raise SinkUnavailable(f"{self.url}: {text}", hint=hint) from error
        if answer is None:
            socket.close(linger=0)  # a late answer must not be taken for that of another question
            raise SinkUnavailable(f"{self.url}: no answer", hint="look at the collector")
        self._idle.append(socket)
        if answer["kind"] == "refused":
            final = SinkConflict if answer.get("conflict") else SinkBlocked
            kind = final if answer.get("final") else SinkUnavailable
            raise kind(f"{self.url}: {answer.get('text', '')}", hint=str(answer.get("hint", "")))
        return answer

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a collector that is not there
        socket.setsockopt(zmq.SNDTIMEO, SEND_TIMEOUT_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        if self._server_key:
            socket.curve_serverkey = self._server_key
            socket.curve_publickey, socket.curve_secretkey = self._keys
        socket.connect(self._endpoint)
        return socket


def _own_keys(url: str, path: str) -> tuple[bytes, bytes] | None:
    if not path:
        return None
    from zmq.auth import load_certificate

    try:
        public, secret = load_certificate(Path(path))
    except (OSError, ValueError) as error:
        raise BadName(f"{url}: secret_key_file: {error}") from error
    if secret is None:
        raise BadName(f"{url}: {path} has no secret key", hint="name the file that ends in .key_secret")
    return public, secret
