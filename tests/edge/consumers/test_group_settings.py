"""Delivery settings of a group: of its members, of an operator, of the configuration; over broker lives."""

import msgspec
import pytest

from edge.config.schema import Consumers
from edge.consumers.delivery_settings import LIMITS, DeliverySettings
from edge.consumers.protocol import Done, Failed, GroupList, Groups, Join, Joined, Leave, SetGroup
from edge.rpc.protocol import encode
from tests.support.consumer_desk import Desk, Talker

LONG = DeliverySettings(lease_ms=120_000, tries_max=2, backoff_ms=1_000, backoff_max_ms=5_000)


def settings_of(desk: Desk, group: str = "g") -> dict[str, tuple[int, str]]:
    (info,) = desk.ask(Groups, GroupList, group).groups
    return {name: (setting.value, setting.source) for name, setting in info.settings.items()}


def refusal(desk: Desk, settings: DeliverySettings) -> str:
    answer = desk.ask(Join, Failed, "g", ("a/#",), settings=settings)
    return f"{answer.error}; {answer.hint}"


def tries_until_dead(desk: Desk, ann: Talker) -> int:
    """Deliveries of one record that is given back each time."""
    desk.publish("bad")
    tries = 0
    while True:
        desk.turn(0.1)
        if (batch := ann.take()) is None:
            return tries
        ann.nack(batch, delay_s=0.0)
        tries += 1


def test_a_group_without_its_own_settings_has_those_of_the_configuration(desk):
    assert desk.ask(Join, Joined, "g", ("a/#",)).lease_ms == 30_000
    assert settings_of(desk) == {
        "lease_ms": (30_000, "broker"), "tries_max": (5, "broker"),
        "backoff_ms": (100, "broker"), "backoff_max_ms": (60_000, "broker"),
        "speed_permille": (0, "broker"),
    }  # fmt: skip


def test_the_lease_of_a_group_is_what_its_members_say(desk):
    ann = desk.member(delivery=LONG, session_s=3600.0)
    bob = desk.member("h", session_s=3600.0)
    desk.publish("x")
    ann.got()
    bob.got()
    desk.turn(31.0)
    desk.turn(1.0)
    assert (ann.take(), bob.got().tries) == (None, 1)
    desk.turn(90.0)
    desk.turn(1.0)
    assert ann.got().tries == 1


def test_a_group_gives_up_after_its_own_number_of_tries_and_waits_its_own_time(desk):
    ann = desk.member(delivery=LONG)
    assert tries_until_dead(desk, ann) == 2
    assert len(desk.published) == 1
    desk.publish("x")
    ann.nack(ann.got())
    desk.turn(0.9)
    assert ann.take() is None
    desk.turn(0.2)
    assert ann.got().tries == 1


def test_a_member_with_other_settings_is_refused_and_learns_both_values(desk):
    desk.ask(Join, Joined, "g", ("a/#",), settings=DeliverySettings(lease_ms=60_000))
    text = refusal(desk, DeliverySettings(lease_ms=45_000))
    assert "members of group g have lease_ms 60000, not 45000" in text
    assert "`brim consumers set`" in text
    assert desk.ask(Join, Joined, "g", ("a/#",)).lease_ms == 60_000, "a member without a value accepts it"
    assert desk.ask(Join, Joined, "g", ("a/#",), settings=DeliverySettings(tries_max=7)).lease_ms == 60_000
    assert settings_of(desk)["tries_max"] == (7, "members")


def test_a_member_for_whom_there_is_no_room_changes_no_settings(runtime_directory):
    with Desk(runtime_directory, settings=Consumers(members_max=1)) as desk:
        desk.ask(Join, Joined, "g", ("a/#",), instance="first")
        assert "members_max" in refusal(desk, LONG)
        assert settings_of(desk)["lease_ms"] == (30_000, "broker")
        again = desk.ask(Join, Joined, "g", ("a/#",), instance="first", settings=LONG)
        assert again.lease_ms == 120_000


def test_the_next_member_of_an_empty_group_sets_its_settings(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",), settings=DeliverySettings(60_000, 3))
    desk.ask(Leave, Done, "g", joined.member)
    desk.ask(Join, Joined, "g", ("a/#",), settings=DeliverySettings(lease_ms=45_000))
    assert settings_of(desk)["lease_ms"] == (45_000, "members")
    assert settings_of(desk)["tries_max"] == (3, "members")


@pytest.mark.parametrize("name", LIMITS)
def test_a_value_outside_of_the_limits_is_refused_and_changes_nothing(desk, name):
    low, high = LIMITS[name]
    for value in (low - 1, high + 1, -(1 << 63), (1 << 64) - 1):
        expected = f"invalid {name} {value} (allowed: {low} to {high})"
        assert expected in refusal(desk, DeliverySettings(**{name: value}))
    assert desk.ask(Groups, GroupList).groups == ()
    desk.ask(Join, Joined, "g", ("a/#",))
    answer = desk.ask(SetGroup, Failed, "g", DeliverySettings(**{name: high + 1}))
    assert answer.error == f"invalid {name} {high + 1} (allowed: {low} to {high})"
    assert {source for _, source in settings_of(desk).values()} == {"broker"}


def test_the_limits_are_those_of_the_configuration():
    for name, (low, high) in LIMITS.items():
        if name == "speed_permille":
            continue  # of groups only
        for value in (low, high):
            msgspec.convert({name: value}, Consumers)
        for value in (low - 1, high + 1):
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({name: value}, Consumers)


def test_an_operator_changes_settings_while_members_work(desk):
    ann = desk.member(delivery=LONG)
    desk.ask(SetGroup, Done, "g", DeliverySettings(tries_max=4, lease_ms=1_000))
    assert settings_of(desk)["tries_max"] == (4, "operator")
    assert settings_of(desk)["backoff_ms"] == (1_000, "members")
    assert tries_until_dead(desk, ann) == 4
    again = desk.ask(Join, Joined, "g", ("a/#",), settings=LONG)
    assert again.lease_ms == 1_000, "a member that names its own value joins, and gets the operator's"
    desk.ask(SetGroup, Done, "g", clear=("tries_max", "lease_ms"))
    assert settings_of(desk)["tries_max"] == (2, "members")
    assert tries_until_dead(desk, ann) == 2


def test_fewer_tries_end_the_tries_of_waiting_records(desk):
    ann = desk.member(mode="queue")
    desk.publish("bad")
    for delay_s in (0.0, 0.0, 0.5):
        ann.nack(ann.got(), delay_s=delay_s)
    desk.ask(SetGroup, Done, "g", DeliverySettings(tries_max=3))
    desk.turn(1.0)
    assert ann.take() is None
    assert [letter.payload for letter in desk.published] == [b"bad"]


def test_settings_are_there_after_the_broker_was_killed(desk):
    desk.ask(Join, Joined, "g", ("a/#",), settings=LONG)
    desk.ask(SetGroup, Done, "g", DeliverySettings(lease_ms=5_000))
    desk.end()
    desk.start()
    assert settings_of(desk)["lease_ms"] == (5_000, "operator")
    assert settings_of(desk)["tries_max"] == (2, "members")
    ann = desk.member()
    assert tries_until_dead(desk, ann) == 2


def test_settings_survive_the_rewriting_of_the_journal(desk):
    desk.ask(Join, Joined, "g", ("a/#",), settings=LONG)
    desk.ask(SetGroup, Done, "g", DeliverySettings(lease_ms=5_000))
    store = desk.coordinator.registry.store
    assert store._rewritten()
    desk.end()
    desk.start()
    assert settings_of(desk)["lease_ms"] == (5_000, "operator")
    assert settings_of(desk)["tries_max"] == (2, "members")


def test_new_filters_keep_an_operators_settings(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",), settings=LONG)
    desk.ask(SetGroup, Done, "g", DeliverySettings(lease_ms=5_000))
    desk.ask(Leave, Done, "g", joined.member)
    assert desk.ask(Join, Joined, "g", ("a/1",)).lease_ms == 5_000


def test_a_group_that_is_not_there_has_no_settings(desk):
    answer = desk.ask(SetGroup, Failed, "none", DeliverySettings(lease_ms=5_000))
    assert (answer.code, "there is no group none" in answer.error) == ("unknown", True)


def test_an_unknown_setting_is_no_request(desk):
    desk.coordinator.receive(
        b"peer", encode({"op": "set", "id": 7, "version": 2, "group": "g", "clear": ["all"]})
    )
    answer = desk.answer_to(7)
    assert isinstance(answer, Failed)
    assert answer.code == "malformed"
