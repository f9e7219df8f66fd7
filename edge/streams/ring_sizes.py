"""Default sizes of rings, chosen to fit the file system of the runtime directory.

Owns the choice at the start of the broker, and for each new local producer. A configured size is never
changed: a ring without room for it is an error. Never creates or removes a ring.

Containers have 64 MiB of /dev/shm by default, which is too small for one ring of 64 MiB with its header.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from msgspec.structs import replace

from edge.config.limits import DefaultSize, LoweredSize
from edge.config.loader import checked
from edge.config.schema import (
    RECORD_OVERHEAD_BYTES,
    RECORDS_PER_RING,
    RING_SHARE,
    Config,
    Stream,
)
from edge.logging_setup import pairs
from ringbuf.constants import HEADER_BYTES
from ringbuf.free_memory import free_memory_bytes
from ringbuf.ring import ring_file

log = logging.getLogger(__name__)

RING_MIN_BYTES = 1 << 20
USED_SHARE_MAX = 0.75  # of the free space: the rest is for cursor files, spilled records and local producers
MEMORY_PARTS = 4  # new rings take a quarter of the process's memory: the rest is for the tables of [limits]
HINT = (
    "set ring_bytes of the stream, or give that file system more room, as `docker run --shm-size=256m` does"
)


def fitted(config: Config, memory_bytes: int) -> Config:
    """`config` with smaller rings, where sizes are defaults and the runtime directory lacks room for them, or
    a quarter of the memory.

    An existing ring keeps its size. The directory must exist. Raises OSError, ConfigError.
    """
    directory = config.runtime_dir
    sizes = {
        stream.name: found_bytes
        for stream in config.stream
        if (found_bytes := _size_there(directory, stream))
    }
    fixed = _fixed(config)
    new = sum(size for name, size in fixed.items() if not ring_file(directory / name).exists())
    there = sum(size * one.partitions for one in config.stream if (size := sizes.get(one.name, 0)))
    room = min(
        int(_free_bytes(directory) * USED_SHARE_MAX) - new,
        memory_bytes // MEMORY_PARTS - sum(fixed.values()) - there,
    )
    fitting = _halved(config, sizes, room)
    for stream, before in zip(fitting.stream, config.stream, strict=True):
        if stream != before:
            sizes = {"ring_bytes": int(stream.ring_bytes), "default": int(before.ring_bytes)}
            details = pairs(stream=stream.name, **sizes, directory=directory, hint=HINT)
            log.warning("ring size lowered to fit %s", details)
    return fitting


def fitted_to_memory(config: Config, memory_bytes: int) -> Config:
    """`config` as fitted() returns it at a first start, in a directory with room. Raises ConfigError."""
    return _halved(config, {}, memory_bytes // MEMORY_PARTS - sum(_fixed(config).values()))


def _halved(config: Config, sizes: dict[str, int], room: int) -> Config:
    """`config` with default rings of the known `sizes`, and others that fit the room together."""
    flexible = [stream for stream in config.stream if isinstance(stream.ring_bytes, DefaultSize)]
    new = [stream for stream in flexible if stream.name not in sizes]
    count = sum(stream.partitions for stream in new)
    size = max((stream.ring_bytes for stream in new), default=0)
    least = _least_bytes(config)
    while size > least and count * (size + HEADER_BYTES) > room:
        size //= 2
    lower = {
        stream.name: LoweredSize(sizes.get(stream.name, size))
        for stream in flexible
        if sizes.get(stream.name, size) < stream.ring_bytes
    }
    if not lower:
        return config
    streams = [replace(one, ring_bytes=lower.get(one.name, one.ring_bytes)) for one in config.stream]
    return checked(replace(config, stream=tuple(streams)), "the sizes of rings that fit")


def fitting_bytes(directory: Path, default_bytes: int) -> int:
    """The default size, halved until one ring takes at most half of the free space."""
    size, room = default_bytes, _free_bytes(directory) // 2
    while size > RING_MIN_BYTES and size + HEADER_BYTES > room:
        size //= 2
    return size


def _size_there(directory: Path, stream: Stream) -> int:
    """Size of the smallest existing ring of the stream; 0 if there is none."""
    sizes = []
    for index in range(stream.partitions):
        file = ring_file(directory / f"{stream.name}-{index}")
        if file.exists():
            sizes.append(file.stat().st_size - HEADER_BYTES)
    size = min(sizes, default=0)
    # 0 for an invalid size: that ring is damaged, and will be replaced
    return size if size >= 1 << 16 and not size & (size - 1) else 0


def _fixed(config: Config) -> dict[str, int]:
    """Bytes of each ring of a configured size, and of the journal of sessions."""
    rings = {
        f"{stream.name}-{index}": stream.ring_bytes
        for stream in config.stream
        if not isinstance(stream.ring_bytes, DefaultSize)
        for index in range(stream.partitions)
    }
    if config.sessions.keep:
        rings["sessions"] = config.sessions.journal_bytes
    return {name: size + HEADER_BYTES for name, size in rings.items()}


def _least_bytes(config: Config) -> int:
    """The smallest ring that satisfies the rules of the configuration (edge/config/setting_rules.py)."""
    limits, least = config.limits, RING_MIN_BYTES
    if limits.packet_max_bytes is not None:
        topic = min(limits.topic_max_bytes, limits.packet_max_bytes)
        least = max(least, RECORDS_PER_RING * (limits.packet_max_bytes + topic + RECORD_OVERHEAD_BYTES))
    for stream in config.stream:
        if stream.sync_bytes is not None and stream.durability.is_logged:
            least = max(least, RING_SHARE * stream.sync_bytes)
    return 1 << (least - 1).bit_length()


def _free_bytes(directory: Path) -> int:
    """Free space of the file system; at most the free memory, if the file system is in memory."""
    status = os.statvfs(directory)
    return min(status.f_bavail * status.f_frsize, free_memory_bytes(directory))
