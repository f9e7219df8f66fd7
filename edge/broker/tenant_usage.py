"""Tenant usage: the limits of each tenant in the engine, and what its clients use, for reports.

edge.auth.tenants has the tenants, the engine their accounts (ringbuf/c/mqtt/tenants.c). Owns the delayed
messages of tenants that are not configured, until a reload adds the tenant. Figures are by configured tenant,
so their number is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from edge.auth.tenant_names import prefix_of
from edge.auth.tenants import Tenants
from edge.broker.quotas import limits_in
from edge.broker.wills import Wills
from edge.engine.engine import Engine, Table

# An accepted connection counts for CONNECTIONS; those before belong to no tenant.
_TABLES = tuple(table for table in Table if table is not Table.OPENING)
_DELAYED = {"messages": Table.DELAYED, "bytes": Table.DELAYED_BYTES}


class TenantUsage:
    """Usage of tenants. On the broker's thread."""

    def __init__(self, engine: Engine, wills: Wills, tenants: Tenants) -> None:
        """Add the tenants to the engine, which must have none."""
        self._engine, self._wills = engine, wills
        self._unconfigured: Counter[tuple[str, Table]] = Counter()
        self.apply(tenants)

    def apply(self, tenants: Tenants) -> None:
        """Use these tenants and their limits from now on. The engine keeps those that are not among them."""
        self.configured = tenants
        for tenant in tenants:
            number = self._engine.tenant_set(
                tenant.name.encode(), limits_in(tenant.quota), tenant.publish_rate_max or 0
            )
            assert number == tenants.number(tenant.name)
            quota = tenant.quota
            self._wills.limit_tenant(prefix_of(tenant.name), quota.wills_max or 0, quota.wills_max_bytes or 0)
            for table in _DELAYED.values():
                earlier = self._unconfigured.pop((tenant.name, table), 0)
                self._engine.tenant_use(tenant.name.encode(), table, earlier)
        self._engine.tenants_resolve()

    def delayed(self, changes: Mapping[tuple[str, str], int]) -> None:
        """Change the "messages" and "bytes" of delayed messages of tenants, also of those not configured.

        The first call adds the messages from before the start.
        """
        for (name, unit), more in changes.items():
            if not self._engine.tenant_use(name.encode(), _DELAYED[unit], more):
                self._unconfigured[name, _DELAYED[unit]] += more
        self._unconfigured += Counter()  # without zeros
        self._engine.delayed_counted()

    def rows(self) -> list[dict[str, Any]]:
        """One row for each tenant: use and limit of each table, refusals, publications."""
        return [self._row(tenant.name, limits_in(tenant.quota)) for tenant in self.configured]

    def _row(self, name: str, limits: tuple[int, ...]) -> dict[str, Any]:
        wills = self._wills.of_tenants[prefix_of(name)]
        used, refused, published, rate_waits = self._engine.tenant_stats(self.configured.number(name))
        return {
            "name": name,
            **{table.name.lower(): used[table] for table in _TABLES},
            "wills": wills.count,
            "wills_bytes": wills.held_bytes,
            "published": published,
            "rate_waits": rate_waits,
            "limits": {table.name.lower(): limits[table] for table in _TABLES if limits[table]}
            | {
                setting: limit
                for setting, limit in (("wills", wills.count_max), ("wills_bytes", wills.bytes_max))
                if limit
            },
            # by cause: at a limit of the tenant, its users or its addresses; clients of other tenants
            "refused": {table.words: refused[table] for table in _TABLES}
            | wills.refused
            | {"other tenant": self.configured.refused[name]},
        }
