"""First record of a new group: an offset, a time; and what is refused."""

import datetime as dt
import re
import time

import pytest

from brim import consumer
from edge.consumers.protocol import Failed, GroupList, Groups, Join, Joined, Read, Reset
from edge.consumers.start_place import time_words, unix_ns
from edge.errors import InvalidArgument
from tests.support.consumer_desk import texts
from tests.support.waiting import wait_until


def now_between() -> dt.datetime:
    """A time after every record so far, and before the next one."""
    begun_ns = time.time_ns()
    wait_until(lambda: unix_ns(dt.datetime.now(dt.UTC)) > begun_ns)
    return dt.datetime.now(dt.UTC)


def test_a_new_group_begins_at_an_offset_or_at_a_time(desk):
    desk.publish(*texts(0, 1))
    moment = now_between()
    desk.publish(*texts(2, 3))
    local = moment.astimezone().replace(tzinfo=None)
    for number, start in enumerate([2, moment, local]):
        ann = desk.member(f"g{number}", start=start)
        assert ann.all() == texts(2, 3)
        ann.leave()
    desk.publish("4")
    assert desk.member("g0", start=0).all() == [b"4"], "a group that is known continues"


def test_a_join_beyond_the_end_of_a_ring_is_refused_and_creates_no_group(wide):
    wide.publish("x")
    answer = wide.ask(Join, Failed, "g", ("a/#",), start="offset", start_value=1)
    assert (answer.code, answer.error) == ("refused", "ring some-1 ends at offset 0, before 1")
    assert wide.ask(Groups, GroupList).groups == ()
    assert wide.member(start=0).all() == [b"x"]


def test_a_time_after_the_last_record_is_the_end(desk):
    desk.publish("x")
    ann = desk.member(start=now_between())
    desk.publish("y")
    assert ann.all() == [b"y"]


def test_a_time_in_the_future_is_refused_with_both_times_and_changes_nothing(desk):
    future_ns = time.time_ns() + 3_600_000_000_000
    text = f"start time {time_words(future_ns)} is in the future: the broker's clock has 2"
    where = {"start": "time", "start_value": future_ns}
    answer = desk.ask(Join, Failed, "g", ("a/#",), **where)
    assert (answer.code, answer.error[: len(text)]) == ("refused", text)
    assert answer.hint
    assert desk.ask(Groups, GroupList).groups == ()
    ann = desk.member("g")
    assert isinstance(desk.ask(Join, Joined, "g", ("a/#",), **where), Joined), "a known group needs no start"
    desk.publish("x")
    assert ann.all() == [b"x"]
    ann.leave()
    desk.turn(60.0)
    assert desk.ask(Reset, Failed, "g", "time", future_ns).error.startswith(text)
    assert desk.ask(Read, Failed, "some-0", time_ns=future_ns).error.startswith(text)
    assert desk.member("g").all() == [], "the group is where it was"


@pytest.mark.parametrize("zone", [None, dt.UTC, dt.timezone(dt.timedelta(hours=-23))])
@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999999", "0001-01-01T00:00:00", "1969-01-01T00:00:00"])
def test_a_time_that_the_protocol_does_not_have_is_an_invalid_argument(text, zone):
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=zone)
    limits = r"\(allowed: 1970-01-01T00:00:00Z to 2262-04-11T23:47:16.854775Z\)"
    with pytest.raises(InvalidArgument, match=f"invalid time {re.escape(moment.isoformat())} {limits}"):
        consumer("g", "a/#", start=moment)


@pytest.mark.parametrize("start", [-1, 1 << 63, True, "newest", None, 1.5])
def test_any_other_start_is_an_invalid_argument(start):
    with pytest.raises(InvalidArgument, match=r"invalid start .* 'oldest', 'latest', an offset"):
        consumer("g", "a/#", start=start)
