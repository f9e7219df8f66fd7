"""Consumers' endpoint: the ZeroMQ ROUTER, and a thread for the coordinator. protocol.py has the protocol.

Owns the socket, the thread, and a listening cursor over each ring. While a fetch waits for records, a thread
waits for all rings at once, so that an idle endpoint costs nothing and a record wakes it.

Bounds: answers that a peer leaves unread are limited to SEND_HIGH_WATER. Further ones are dropped and
counted, and their records come again; outbox.py counts their bytes until ZeroMQ has sent them. The requests
that a peer may send ahead, and the size and number of frames, are limited too. An invalid request is
answered, and counted.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from edge.consumers.coordinator import Coordinator
from edge.consumers.protocol import LETTERS_MAX
from edge.consumers.registry import RingEntry
from edge.local.ring_poll import RingPoll
from edge.local.zmq_limiter import PeerLimits
from edge.local.zmq_listener import ZmqListener
from edge.local.zmq_server_socket import ZmqServer
from edge.log_throttle import LogThrottle
from ringbuf import Reader, WakeupThread

log = logging.getLogger(__name__)

FRAME_MAX_BYTES = 17 << 20  # a payload of 16 MiB, the maximum of the MQTT listener
SEND_HIGH_WATER = 64
RECEIVE_HIGH_WATER = 64
MESSAGES_A_TURN = 256
RECEIVE_S = 0.002  # of one turn; then answers are sent, and requests that wait take turns by peer
UNREAD_MAX_MS = 30_000  # a peer that reads nothing for so long is disconnected
TRACKED_MIN_BYTES = 4096  # shorter frames are copied, and not counted after ZeroMQ has them
STATUS_S = 1.0
GROUPS_SHOWN = 50
JOIN_S = 10.0


class ConsumersEndpoint:
    """Serves the peers of `listener` from start() to stop()."""

    def __init__(
        self,
        listener: ZmqListener,
        make_coordinator: Callable[[Callable[[], None]], Coordinator],
        *,
        secret_key_file: Path | None = None,
        client_keys_dir: Path | None = None,
    ) -> None:
        """Create the endpoint. `make_coordinator` is called with the function that wakes it."""
        limits = PeerLimits(LETTERS_MAX + 2, 2 * FRAME_MAX_BYTES, unread_max_ms=UNREAD_MAX_MS)
        self._server = ZmqServer(zmq.ROUTER, listener, limits, secret_key_file, client_keys_dir)
        self._socket = self._server.socket
        self.unsent = 0  # answers to peers without room, or that had disconnected
        self._sent: deque[tuple[bytes, zmq.MessageTracker, int]] = deque()  # frames that ZeroMQ holds
        self._may_log = LogThrottle()
        self._wakeup = WakeupThread()
        self._poll: RingPoll[tuple[str, Reader]] = RingPoll(self._wakeup)
        self._added: deque[tuple[RingEntry, Reader | None]] = deque()
        self._calls: deque[Callable[[], object]] = deque()
        self._groups: list[dict[str, Any]] = []
        self._status_s = 0.0
        self._stopping = False
        try:
            self._coordinator = make_coordinator(self._poll.wake)
            self._set_up()
        except BaseException:
            self._close_socket()
            raise
        self._thread = threading.Thread(target=self._run, name="brim-consumers", daemon=True)

    def _set_up(self) -> None:
        socket = self._socket
        socket.set(zmq.ROUTER_MANDATORY, 1)  # reports messages that cannot be sent
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.set(zmq.SNDHWM, SEND_HIGH_WATER)
        socket.set(zmq.RCVHWM, RECEIVE_HIGH_WATER)
        socket.set(zmq.MAXMSGSIZE, FRAME_MAX_BYTES)

    @property
    def endpoint(self) -> str:
        """The bound endpoint."""
        return self._server.endpoint

    def add(self, entry: RingEntry, listening: Reader | None) -> None:
        """Serve a ring. `listening`: a reader of it with a slot, which belongs to the endpoint from now on;
        None: no record follows.

        Any thread may call this, before start() and after it.
        """
        self._added.append((entry, listening))
        self._poll.wake()

    def admit(self, descriptors: int) -> None:
        """Accept no more peers than so many descriptors allow. Before start(), or later."""
        self._server.admit(descriptors)

    def refuse(self, reason: str) -> None:
        """Refuse acknowledgements, because their journal would not survive; "": accept them. Any thread."""

        def change() -> None:
            self._coordinator.durable_answers.trouble = reason

        self.call(change)

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` on the endpoint's thread, soon.  From any thread."""
        self._calls.append(function)
        self._poll.wake()

    def groups(self) -> list[dict[str, Any]]:
        """For `brim status`: the groups of all_groups() with the largest lag."""
        return self._groups[:GROUPS_SHOWN]

    def all_groups(self) -> list[dict[str, Any]]:
        """Summaries of the groups, at most a second old. From any thread."""
        return self._groups

    def start(self) -> None:
        """Start the thread. Raises EdgeError, and RuntimeError: no more threads may be started."""
        try:
            self._server.bind()
            self._take_added()
            self._report_status()
            self._thread.start()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """End the thread and close everything. Must be called before the rings close.

        A thread that does not end within JOIN_S, because the disk does not answer, keeps its objects: two
        threads must not use a socket at once.
        """
        if self._thread.is_alive():
            self._stopping = True
            self._poll.wake()
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                log.error("consumer thread did not stop waited_s=%s", JOIN_S)
                return
        self.close()

    def close(self) -> None:
        """Close the service, all readers and the socket. May be called twice."""
        if self._server.closed:
            return
        self._take_added()
        try:
            self._coordinator.close()
        except OSError as error:
            log.error("committed offsets not written reason=%s", error.strerror)
        for name, reader in self._poll.items():
            log.debug("ring closed name=%s", name)
            self._poll.remove(reader)
            reader.close()
        for entry in self._coordinator.registry.rings.values():
            entry.source.close()
        self._close_socket()

    def _close_socket(self) -> None:
        self._poll.close()
        self._wakeup.close()
        self._server.close()

    # ---- the thread ----

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._poll.fileno(), zmq.POLLIN)
        while not self._stopping:
            try:
                pause_s = self._turn()
            except Exception:
                if self._may_log():
                    log.exception("consumer endpoint failed in one turn")
                pause_s = 1.0
            if self._coordinator.waited_for:
                self._poll.watch()
            poller.poll(math.ceil(pause_s * 1000))
            self._poll.acknowledge()

    def _turn(self) -> float:
        """Do the work of one turn. Returns the seconds until more may be due."""
        self._take_added()
        for name, reader in self._poll.readable():
            reader.seek_latest()  # before the check for records: a record may be committed in between
            self._coordinator.rang(name)
        while self._calls:
            self._calls.popleft()()
        more = self._receive()
        self._release_sent()
        pause_s = self._coordinator.turn()
        self._send()
        if time.monotonic() >= self._status_s:
            self._report_status()
        return 0.0 if more or self._calls else pause_s

    def _report_status(self) -> None:
        self._server.log_refusals()
        self._groups = self._coordinator.status()
        self._status_s = time.monotonic() + STATUS_S

    def _take_added(self) -> None:
        while self._added:
            entry, reader = self._added.popleft()
            self._coordinator.add_ring(entry)
            if reader is not None:
                self._poll.add(reader, (entry.source.name, reader))

    def _receive(self) -> bool:
        """Receive requests, of each peer in turn. True if there may be more."""
        until_s = time.monotonic() + RECEIVE_S
        for _ in range(MESSAGES_A_TURN):
            try:
                first = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._server.drained()
                return False
            frames: list[bytes] = []
            size = 0
            while self._socket.rcvmore:
                frame = self._socket.recv()
                size += len(frame)
                if len(frames) <= LETTERS_MAX and size <= 2 * FRAME_MAX_BYTES:
                    frames.append(frame)
            owner = self._server.owner_of(first)
            self._coordinator.receive(first.bytes, frames[0] if frames else b"", frames[1:], owner)
            if time.monotonic() >= until_s:
                break
        return True

    def _send(self) -> None:
        outbox = self._coordinator.outbox
        while outbox:
            peer, frames = outbox.popleft()
            parts = [zmq.Frame(frame, track=True, copy=len(frame) < TRACKED_MIN_BYTES) for frame in frames]
            try:
                self._socket.send_multipart([peer, *parts], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                if error.errno not in {zmq.EAGAIN, errno.EHOSTUNREACH}:
                    raise
                self.unsent += 1
                log.debug("answer to a consumer dropped peer=%s", peer.hex())
                continue
            for part in parts:  # keep only the tracker: a stored frame would never be done
                if not part.tracker.done:
                    self._sent.append((peer, part.tracker, len(part)))
                    outbox.hold(peer, len(part))

    def _release_sent(self) -> None:
        """Stop counting frames that ZeroMQ has sent."""
        for _ in range(len(self._sent)):
            peer, tracker, size = self._sent.popleft()
            if tracker.done:
                self._coordinator.outbox.release(peer, size)
            else:
                self._sent.append((peer, tracker, size))
