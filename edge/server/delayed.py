"""Delayed messages of a broker: builds edge.delayed from the configuration.

Owns the directory of the file, which depends on the durability. A file in the other directory stays there,
and the log names it. Owns the room on the disk that delayed messages leave to the log: otherwise they would
fill the disk, and messages to streams with a log could not be published to make room.
"""

from __future__ import annotations

import logging
import os
from functools import partial

from edge.config.schema import Config
from edge.delayed.delivery import SYNC_S, DelayedLimits, DelayedMessages
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.ring import DelayedPartition
from edge.delayed.store import FILE_NAME, DelayedStore
from edge.logging_setup import pairs
from edge.streams.streams import Streams
from edge.transport.listener import Listener
from persistence.files import OsFiles
from persistence.free_disk_space import LAST_BYTES, SEGMENTS_OF_DISK, floors, segment_bytes_for

log = logging.getLogger(__name__)

SEGMENTS_LEFT = 2  # to the log, above the room in which it takes no records


def delayed_messages(
    config: Config, partition: DelayedPartition, streams: Streams, listener: Listener
) -> DelayedMessages:
    """The delayed messages, not started."""
    settings = config.delayed
    used, other = config.state_dir / FILE_NAME, config.runtime_dir / FILE_NAME
    if settings.durability == "process":
        used, other = other, used
    if other.exists():
        facts = pairs(file=other, in_use=used)
        log.warning(
            "delayed messages of another durability not delivered; change it back, or remove the file %s",
            facts,
        )
    store = DelayedStore(used, synced=settings.durability == "disk")
    publisher = DelayedPublisher(listener.broker, listener.submit, listener.call, streams.all)
    sync_s = SYNC_S if settings.durability != "process" else None
    lack_of_room = (
        partial(_lack_of_room, config, _shares_disk_with_log(config)) if sync_s is not None else lambda: ""
    )
    limits = DelayedLimits(settings.messages_max, settings.messages_max_bytes, sync_s, lack_of_room)
    return DelayedMessages(partition, store, publisher, limits)


def _shares_disk_with_log(config: Config) -> bool:
    """True if the disk of the state directory has a log, too. At the start: that disk may stall later."""
    if not any(stream.durability.is_logged for stream in config.stream):
        return False
    try:
        return os.stat(config.log_directory).st_dev == os.stat(config.state_dir).st_dev
    except OSError:
        return False


def _lack_of_room(config: Config, has_log: bool) -> str:
    """Reason why the disk of the state directory takes no more messages; "": it does."""
    try:
        free_bytes, total_bytes = OsFiles().disk(str(config.state_dir))
        kept_bytes = max(
            min(LAST_BYTES, total_bytes // SEGMENTS_OF_DISK),
            _kept_for_log(config, total_bytes) if has_log else 0,
        )
    except OSError:  # the next write has the reason
        return ""
    if free_bytes > kept_bytes:
        return ""
    return f"{free_bytes} bytes of the disk are free, and {kept_bytes} are kept for the log and other files"


def _kept_for_log(config: Config, total_bytes: int) -> int:
    """Bytes of the disk that are the log's. Raises OSError."""
    from edge.log.log_set import disk_rules

    directory = config.state_dir
    segment_bytes = segment_bytes_for(OsFiles(), str(directory), config.log.segment_bytes)
    floor = floors(disk_rules(config.log), total_bytes, segment_bytes).read_only
    return floor + SEGMENTS_LEFT * segment_bytes if floor else 0
