"""ACL file: the text form of rules, compatible with Mosquitto's acl_file.

    topic read weather/#                     before the first `user`: clients without a name
    user ann
    topic readwrite ann/#                    without an access word: readwrite
    topic deny ann/private
    pattern write devices/%c/data            for every client, anywhere in the file

Owns the parser, which reports all mistakes. An invalid line is a mistake and never skipped: it was meant to
allow or to deny something. An empty file denies everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge.auth.acl import Access, AccessRule, AccessRules
from edge.auth.errors import AuthFileError, text_of
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter

_ACCESS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "readwrite": Access.READWRITE,
    "deny": Access.DENY,
}


def read_rules(file: Path) -> AccessRules:
    """Read the rules in `file`. Raises AuthFileError with every mistake."""
    return parse_rules(text_of(file), str(file))


def parse_rules(text: str, name: str) -> AccessRules:
    """Parse the rules in `text`; `name` is the file name in messages. Raises AuthFileError."""
    problems: list[str] = []
    rules = AccessRules(list(_rules(text, name, problems)), hash(text))
    if problems:
        raise AuthFileError(problems)
    return rules


def _rules(text: str, name: str, problems: list[str]) -> Iterator[AccessRule]:
    user: str | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        try:
            if word == "user":
                user = _user(rest.strip())
            elif word in {"topic", "pattern"}:
                yield _rule(rest.strip(), user, is_pattern=word == "pattern")
            else:
                raise ValueError(f"invalid keyword {word!r} (allowed: user, topic, pattern)")
        except ValueError as error:
            problems.append(f"{name}:{number}: {error}")


def _user(name: str) -> str:
    if not name:
        raise ValueError("user without a name; rules of clients without one stand before the first user")
    return name


def _rule(text: str, user: str | None, *, is_pattern: bool) -> AccessRule:
    word, space, rest = text.partition(" ")
    if not space and word in _ACCESS:
        raise ValueError(f"{word}: topic filter missing")
    if not space:
        access, topic_filter = Access.READWRITE, word
    elif word in _ACCESS:
        access, topic_filter = _ACCESS[word], rest.strip()
    else:
        raise ValueError(f"invalid access {word!r} (allowed: {', '.join(_ACCESS)})")
    try:
        check_filter(topic_filter)
    except ProtocolError as error:
        raise ValueError(str(error).partition("] ")[2] or str(error)) from None
    return AccessRule(access, topic_filter, None if is_pattern else user, is_pattern)
