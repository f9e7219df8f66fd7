"""Settings of quotas, in [quota]: how much of each table that all clients share one user or address may have.

Owns what may be set; the tables are those of [limits], the rule is the engine's (ringbuf/c/mqtt/owners.c).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["OwnerQuota", "Quota"]

Most = Annotated[int, Meta(ge=1, le=1 << 32)] | None


class OwnerQuota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one owner may have, in [quota.user] and [quota.address].  Not set: as share_percent says."""

    connections_max: Most = None
    sessions_max: Most = None  # that outlast their connection, connected or not
    subscriptions_max_bytes: Most = None  # as limits.subscriptions_max_bytes counts them, of all its clients
    topics_max: Most = None  # that its messages made known; share_percent does not bind them
    retained_max: Most = None
    retained_max_bytes: Most = None
    queues_max_bytes: Most = None


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of the tables that all clients share, in [quota].

    A client counts for its user, if it has logged in, or else for its address; of IPv6 for its /64.
    """

    # An owner may take more of a table while what it then has is at most
    # share_percent / (100 - share_percent) times what is then free: if it is alone, three quarters of the
    # table.  100: no such bound.
    share_percent: Annotated[int, Meta(ge=1, le=100)] = 75
    user: OwnerQuota = OwnerQuota()
    address: OwnerQuota = OwnerQuota()
