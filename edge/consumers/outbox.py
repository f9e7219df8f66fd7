"""Outbox: answers for peers, and the bytes that each peer has not read yet.

Owns the queue of answers and a byte count for each peer: answers in the queue, and answers that ZeroMQ still
holds (the endpoint reports both ends with hold() and release()).

A peer with PEER_MAX_BYTES unread gets no further records until it reads.  While all peers together have
TOTAL_MAX_BYTES unread, only a peer without unread bytes gets records, SMALL_BYTES of them.  So a peer that
never reads takes a bounded amount of memory, and does not stop peers that read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from edge.consumers.protocol import NotDone

ANSWER_MAX_BYTES = 16 << 20  # of records in one answer, unless one record is longer
PEER_MAX_BYTES = 32 << 20
TOTAL_MAX_BYTES = 256 << 20
SMALL_BYTES = 64 << 10

Answer = tuple[bytes, list[bytes]]  # (peer, frames)


class Outbox:
    """Queue of answers. One thread. Iterates over (peer, frames), the oldest first."""

    def __init__(self) -> None:
        self.total_bytes = 0  # unread, of all peers
        self._queue: deque[Answer] = deque()
        self._unread: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._queue)

    def append(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """Queue an answer."""
        self.hold(peer, sum(map(len, frames)))
        self._queue.append((peer, list(frames)))

    def popleft(self) -> Answer:
        """Remove and return the oldest answer; its bytes are no longer counted. Raises IndexError."""
        answer = self._queue.popleft()
        self.release(answer[0], sum(map(len, answer[1])))
        return answer

    def remove(self, answer: Answer) -> None:
        """Remove this answer from the queue."""
        self._queue.remove(answer)
        self.release(answer[0], sum(map(len, answer[1])))

    def unread(self, peer: bytes) -> int:
        """Bytes that `peer` has not read."""
        return self._unread[peer]

    def room(self, peer: bytes) -> int:
        """Bytes of records that an answer to `peer` may hold now; 0: none until the peer reads."""
        unread = self._unread[peer]
        if self.total_bytes >= TOTAL_MAX_BYTES:
            return 0 if unread else SMALL_BYTES
        return min(max(PEER_MAX_BYTES - unread, 0), ANSWER_MAX_BYTES)

    def require_room(self, peer: bytes) -> int:
        """As room(). Raises NotDone if it is 0."""
        room = self.room(peer)
        if not room:
            text = f"{self.unread(peer)} bytes of answers to this client wait until it reads them"
            raise NotDone(text, "full", "read the answers, then repeat the request")
        return room

    def hold(self, peer: bytes, size: int) -> None:
        """Count `size` more bytes for `peer`."""
        self._unread[peer] += size
        self.total_bytes += size

    def release(self, peer: bytes, size: int) -> None:
        """Count `size` bytes less: they were sent, or dropped."""
        self.total_bytes -= size
        self._unread[peer] -= size
        if self._unread[peer] <= 0:
            del self._unread[peer]
