"""Topic names and filters, after section 4.7 of the specification and its examples."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.mqtt import ProtocolError, Version, check_filter, check_name, matches, split_share
from tests.support.mqtt_packets import filters, names

MATCHING = [
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "sport"),
    ("#", "/"),
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("$SYS/#", "$SYS/broker"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("+", "é"),
]
NOT_MATCHING = [
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("#", "$SYS/broker"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("ACCOUNTS", "Accounts"),
    ("/A", "A"),
    ("a/b", "a/b/"),
    ("sport/tennis/#", "sport"),
    ("\u00e9", "e\u0301"),  # equal only after a normalization
]


@pytest.mark.parametrize(("topic_filter", "name"), MATCHING)
def test_a_filter_matches(topic_filter: str, name: str) -> None:
    assert matches(topic_filter, name)


@pytest.mark.parametrize(("topic_filter", "name"), NOT_MATCHING)
def test_a_filter_does_not_match(topic_filter: str, name: str) -> None:
    assert not matches(topic_filter, name)


def as_expression(topic_filter: str) -> re.Pattern[str]:
    """The filter as a regular expression: another way to say what it means."""
    parts = [("[^/]*" if level == "+" else re.escape(level)) for level in topic_filter.split("/")]
    if parts[-1] == re.escape("#"):
        head = "/".join(parts[:-1])
        return re.compile(f"{head}(/.*)?" if head or len(parts) > 1 else ".*", re.DOTALL)
    return re.compile("/".join(parts), re.DOTALL)


small_levels = st.sampled_from(["", "a", "b", "$x", "+", "#"])


@given(st.lists(small_levels, min_size=1, max_size=5), st.lists(small_levels, min_size=1, max_size=5))
def test_matching_is_what_a_regular_expression_says(wanted: list[str], given_levels: list[str]) -> None:
    topic_filter = "/".join("+" if level == "#" else level for level in wanted[:-1]) + "/" * (len(wanted) > 1)
    topic_filter = (topic_filter + wanted[-1]) or "a"
    name = "/".join(level.strip("+#") for level in given_levels) or "a"
    hidden = name.startswith("$") and topic_filter[0] in "+#"
    assert matches(topic_filter, name) == (
        not hidden and as_expression(topic_filter).fullmatch(name) is not None
    )


@given(names)
def test_every_name_is_a_filter_that_matches_itself(name: str) -> None:
    check_name(name)
    check_filter(name)
    assert matches(name, name)


@given(filters())
def test_generated_filters_are_valid(topic_filter: str) -> None:
    check_filter(topic_filter)


@pytest.mark.parametrize(
    ("name", "statement"),
    [("", "4.7.3-1"), ("a/+", "3.3.2-2"), ("#", "3.3.2-2"), ("a\0", "1.5.3-2"), ("é" * 32_768, "4.7.3-3")],
    ids=["empty", "plus", "hash", "nul", "65536 bytes"],
)
def test_an_invalid_name_is_refused(name: str, statement: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_name(name)
    assert refused.value.statement == f"[MQTT-{statement}]"
    assert len(str(refused.value)) < 400, "an error does not repeat 64 KiB"


@pytest.mark.parametrize(
    ("topic_filter", "statement"),
    [
        ("", "4.7.3-1"),
        ("a/#/b", "4.7.1-2"),
        ("a#", "4.7.1-2"),
        ("##", "4.7.1-2"),
        ("a+", "4.7.1-3"),
        ("+a/b", "4.7.1-3"),
        ("a\0", "1.5.3-2"),
    ],
)
def test_an_invalid_filter_is_refused(topic_filter: str, statement: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_filter(topic_filter)
    assert refused.value.statement == f"[MQTT-{statement}]"


def test_names_of_65535_bytes_are_valid() -> None:
    check_name("é" * 32_767 + "a")


def test_shared_subscriptions_have_a_group_and_a_filter() -> None:
    check_filter("$share/g/a/#", Version.V5)
    assert split_share("$share/g/a/#") == ("g", "a/#")
    assert split_share("$share/g//a") == ("g", "/a")
    assert split_share("a/$share/b") == (None, "a/$share/b")
    with pytest.raises(ProtocolError):
        check_filter("$share/g", Version.V5)
    with pytest.raises(ProtocolError):
        check_filter("$share/g/a+", Version.V5)
