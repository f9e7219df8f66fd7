"""Rules of an ACL, compared with a plain interpreter of rules and with Mosquitto."""

import itertools
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.auth.acl import Access, AccessRule, AccessRules
from edge.auth.acl_file import parse_rules, read_rules
from edge.auth.errors import AuthFileError
from edge.auth.interfaces import ClientInfo
from edge.mqtt.topic_filters import matches

FILE = """
# what everybody without a name may do
topic read weather/#

user ann
topic ann/#
topic deny ann/private/#
topic read  with space/x

user bob
topic write in/+/bob
topic read $SYS/#

pattern write devices/%c/data
pattern read of/%u/#

user ann
topic write late
"""


def client(name=None, client_id="c"):
    return ClientInfo(client_id, name, "", 0, identity=name)


ANN, BOB, NOBODY = client("ann"), client("bob"), client()


@pytest.fixture(scope="module")
def rules():
    return parse_rules(FILE, "acl")


@pytest.mark.parametrize(
    ("who", "topic", "receive", "publish"),
    [
        (NOBODY, "weather/rain", True, False),
        (NOBODY, "weather", True, False),
        (NOBODY, "ann/x", False, False),
        (ANN, "weather/rain", False, False),
        (ANN, "ann/x/y", True, True),
        (ANN, "ann/private", False, False),
        (ANN, "ann/private/x", False, False),
        (ANN, "ann/privates", True, True),
        (ANN, "with space/x", True, False),
        (ANN, "late", False, True),
        (BOB, "in/7/bob", False, True),
        (BOB, "in/7/8/bob", False, False),
        (BOB, "$SYS/uptime", True, False),
        (BOB, "devices/c/data", False, True),
        (NOBODY, "devices/c/data", False, True),
        (NOBODY, "devices/d/data", False, False),
        (BOB, "of/bob/x", True, False),
        (BOB, "of/ann/x", False, False),
        (NOBODY, "of//x", False, False),
    ],
)
def test_what_the_rules_of_a_file_allow(rules, who, topic, receive, publish):
    assert rules.may_receive(who, topic) is receive
    assert rules.may_publish(who, topic) is publish


def test_rules_of_a_user_hold_for_who_has_proved_to_be_it(rules):
    claims = ClientInfo("c", "ann", "", 0, identity=None)
    assert not rules.may_publish(claims, "ann/x")
    assert rules.may_receive(claims, "weather/rain")


@pytest.mark.parametrize(
    ("who", "topic_filter", "granted"),
    [
        (ANN, "ann/#", True),
        (ANN, "#", True),
        (ANN, "+/x", True),
        (ANN, "ann/private/#", False),
        (ANN, "ann/private/+", False),
        (ANN, "ann/private", False),
        (ANN, "ann/+", True),
        (ANN, "ann", True),
        (ANN, "late", False),
        (ANN, "of/ann/1", True),
        (ANN, "of/+/1", True),
        (ANN, "of/bob/1", False),
        (ANN, "$share/g/ann/#", True),
        (ANN, "$share/g/bob/#", False),
        (BOB, "#", True),
        (BOB, "$SYS/#", True),
        (BOB, "$SYS/broker/+", True),
        (BOB, "$other/#", False),
        (BOB, "in/#", False),
        (NOBODY, "weather/+/x", True),
        (NOBODY, "+", True),  # weather itself
        (NOBODY, "+/+/+", True),
        (NOBODY, "devices/#", False),
        (NOBODY, "$SYS/#", False),
    ],
)
def test_a_subscription_is_granted_if_there_may_be_something_to_receive(rules, who, topic_filter, granted):
    assert rules.may_subscribe(who, topic_filter) is granted


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "a+", "b#"])
def test_a_name_with_wildcards_does_not_widen_a_pattern(name):
    """CVE-2017-7650."""
    rules = parse_rules("pattern readwrite by/%c/x\npattern readwrite of/%u/x\npattern read all/#\n", "acl")
    for who in (client(name, "c"), client("ann", name)):
        reach = ("by/z/x", "of/z/x", f"of/{name}/x", f"by/{name}/x")
        own = {"of/ann/x", "by/c/x"}
        assert not any(rules.may_receive(who, topic) for topic in reach if topic not in own)
        assert not any(rules.may_publish(who, topic) for topic in reach if topic not in own)
        assert rules.may_receive(who, "all/x")
    assert not rules.may_subscribe(client(name, name), "by/#")
    assert not rules.may_subscribe(client(name, name), "of/#")


def test_a_name_that_a_denying_pattern_cannot_use_is_denied_all_of_it():
    rules = parse_rules("topic readwrite #\nuser a/b\ntopic readwrite #\npattern deny of/%u\n", "acl")
    assert not rules.may_publish(client("a/b"), "of/z")
    assert not rules.may_subscribe(client("a/b"), "of/z")
    assert rules.may_publish(client("a/b"), "of/z/z")


def test_a_name_does_not_reach_the_servers_topics_through_a_pattern():
    rules = parse_rules("pattern readwrite %u/#\n", "acl")
    assert not rules.may_receive(client("$SYS"), "$SYS/uptime")
    assert not rules.may_subscribe(client("$SYS"), "$SYS/#")


def test_names_are_put_in_once_and_within_a_level():
    rules = parse_rules("pattern read dev-%c-%u/x\n", "acl")
    assert rules.may_receive(client("ann", "7"), "dev-7-ann/x")
    assert rules.may_receive(client("ann", "%u"), "dev-%u-ann/x")
    assert not rules.may_receive(client("ann", "%u"), "dev-ann-ann/x")


@pytest.mark.parametrize("text", ["", "\n# nothing\n"])
def test_an_empty_file_denies_everything(text, tmp_path):
    """CVE-2018-12550."""
    (tmp_path / "acl").write_text(text)
    rules = read_rules(tmp_path / "acl")
    for who in (NOBODY, ANN):
        assert not rules.may_publish(who, "a")
        assert not rules.may_receive(who, "a")
        assert not rules.may_subscribe(who, "#")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("topik a", "invalid keyword 'topik' (allowed: user, topic, pattern)"),
        ("topic", "at least one character"),
        ("topic read", "read: topic filter missing"),
        ("topic reads a/b", "invalid access 'reads' (allowed: read, write, readwrite, deny)"),
        ("topic read a/#/b", "# must be the whole last level"),
        ("pattern %u/a+", "+ must be a whole level"),
        ("user", "user without a name"),
    ],
)
def test_a_line_that_means_nothing_is_named(line, complaint):
    with pytest.raises(AuthFileError) as caught:
        parse_rules(f"topic ok\n{line}\nnonsense\n", "acl")
    first, second = caught.value.problems
    assert first.startswith("acl:2: ")
    assert complaint in first
    assert second.startswith("acl:3: ")


# ---- against a plain reading: every rule, one after the other ----

LEVELS = ("a", "b", "$s", "")
TOPICS = ["/".join(levels) for size in (1, 2, 3) for levels in itertools.product(LEVELS, repeat=size)]
TOPICS = [topic for topic in TOPICS if topic]


@st.composite
def filters(draw, names=()):
    levels = draw(st.lists(st.sampled_from(("a", "b", "+", "$s", "", *names)), min_size=1, max_size=3))
    text = "/".join([*levels, "#"] if draw(st.booleans()) else levels)
    return text or "#"


def some_rules():
    access = st.sampled_from([Access.READ, Access.WRITE, Access.READWRITE, Access.DENY])
    own = st.builds(AccessRule, access, filters(), st.sampled_from([None, "a"]))
    patterns = st.builds(AccessRule, access, filters(("%u", "%c")), st.none(), st.just(True))
    return st.lists(own | patterns, max_size=6)


def plainly(rules, who, topic, wanted):
    found = Access.NONE
    for rule in rules:
        text = rule.topic_filter
        if rule.is_pattern:
            text = text.replace("%u", who.identity or "").replace("%c", who.client_id)
        elif rule.user != who.identity:
            continue
        if matches(text, topic):
            found |= rule.access
    return bool(found & wanted) and not found & Access.DENY


@given(some_rules(), st.sampled_from(["a", "b"]))
def test_a_tree_of_rules_says_what_the_rules_say(rules, client_id):
    compiled, who = AccessRules(rules), client("a", client_id)
    for topic in TOPICS:
        assert compiled.may_receive(who, topic) is plainly(rules, who, topic, Access.READ), topic
        assert compiled.may_publish(who, topic) is plainly(rules, who, topic, Access.WRITE), topic


@example([AccessRule(Access.READ, "/#", None)], "+")
@given(some_rules(), filters())
def test_whatever_may_be_received_may_be_subscribed_to(rules, topic_filter):
    compiled, who = AccessRules(rules), client("a", "b")
    receivable = any(matches(topic_filter, it) and compiled.may_receive(who, it) for it in TOPICS)
    granted = compiled.may_subscribe(who, topic_filter)
    assert granted or not receivable
    if granted and all(rule.access != Access.DENY for rule in rules):  # several denials may deny all of it
        longer = [f"{topic}{more}" for topic in TOPICS for more in ("", "/a", "/b", "/a/a")]
        assert any(matches(topic_filter, it) and compiled.may_receive(who, it) for it in longer)


def test_rules_of_other_users_cost_nothing():
    """Counted in nodes looked at, not in time."""
    many = AccessRules([AccessRule(Access.READ, f"of/{i}/#", f"user{i}") for i in range(10_000)])
    tree = many._users["user7"]
    assert len(tree.children["of"].children) == 1
    assert many.may_receive(client("user7"), "of/7/x")
    assert not many.may_receive(client("user7"), "of/8/x")


@given(some_rules(), filters(), st.sampled_from(["a", "b", "+"]))
def test_what_may_be_received_is_said_by_filters_as_well(rules, topic_filter, client_id):
    compiled, who = AccessRules(rules), client("a", client_id)
    reach = compiled.allowed_filters(who, topic_filter)
    assert reach is not None
    for topic in filter(partial(matches, topic_filter), TOPICS):
        reached = any(matches(its, topic) for its in reach.filters)
        received = compiled.may_receive(who, topic)
        assert (reached is received) if reach.certain else (reached or not received), topic
    if compiled.publishes_all(who):
        assert all(compiled.may_publish(who, topic) for topic in TOPICS if topic[0] != "$")
    assert compiled.receives_all(who) is (compiled.allowed_filters(who, "#") == (("#",), True))


def test_rules_without_denials_are_sure_of_their_reach():
    rules = AccessRules(
        [AccessRule(Access.READ, "a/+/c", "ann"), AccessRule(Access.READWRITE, "of/%u/#", is_pattern=True)]
    )
    assert rules.allowed_filters(ANN, "#") == (("a/+/c", "of/ann/#"), True) or rules.allowed_filters(
        ANN, "#"
    ) == (
        ("of/ann/#", "a/+/c"),
        True,
    )
    assert rules.allowed_filters(ANN, "a/b/#") == (("a/b/c",), True)
    assert rules.allowed_filters(ANN, "of/ann/x/+") == (("of/ann/x/+",), True)
    assert rules.allowed_filters(ANN, "of/bob/#") == ((), True)
    denied = AccessRules([AccessRule(Access.READWRITE, "#", "ann"), AccessRule(Access.DENY, "a/b/c", "ann")])
    assert denied.allowed_filters(ANN, "a/#") == (("a/#",), False)
    assert denied.allowed_filters(ANN, "b/#") == (("b/#",), True)
    assert not denied.publishes_all(ANN)
    assert AccessRules([AccessRule(Access.READWRITE, "#", "ann")]).publishes_all(ANN)
    assert not AccessRules([AccessRule(Access.READ, "#", "ann")]).publishes_all(ANN)


def test_a_reach_of_very_many_filters_is_not_told():
    many = AccessRules([AccessRule(Access.READ, f"of/{i}/#", "ann") for i in range(1_000)])
    assert many.allowed_filters(ANN, "of/#") is None
    assert many.allowed_filters(ANN, "of/7/#") == (("of/7/#",), True)
