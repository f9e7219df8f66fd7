"""Warnings about an ACL file with rules that cannot apply.

A `user` rule applies to a client with a verified user name: verified by the password file, SCRAM, a plug-in
or a client certificate. Without any of these, a client with a user name counts as a client without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from edge.auth.backend import AuthFiles
from edge.config.schema import Config

NAMES_SHOWN = 10
REMEDY = (
    "set password_file in [auth] and add users with `brim passwd`, add an [[auth.plugin]], or set "
    "certificate_is_user on a [[listener]]"
)


def rule_warnings(config: Config, files: AuthFiles) -> Iterator[str]:
    """One sentence for each mistake, with its remedy; empty if there is no ACL file."""
    auth, rules = config.auth, files.rules
    if rules is None:
        return
    if rules.denies_all:
        yield f"{auth.acl_file} has no rule that permits anything: every topic is denied to every client"
    certificates = any(listener.certificate_is_user for listener in config.listener)
    if auth.requires_login or certificates:
        known = files.users if not auth.plugin and not certificates else None
        if known is not None and (unknown := rules.users - known.keys()):
            yield f"rules of users whom {auth.password_file} lacks: {_shown(unknown)}"
        return
    if rules.users:
        text = f"no client can prove a user name, so the `user` rules of {auth.acl_file} never apply"
        others = "only rules before the first `user` and patterns without %u apply, to every client"
        if not rules.permits_anonymous:
            others = "every topic is denied to every client, with a name and without one"
        yield f"{text} ({_shown(rules.users)}); {others}; {REMEDY}"
    elif rules.names_users:
        yield f"no client can prove a user name, so patterns with %u in {auth.acl_file} never apply; {REMEDY}"


def _shown(names: Collection[str]) -> str:
    some = ", ".join(sorted(names)[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{some} and {more} more" if more > 0 else some
