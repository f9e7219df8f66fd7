"""Writer: offsets, space, limits, claims."""

import os
import time
from array import array
from pathlib import Path

import pytest

from ringbuf import FLAG_EXPIRY, FLAG_PROPERTIES, FLAG_RETAIN, FLAG_UNCHECKED, Ring
from ringbuf.constants import CHECKED_IN_PLACE_MAX_BYTES, KEY_MAX_BYTES, RECORD_HEADER_BYTES
from ringbuf.errors import ClaimPending, KeyTooLong, RecordTooLarge, RingClosed, RingError
from ringbuf.record import payload_position
from tests.support.rings import drained, payload_of, publish_to_lap


def test_offsets_are_dense_from_the_first(ring: Ring) -> None:
    writer = ring.writer()
    assert [writer.publish(b"x") for _ in range(5)] == [0, 1, 2, 3, 4]
    assert writer.end_offset == 5


def test_a_ring_can_begin_at_any_offset(runtime_directory) -> None:
    with Ring.create(runtime_directory / "r", capacity_bytes=1 << 16, epoch=1, first_offset=10**15) as ring:
        assert ring.first_offset == 10**15
        reader = ring.reader()
        assert ring.writer().publish(b"x") == 10**15
        record = reader.poll()
        assert record is not None
        assert record.offset == 10**15


CLOCK_ERROR_NS = 5000  # of ringbuf/c/base/wall_clock.h, with a margin for an adjustment of the clock


def test_a_record_comes_out_as_it_went_in(ring: Ring) -> None:
    reader = ring.reader()
    before = time.time_ns()
    ring.writer().publish(b"21.5", key="plant/1/temp", flags=FLAG_RETAIN | 1, properties=b"\x02\x01\x00")
    record = reader.poll()
    assert record is not None
    assert (bytes(record), record.key, record.properties) == (b"21.5", b"plant/1/temp", b"\x02\x01\x00")
    assert record.flags == FLAG_RETAIN | 1 | FLAG_PROPERTIES
    assert before <= record.timestamp_ns <= time.time_ns()
    assert len(record) == 4


def test_timestamps_follow_the_wall_clock_and_never_step_back(ring: Ring) -> None:
    writer, reader, last = ring.writer(), ring.reader(), 0
    until = time.monotonic() + 0.2  # the clock is read again and again, and its rate is known by then
    while time.monotonic() < until:
        before = time.time_ns()
        writer.publish(b"")
        record = reader.poll()
        assert record is not None
        assert before - CLOCK_ERROR_NS <= record.timestamp_ns <= time.time_ns() + CLOCK_ERROR_NS
        assert record.timestamp_ns >= last
        last = record.timestamp_ns


def test_a_payload_may_be_any_buffer_or_text(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for payload in (b"abc", "äb", bytearray(b"abc"), memoryview(b"xabcx")[1:4], array("d", [1.0])):
        writer.publish(payload)
    assert drained(reader) == [b"abc", "äb".encode(), b"abc", b"abc", array("d", [1.0]).tobytes()]


@pytest.mark.parametrize("payload", [None, 5, ["a"], memoryview(b"abcdef")[::2]])
def test_what_has_no_bytes_is_refused_and_leaves_nothing(ring: Ring, payload) -> None:
    with pytest.raises((TypeError, BufferError)):
        ring.writer().publish(payload)
    assert ring.writer().end_offset == 0


def test_every_length_from_nothing_to_a_quarter_of_the_ring_fits(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    most = writer.record_max_bytes - RECORD_HEADER_BYTES
    assert most == ring.capacity_bytes // 4 - 32
    for length in (*range(100), *range(most - 40, most + 1), 0):
        payload = os.urandom(length)
        assert writer.publish(payload) is not None
        assert drained(reader) == [payload]


@pytest.mark.parametrize("key_length", [0, 1, 7, 8, 9, 500])
def test_the_largest_record_counts_its_key(ring: Ring, key_length: int) -> None:
    writer, key = ring.writer(), b"k" * key_length
    most = writer.record_max_bytes - payload_position(key_length, 0)
    assert writer.publish(bytes(most), key=key) == 0
    with pytest.raises(RecordTooLarge) as caught:
        writer.publish(bytes(most + 1), key=key)
    assert (caught.value.length, caught.value.largest) == (most + 1, writer.record_max_bytes)
    assert "raise capacity_bytes above 65536" in str(caught.value)
    assert writer.publish(b"next") == 1


def test_a_length_that_overflows_is_too_large(ring: Ring) -> None:
    for length in (2**64 - 1, 2**63, 2**32, 2**32 - 32):
        with pytest.raises(RecordTooLarge):
            ring.writer().claim(length)


def test_a_key_may_have_65535_bytes(runtime_directory) -> None:
    with Ring.create(runtime_directory / "r", capacity_bytes=1 << 20, epoch=1) as ring:
        reader, writer = ring.reader(), ring.writer()
        writer.publish(b"p", key=b"k" * KEY_MAX_BYTES)
        record = reader.poll()
        assert record is not None
        assert record.key == b"k" * KEY_MAX_BYTES
        with pytest.raises(KeyTooLong, match="65536 bytes exceeds the 65535"):
            writer.publish(b"p", key=b"k" * (KEY_MAX_BYTES + 1))
        assert writer.publish(b"p") == 1
        with pytest.raises(TypeError, match="key must be bytes or str"):
            writer.publish(b"p", key=7)  # type: ignore[arg-type]


def test_a_key_that_is_given_again_is_not_confused_with_another(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    keys: list[bytes | str] = ["a", b"a", "b", "b", b"", "a" * 300, "a"]
    for key in keys:
        writer.publish(b"", key=key)
    writer.publish(b"")
    found = [record.key for record in reader.read_many()]
    assert found == [key.encode() if isinstance(key, str) else key for key in keys] + [b""]


def test_a_refused_key_is_not_remembered(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    writer.publish(b"", key="a")
    with pytest.raises(KeyTooLong):
        writer.publish(b"", key="b" * 70000)
    writer.publish(b"")
    assert [record.key for record in reader.read_many()] == [b"a", b""]


@pytest.mark.parametrize("flags", [-1, 64, 0x8000, 1 << 16, 1 << 40])
def test_flags_that_no_version_knows_are_refused(ring: Ring, flags: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        ring.writer().publish(b"", flags=flags)


def test_flags_that_describe_the_bytes_are_set_by_the_writer_alone(ring: Ring) -> None:
    reader, writer = ring.reader(verify=True), ring.writer()
    writer.publish(b"x", flags=FLAG_PROPERTIES | FLAG_UNCHECKED | FLAG_EXPIRY)
    record = reader.poll()
    assert record is not None
    assert record.flags == FLAG_EXPIRY
    assert record.bytes() == b"x"


@pytest.mark.parametrize("properties", [b"\x00x", b"\x05ab", b"\x80", b"\x80\x80\x80\x80\x00", b"\x01"])
def test_properties_must_begin_with_their_length(ring: Ring, properties: bytes) -> None:
    with pytest.raises(ValueError, match="do not begin with the length"):
        ring.writer().publish(b"x", properties=properties)


def test_no_properties_can_be_said_in_three_ways(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    writer.publish(b"x", properties=b"")
    writer.publish(b"x", properties=None)
    writer.publish(b"x", properties=b"\x00")
    assert [record.properties for record in reader.read_many()] == [b"", b"", b"\x00"]


def test_an_argument_that_does_not_exist_is_named(ring: Ring) -> None:
    with pytest.raises(TypeError, match="'topic' is unknown"):
        ring.writer().publish(b"x", topic="t")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'payload' is given twice"):
        ring.writer().publish(b"x", payload=b"y")  # type: ignore[misc]
    with pytest.raises(TypeError, match="'payload' is missing"):
        ring.writer().publish(key=b"y")  # type: ignore[call-arg]


def test_many_go_in_by_one_call(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    payloads = [payload_of(i, i) for i in range(60)]
    assert writer.publish_many(payloads, key="k", flags=1) == 60
    assert writer.publish_many(tuple(payloads)) == 60
    assert writer.publish_many([]) == 0
    batch = reader.read_many(1000)
    assert [record.bytes() for record in batch] == payloads * 2
    assert len({record.timestamp_ns for record in batch}) <= 2


def test_many_may_be_more_than_the_ring_holds(ring: Ring) -> None:
    """A plain reader is then lapped in the middle; where the ring ends is still said as it goes."""
    lapped, writer = ring.reader(overrun="count"), ring.writer()
    assert writer.publish_many([payload_of(i) for i in range(2000)]) == 2000
    reader = ring.reader(start="oldest")
    first = reader.offset
    assert 2000 - 65536 // 256 <= first < 2000 - 150
    assert drained(reader) == drained(lapped) == [payload_of(i) for i in range(first, 2000)]
    assert lapped.lost == first


def test_what_fails_in_the_middle_of_many_leaves_what_went_before(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    with pytest.raises(TypeError):
        writer.publish_many([b"a", b"b", 5, b"c"])  # type: ignore[list-item]
    assert drained(reader) == [b"a", b"b"]
    assert writer.publish(b"d") == 2


def test_a_sequence_that_publishes_by_itself_keeps_keys_apart(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()

    class Meddling:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> bytes:
            writer.publish(b"inner", key=b"inner")
            return b"outer"

    assert writer.publish_many(Meddling(), key=b"outer") == 3  # type: ignore[arg-type]
    assert [record.key for record in reader.read_many()] == [b"inner", b"outer"] * 3


# ---- claims ----


@pytest.mark.parametrize("length", [-1, 1 << 64])
def test_a_claim_of_an_impossible_length_is_named_with_the_limits(ring: Ring, length: int) -> None:
    writer = ring.writer()
    with pytest.raises(ValueError, match=rf"invalid length {length} \(allowed: 0 to"):
        writer.claim(length)
    claim = writer.claim(5)
    with pytest.raises(ValueError, match=rf"invalid length {length} \(allowed: 0 to"):
        claim.commit(length)
    claim.abort()


def test_a_claim_is_filled_in_place(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    claim = writer.claim(5, key="k", flags=2)
    assert claim
    assert len(claim) == 5
    with memoryview(claim) as view:
        assert not view.readonly
        view[:] = b"hello"
    assert reader.poll() is None
    assert claim.commit() == 0
    record = reader.poll()
    assert record is not None
    assert (record.bytes(), record.key, record.flags) == (b"hello", b"k", 2)


def test_a_byte_of_a_claim_can_be_set_without_a_view(ring: Ring) -> None:
    reader, claim = ring.reader(), ring.writer().claim(3)
    assert claim
    claim[0], claim[1], claim[-1] = 65, 66, 67
    for place, byte, error in (
        (3, 0, IndexError),
        (-4, 0, IndexError),
        (0, 256, ValueError),
        (0, -1, ValueError),
    ):
        with pytest.raises(error):
            claim[place] = byte
    with pytest.raises(TypeError):
        claim[0] = "A"  # type: ignore[assignment]
    claim.commit()
    assert drained(reader) == [b"ABC"]
    with pytest.raises(RingClosed):
        claim[0] = 1


@pytest.mark.parametrize("actual", [0, 1, 31, 32, 33, 99, 100])
def test_a_commit_may_keep_less_than_was_claimed(ring: Ring, actual: int) -> None:
    reader, writer = ring.reader(verify=True), ring.writer()
    claim = writer.claim(100)
    assert claim
    memoryview(claim)[:] = b"\xff" * 100
    claim.commit(actual)
    writer.publish(b"next")
    assert drained(reader) == [b"\xff" * actual, b"next"]


def test_a_commit_of_more_than_was_claimed_is_refused(ring: Ring) -> None:
    claim = ring.writer().claim(10)
    assert claim
    with pytest.raises(ValueError, match="commit of 11 bytes exceeds the 10"):
        claim.commit(11)
    assert claim.commit(10) == 0


def test_an_aborted_claim_was_never_there(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    claim = writer.claim(10)
    assert claim
    memoryview(claim)[:] = b"\xff" * 10
    claim.abort()
    assert reader.poll() is None
    assert writer.publish(b"a") == 0
    assert drained(reader) == [b"a"]


def test_a_claim_at_the_end_of_the_ring_can_be_aborted_too(ring: Ring) -> None:
    """Its padding record stays: it is a commit of its own."""
    reader, writer = ring.reader(overrun="count"), ring.writer()
    publish_to_lap(writer, 0.9)
    drained(reader)
    claim = writer.claim(15000)
    assert claim
    claim.abort()
    assert reader.poll() is None
    assert writer.publish(b"after") is not None
    assert drained(reader) == [b"after"]


def test_a_with_block_commits_and_an_exception_aborts(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    first = writer.claim(1)
    assert first is not None
    with first as claim:
        assert claim is not None
        memoryview(claim)[0] = 65
    second = writer.claim(1)
    assert second is not None
    with pytest.raises(KeyError), second:
        raise KeyError
    third = writer.claim(1)
    assert third is not None
    with third:
        memoryview(third)[0] = 66
        third.commit()
    assert drained(reader) == [b"A", b"B"]


def test_a_claim_that_is_dropped_is_aborted(ring: Ring) -> None:
    writer = ring.writer()
    claim = writer.claim(10)
    del claim
    assert writer.publish(b"x") == 0


def test_only_one_claim_at_a_time(ring: Ring) -> None:
    writer = ring.writer()
    claim = writer.claim(10)
    for use in (lambda: writer.publish(b"x"), lambda: writer.claim(1), lambda: writer.publish_many([b"x"])):
        with pytest.raises(ClaimPending):
            use()
    assert claim
    claim.abort()
    assert writer.publish(b"x") == 0


def test_a_claim_ends_once(ring: Ring) -> None:
    claim = ring.writer().claim(10)
    assert claim
    claim.commit()
    for use in (claim.commit, claim.abort, lambda: memoryview(claim)):
        with pytest.raises(RingClosed, match="already committed or aborted"):
            use()


@pytest.mark.parametrize("over", [0, 1])
def test_a_payload_filled_in_place_is_checked_up_to_a_limit(ring: Ring, over: int) -> None:
    reader = ring.reader(verify=True)
    claim = ring.writer().claim(CHECKED_IN_PLACE_MAX_BYTES + over)
    assert claim
    claim.commit()
    record = reader.poll()
    assert record is not None
    assert bool(record.flags & FLAG_UNCHECKED) == bool(over)


def test_a_closed_writer_says_so(ring: Ring) -> None:
    writer = ring.writer()
    claim = writer.claim(1)
    ring.close()
    assert claim
    for use in (
        lambda: writer.publish(b""),
        lambda: writer.claim(1),
        lambda: writer.publish_many([]),
        claim.commit,
    ):
        with pytest.raises(RingClosed):
            use()


def test_a_second_writer_with_other_arguments_is_refused(runtime_directory: Path) -> None:
    """They would be ignored: a program that means to block would drop records."""
    with Ring.create(runtime_directory / "two", capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer(when_full="block", queue_timeout_ms=7, keys="topics")
        assert ring.writer() is writer
        assert (
            ring.writer(when_full="block", queue_timeout_ms=7, blocking_readers="all", keys="topics")
            is writer
        )
        for other in (
            {"when_full": "reject"},
            {"queue_timeout_ms": 200},
            {"blocking_readers": "admitted"},
            {"keys": "any"},
        ):
            ((name, value),) = other.items()
            with pytest.raises(RingError, match=f"{name}=.*not {value!r}; give the arguments"):
                ring.writer(**other)
        assert ring.writer() is writer
        ring.admit(3)  # asks for the writer, too
        ring.evict(3)
    with Ring.create(runtime_directory / "plain", capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer()
        assert (
            ring.writer(when_full="reject", queue_timeout_ms=200, blocking_readers="all", keys="any")
            is writer
        )
