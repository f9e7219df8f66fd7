"""Delayed messages of a broker: builds edge.delayed from the configuration.

Owns the directory of the file, which depends on the durability. A file in the other directory stays there,
and the log names it.
"""

from __future__ import annotations

import logging

from edge.config.schema import Config
from edge.delayed.delivery import SYNC_S, DelayedLimits, DelayedMessages
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.ring import DelayedPartition
from edge.delayed.store import FILE_NAME, DelayedStore
from edge.logging_setup import pairs
from edge.streams.streams import Streams
from edge.transport.listener import Listener

log = logging.getLogger(__name__)


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
    limits = DelayedLimits(settings.messages_max, settings.messages_max_bytes, sync_s)
    return DelayedMessages(partition, store, publisher, limits)
