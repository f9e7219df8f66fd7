"""Settings of quotas, in [quota]: the shares of one user or address in the tables that all clients share.

Owns what may be set; the tables are those of [limits], the rule is the engine's (ringbuf/c/mqtt/quotas.c).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Most = Annotated[int, Meta(ge=1, le=1 << 32)] | None


class OwnerQuota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quota of one user, in [quota.user], or of one address, in [quota.address]."""

    connections_max: Most = None
    """Connections at once."""
    sessions_max: Most = None
    """Sessions that outlast their connection, of connected and absent clients."""
    subscriptions_max_bytes: Most = None
    """Memory for topic filters of all clients of the owner, counted as for limits.subscriptions_max_bytes."""
    topics_max: Most = None
    """Topics that messages of the owner have created. share_percent does not limit them."""
    retained_max: Most = None
    """Retained messages."""
    retained_max_bytes: Most = None
    """Memory for retained messages."""
    queues_max_bytes: Most = None
    """Memory for queued records."""


class TenantQuota(OwnerQuota, frozen=True, forbid_unknown_fields=True):
    """Quota of all clients of one tenant together, in [tenant.quota]."""

    wills_max: Most = None
    """Wills, of connected clients and those that wait for their delay."""
    wills_max_bytes: Most = None
    """Memory for these wills, counted as for limits.wills_max_bytes."""
    delayed_max: Most = None
    """Delayed messages that wait."""
    delayed_max_bytes: Most = None
    """Bytes of these messages, counted as for delayed.messages_max_bytes."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of one owner in the tables of all clients, in [quota].

    The owner of a client is its user, if it has logged in, and otherwise its address; for IPv6 the /64
    network.
    """

    share_percent: Annotated[int, Meta(ge=1, le=100)] = 75
    """Share of a table that one owner may have. An owner may take more while what it then has is at most
    share_percent / (100 - share_percent) times what is then free: three quarters of the table, if no other
    owner uses it. 100: no limit."""
    user: OwnerQuota = OwnerQuota()
    """Quota of each user."""
    address: OwnerQuota = OwnerQuota()
    """Quota of each address."""
