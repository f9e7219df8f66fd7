"""Claims that find no room, topics as keys, and payloads of the wrong type."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ringbuf import REFUSAL_NO_ROOM, Claim, Ring, Writer
from ringbuf.errors import InvalidTopic, KeyTooLong, NoRoom
from tests.support.rings import drained, fill


def view_of(claim: Claim) -> memoryview:
    return memoryview(claim)


def test_a_claim_that_fails_does_not_break_with(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    fill(writer)
    end = writer.end_offset
    with writer.claim(1000) as room:
        assert room is None
    claim = writer.claim(1000)
    assert not claim
    write = partial(claim.__setitem__, 0, 1)
    uses: list[Callable[[], object]] = [claim.commit, claim.abort, partial(view_of, claim), write]
    for use in uses:
        with pytest.raises(NoRoom, match="no room for this claim of 1000 bytes"):
            use()
    with pytest.raises(ValueError, match="of the body"), claim:
        raise ValueError("of the body")
    assert writer.end_offset == end
    drained(reader)
    with writer.claim(3) as room:
        assert room is not None
        memoryview(room)[:] = b"abc"
    del claim, use  # A claim without room gives none up.
    assert drained(reader) == [b"abc"]


def test_a_refused_claim_does_not_break_with_either(ring: Ring) -> None:
    writer = ring.writer(queue_timeout_ms=0)
    broker = Ring.attach(ring.path)
    broker.refuse(REFUSAL_NO_ROOM)
    with writer.claim(10) as room:
        assert room is None
    assert writer.refusal == REFUSAL_NO_ROOM
    broker.close()


def test_an_empty_claim_with_room_is_true(ring: Ring) -> None:
    with ring.writer().claim(0) as room:
        assert room
        assert len(room) == 0


def of_topics(ring: Ring) -> Writer:
    return ring.writer(keys="topics")


@pytest.mark.parametrize("key", ["a/#", "a/+/b", "#", "+", "", b"a/#", b"", b"a\0b", "a\0b", b"\xff", "a+"])
def test_a_publish_to_what_is_no_topic_is_refused_where_it_is_called(ring: Ring, key: bytes | str) -> None:
    reader, topics = ring.reader(), of_topics(ring)
    for call in (
        lambda: topics.publish(b"x", key=key),
        lambda: topics.publish_many([b"x"], key=key),
        lambda: topics.claim(1, key=key),
    ):
        for _ in range(2):  # the second time, the writer knows the key
            with pytest.raises(InvalidTopic, match="invalid topic"):
                call()
    assert topics.publish(b"x", key="a/b") == 0
    assert topics.publish(b"y", key="ü/$x".encode()) == 1
    assert drained(reader) == [b"x", b"y"]


def test_a_publish_without_a_topic_is_refused_by_a_writer_of_topics(ring: Ring) -> None:
    topics = of_topics(ring)
    assert topics.publish(b"x", key="a") == 0
    for call in (lambda: topics.publish(b"x"), lambda: topics.publish_many([b"x"]), lambda: topics.claim(1)):
        with pytest.raises(InvalidTopic, match="give key="):
            call()
    with pytest.raises(KeyTooLong):
        topics.publish(b"x", key="a" * 65_536)


def test_the_error_of_a_long_topic_is_short(ring: Ring) -> None:
    topics = of_topics(ring)
    with pytest.raises(InvalidTopic) as error:
        topics.publish(b"x", key="\x1b" * 60_000 + "#")
    assert len(str(error.value)) < 500
    assert str(error.value).isprintable()


def test_other_writers_take_any_key(ring: Ring, tmp_path: Path) -> None:
    assert ring.writer().publish(b"x", key="a/#") == 0
    assert ring.writer().publish(b"x") == 1


@pytest.mark.parametrize("payload", [5, None, 1.5, ["x"], object()], ids=lambda it: type(it).__name__)
def test_a_payload_of_another_type_is_a_type_error_that_names_the_argument(
    ring: Ring, payload: object
) -> None:
    writer = ring.writer()
    with pytest.raises(TypeError, match=f"payload must be bytes or str, not .*{type(payload).__name__}"):
        writer.publish(payload)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload must be bytes or str, not "):
        writer.publish_many([b"x", payload])  # type: ignore[list-item]
    assert writer.publish("y") == 1, "what stood before it is published"
