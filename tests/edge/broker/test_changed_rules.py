"""Rules that change: routes are made again for the sessions of users whose rules are others than before."""

from edge.auth.access_rule import Access, AccessRule
from edge.auth.acl import AccessRules
from edge.auth.interfaces import AllowedFilters, ClientInfo
from edge.auth.packed_rules import RULES_MAX
from edge.broker.sessions import Session
from edge.mqtt import Subscription
from tests.support.mqtt_bench import Bench

USERS = ["ann", "bob", "cy"]
OWN = AccessRule(Access.READ, "own/%u/#", is_pattern=True)


class CountedRules(AccessRules):
    """Access rules that note for whom filters are decided."""

    def __init__(self, *rules: AccessRule) -> None:
        super().__init__([OWN, *rules])
        self.decided: list[str] = []
        self.received: list[str] = []

    def allowed_filters(self, client: ClientInfo, topic_filter: str) -> AllowedFilters | None:
        self.decided.append(client.client_id)
        return super().allowed_filters(client, topic_filter)

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        self.received.append(client.client_id)
        return super().may_receive(client, topic)


def read(user: str, topic_filter: str) -> AccessRule:
    return AccessRule(Access.READ, topic_filter, user)


def session_of(bench: Bench, user: str, *filters: str, no_local: bool = False) -> Session:
    session = bench.broker.sessions.open(ClientInfo(user, user, "", 0, identity=user), 999)
    for topic_filter in filters:
        bench.broker.router.subscribe(session, Subscription(topic_filter, 1, no_local))
    return session


def receivers(bench: Bench, name: str) -> set[int]:
    topic = bench.broker.router.topic_of(name)
    assert topic is not None
    return {handle for handle, _ in bench.engine.routes_of(topic)}


def test_a_change_of_the_rules_of_one_user_makes_no_routes_of_other_users() -> None:
    with Bench(access=CountedRules(read("ann", "a/#"), read("bob", "a/#"))) as bench:
        ann, bob, cy = (session_of(bench, user, "a/#", f"own/{user}/x") for user in USERS)
        assert receivers(bench, "a/1") == receivers(bench, "a/2") == {ann.handle, bob.handle}
        new = CountedRules(read("ann", "a/#"), read("bob", "a/2"), read("new", "#"))
        bench.broker.acl_changed(new)
        assert set(new.decided) == {"bob"}
        assert receivers(bench, "a/1") == {ann.handle}
        assert receivers(bench, "a/2") == {ann.handle, bob.handle}
        assert receivers(bench, "a/3") == {ann.handle}
        bench.broker.acl_changed(CountedRules(read("cy", "a/#"), read("ann", "a/#"), read("bob", "a/#")))
        assert receivers(bench, "a/1") == {ann.handle, bob.handle, cy.handle}
        assert receivers(bench, "own/cy/x") == {cy.handle}


def test_a_change_of_the_rules_of_one_user_decides_about_no_waiting_message_of_others() -> None:
    """Thousands of sessions with full queues would be a pause of seconds."""
    with Bench(access=CountedRules(read("ann", "a/#"), read("bob", "a/#"), read("cy", "a/#"))) as bench:
        ann, bob, cy = (session_of(bench, user, "a/#") for user in USERS)
        for member in (ann, bob):
            bench.broker.router.subscribe(member, Subscription("$share/g/a/#", 1))
        (group,) = bench.broker.router._groups.values()
        for number in range(3):
            bench.broker.own_messages.offer(f"a/{number}", b"x", 1, b"")
        new = CountedRules(read("ann", "a/#"), read("bob", "a/2"), read("cy", "a/#"))
        bench.broker.acl_changed(new)
        assert set(new.received) == {"ann", "bob"}  # ann as a member of bob's group
        waiting = [len(bench.engine.queue_topics(its.handle)) // 4 for its in (ann, bob, cy, group)]
        assert waiting == [3, 1, 3, 1]


def test_waiting_messages_are_denied_also_for_a_user_whose_rules_are_too_many_for_c() -> None:
    """Also for a group with such a member."""
    with Bench(access=CountedRules(read("ann", "a/#"), read("bob", "a/#"))) as bench:
        ann, bob = (session_of(bench, user, "a/#") for user in ("ann", "bob"))
        for member in (ann, bob):
            bench.broker.router.subscribe(member, Subscription("$share/g/a/#", 1))
        (group,) = bench.broker.router._groups.values()
        for number in range(3):
            bench.broker.own_messages.offer(f"a/{number}", b"x", 1, b"")
        many = [read("bob", f"z/{number}") for number in range(RULES_MAX + 1)]
        bench.broker.acl_changed(CountedRules(read("ann", "a/#"), read("bob", "a/2"), *many))
        assert bench.broker.router.receive_rules(bob) is None
        waiting = [len(bench.engine.queue_topics(its.handle)) // 4 for its in (ann, bob, group)]
        assert waiting == [3, 1, 1]


def test_a_change_of_patterns_makes_the_routes_of_all_sessions() -> None:
    with Bench(access=CountedRules(*(read(user, "a/#") for user in USERS))) as bench:
        for user in USERS:
            session_of(bench, user, "a/#")
        assert len(receivers(bench, "a/1")) == len(USERS)
        denied = AccessRule(Access.DENY, "a/1", is_pattern=True)
        new = CountedRules(*(read(user, "a/#") for user in USERS), denied)
        bench.broker.acl_changed(new)
        assert set(new.decided) == set(USERS)
        assert receivers(bench, "a/1") == set()


def test_routes_that_were_being_made_when_the_rules_of_another_user_changed_are_complete() -> None:
    with Bench(access=CountedRules(read("ann", "a/#"))) as bench:
        names = [f"a/{number}" for number in range(4)]
        ann, *_ = (session_of(bench, user) for user in USERS)
        assert [receivers(bench, name) for name in names] == [set()] * 4
        making = bench.broker.router.subscribing(ann, Subscription("a/#", 1, no_local=True))
        next(making)
        bench.broker.acl_changed(CountedRules(read("ann", "a/#"), read("bob", "b/#")))
        assert list(making) == []
        assert [receivers(bench, name) for name in names] == [{ann.handle}] * 4


def test_routes_that_were_being_removed_when_the_rules_of_another_user_changed_are_gone() -> None:
    with Bench(access=CountedRules(read("ann", "a/#"))) as bench:
        names = [f"a/{number}" for number in range(4)]
        ann, *_ = (session_of(bench, user, *["a/#"] * (user == "ann")) for user in USERS)
        assert [receivers(bench, name) for name in names] == [{ann.handle}] * 4
        removing = bench.broker.router.unsubscribing(ann, ["a/#"])
        next(removing)
        bench.broker.acl_changed(CountedRules(read("ann", "a/#"), read("bob", "b/#")))
        list(removing)
        assert [receivers(bench, name) for name in names] == [set()] * 4


def test_rules_of_thousands_of_levels_may_change() -> None:
    deep = "/".join("x" * 20_000)
    with Bench(access=CountedRules(read("ann", deep), read("bob", "a/#"))) as bench:
        bob = session_of(bench, "bob", "a/#")
        assert receivers(bench, "a/1") == {bob.handle}
        bench.broker.acl_changed(CountedRules(read("ann", deep)))
        assert receivers(bench, "a/1") == set()
