"""Topic names and topic filters: validation and matching.

Pure functions on strings. Owns no subscriptions: the broker has a tree of them. Limits beyond those of the
specification (levels, length) are policy, and not here.
"""

from __future__ import annotations

from edge.mqtt.errors import ProtocolError, Rule, Version

STRING_MAX_BYTES = 65_535  # the length prefix has two bytes
SHARE_PREFIX = "$share/"


def check_name(name: str, version: Version = Version.V311) -> None:
    """Check that a message may be published to `name`. Raises ProtocolError.

    A name has 1..65535 bytes, no NUL, no wildcard. An empty name with a topic alias (MQTT 5) is not a name.
    """
    if not name:
        raise ProtocolError(Rule.TOPIC_IS_NOT_EMPTY, "a topic name has at least one character", version)
    if "+" in name or "#" in name:
        raise ProtocolError(
            Rule.TOPIC_NAME_HAS_NO_WILDCARD,
            f"wildcard in topic name {_shown(name)}: + and # are for filters",
            version,
        )
    _check_string(name, version)


def check_filter(topic_filter: str, version: Version = Version.V311) -> None:
    """Check that a client may subscribe to `topic_filter`. Raises ProtocolError.

    In MQTT 5 a filter that begins with `$share/` must be `$share/{group}/{filter}`; in older versions it is a
    normal filter.
    """
    if version == Version.V5 and topic_filter.startswith(SHARE_PREFIX):
        topic_filter = _checked_share(topic_filter, version)
    if not topic_filter:
        raise ProtocolError(Rule.FILTER_IS_NOT_EMPTY, "a topic filter has at least one character", version)
    if "#" in topic_filter and (
        topic_filter.index("#") != len(topic_filter) - 1 or not (f"/{topic_filter}").endswith("/#")
    ):
        raise ProtocolError(
            Rule.MULTI_LEVEL_WILDCARD_IS_LAST,
            f"# must be the whole last level of topic filter {_shown(topic_filter)}",
            version,
        )
    if "+" in topic_filter and not _plus_is_alone(topic_filter):
        raise ProtocolError(
            Rule.SINGLE_LEVEL_WILDCARD_IS_ALONE,
            f"+ must be a whole level of topic filter {_shown(topic_filter)}",
            version,
        )
    _check_string(topic_filter, version)


def matches(topic_filter: str, name: str) -> bool:
    """True if a message to `name` matches a subscription to `topic_filter`. Both must be valid.

    `sport/#` also matches `sport`. A filter that begins with a wildcard does not match a name that begins
    with `$` [MQTT-4.7.2-1]. Names are compared without normalization [MQTT-4.7.3-4]. For a shared filter pass
    the result of split_share().
    """
    if topic_filter == name:
        return True
    if name[:1] == "$" and topic_filter[:1] in {"+", "#"}:
        return False
    filter_levels, levels = topic_filter.split("/"), name.split("/")
    if filter_levels[-1] == "#":
        filter_levels.pop()
        if len(levels) < len(filter_levels):
            return False
    elif len(levels) != len(filter_levels):
        return False
    return all(want in ("+", level) for want, level in zip(filter_levels, levels, strict=False))


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """(group, filter) of a valid MQTT 5 `$share/{group}/{filter}`; (None, topic_filter) of any other."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    group, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return group, rest


def _plus_is_alone(topic_filter: str) -> bool:
    """True if each + is a whole level.  In C, since a filter may have 32,768 levels."""
    levels = f"/{topic_filter.replace('/', '//')}/"
    return levels.count("/+/") == topic_filter.count("+")


def _checked_share(topic_filter: str, version: Version) -> str:
    group, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not group or not slash or not rest:
        raise ProtocolError(
            Rule.SHARE_HAS_A_NAME, f"{_shown(topic_filter)} is not $share/<group>/<filter>", version
        )
    if "+" in group or "#" in group:
        raise ProtocolError(
            Rule.SHARE_NAME_HAS_NO_WILDCARD, f"wildcard in the group name of {_shown(topic_filter)}", version
        )
    return rest


def _check_string(text: str, version: Version) -> None:
    if "\0" in text:
        raise ProtocolError(Rule.STRING_HAS_NO_NUL, f"U+0000 in {_shown(text)}", version)
    if len(text) * 4 > STRING_MAX_BYTES and len(text.encode("utf-8", "surrogatepass")) > STRING_MAX_BYTES:
        raise ProtocolError(Rule.STRING_FITS, f"{_shown(text)} exceeds {STRING_MAX_BYTES} bytes", version)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")
