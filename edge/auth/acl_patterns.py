"""ACL patterns: names of a client in the topic filter of a rule, and the values that replace them.

    pattern read devices/%c/#         %c: client identifier, %u: user name; filled in for each client

Never decides about access: edge.auth.acl and edge.auth.packed_rules do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from edge.auth.interfaces import ClientInfo

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
