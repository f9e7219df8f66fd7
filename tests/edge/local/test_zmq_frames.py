"""The ZeroMQ message: its bytes, its prefixes, and that a subscriber sees every gap."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import FrameError
from edge.local.zmq_frames import (
    TOPICS_MAX,
    Continuity,
    Header,
    PreviousOffsets,
    decode,
    encode_header,
    prefix_of,
)
from edge.mqtt.topic_filters import matches
from tests.support.project import ROOT

GOLDEN = ROOT / "tests" / "golden" / "zeromq"

# Written out by hand from the table in edge/local/zmq_frames.py; the file holds the same bytes.
HEADERS = {
    "first.bin": Header(1, "default-0", 1795248991, 0, 1795248991123456789, 0),
    "next.bin": Header(1, "plant@cam", 4294967295, 18446744073709551615, 1, 5, 18446744073709551614),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_the_bytes_that_were_agreed_on(name):
    data = (GOLDEN / name).read_bytes()
    assert encode_header(HEADERS[name]) == data
    assert decode([b"t", data, b""])[1] == HEADERS[name]


def test_topic_and_payload_travel_as_they_are():
    header = HEADERS["first.bin"]
    assert decode(["plänt/1".encode(), encode_header(header), b"\0\xff"]) == ("plänt/1", header, b"\0\xff")
    assert (Header(1, "r", 1, 1, 1, 5).qos, Header(1, "r", 1, 1, 1, 5).retain) == (1, True)


def test_a_field_that_was_appended_later_does_not_disturb_this_reader():
    longer = msgspec.msgpack.encode([1, "r", 2, 3, 4, 0, None, "from a later version"])
    assert decode([b"t", longer, b""])[1] == Header(1, "r", 2, 3, 4, 0)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([b"t", b"h"], "a message of 2 frames"),
        ([b"t", b"\xc1", b""], "no frames of a record"),
        ([b"\xff", encode_header(HEADERS["first.bin"]), b""], "no frames of a record"),
        ([b"t", msgspec.msgpack.encode([1, "r", "x", 3, 4, 0, None]), b""], "no frames of a record"),
        ([b"t", msgspec.msgpack.encode([2, "r", 2, 3, 4, 0, None]), b""], "version 2, this build reads 1"),
    ],
)
def test_other_messages_are_refused_with_the_reason(frames, said):
    with pytest.raises(FrameError, match=said):
        decode(frames)


topics = st.lists(st.sampled_from(["", "a", "ab", "b", "ä"]), min_size=1, max_size=4).map("/".join)
filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from(["", "a", "ab", "ä", "+"]), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
) | st.just("#")


@given(filters, topics)
def test_a_prefix_lets_everything_through_that_its_filter_matches(topic_filter, topic):
    if matches(topic_filter, topic):
        assert topic.encode().startswith(prefix_of(topic_filter))


@pytest.mark.parametrize(
    ("topic_filter", "prefix"), [("#", b""), ("a/b", b"a/b"), ("a/#", b"a"), ("a/+/c", b"a/"), ("+", b"")]
)
def test_a_prefix_is_as_long_as_it_can_be(topic_filter, prefix):
    assert prefix_of(topic_filter) == prefix


def stream_of(events: list[tuple[str, int]]) -> list[tuple[str, Header]]:
    """Frames of a publisher for (topic, offset)s of one ring."""
    previous = PreviousOffsets()
    return [
        (topic, Header(1, "r", 1, offset, 0, 0, previous.replace("r", topic.encode(), offset)))
        for topic, offset in events
    ]


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=40),
    st.sets(st.integers(0, 39)),
    st.sets(st.sampled_from(["a", "b", "c"]), min_size=1),
)
def test_each_dropped_message_shows_to_whoever_follows_its_topic(names, dropped, wanted):
    messages = stream_of(list(zip(names, range(len(names)), strict=True)))
    continuity = Continuity()
    missed: set[str] = set()
    seen: set[str] = set()
    for place, (topic, header) in enumerate(messages):
        if topic not in wanted:
            continue
        if place in dropped:
            missed.add(topic)
            continue
        follows = continuity.accept(topic, header)
        assert follows is (topic not in missed or topic not in seen)
        missed.discard(topic)
        seen.add(topic)


def test_what_the_publisher_lost_itself_shows_too():
    previous, continuity = PreviousOffsets(), Continuity()
    for offset in (0, 1):
        assert continuity.accept("a", Header(1, "r", 1, offset, 0, 0, previous.replace("r", b"a", offset)))
    previous.replace("other", b"a", 7)
    previous.forget("r")  # an overrun of ring r
    assert not continuity.accept("a", Header(1, "r", 1, 50, 0, 0, previous.replace("r", b"a", 50)))
    assert continuity.accept("a", Header(1, "r", 1, 51, 0, 0, previous.replace("r", b"a", 51)))
    assert previous.replace("other", b"a", 8) == 7
    assert continuity.gaps == 1


def test_a_ring_that_began_anew_is_no_gap():
    continuity = Continuity()
    assert continuity.accept("a", Header(1, "r", 1, 9, 0, 0))
    assert continuity.accept("a", Header(1, "r", 2, 0, 0, 0))
    assert not continuity.accept("a", Header(1, "r", 2, 2, 0, 0, 1))


def test_neither_side_remembers_topics_without_end():
    previous, continuity = PreviousOffsets(), Continuity()
    for number in range(TOPICS_MAX + 10):
        topic = f"t/{number}"
        header = Header(1, "r", 1, number, 0, 0, previous.replace("r", topic.encode(), number))
        assert continuity.accept(topic, header)
    assert len(previous._sent) <= TOPICS_MAX
    assert len(continuity._seen) <= TOPICS_MAX
    assert (
        previous.replace("r", b"t/0", 5) is None
    )  # forgotten, and said so: never a false "nothing is missing"


def test_golden_files_are_all_used():
    assert {path.name for path in Path(GOLDEN).glob("*.bin")} == set(HEADERS)
