"""Counters of the ZeroMQ publisher, apart from it: the status has them before libzmq is loaded."""

from __future__ import annotations

from msgspec import Struct


class ZmqStats(Struct):
    """Counters since the start. Only the publisher's thread writes them."""

    sent: int = 0  # messages that ZeroMQ has accepted
    sent_bytes: int = 0  # bytes of their payloads
    overrun: int = 0  # records that the rings overwrote before they were read
    full_queues: int = 0  # times that a subscriber's queue became full, so that it misses messages
    prefixes: int = 0  # subscribed now
