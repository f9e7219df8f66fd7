"""Files of a ring that another process shortens, which ends a process that touches the memory (SIGBUS).

Each ring is in a process of its own, as that is what a mistake would end.  Its cursor file is writable by its
group, so that another user might do this.  The identity that keeps a ring from the cursors of another one is
tested here, too, and readers that may write nothing.
"""

import os
import signal
from pathlib import Path

import pytest

from ringbuf import Ring, errors
from ringbuf.constants import CURSORS_BYTES, HEADER_BYTES
from ringbuf.ring import cursor_file, ring_file
from tests.support.children import Child
from tests.support.other_user import GROUP, USER, as_other_user, other_user_or_skip
from tests.support.rings import CAPACITY_BYTES, drained, new_ring

LENGTHS = [0, 1, 4096, CURSORS_BYTES - 1]

# Does what each line of its input says, and answers with a line.
SERVANT = """
import sys
from ringbuf import REFUSAL_LOST, Ring, errors
ring = getattr(Ring, sys.argv[2])(sys.argv[1], **eval(sys.argv[3]))
print("ready")
for line in sys.stdin:
    try:
        print(eval(line))
    except errors.RingError as error:
        print(type(error).__name__)
"""


class Servant(Child):
    """A process with a ring, made by `way` of Ring."""

    def __init__(self, path: Path, way: str, **options: object) -> None:
        super().__init__(SERVANT, path, way, repr(options))
        self.line()

    def ask(self, expression: str) -> str:
        """The value of an expression about `ring`, as text, or the name of the ring's error."""
        self.say(expression)
        return self.line()


def servant_of(path: Path) -> Servant:
    """A ring's writer."""
    return Servant(path, "create", capacity_bytes=CAPACITY_BYTES, epoch=1)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_writer_survives_a_cursor_file_that_is_shortened(runtime_directory: Path, length: int) -> None:
    path = runtime_directory / "r"
    with servant_of(path) as writer:
        assert writer.ask("ring.writer().publish(b'a')") == "0"
        with Ring.attach(path) as attached:
            reader, blocking = attached.reader(spin_ns=0), attached.reader(blocks_writer=True)
            os.truncate(cursor_file(path), length)
            assert writer.ask("ring.writer().publish(b'b')") == "1"
            left = 0 if length <= 4096 else 2  # slots: behind the first page, and whole in the last case
            assert writer.ask("ring.mend(), ring.sweep(), len(ring.slots())") == f"(1, 0, {left})"
            assert drained(reader) == [b"b"]
            if left == 0:
                with pytest.raises(errors.Evicted):
                    blocking.poll()
            with Ring.attach(path) as later:  # The file has its length and its header again.
                assert later.reader(blocks_writer=True).slot == 2, "the others have their locks still"
            assert cursor_file(path).stat().st_size == CURSORS_BYTES
        assert writer.ask("ring.faults") == "1"


def test_a_reader_survives_a_cursor_file_that_is_shortened(runtime_directory: Path) -> None:
    path = runtime_directory / "r"
    with new_ring(runtime_directory, name="r") as ring, Servant(path, "attach") as readers:
        assert readers.ask("globals().update(one=ring.reader(start='oldest', spin_ns=0))") == "None"
        for length in LENGTHS:
            os.truncate(cursor_file(path), length)
            ring.writer().publish(b"x")
            assert readers.ask("one.wait(20), one.poll().bytes(), one.poll()") == "(True, b'x', None)"
            os.truncate(cursor_file(path), length)
            assert readers.ask("one.poll(), ring.reader().close()") == "(None, None)"


def test_a_cursor_file_that_is_shortened_for_ever_is_given_up(runtime_directory: Path) -> None:
    """Its memory is private by then.  The ring continues; attached readers continue to read."""
    path = runtime_directory / "r"
    with servant_of(path) as writer:
        for i in range(100):
            os.truncate(cursor_file(path), 0)
            assert writer.ask("ring.writer().publish(b'x')") == str(i)
        assert writer.ask("ring.faults, ring.is_lost") == "(65, False)"
        assert (
            writer.ask("ring.reader(local=True, blocks_writer=True, start='oldest').read_many()[99].offset")
            == "99"
        )
        assert cursor_file(path).stat().st_size == 0


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES, HEADER_BYTES + 4096])
def test_a_reader_survives_a_ring_that_is_shortened(runtime_directory: Path, length: int) -> None:
    """As of a local producer's, which its group may write."""
    path = runtime_directory / "r"
    with new_ring(runtime_directory, name="r") as ring:
        ring_file(path).chmod(0o660)
        with Servant(path, "attach") as reader:
            assert reader.ask("globals().update(one=ring.reader(verify=True, spin_ns=0))") == "None"
            for _ in range(70):
                ring.writer().publish(bytes(500))
            assert reader.ask("len(one.read_many(1)), ring.is_lost, ring.faults") == "(1, False, 0)"
            os.truncate(ring_file(path), length)
            assert reader.ask("one.poll()") in {"None", "Corrupt"} or length > HEADER_BYTES
            assert reader.ask("one.wait(0), one.lag, ring.refused()").startswith("(")
            assert reader.ask("bytes(one._mapping.view[-4096:]) == bytes(4096)") == "True"
            assert reader.ask("ring.is_lost, ring.faults") == "(True, 1)"
            assert reader.ask("ring.extremes()") == "Corrupt"
            assert reader.ask("ring.reader()") == "Corrupt"
            os.truncate(ring_file(path), HEADER_BYTES + CAPACITY_BYTES)


def test_a_writer_whose_ring_is_shortened_is_refused(runtime_directory: Path) -> None:
    """No reader would see the records that it published."""
    path = runtime_directory / "r"
    new_ring(runtime_directory, name="r").close()
    ring_file(path).chmod(0o660)
    with Servant(path, "reattach") as writer:
        assert writer.ask("ring.writer().publish(b'a')") == "0"
        os.truncate(ring_file(path), 0)
        assert writer.ask("ring.writer().publish(b'b')") == "None"
        assert writer.ask("ring.writer().refusal == REFUSAL_LOST, ring.is_lost") == "(True, True)"
        assert writer.ask("bool(ring.writer().claim(10)), ring.writer().publish_many([b'x'])") == "(False, 0)"


FAULT = """
import faulthandler, mmap, os, sys
from ringbuf import Ring
path, other, when = sys.argv[1:]
if when == "before":
    faulthandler.enable()
ring = Ring.create(path, capacity_bytes=65536, epoch=1)
if when == "after":
    faulthandler.enable()
    later = Ring.create(path + "-later", capacity_bytes=65536, epoch=1)
os.truncate(path + ".cursors", 0)
ring.writer().publish(b"x")
assert ring.faults == 1
with open(other, "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
print("survived", flush=True)
if when == "kill":
    os.kill(os.getpid(), 7)
memory[0]
"""


QUIET = {"PYTHONFAULTHANDLER": ""}  # the process installs that handler itself, or not


@pytest.mark.parametrize("when", ["never", "before", "after", "kill"])
def test_a_fault_elsewhere_ends_the_process_as_before(runtime_directory: Path, when: str) -> None:
    """And is reported by the handler that was installed for that, before ours or after."""
    with Child(FAULT, runtime_directory / "r", runtime_directory / "other", when, environment=QUIET) as child:
        status, out, error = child.wait()
    assert out == "survived\n"
    assert status == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in error) == (when in {"before", "after"})


def test_a_file_that_other_users_may_not_write_has_no_guard(runtime_directory: Path) -> None:
    """Its owner can end the process anyway; the process keeps its signal handlers."""
    path = runtime_directory / "r"
    with Ring.create(path, capacity_bytes=CAPACITY_BYTES, epoch=1, mode=0o600) as ring:
        assert ring._memory.memory.guard is None
        assert ring._cursors is not None
        assert ring._cursors.memory.guard is None


# ---- identity ----


def test_the_cursors_of_another_ring_gate_nobody(runtime_directory: Path) -> None:
    """A ring that was made again under a name whose old cursor file was put back, say from a backup."""
    path = runtime_directory / "r"
    with new_ring(runtime_directory, name="r") as old:
        old.reader(blocks_writer=True)
        before = cursor_file(path).read_bytes()
    old.unlink()
    new_ring(runtime_directory, name="r").close()
    cursor_file(path).write_bytes(before)
    with pytest.raises(errors.NotARing, match="the cursor file of another ring"):
        Ring.attach(path)
    with Ring.reattach(path) as again, Ring.attach(path) as attached:
        assert again.slots() == []
        assert again.writer().publish_many([bytes(1000)] * 200) == 200
        assert len(drained(attached.reader(start="oldest"))) > 30


def test_rings_have_different_identities(runtime_directory: Path) -> None:
    heads = set()
    for i in range(20):
        new_ring(runtime_directory, name=f"{i}").close()
        heads.add(cursor_file(runtime_directory / f"{i}").read_bytes()[24:28])
    assert len(heads) == 20


# ---- readers that may write nothing ----


READS = """
import sys
from ringbuf import Ring, errors
ring = Ring.attach(sys.argv[1], owners={0})
reader = ring.reader(name="guest", start="oldest")
print(reader.slot, [record.bytes() for record in reader.read_many()], flush=True)
try:
    ring.reader(blocks_writer=True)
except errors.RingError as error:
    print(error, flush=True)
print(reader.wait(20), reader.poll().bytes(), len(ring.slots()), ring.sweep(), flush=True)
ring.close()
"""


def test_a_user_with_read_permission_reads_without_a_slot(runtime_directory: Path) -> None:
    other_user_or_skip()
    path = runtime_directory / "r"
    with new_ring(runtime_directory, name="r") as ring:
        for file, mode in ((runtime_directory, 0o750), (ring_file(path), 0o640), (cursor_file(path), 0o640)):
            os.chown(file, -1, GROUP)
            file.chmod(mode)
        ring.writer().publish(b"first")
        with Child(as_other_user(READS), path) as guest:
            assert guest.line() == "-1 [b'first']"
            assert "may not be written by this user, and a blocking reader has a slot there" in guest.line()
            ring.writer().publish(b"second")
            assert guest.line() == "True b'second' 0 0"
            assert guest.wait()[0] == 0
        assert ring.slots() == []


SHORTENS = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.truncate(path, 0)
        print("shortened", flush=True)
    except PermissionError:
        print("refused", flush=True)
"""


def test_a_user_of_the_group_shortens_cursors_and_no_ring(runtime_directory: Path) -> None:
    other_user_or_skip()
    path = runtime_directory / "r"
    with servant_of(path) as writer:
        for file in (runtime_directory, ring_file(path), cursor_file(path)):
            os.chown(file, -1, GROUP)
        runtime_directory.chmod(0o750)
        assert writer.ask("ring.writer().publish(b'a')") == "0"
        with Child(as_other_user(SHORTENS), ring_file(path), cursor_file(path)) as guest:
            assert [guest.line(), guest.line()] == ["refused", "shortened"]
        assert writer.ask("ring.writer().publish(b'b'), ring.faults") == "(1, 1)"
    assert os.geteuid() != USER
