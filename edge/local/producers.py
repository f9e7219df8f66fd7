"""Producer rings: rings that other processes of this machine write; created and authorized here.

A local producer (a camera process) writes a separate ring, "{stream}@{producer}". The broker creates the
file, decides which user may have it, and returns the path (control_server.py). After that it only reads the
ring, and checks every record in it. The modules that read the records are notified of each ring once, by
`on_ring`.

A producer of another user has the right to write its file, and so to shorten it. Its ring is then empty here
(ringbuf/c/ring/sigbus_guard.c), and the producer is refused until the next start; other clients are not
affected.

Rings outlive producers and brokers: a returning producer continues at its next offset, and a starting broker
attaches existing rings. If the stream has a log, their records are logged too
(persistence/log/copied_rings.py). Producers are not notified of that: a record is only as durable as memory
until the log has read it. While the log accepts no records, producers are refused like all publishers
(durability.py), by a word in their rings.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from edge.config.schema import DEFAULT_STREAM, NAME_PATTERN, NAME_RULE, Config, Stream
from edge.config.schema import Producer as ProducerSettings
from edge.errors import FILES_REMEDY, Refused
from edge.logging_setup import pairs
from edge.streams.epochs import Epochs
from edge.streams.ring_files import (
    LogEnd,
    LoggedRecords,
    attached_to_read,
    mend_left_behind,
    ring_to_read,
)
from edge.streams.ring_sizes import fitting_bytes
from edge.user_names import user_name
from ringbuf import Ring
from ringbuf.errors import Corrupt, RingError

log = logging.getLogger(__name__)

RING_BYTES = 64 << 20  # of a producer without a [[producer]]


class ProducerRing(Struct, frozen=True):
    """The ring of one local producer, attached to read."""

    name: str
    producer: str
    stream: Stream
    ring: Ring


@contextmanager
def skipping_damaged(name: str) -> Iterator[None]:
    """Log that a part of the broker leaves out the ring `name` if the block raises Corrupt."""
    try:
        yield
    except Corrupt as error:
        log.error("producer ring left out: its writer has damaged it %s", pairs(name=name, reason=error))


class Producers:
    """All producer rings of a broker. Each function in `on_ring` is called for each new ring."""

    def __init__(
        self,
        config: Config,
        epochs: Epochs,
        log_ends: Mapping[str, tuple[int, int]] | None = None,
        past: LoggedRecords | None = None,
    ) -> None:
        """Create the table. `log_ends` and `past` are as in Streams.open()."""
        self._past = past
        self._log_ends = log_ends or {}
        self.on_ring: list[Callable[[ProducerRing], object]] = []
        self._directory = config.runtime_dir
        self._streams = {stream.name: stream for stream in config.stream}
        self._settings = {settings.name: settings for settings in config.producer}
        self.joins_max = sys.maxsize  # rings that may be added by open(); each takes descriptors
        self._joined = 0
        self._unlisted_max = config.local.producers_max
        self._epochs = epochs
        self._rings: dict[str, ProducerRing] = {}

    def add_streams(self, streams: Iterable[Stream]) -> None:
        """Let producers join these streams too."""
        self._streams |= {stream.name: stream for stream in streams}

    def all(self) -> list[ProducerRing]:
        """Every attached ring."""
        return list(self._rings.values())

    def attach_left_behind(self) -> None:
        """Attach the rings of producers of an earlier broker; damaged rings are skipped."""
        for file in sorted(self._directory.glob("*@*.ring")):
            stream, _, producer = file.stem.partition("@")
            if stream not in self._streams:
                log.warning("producer ring ignored: its stream is not configured %s", pairs(file=file))
                continue
            try:
                self._attached(producer, self._streams[stream], self._left_behind(file))
            except (RingError, OSError) as error:
                log.warning("producer ring not usable %s", pairs(file=file, reason=error))

    def open(self, producer: str, stream: str, uid: int) -> ProducerRing:
        """The ring of `producer` in `stream`, created if necessary, for a process of user `uid`.

        Without a stream it is the configured one, or the default stream. Raises Refused: an unknown stream,
        or the user is not permitted; RingsUnavailable.
        """
        if not stream:
            stream = self._settings[producer].stream if producer in self._settings else DEFAULT_STREAM
        settings = self._permitted(producer, stream, uid)
        known = self._rings.get(f"{stream}@{producer}")
        if known is not None and known.ring.is_lost:
            raise Refused(
                f"the file of ring {known.name} was shortened by a process that may write it",
                hint="find that process, then restart the broker",
            )
        if known is not None:
            return known
        if self._joined >= self.joins_max:
            text = f"{self._joined} producer rings have joined, and the broker may open no files for another"
            raise Refused(text, hint=FILES_REMEDY)
        shared = any(other != os.geteuid() for other in settings.uids)
        path = self._directory / f"{stream}@{producer}"
        mode = 0o660 if shared else 0o640  # another user, who then shares the directory's group
        end = LogEnd(*self._log_ends.get(path.name, ()))
        ring = ring_to_read(path, settings.ring_bytes, self._epochs, log_end=end, mode=mode)
        self._joined += 1
        return self._attached(producer, self._streams[stream], ring)

    def refuse(self, refusal_of: Callable[[str], int]) -> None:
        """Set the refusal of each producer ring to `refusal_of` its name (edge/broker/durability.py)."""
        for entry in self.all():
            try:
                entry.ring.refuse(refusal_of(entry.name))
            except (OSError, RingError) as error:
                log.warning("producer not notified of the stop %s", pairs(name=entry.name, reason=error))

    def _left_behind(self, file: Path) -> Ring:
        mend_left_behind(file.with_suffix(""), self._past)
        return attached_to_read(file.with_suffix(""), LogEnd(*self._log_ends.get(file.stem, ())))

    def close(self) -> None:
        """Detach all rings. The files stay: their producers may be writing."""
        for attached in self._rings.values():
            attached.ring.close()
        self._rings.clear()

    def _permitted(self, producer: str, stream: str, uid: int) -> ProducerSettings:
        if stream not in self._streams:
            raise Refused(
                f"there is no stream {stream!r}", hint=f"the streams are {', '.join(self._streams)}"
            )
        if self._streams[stream].visible == "durable":
            raise Refused(
                f'stream {stream!r} has visible = "durable"; a producer ring shows committed records',
                hint='give local producers a separate stream with visible = "commit"',
            )
        settings = self._settings.get(producer)
        if settings is None:
            settings = ProducerSettings(
                name=producer, stream=stream, ring_bytes=fitting_bytes(self._directory, RING_BYTES)
            )
            self._check_unlisted(settings)
        if settings.stream != stream:
            raise Refused(
                f"producer {producer!r} writes stream {settings.stream!r}, not {stream!r}",
                hint="leave the stream out, or change it in [[producer]]",
            )
        if uid not in (os.geteuid(), 0, *settings.uids):
            raise Refused(
                f"user {user_name(uid)} may not be producer {producer!r}",
                hint=f'add uids = [{uid}] to the [[producer]] with name = "{producer}"',
            )
        return settings

    def _check_unlisted(self, settings: ProducerSettings) -> None:
        if not re.search(NAME_PATTERN, settings.name):
            raise Refused(f"invalid producer name {settings.name!r}", hint=NAME_RULE)
        unlisted = [ring for ring in self._rings.values() if ring.producer not in self._settings]
        known = f"{settings.stream}@{settings.name}" in self._rings
        if not known and len(unlisted) >= self._unlisted_max:
            raise Refused(
                f"too many producers without a [[producer]]: {len(unlisted)} (allowed: local.producers_max)",
                hint=f'add [[producer]] with name = "{settings.name}", or raise local.producers_max',
            )

    def _attached(self, producer: str, stream: Stream, ring: Ring) -> ProducerRing:
        attached = self._rings[ring.path.name] = ProducerRing(ring.path.name, producer, stream, ring)
        for listener in self.on_ring:
            listener(attached)
        return attached
