"""Access rule: one line of an ACL file, and the names of a client in its patterns.

    pattern read devices/%c/#         %c: client identifier, %u: user name; filled in for each client

Decides nothing: edge.auth.acl and edge.auth.publish_rules do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag

from edge.auth.interfaces import ClientInfo

__all__ = ["NAMES", "Access", "AccessRule", "filled", "names_of"]


class Access(IntFlag):
    """Access of a rule. Trees store plain ints, which combine in a tenth of the time."""

    NONE = 0
    READ = 1
    WRITE = 2
    READWRITE = 3
    DENY = 4


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One line of an ACL file. `user` is None for clients without a name; patterns have no user."""

    access: Access
    topic_filter: str
    user: str | None = None
    is_pattern: bool = False


NAMES = re.compile("%[cu]")


def names_of(client: ClientInfo) -> dict[str, str]:
    """Text of each name in a pattern, "" if the client has none."""
    return {"%c": client.client_id, "%u": client.identity or ""}


def filled(level: str, names: Mapping[str, str]) -> str | None:
    """A level of a pattern with names filled in; None if a name is missing, or invalid there."""
    for name in NAMES.findall(level):
        value = names[name]
        if not value or any(char in value for char in "+#/"):
            return None
    return NAMES.sub(lambda match: names[match.group()], level)
