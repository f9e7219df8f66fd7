"""ZeroMQ publisher: sends every record that a peer subscribes to, in the format of zmq_frames.py.

Owns an XPUB socket, one thread, and a cursor over each ring. Never delays a writer: an overrun cursor counts
its lost records, ZeroMQ skips a slow subscriber, and both show as gaps in the offsets that a subscriber gets.

XPUB reports the subscribed prefixes (zmq_prefixes.py). Only records of those topics are copied. Without
subscribers the thread sleeps and does not read the rings.

Between two batches of records a limited number of subscriptions is received, so that a peer that never ends
to subscribe delays the records of others by some milliseconds. An unexpected error is logged, and the thread
continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Literal

import zmq

from edge.errors import EdgeError
from edge.local.ring_poll import RingPoll
from edge.local.zmq_frames import VERSION, Header, PreviousOffsets, encode_header
from edge.local.zmq_limiter import PeerLimits
from edge.local.zmq_listener import ZmqListener
from edge.local.zmq_prefixes import NO_PEER, Prefixes
from edge.local.zmq_server_socket import ZmqServer
from edge.local.zmq_stats import ZmqStats
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from ringbuf import FLAG_QOS, FLAG_RETAIN, KeyFilter, Reader, Record, Ring, WakeupThread
from ringbuf.errors import Corrupt, Overrun

log = logging.getLogger(__name__)

BATCH_RECORDS = 256  # of one ring before the others are read, and new subscriptions are received
SUBSCRIPTIONS_A_TURN = 500
SUBSCRIPTION_MAX_BYTES = 65_536
UNDRAINED_MAX_BYTES = 256 << 10  # of subscriptions that wait in libzmq, which needs some 100 bytes for each
SUBSCRIBED_MAX_BYTES = 4 << 20  # of all peers; libzmq needs some 45 times that
FAILED_S = 1.0  # pause after an unexpected error
_MORE = int(zmq.SNDMORE)  # a plain int: combining enum members costs as much as sending
_FIRST = int(zmq.SNDMORE | zmq.NOBLOCK)
POLL_MS = 1_000  # bounds the delay of a lost wake-up


class _RingFeed:
    """One ring, with its reader."""

    def __init__(self, ring: Ring, *, own: bool, start: Literal["latest", "oldest"]) -> None:
        self.name = ring.name
        self.epoch = ring.epoch
        self.reader: Reader = ring.reader(name="zmq", start=start, local=own, verify=not own)


class ZmqPublisher:
    """Publishes rings to the peers of `listener` from start() to stop()."""

    def __init__(
        self,
        listener: ZmqListener,
        *,
        send_high_water: int = 10_000,
        secret_key_file: Path | None = None,
        client_keys_dir: Path | None = None,
    ) -> None:
        self.stats = ZmqStats()
        limits = PeerLimits(
            1,
            SUBSCRIPTION_MAX_BYTES + 64,
            received_max_bytes=SUBSCRIBED_MAX_BYTES,
            undrained_max_bytes=UNDRAINED_MAX_BYTES,
        )
        self._server = ZmqServer(zmq.XPUB, listener, limits, secret_key_file, client_keys_dir)
        self._socket = self._server.socket
        self._socket.set(zmq.SNDHWM, send_high_water)
        self._socket.set(zmq.MAXMSGSIZE, SUBSCRIPTION_MAX_BYTES + 1)
        self._socket.set(zmq.XPUB_NODROP, 1)  # so that ZeroMQ reports a full queue; see _send()
        self._socket.set(zmq.XPUB_VERBOSER, 1)
        self._added: deque[_RingFeed] = deque()
        self._prefixes = Prefixes()
        self._may_log = LogThrottle()
        self._previous = PreviousOffsets()
        self._wakeup = WakeupThread()  # that of the process has enough other work
        self._poll: RingPoll[_RingFeed] = RingPoll(self._wakeup)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="brim-zmq", daemon=True)

    @property
    def endpoint(self) -> str:
        """The bound endpoint."""
        return self._server.endpoint

    def admit(self, descriptors: int) -> None:
        """Accept no more subscribers than so many descriptors allow. Before start(), or later."""
        self._server.admit(descriptors)

    def peers(self) -> dict[str, int]:
        """Current connections, and those refused or ended by cause."""
        return self._server.peers()

    def add(self, ring: Ring, *, own: bool = True, start: Literal["latest", "oldest"] = "latest") -> None:
        """Publish `ring` too, from its next or its oldest record on. `own`: this process writes it; otherwise
        it is checked.

        Any thread may call this, before start() and after it.
        """
        self._added.append(_RingFeed(ring, own=own, start=start))
        self._poll.wake()

    def start(self) -> None:
        """Start the thread. Raises EdgeError."""
        try:
            self._server.bind()
        except EdgeError:
            self.close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close everything. Must be called before the rings close."""
        if self._thread.is_alive():
            self._stopping = True
            self._poll.wake()
            self._thread.join()
        self.close()

    def close(self) -> None:
        """Close all readers and the socket. May be called twice."""
        if self._server.closed:
            return
        for source in (*self._poll.items(), *self._added):
            self._poll.remove(source.reader)
            source.reader.close()
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
                if self._turn():
                    continue
                if self._prefixes:
                    self._poll.watch()
                poller.poll(POLL_MS)
                self._poll.acknowledge()
            except Exception:
                if self._may_log():
                    log.exception("ZeroMQ publisher failed in one turn; it continues, report this")
                time.sleep(FAILED_S)

    def _turn(self) -> bool:
        """Receive subscriptions, and send a batch of each ring. True if there may be more to do now."""
        self._take_sources()  # before subscriptions: the first subscription moves all readers to the end
        more = self._take_subscriptions()
        self._server.log_refusals()
        if not self._prefixes:
            return more
        return bool(sum([self._send_batch(source) for source in self._poll.readable()])) or more

    def _take_sources(self) -> None:
        while self._added:
            source = self._added.popleft()
            source.reader.match = self._filter()
            self._poll.add(source.reader, source)

    def _take_subscriptions(self) -> bool:
        """Receive subscriptions. True if there may be more."""
        changed, none_before, more = False, not self._prefixes, True
        for _ in range(SUBSCRIPTIONS_A_TURN):
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._server.drained()
                more = False
                break
            changed |= self._prefixes.take(frame.bytes, _peer_of(frame))
        if changed:
            self._change_prefixes(begin=none_before and bool(self._prefixes))
        return more

    def _change_prefixes(self, *, begin: bool) -> None:
        self.stats.prefixes = len(self._prefixes)
        accepted = self._filter()
        self._poll.unwatch()
        for source in self._poll.items():
            source.reader.match = accepted
            if begin:  # records from the time without subscribers are not sent
                source.reader.seek_latest()

    def _filter(self) -> KeyFilter | None:
        """Filter that checks each topic once; None if all pass."""
        starts = self._prefixes.starts()
        return None if starts is None else KeyFilter(lambda key: key.startswith(starts))

    def _send_batch(self, source: _RingFeed) -> int:
        """Send the waiting records of one ring, up to BATCH_RECORDS. Returns their number."""
        try:
            batch = source.reader.read_many(BATCH_RECORDS)
        except Overrun as error:
            self.stats.overrun += error.lost
            self._previous.forget(source.name)
            return 1
        except Corrupt as error:
            log.warning(
                "ring removed from ZeroMQ: it is not readable %s", pairs(name=source.name, reason=error)
            )
            self._poll.remove(source.reader)
            source.reader.close()
            return 0
        for record in batch:
            self._send_record(source, record)
        return len(batch)

    def _send_record(self, source: _RingFeed, record: Record) -> None:
        try:
            topic = record.key  # before bytes(), which checks that the record was still complete
            payload = record.bytes()
        except Overrun:  # the next read reports the number
            self._previous.forget(source.name)
            return
        previous = self._previous.replace(source.name, topic, record.offset)
        flags = record.flags & (FLAG_QOS | FLAG_RETAIN)
        place = (source.name, source.epoch, record.offset)
        header = Header(VERSION, *place, record.timestamp_ns, flags, previous)
        self._send(topic, encode_header(header), payload)
        self.stats.sent += 1
        self.stats.sent_bytes += len(payload)

    def _send(self, topic: bytes, header: bytes, payload: bytes) -> None:
        """Send a message to every subscriber with room; the others miss it.

        With XPUB_NODROP ZeroMQ refuses the message for all if the queue of one is full; then it is sent again
        without that option. From there on ZeroMQ silently skips that subscriber, until it has room.
        `full_queues` counts the beginnings of such periods.
        """
        send, full = self._socket.send, self.stats.full_queues
        try:
            send(topic, _FIRST)
        except zmq.Again:
            self.stats.full_queues += 1
            self._socket.set(zmq.XPUB_NODROP, 0)
            send(topic, _FIRST)
        send(header, _MORE)  # never waits: queues are full, or not, for whole messages
        send(payload, 0)
        if self.stats.full_queues != full:
            self._socket.set(zmq.XPUB_NODROP, 1)


def _peer_of(frame: zmq.Frame) -> int:
    """Descriptor of the connection that a message of XPUB came from; NO_PEER: the connection has ended."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return NO_PEER
