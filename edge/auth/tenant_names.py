"""Full names of tenants: $tenant/NAME/ before each topic, filter and client identifier of a tenant's client.

Owns the form of full names; ringbuf/c/mqtt/tenants.c has it for topics, too. A client sees the rest: the
visible name. NAME has no "/", so two tenants never have the same full name. Clients without a tenant have no
client identifier and no topic of that form (edge.broker.connect, edge.broker.authorization).
"""

from __future__ import annotations

from edge.mqtt import split_share

MARK = "$tenant/"


def prefix_of(tenant: str) -> str:
    """Prefix of the full names of a tenant; "" for no tenant."""
    return f"{MARK}{tenant}/" if tenant else ""


def prefix_in(full_name: str) -> str:
    """Prefix of a full name, `$tenant/NAME/`; "" if it has none."""
    if not full_name.startswith(MARK):
        return ""
    end = full_name.find("/", len(MARK))
    return "" if end <= len(MARK) else full_name[: end + 1]


def is_reserved(full_name: str) -> bool:
    """True if a topic is not for clients: it begins with $ after the prefix of its tenant, or ends there."""
    return full_name[len(prefix_in(full_name)) :][:1] in ("", "$")


def tenant_of(prefix: str) -> str:
    """Name of the tenant of a prefix; "" for ""."""
    return prefix[len(MARK) : -1]


def full_filter(prefix: str, topic_filter: str) -> str:
    """Full name of a filter of a client; the groups of shared subscriptions stay apart by their filters."""
    group, inner = split_share(topic_filter)
    return prefix + topic_filter if group is None else f"$share/{group}/{prefix}{inner}"


def is_of_tenants(topic_or_filter: str) -> bool:
    """True if a topic, or a filter without its group, is in the name space of a tenant, or of all."""
    return f"{topic_or_filter}/".startswith(MARK)
