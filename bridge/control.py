"""Command socket of a running bridge, in the broker or in a process of its own.

Owns bridge-NAME.sock in the runtime directory, a SOCK_SEQPACKET socket. A datagram is a msgpack map. A
connection sends one request, {"do": "state" | "pause" | "resume" | "skip" | "backfill", ...}, with the
arguments of that method of Bridge. The reply is {"said": ...}, or {"error": ..., "hint": ...}.

Only the user that runs the bridge and root may send requests. One thread serves one connection after the
other, and sleeps in between. A connection occupies it for at most CLIENT_S plus the time of its command.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgpack

from bridge.errors import BadOrder, BridgeError, BridgeUnreachable
from bridge.runner import Bridge

__all__ = ["Control", "ask", "names"]

PREFIX, SUFFIX = "bridge-", ".sock"
CLIENT_S = 2.0  # for the request to arrive after the connection
ORDER_S = 20.0  # for a request to the sink, which a command may have to wait for
ANSWER_S = 30.0  # maximum wait of a client
MESSAGE_BYTES = 128 << 10  # below the limit of Linux for a datagram in a socket's buffer
_CREDENTIALS = struct.Struct("iII")


def names(runtime_dir: str | os.PathLike[str]) -> list[str]:
    """Names of the bridges that have a socket there. A bridge that was killed leaves its socket behind."""
    found = (path.name for path in Path(runtime_dir).glob(f"{PREFIX}*{SUFFIX}"))
    return sorted(name.removeprefix(PREFIX).removesuffix(SUFFIX) for name in found)


def ask(
    runtime_dir: str | os.PathLike[str],
    name: str,
    do: str,
    *,
    timeout_s: float = ANSWER_S,
    **arguments: object,
) -> Any:
    """Send a request to the bridge of that name and return its reply.

    Raises BridgeUnreachable: no bridge answers; BadOrder: the bridge refuses.
    """
    path = _path(runtime_dir, name)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(timeout_s)
            asking.connect(str(path))
            asking.send(msgpack.packb({"do": do, **arguments}))
            answer = msgpack.unpackb(asking.recv(MESSAGE_BYTES))
    except (OSError, ValueError, msgpack.UnpackException) as error:
        raise BridgeUnreachable(
            f"bridge {name} does not answer at {path}: {error}",
            hint=f"start it: `brim bridge run {name}`, or a broker whose configuration has it",
        ) from error
    if "error" in answer:
        raise BadOrder(answer["error"], hint=answer.get("hint", ""))
    return answer["said"]


class Control:
    """Command socket of one bridge, served from start() to stop()."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._path = _path(bridge.settings.runtime_dir, bridge.settings.name)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        name = f"brim-bridge-ask-{bridge.settings.name}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Create the socket and serve it. Raises BridgeError: the socket cannot be created."""
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            # The lock of the checkpoint proves that no other process is this bridge.
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._path.chmod(0o600)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            text = f"{self._path}: cannot listen there: {error.strerror or error}"
            raise BridgeError(text, hint="set runtime_dir to a shorter path of your own") from error
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and remove the socket. May be called twice."""
        if self._thread.is_alive():
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(CLIENT_S)
                client.send(msgpack.packb(self._answer(client)))

    def _answer(self, client: socket.socket) -> dict[str, Any]:
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid = _CREDENTIALS.unpack(credentials)[1]
        if uid not in {0, os.geteuid()}:
            return {"error": f"user {uid} may not command this bridge", "hint": f"be user {os.geteuid()}"}
        try:
            request = msgpack.unpackb(client.recv(MESSAGE_BYTES))
            return {"said": self._done(request.pop("do"), request)}
        except BridgeError as error:
            return {"error": str(error), "hint": error.hint}
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            return {"error": f"no request: {error!r}"}

    def _done(self, do: str, arguments: dict[str, Any]) -> Any:
        if do == "state":
            state = self._bridge.state().as_dict()
            return state if len(state["partitions"]) <= 256 else {**state, "partitions": []}
        if do not in {"pause", "resume", "skip", "backfill"}:
            raise BadOrder(f"a bridge cannot {do!r}", hint="use a client and a bridge of the same version")
        _check(arguments)
        answer: Future[list[str]] = getattr(self._bridge, do)(**arguments)
        try:
            return answer.result(ORDER_S)
        except TimeoutError:
            return ["it is done as soon as the sink has answered, or has not for half a minute"]


def _check(arguments: dict[str, Any]) -> None:
    """Check the arguments, so that an invalid value never reaches the thread of the bridge.

    Raises BadOrder.
    """
    for name, value in arguments.items():
        if name == "stream":
            fits = isinstance(value, str) or value is None
        else:  # a partition, an offset
            fits = (type(value) is int and value >= 0) or value is None
        if not fits:
            raise BadOrder(
                f"{name} cannot be {value!r:.200}", hint="use a client and a bridge of the same version"
            )


def _path(runtime_dir: str | os.PathLike[str], name: str) -> Path:
    return Path(runtime_dir) / f"{PREFIX}{name}{SUFFIX}"
