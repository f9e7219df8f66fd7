"""Settings of one tenant, in [[tenant]].

Owns what may be set. edge/auth/tenants.py decides which client belongs to a tenant.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edge.config.quota import TenantQuota

TENANTS_MAX = 254  # MQ_TENANTS_MAX

Pattern = Annotated[
    str,
    Meta(
        pattern=r"^([^\x00*]+\*?|\*)\Z",
        description="a name, or the beginning of names and one * at the end",
    ),
]


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tenant: a name space of topics, client identifiers and shared groups, in [[tenant]].

    A client belongs to the tenant that its listener, its user or its certificate names. A client that two
    different tenants are named for is refused. Changes of tenants need no restart.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9][a-z0-9_-]{0,23}\Z",
            description="write 1 to 24 of a-z, 0-9, - and _, a letter or digit first",
        ),
    ]
    """Name of the tenant. All other parts of the broker see its topics as $tenant/<name>/<topic>."""
    users: tuple[Pattern, ...] = ()
    """Users of the tenant, verified by their login. "press-*": all users whose names begin with "press-"."""
    certificates: tuple[Pattern, ...] = ()
    """Names (CN) in the client certificates of the tenant, in the same form."""
    publish_rate_max: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """PUBLISH packets of all clients of the tenant per second, and in one burst. Faster clients are read more
    slowly. Not set: no limit."""
    quota: TenantQuota = TenantQuota()
    """Quota of all clients of the tenant together. Not set: only [limits] and [quota]."""
