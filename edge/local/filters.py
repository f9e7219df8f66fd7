"""Topic filters of local programs: their check, and the question of two filters that share a topic."""

from __future__ import annotations

from collections.abc import Iterable

from edge.errors import InvalidArgument
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter


def checked_filters(filters: str | Iterable[str]) -> tuple[str, ...]:
    """Return the filters as a tuple. Raises InvalidArgument for an invalid topic filter, or for none."""
    names = (filters,) if isinstance(filters, str) else tuple(filters)
    for topic_filter in names:
        try:
            check_filter(topic_filter)
        except ProtocolError as error:
            raise InvalidArgument(error.detail) from error
    if not names:
        raise InvalidArgument("no topic filter", hint='name at least one, such as "#"')
    return names


def filters_meet(one: str, other: str) -> bool:
    """True if some topic matches both filters."""
    for mine, theirs in zip(ones := one.split("/"), others := other.split("/"), strict=False):
        if mine == "#" or theirs == "#":
            return True
        if mine not in {theirs, "+"} and theirs != "+":
            return False
    shorter, longer = sorted((ones, others), key=len)
    return len(shorter) == len(longer) or longer[len(shorter) :] == ["#"]
