"""Objects made before a fork: refused in the child, without an effect on the parent."""

import os
import signal
from collections.abc import Callable

import pytest

from ringbuf import Ring, errors
from tests.support.children import Child
from tests.support.forked import in_child
from tests.support.rings import drained, new_ring, payload_of


def test_everything_of_the_parent_is_refused(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    writer.publish(b"x")
    record = reader.poll()
    assert record is not None
    claim = writer.claim(1)
    assert claim
    uses: dict[str, list[Callable[[], object]]] = {
        "ring": [ring.extremes, ring.slots, ring.reader, ring.writer, lambda: ring.durable(1)],
        "writer": [
            lambda: writer.publish(b""),
            lambda: writer.claim(1),
            lambda: writer.publish_many([]),
            claim.commit,
        ],
        "reader": [
            reader.poll,
            reader.read_many,
            reader.wait,
            lambda: reader.seek(0),
            lambda: reader.ranges(1),
        ],
        "record": [record.bytes, lambda: record.key, lambda: memoryview(record)],
    }
    for what, ways in uses.items():
        for way in ways:
            assert (
                in_child(way)
                == f"UsedAfterFork: this {what} was made before a fork; open the ring again in the child"
            )
    assert claim.commit() == 1


def test_a_child_that_closes_and_drops_everything_changes_nothing(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    with Ring.attach(ring.path) as attached:
        foreign = attached.reader(blocks_writer=True)
        writer.publish(b"x")
        held = foreign.poll()
        before = ring.slots()

        def leave() -> None:
            nonlocal held
            held = None
            foreign.close()
            reader.close()
            attached.close()
            ring.close()

        assert in_child(leave) == "None"
        assert ring.slots() == before
        assert held is not None
        assert held.valid()
        assert foreign.poll() is None


def test_a_child_can_open_the_ring_itself(ring: Ring) -> None:
    ring.writer().publish(b"x")

    def read() -> list[bytes]:
        with Ring.attach(ring.path) as attached:
            return drained(attached.reader(start="oldest"))

    assert in_child(read) == "[b'x']"


def test_a_view_taken_before_the_fork_can_be_read_after_it(ring: Ring) -> None:
    reader = ring.reader()
    ring.writer().publish(b"x")
    record = reader.poll()
    assert record is not None
    view = memoryview(record)
    assert in_child(lambda: bytes(view)) == "b'x'"


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_a_forked_child_does_not_hold_the_locks_of_its_dead_parent(runtime_directory, role: str) -> None:
    """The child lives on when the parent is killed; what the parent held must be free all the same."""
    code = """
import os, signal, sys, time
from ringbuf import Ring
path, role = sys.argv[1:]
ring = Ring.reattach(path) if role == "writer" else Ring.attach(path)
reader = ring.reader(blocks_writer=True)
child = os.fork()
if child == 0:
    for descriptor in range(3):
        os.close(descriptor)
    time.sleep(600)
print(child, flush=True)
input()
"""
    ring = new_ring(runtime_directory)
    if role == "writer":
        ring.close()
    with Child(code, ring.path, role) as parent:
        orphan = int(parent.line())
        parent.process.kill()
        parent.process.wait()
    try:
        if role == "writer":
            with Ring.reattach(ring.path) as again:
                assert again.writer().publish(b"x") == 0
        else:
            writer = ring.writer(queue_timeout_ms=3_600_000)
            assert writer.publish_many([payload_of(i) for i in range(1000)]) == 1000
            assert ring.slots() == []
    finally:
        os.kill(orphan, signal.SIGKILL)
        ring.close()


def test_errors_after_a_fork_are_ring_errors() -> None:
    assert issubclass(errors.UsedAfterFork, errors.RingError)
