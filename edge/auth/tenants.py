"""Tenants: the tenant of each client.

Owns the rule. A listener, the user and the certificate of a client may each name a tenant. They must name the
same one, otherwise the client is refused. A client that none of them names has no tenant, and never reaches
one. Only verified users and certificates count. Never changes: a reload replaces it (with_settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edge.auth.interfaces import ClientInfo
from edge.config.tenant import TENANTS_MAX, Tenant


class Tenants:
    """All configured tenants. Each name has a number, from 1 on, as long as the broker runs."""

    def __init__(self, settings: Iterable[Tenant] = (), earlier: Tenants | None = None) -> None:
        """`earlier`: the tenants before a reload; their numbers and counters stay."""
        self.settings = tuple(settings)
        self._names = {tenant.name for tenant in self.settings}
        self._numbers: dict[str, int] = dict(earlier._numbers) if earlier is not None else {}
        for tenant in self.settings:
            self._numbers.setdefault(tenant.name, len(self._numbers) + 1)
        self._by_user = _Names((tenant.name, tenant.users) for tenant in self.settings)
        self._by_certificate = _Names((tenant.name, tenant.certificates) for tenant in self.settings)
        # Clients refused because they belong to another tenant than their listener or certificate.
        self.refused: dict[str, int] = earlier.refused if earlier is not None else {}
        for name in self._numbers:
            self.refused.setdefault(name, 0)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self.settings)

    def number(self, name: str) -> int:
        """Number of a tenant; 0: "", or not configured."""
        return self._numbers[name] if name in self._names else 0

    def with_settings(self, settings: Iterable[Tenant]) -> Tenants:
        """These tenants in place of the present ones. Raises OverflowError: there is no number left."""
        changed = Tenants(settings, self)
        if (count := len(changed._numbers)) > TENANTS_MAX:
            raise OverflowError(
                f"{count} tenants, with those that were removed since the start, exceed {TENANTS_MAX}"
            )
        return changed

    def of(self, client_info: ClientInfo, listener_tenant: str) -> str | None:
        """Tenant of an accepted client; "": no tenant.

        None: it belongs to more than one, or to a tenant of its listener that is not configured.
        """
        named = {listener_tenant} if listener_tenant else set()
        if client_info.verified and client_info.identity is not None:
            named |= self._by_user.tenants(client_info.identity)
        if client_info.certificate is not None:
            named |= self._by_certificate.tenants(client_info.certificate)
        if len(named) > 1:
            self.refused[min(named & self._names)] += 1
        if len(named) > 1 or not named <= self._names:
            return None
        return named.pop() if named else ""


class _Names:
    """Tenants by the names of users or certificates; NAME* stands for all names that begin with NAME."""

    def __init__(self, by_tenant: Iterable[tuple[str, Iterable[str]]]) -> None:
        self._exact: dict[str, str] = {}
        self._beginnings: list[tuple[str, str]] = []
        for tenant, patterns in by_tenant:
            for pattern in patterns:
                if pattern.endswith("*"):
                    self._beginnings.append((pattern[:-1], tenant))
                else:
                    self._exact[pattern] = tenant

    def tenants(self, name: str) -> set[str]:
        found = {tenant for beginning, tenant in self._beginnings if name.startswith(beginning)}
        return found | {self._exact[name]} if name in self._exact else found


NO_TENANTS = Tenants()
