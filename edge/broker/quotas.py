"""Quotas: the owner that an entry of a shared table counts for, a user or address, and reports of refusals.

Owns the format of a key. The engine owns the accounts and the rule (ringbuf/c/mqtt/quotas.c).

    byte  rest            owner
    u     user name       an authenticated user
    c     name            a client with a certificate and without a user name
    a     4 or 16 bytes   an address; of IPv6 its /64, the rest 0
    l                     the Unix sockets of this machine
    t     NAME, 0, key    the same, of a client of the tenant NAME; the key may be empty
                          b"": no owner, and no quota
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edge.auth.interfaces import ClientInfo
from edge.auth.tenant_names import tenant_of
from edge.engine.engine import Engine, Table, counters_of, limits_of
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from ringbuf.native import ffi

if TYPE_CHECKING:
    from edge.config.quota import OwnerQuota, Quota

log = logging.getLogger(__name__)

NO_OWNER = b""
NETWORK_BITS = 64  # of IPv6: the smallest network that a site gets
ADDRESSES_KEPT = 4_096
TOP = 3


def key_of(client_info: ClientInfo) -> bytes:
    """Key of the owner that a client counts for."""
    return owner_in(client_info.prefix, _key_of(client_info))


def owner_in(prefix: str, key: bytes = NO_OWNER) -> bytes:
    """Key of an owner in the tenant of a full name with this prefix; "": no tenant."""
    return b"t%b\0%b" % (tenant_of(prefix).encode(), key) if prefix else key


def _key_of(client_info: ClientInfo) -> bytes:
    if client_info.verified and client_info.identity is not None:
        return b"u" + client_info.identity.encode()
    if client_info.verified and client_info.certificate is not None:
        return b"c" + client_info.certificate.encode()
    if client_info.transport == "unix":
        return b"l"
    return _key_of_address(client_info.address.rpartition(":")[0])


@lru_cache(ADDRESSES_KEPT)
def _key_of_address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return NO_OWNER  # a transport without addresses
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return b"a" + address.ipv4_mapped.packed
        return b"a" + address.packed[: NETWORK_BITS // 8] + bytes(16 - NETWORK_BITS // 8)
    return b"a" + address.packed


def owner_text(key: bytes) -> str:
    """Text for an owner: `user ann`, `address 10.0.0.7`, `tenant acme, user ann`."""
    kind, rest = key[:1], key[1:]
    if kind == b"t":
        tenant, _, inner = rest.partition(b"\0")
        return f"tenant {tenant.decode()}" + (f", {owner_text(inner)}" if inner else "")
    if kind == b"a":
        network = f"/{NETWORK_BITS}" if len(rest) > 4 else ""
        return f"address {ipaddress.ip_address(rest)}{network}"
    if kind == b"l":
        return "unix sockets"
    return f"{'user' if kind == b'u' else 'certificate'} {rest.decode('utf-8', 'replace')}"


_SETTINGS = {
    Table.CONNECTIONS: "connections_max",
    Table.SESSIONS: "sessions_max",
    Table.SUBSCRIPTION_BYTES: "subscriptions_max_bytes",
    Table.TOPICS: "topics_max",
    Table.RETAINED: "retained_max",
    Table.RETAINED_BYTES: "retained_max_bytes",
    Table.QUEUE_BYTES: "queues_max_bytes",
    Table.DELAYED: "delayed_max",
    Table.DELAYED_BYTES: "delayed_max_bytes",
}


def owner_max(quota: Quota) -> tuple[tuple[int, ...], ...]:
    """Quotas in the form of EngineLimits: of a user, of an address; 0: not set."""
    return limits_in(quota.user), limits_in(quota.address)


def limits_in(quota: OwnerQuota) -> tuple[int, ...]:
    """Limits of one owner, by table; 0: not set."""
    return tuple(getattr(quota, _SETTINGS[table], None) or 0 if table in _SETTINGS else 0 for table in Table)


class Owners:
    """Usage of owners, and refusals since the last report. On the broker's thread."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._counters = counters_of(engine)
        self._limits = limits_of(engine)
        self._reported = dict.fromkeys(Table, 0)
        self._may_warn = {table: LogThrottle(clock) for table in Table}
        self._all_refused: Any = ffi.buffer(self._counters.quota_refused)
        self._all_reported: bytes = self._all_refused[:]  # compared in each round, which nearly always is all

    def report_refused(self) -> None:
        """Log the refusals by quota since the last report: one line for each table."""
        refused: bytes = self._all_refused[:]
        if refused != self._all_reported and self._report_tables():
            self._all_reported = refused

    def _report_tables(self) -> bool:
        """True if all refusals are reported."""
        waits = False
        for table in Table:
            refused = self._counters.quota_refused[table]
            if refused == self._reported[table]:
                continue
            if not self._may_warn[table]():
                waits = True
                continue
            owner, has = self._engine.owner_refused(table) or (NO_OWNER, 0)
            log.warning(
                "quota reached, more is refused; raise %s %s",
                table.remedy,
                pairs(
                    table=table.words,
                    owner=owner_text(owner) if owner else "(gone)",
                    has=has,
                    **({"room": self._room(table)} if table.limit else {}),
                    times=refused - self._reported[table],
                ),
            )
            self._reported[table] = refused
        return not waits

    def top(self) -> dict[str, dict[str, Any]]:
        """Room of each table, and the owners that use most of it."""
        tables = {}
        for table in Table:
            if rows := self._engine.owners_top(table, TOP):
                owners = {owner_text(key): has for key, has in rows}
                tables[table.words] = {"room": self._room(table), "owners": owners}
        return tables

    def _room(self, table: Table) -> int:
        return int(getattr(self._limits, table.limit))
