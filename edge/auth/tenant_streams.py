"""Streams of tenants: the tenants whose records each stream may hold, and warnings about streams that share.

A topic belongs to the first stream that has a filter for it, and "default" takes the rest. Records are stored
together if a stream with a log or a bridge has those of several owners: tenants, or a tenant and the clients
without one. Streams that are not `isolated` share the files of the log. All delayed messages are in one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from edge.auth.tenant_names import MARK
from edge.config.schema import DEFAULT_STREAM, Config, Stream

NO_TENANT = ""
NAMES_SHOWN = 5


class SharedStore(NamedTuple):
    """Files that hold the records of several owners."""

    files: str
    owners: str
    remedy: str


def shared_stores(config: Config) -> Iterator[SharedStore]:
    """One entry for each stream that several owners share; if none is in the log, one for the log if its
    streams have different owners; one for delayed messages if some tenant has no quota of them.
    """
    owners = _owners(config)
    is_log_shared = False
    for stream in config.stream:
        stores = _stores_of(stream, config)
        if not stores or len(owners[stream.name]) < 2:
            continue
        is_log_shared |= stream.durability.is_logged
        isolated = " and isolated = true" if stream.durability.is_logged else ""
        example = f"{MARK}{min(owners[stream.name] - {NO_TENANT})}/#"
        remedy = f'give each tenant a [[stream]] with its topics, such as ["{example}"]{isolated}'
        yield SharedStore(f"stream {stream.name} ({_some(stores)})", _in_words(owners[stream.name]), remedy)
    together = [stream for stream in config.stream if stream.durability.is_logged and not stream.isolated]
    all_owners = frozenset[str]().union(*(owners[stream.name] for stream in together))
    if not is_log_shared and len(all_owners) > 1:
        names = _some(stream.name for stream in together if owners[stream.name] - {NO_TENANT})
        yield SharedStore("log", _in_words(all_owners), f"set isolated = true in the streams {names}")
    quotas = {tenant.name: tenant.quota for tenant in config.tenant}
    unbounded = frozenset(name for name, it in quotas.items() if not (it.delayed_max or it.delayed_max_bytes))
    if config.delayed.enabled and unbounded:
        remedy = "set delayed_max in [tenant.quota], so that none of them can use all of its room"
        yield SharedStore("store of delayed messages", _in_words(unbounded), remedy)


def streams_of_tenants(config: Config) -> dict[str, list[str]]:
    """Names of the logged streams of each tenant that shares none of them."""
    owners = _owners(config)
    apart: dict[str, list[str]] = {}
    shared = {NO_TENANT}
    for stream in config.stream:
        if not stream.durability.is_logged:
            continue
        if len(owners[stream.name]) > 1:
            shared |= owners[stream.name]
        for name in owners[stream.name]:
            apart.setdefault(name, []).append(stream.name)
    return {name: streams for name, streams in apart.items() if name not in shared}


def _owners(config: Config) -> Mapping[str, frozenset[str]]:
    """Owners of the topics that each stream may take, by stream. Without tenants there is one owner."""
    left = {tenant.name for tenant in config.tenant}
    others = {NO_TENANT} if any(not listener.tenant for listener in config.listener) else set()
    owners = {}
    for stream in config.stream:
        found, taken = set(), set[str]()
        for topic_filter in stream.topics:
            names, takes_all = _reach(topic_filter, left, others)
            found |= names
            taken |= names if takes_all else set()
        if stream.name == DEFAULT_STREAM:  # also takes what "#" does not match
            found |= left
        owners[stream.name] = frozenset(found)
        left -= taken
    return owners


def _reach(topic_filter: str, tenants: set[str], others: set[str]) -> tuple[set[str], bool]:
    """Owners of the topics that a filter matches, and True if it matches all topics of these tenants."""
    if not topic_filter.startswith(MARK):
        return others, False  # a wildcard of the first level matches no name that begins with $
    name, _, rest = topic_filter[len(MARK) :].partition("/")
    names = tenants if name in {"+", "#"} else tenants & {name}
    return set(names), name == "#" or rest == "#"


def _stores_of(stream: Stream, config: Config) -> list[str]:
    """The log, and the bridges that drain the stream; a bridge to MQTT keeps topics apart."""
    bridges = [
        f"bridge {bridge.name}"
        for bridge in config.bridge
        if (not bridge.streams or stream.name in bridge.streams) and not bridge.to.startswith("mqtt")
    ]
    return ["log", *bridges] if stream.durability.is_logged else bridges


def _in_words(owners: frozenset[str]) -> str:
    tenants = owners - {NO_TENANT}
    text = f"tenant{'s' if len(tenants) > 1 else ''} {_some(tenants)}"
    return f"{text} and clients without a tenant" if NO_TENANT in owners else text


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = len(every) - NAMES_SHOWN
    return ", ".join(every[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
