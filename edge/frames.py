"""The ZeroMQ message of one record: both sides of it, and how a subscriber sees gaps.

    frame 0   topic      UTF-8; what ZeroMQ matches subscription prefixes against
    frame 1   header     msgpack array, fields only ever appended:
                  0  version       1
                  1  ring          name of the ring, "stream-0" or "stream@producer"
                  2  epoch         of the ring
                  3  offset        of the record in its ring and epoch
                  4  timestamp_ns  wall clock when the record was made, ns since 1970
                  5  flags         bits 0-1 QoS, bit 2 retain, as it was published
                  6  previous      offset of the record of this topic and ring that was sent before this one;
                                   nil when the publisher cannot say
    frame 2   payload    the record's, as it is

Sent with XPUB.  A subscriber to everything sees dense offsets by ring; a subscriber to some topics sees, for
each topic, that `previous` is what it had last: what ZeroMQ dropped at its high-water mark, or the publisher
lost to an overrun, shows either way.  (ring, epoch, offset) names a record for ever, with the edge id.

Rule for change: a further field is appended and old readers ignore it; anything else raises the version,
which readers refuse by name, and adds golden bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from edge.errors import FrameError

__all__ = ["TOPICS_MAX", "Continuity", "Header", "PreviousOffsets", "decode", "encode_header", "prefix_of"]

VERSION: Final = 1
TOPICS_MAX: Final = 65_536  # remembered on either side; beyond it continuity is not known, and said so


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a subscriber learns of a record beside topic and payload."""

    version: int
    ring: str
    epoch: int
    offset: int
    timestamp_ns: int
    flags: int
    previous: int | None = None

    @property
    def qos(self) -> int:
        """With which it was published."""
        return self.flags & 3

    @property
    def retain(self) -> bool:
        """Whether it was published as a retained message."""
        return bool(self.flags & 4)


encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode


def decode(frames: Sequence[bytes | memoryview]) -> tuple[str, Header, bytes | memoryview]:
    """(topic, header, payload) of a message's frames.  The payload is not copied.  Raises FrameError."""
    if len(frames) != 3:
        raise FrameError(f"a message of {len(frames)} frames, where a record takes 3: topic, header, payload")
    try:
        topic = str(frames[0], "utf-8")
        header = _decode_header(frames[1])
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise FrameError(f"no frames of a record: {error}") from error
    if header.version != VERSION:
        raise FrameError(f"frames of version {header.version}, this build reads {VERSION}; update that side")
    return topic, header, frames[2]


def prefix_of(topic_filter: str) -> bytes:
    """The ZeroMQ subscription that lets through all that `topic_filter` matches; more may come with it.

    Everything before the first wildcard: "plant/" of "plant/+/temp", "plant" of "plant/#", which matches
    "plant" too.
    """
    levels = topic_filter.split("/")
    if "+" in levels:
        return "/".join([*levels[: levels.index("+")], ""]).encode()
    return "/".join(levels[:-1] if levels[-1] == "#" else levels).encode()


class PreviousOffsets:
    """The publisher's side of `previous`: what was sent last, by ring and topic."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, bytes], int] = {}

    def replace(self, ring: str, topic: bytes, offset: int) -> int | None:
        """What was sent last of this topic, and `offset` from now on."""
        key = (ring, topic)
        previous = self._sent.get(key)
        if previous is None and len(self._sent) >= TOPICS_MAX:
            self._sent.clear()
        self._sent[key] = offset
        return previous

    def forget(self, ring: str) -> None:
        """Nothing is known any more of `ring`: records of it went by unsent."""
        for key in [key for key in self._sent if key[0] == ring]:
            del self._sent[key]


class Continuity:
    """The subscriber's side: whether anything is missing before a message.

    `gaps` counts the messages before which something is missing, or may be (the publisher cannot say).
    """

    def __init__(self) -> None:
        self.gaps = 0
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}

    def accept(self, topic: str, header: Header) -> bool:
        """Whether this message follows what was accepted of its topic and ring before it.

        True for the first of a topic, and for the first of a new epoch: a ring begins again there.
        """
        key = (header.ring, topic)
        epoch, offset = self._seen.get(key, (header.epoch, header.previous))
        follows = epoch != header.epoch or offset == header.previous
        if key not in self._seen and len(self._seen) >= TOPICS_MAX:
            self._seen.clear()
        self._seen[key] = (header.epoch, header.offset)
        self.gaps += not follows
        return follows
