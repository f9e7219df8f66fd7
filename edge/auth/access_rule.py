"""Access rule: one line of an ACL file.

Decides nothing: edge.auth.acl and edge.auth.packed_rules do.
"""

from __future__ import annotations

from enum import IntFlag

from msgspec import Struct


class Access(IntFlag):
    """Access of a rule. Trees store plain ints, which combine in a tenth of the time."""

    NONE = 0
    READ = 1
    WRITE = 2
    READWRITE = 3
    DENY = 4


class AccessRule(Struct, frozen=True):
    """One line of an ACL file. `user` is None for clients without a name; patterns have no user."""

    access: Access
    topic_filter: str
    user: str | None = None
    is_pattern: bool = False
