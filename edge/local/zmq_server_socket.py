"""ZeroMQ server socket: a separate context, a limiter and perhaps keys for its peers, a clean end.

Owns the context, the socket and the limiter (zmq_limiter.py); the listening socket (zmq_listener.py) belongs
to the caller. With keys it owns ZeroMQ's thread that checks them. Never sends or receives: the thread that
uses the socket does.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import zmq

from edge.errors import THREADS_REMEDY, EdgeError
from edge.local.zmq_limiter import PeerLimits, ZmqLimiter
from edge.local.zmq_listener import BACKLOG, ZmqListener

LINGER_MS = 500  # at the end, for queued messages
# two of libzmq, the limiter, the thread for keys, the one that uses the socket, one for wake-ups
THREADS = 6


class Stoppable(Protocol):
    """ZeroMQ's thread that authenticates peers."""

    def stop(self) -> None:
        """End the thread."""


class ZmqServer:
    """A socket for the peers of `listener`, which it serves from bind() on.

    The keys are those of [zmq] for all sockets. With both key settings only peers with a public certificate
    in `client_keys_dir` are accepted. Raises EdgeError if the secret key is unreadable, or if no more threads
    may be started.
    """

    def __init__(
        self,
        kind: int,
        listener: ZmqListener,
        limits: PeerLimits,
        secret_key_file: Path | None = None,
        client_keys_dir: Path | None = None,
    ) -> None:
        keys = key_pair(secret_key_file) if secret_key_file is not None else None
        self.endpoint = listener.endpoint
        _require_threads()
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(kind)
        self.socket.set(zmq.LINGER, LINGER_MS)
        self._authenticator: Stoppable | None = None
        if keys is None or client_keys_dir is None:
            self._limiter = ZmqLimiter(listener, limits)
            return
        # encrypted heartbeats look like other messages, so a limit of bytes would end every long connection
        self._limiter = ZmqLimiter(listener, replace(limits, received_max_bytes=0))
        try:
            self._authenticator = _let_in_only(self.socket, keys, client_keys_dir)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """True after close()."""
        return bool(self._context.closed)

    def bind(self) -> None:
        """Serve the peers of the listener. After an error, call close(). Raises EdgeError."""
        self.socket.set(zmq.IPC_FILTER_PID, os.getpid())
        self.socket.set(zmq.BACKLOG, BACKLOG)
        self.socket.bind(f"ipc://@{self._limiter.inner}")
        self._limiter.open()

    def owner_of(self, frame: zmq.Frame) -> str:
        """User, address or key that the sender of a received frame counts for; "": no share holds for it."""
        user_id = str(frame.get("User-Id"))  # of the limiter, or of the thread that checks keys
        return user_id if self._authenticator is None else f"key {user_id}"

    def admit(self, descriptors: int) -> None:
        """Accept no more peers than so many descriptors allow. Any thread, before bind() or after it."""
        self._limiter.admit(descriptors)

    def drained(self) -> None:
        """Report that the socket had no further message: peers that wait for it may continue."""
        self._limiter.drained()

    def log_refusals(self) -> None:
        """Log peers that exceeded a limit; call it now and then, from one thread."""
        self._limiter.log_refusals()

    def peers(self) -> dict[str, int]:
        """ZmqLimiter.counts()."""
        return self._limiter.counts()

    def close(self) -> None:
        """Close; queued messages have LINGER_MS. May be called twice."""
        if self.closed:
            return
        if self._authenticator is not None:
            self._authenticator.stop()
        self.socket.close()
        self._context.term()
        self._limiter.close(LINGER_MS)


def _require_threads() -> None:
    """Raise EdgeError if the threads of a server cannot be started: libzmq ends the process then."""
    end = threading.Event()
    started = []
    try:
        for _ in range(THREADS):
            thread = threading.Thread(target=end.wait, name="brim-zmq-try", daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError) as error:
        text = f"ZeroMQ needs {THREADS} threads, and only {len(started)} can be started"
        raise EdgeError(text, hint=THREADS_REMEDY) from error
    finally:
        end.set()
        for thread in started:
            thread.join()


def key_pair(secret_key_file: Path) -> tuple[bytes, bytes]:
    """(public, secret) key of a certificate. Raises EdgeError."""
    from zmq.auth import load_certificate

    try:
        public_key, secret_key = load_certificate(secret_key_file)
    except (OSError, ValueError) as error:
        text = f"zmq.secret_key_file {secret_key_file}: {error}"
        raise EdgeError(text, hint="make one with zmq.auth.create_certificates()") from error
    if secret_key is None:
        text = f"zmq.secret_key_file {secret_key_file} has no secret key"
        raise EdgeError(text, hint="name the file that ends with .key_secret")
    return public_key, secret_key


def _let_in_only(socket: zmq.Socket[bytes], keys: tuple[bytes, bytes], client_keys_dir: Path) -> Stoppable:
    """Make `socket` a CURVE server for peers with a public certificate in `client_keys_dir`."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(socket.context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=client_keys_dir)
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_server = True
    return authenticator
