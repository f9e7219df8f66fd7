"""ZeroMQ message of one record: its encoding, its decoding, and the detection of gaps.

    frame 0   topic      UTF-8; ZeroMQ matches subscription prefixes with it
    frame 1   header     msgpack array, fields only ever appended:
                  0  version       1
                  1  ring          name of the ring, "stream-0" or "stream@producer"
                  2  epoch         of the ring
                  3  offset        of the record in its ring and epoch
                  4  timestamp_ns  wall clock time of the record, ns since 1970
                  5  flags         bits 0-1 QoS, bit 2 retain, as published
                  6  previous      offset of the record of this topic and ring that was sent before this one;
                                   nil if the publisher does not know
    frame 2   payload    of the record, unchanged

Sent with XPUB. A subscriber to everything gets dense offsets by ring. A subscriber to some topics gets, for
each topic, `previous` equal to the offset that it had last. So records that ZeroMQ dropped at its high-water
mark, or that the publisher lost to an overrun, are detected either way. (ring, epoch, offset) identifies a
record for ever, together with the edge id.

Rule for change: a further field is appended and old readers ignore it. Anything else raises the version,
which readers check, and adds golden bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from edge.errors import FrameError

VERSION: Final = 1
# remembered on either side; with more topics continuity is unknown, and reported as unknown
TOPICS_MAX: Final = 65_536


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Metadata of a record, in addition to topic and payload."""

    version: int
    ring: str
    epoch: int
    offset: int
    timestamp_ns: int
    flags: int
    previous: int | None = None

    @property
    def qos(self) -> int:
        """QoS of the published message."""
        return self.flags & 3

    @property
    def retain(self) -> bool:
        """True if the message was published with RETAIN."""
        return bool(self.flags & 4)


encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode


def decode(frames: Sequence[bytes | memoryview]) -> tuple[str, Header, bytes | memoryview]:
    """(topic, header, payload) of a message's frames. The payload is not copied. Raises FrameError."""
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
    """ZeroMQ prefix for a topic filter; it may also match further topics.

    Everything before the first wildcard: "plant/" of "plant/+/temp", "plant" of "plant/#", which matches
    "plant" too.
    """
    levels = topic_filter.split("/")
    if "+" in levels:
        return "/".join([*levels[: levels.index("+")], ""]).encode()
    return "/".join(levels[:-1] if levels[-1] == "#" else levels).encode()


class PreviousOffsets:
    """The publisher's side of `previous`: the offset sent last, by ring and topic."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, bytes], int] = {}

    def replace(self, ring: str, topic: bytes, offset: int) -> int | None:
        """Return the last offset of a topic, and set it to `offset`."""
        key = (ring, topic)
        previous = self._sent.get(key)
        if previous is None and len(self._sent) >= TOPICS_MAX:
            self._sent.clear()
        self._sent[key] = offset
        return previous

    def forget(self, ring: str) -> None:
        """Forget all offsets of `ring`, because some of its records were not sent."""
        for key in [key for key in self._sent if key[0] == ring]:
            del self._sent[key]


class Continuity:
    """The subscriber's side: detects messages that are missing before another one.

    `gaps` counts the messages before which one is missing, or may be (the publisher does not know).
    """

    def __init__(self) -> None:
        self.gaps = 0
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}

    def accept(self, topic: str, header: Header) -> bool:
        """True if this message follows the last accepted one of its topic and ring.

        True for the first of a topic, and for the first of a new epoch, where a ring begins again.
        """
        key = (header.ring, topic)
        epoch, offset = self._seen.get(key, (header.epoch, header.previous))
        follows = epoch != header.epoch or offset == header.previous
        if key not in self._seen and len(self._seen) >= TOPICS_MAX:
            self._seen.clear()
        self._seen[key] = (header.epoch, header.offset)
        self.gaps += not follows
        return follows
