"""The two files of a ring: made, found, taken over, refused."""

import errno
import mmap
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ringbuf import Ring, errors
from ringbuf.constants import CURSORS_BYTES, HEADER_BYTES, LOCAL_SLOTS, REMOTE_SLOTS
from ringbuf.ring import POPULATE_BYTES, cursor_file, ring_file
from tests.support.children import Child
from tests.support.rings import CAPACITY_BYTES, drained, new_ring, overwrite, payload_of, ring_bytes
from tests.support.waiting import PATIENCE_S

MAGIC, VERSION, ABI, CAPACITY = 0, 8, 12, 24  # bytes of the geometry; see c/ring/layout.h
COPY = 0x3000  # where the header has the geometry again
MADV_POPULATE_WRITE = 23  # Linux 5.14; unknown to `mmap` of Python


def test_create_makes_two_files_that_are_wholly_there(runtime_directory) -> None:
    with new_ring(runtime_directory) as ring:
        assert (ring.name, ring.epoch, ring.capacity_bytes, ring.first_offset) == (
            "ring",
            7,
            CAPACITY_BYTES,
            0,
        )
        for file, size in (
            (ring_file(ring.path), HEADER_BYTES + CAPACITY_BYTES),
            (cursor_file(ring.path), CURSORS_BYTES),
        ):
            assert file.stat().st_size == size
            assert file.stat().st_blocks * 512 >= size
        assert sorted(os.listdir(runtime_directory)) == ["ring.cursors", "ring.ring"]
        assert ring.extremes() == (0, 0, 0, 0, 0, 0)
    assert sorted(os.listdir(runtime_directory)) == ["ring.cursors", "ring.ring"]


@pytest.mark.parametrize(("mode", "cursors"), [(0o640, 0o660), (0o600, 0o600), (0o644, 0o666)])
def test_who_may_read_the_ring_may_write_its_cursors(runtime_directory, mode: int, cursors: int) -> None:
    old = os.umask(0o077)
    try:
        with Ring.create(runtime_directory / "r", capacity_bytes=CAPACITY_BYTES, epoch=1, mode=mode) as ring:
            assert stat.S_IMODE(ring_file(ring.path).stat().st_mode) == mode
            assert stat.S_IMODE(cursor_file(ring.path).stat().st_mode) == cursors
    finally:
        os.umask(old)


def test_create_over_a_ring_is_refused_and_harms_nothing(ring: Ring, runtime_directory) -> None:
    cursors = cursor_file(ring.path).stat().st_ino
    with pytest.raises(FileExistsError, match="reattach"):
        new_ring(runtime_directory)
    assert cursor_file(ring.path).stat().st_ino == cursors
    assert sorted(os.listdir(runtime_directory)) == ["ring.cursors", "ring.ring"]
    assert ring.writer().publish(b"x") == 0


def test_unlink_removes_both_and_what_is_open_goes_on(ring: Ring, runtime_directory) -> None:
    reader, writer = ring.reader(), ring.writer()
    ring.unlink()
    assert os.listdir(runtime_directory) == []
    ring.unlink()
    writer.publish(b"x")
    assert drained(reader) == [b"x"]


@pytest.mark.parametrize(
    ("capacity_bytes", "remedy"),
    [
        (0, "65536"),
        (1 << 15, "65536"),
        (1_000, "the nearest is 65536"),
        (100_000, "the nearest is 131072"),
        (1 << 33, str(1 << 32)),
        (-4, "65536"),
    ],
)
def test_a_capacity_that_cannot_be_is_refused_with_one_that_can(
    runtime_directory, capacity_bytes: int, remedy: str
) -> None:
    with pytest.raises(errors.RingError, match=remedy):
        Ring.create(runtime_directory / "r", capacity_bytes=capacity_bytes, epoch=1)
    assert os.listdir(runtime_directory) == []


@pytest.mark.parametrize("epoch", [-1, 1 << 32])
def test_an_epoch_has_32_bits(runtime_directory, epoch: int) -> None:
    with pytest.raises(errors.RingError, match="must fit 32 bits"):
        Ring.create(runtime_directory / "r", capacity_bytes=CAPACITY_BYTES, epoch=epoch)


def test_a_name_has_1_to_63_bytes(runtime_directory) -> None:
    with new_ring(runtime_directory, name="ä" * 31) as ring:
        assert ring.name == "ä" * 31
    with pytest.raises(errors.RingError, match="must have 1 to 63 bytes"):
        new_ring(runtime_directory, name="n" * 64)


def test_the_options_of_memory_are_taken(runtime_directory) -> None:
    for i, options in enumerate(({"populate": False}, {"lock_memory": True}, {"huge_pages": True})):
        with Ring.create(
            runtime_directory / f"{i}", capacity_bytes=CAPACITY_BYTES, epoch=1, **options
        ) as ring:
            assert ring.writer().publish(b"x") == 0


def resident(directory: Path) -> int:
    """KiB that this process has mapped of the files in a directory, without those of cursors."""
    parts = Path("/proc/self/smaps").read_text().split(str(directory))[1:]
    rings = [part for part in parts if "cursors" not in part.partition("\n")[0]]
    return sum(int(part.partition("Rss:")[2].split()[0]) for part in rings)


def require_touching(directory: Path, flags: int, advice: int, name: str) -> None:
    """Skip where the kernel or an emulator does not touch pages on request."""
    probe = directory / "probe"
    probe.write_bytes(bytes(CAPACITY_BYTES))
    shared = mmap.MAP_SHARED | flags
    with probe.open("r+b") as file, mmap.mmap(file.fileno(), CAPACITY_BYTES, flags=shared) as memory:
        with suppress(OSError):
            memory.madvise(advice)
        if resident(directory) == 0:
            pytest.skip(f"{name} has no effect here, as under user-mode emulation by qemu 7.2")


def test_memory_is_touched_at_once(runtime_directory) -> None:
    require_touching(runtime_directory, mmap.MAP_POPULATE, mmap.MADV_NORMAL, "MAP_POPULATE")
    with new_ring(runtime_directory):
        assert resident(runtime_directory) == (HEADER_BYTES + CAPACITY_BYTES) // 1024


def test_memory_that_is_not_touched_at_once_is_touched_in_steps(runtime_directory) -> None:
    require_touching(runtime_directory, 0, MADV_POPULATE_WRITE, "MADV_POPULATE_WRITE")
    with Ring.create(
        runtime_directory / "ring", capacity_bytes=CAPACITY_BYTES, epoch=1, populate=False
    ) as ring:
        assert resident(runtime_directory) < (HEADER_BYTES + CAPACITY_BYTES) // 1024
        ring.writer().publish(b"x")
        steps = ring.populate()
        next(steps)
        ring.writer().publish(b"y")
        assert len(list(steps)) == -(-(HEADER_BYTES + CAPACITY_BYTES) // POPULATE_BYTES) - 1
        assert resident(runtime_directory) == (HEADER_BYTES + CAPACITY_BYTES) // 1024
        assert [bytes(it) for it in ring.reader(start="oldest").read_many(10)] == [b"x", b"y"]


def test_no_room_is_an_error_with_a_remedy_not_a_crash(runtime_directory, monkeypatch) -> None:
    def full(descriptor: int, begin: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="remount that tmpfs larger or lower capacity_bytes") as caught:
        new_ring(runtime_directory)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(runtime_directory) == []


# ---- attach ----


def test_a_reader_maps_the_ring_read_only(ring: Ring) -> None:
    ring.writer().publish(b"x")
    with Ring.attach(ring.path) as attached:
        assert (attached.name, attached.epoch, attached.capacity_bytes) == (
            ring.name,
            ring.epoch,
            ring.capacity_bytes,
        )
        assert drained(attached.reader(start="oldest")) == [b"x"]
        lines = [
            line.split()
            for line in Path("/proc/self/maps").read_text().splitlines()
            if line.rstrip().endswith("ring.ring")
        ]
        assert [line[1] for line in lines] == ["r--s"], "the writer maps it by the name it was made under"
        with pytest.raises(errors.RingError, match="attached to read"):
            attached.writer()
        with pytest.raises(errors.RingError, match="attached to read"):
            attached.reader(local=True)
        with pytest.raises(errors.RingError, match="attached to read"):
            attached.durable(1)


def test_a_record_cannot_be_written_through_its_view(ring: Ring) -> None:
    reader = ring.reader()
    ring.writer().publish(b"x")
    record = reader.poll()
    assert record is not None
    view = memoryview(record)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_what_is_not_there_is_not_found(runtime_directory) -> None:
    for way in (Ring.attach, Ring.reattach):
        with pytest.raises(FileNotFoundError):
            way(runtime_directory / "absent")
    new_ring(runtime_directory).close()
    cursor_file(runtime_directory / "ring").unlink()
    with pytest.raises(FileNotFoundError, match="cursors"):
        Ring.attach(runtime_directory / "ring")


@pytest.mark.parametrize("content", [b"", b"x", b"hello" * 10_000, bytes(HEADER_BYTES + CAPACITY_BYTES)])
@pytest.mark.parametrize("way", [Ring.attach, Ring.reattach])
def test_something_else_is_not_a_ring(runtime_directory, content: bytes, way) -> None:
    new_ring(runtime_directory).close()
    ring_file(runtime_directory / "ring").write_bytes(content)
    with pytest.raises(errors.NotARing, match=r"ring\.ring"):
        way(runtime_directory / "ring")


@pytest.mark.parametrize("way", [Ring.attach, Ring.reattach])
def test_another_version_is_named(runtime_directory, way) -> None:
    new_ring(runtime_directory).close()
    for geometry in (0, COPY):
        overwrite(runtime_directory / "ring", geometry + VERSION, (99).to_bytes(4, "little"))
    with pytest.raises(errors.WrongVersion, match="version 99, this build reads 2") as caught:
        way(runtime_directory / "ring")
    assert (caught.value.found, caught.value.expected) == (99, 2)


@pytest.mark.parametrize("way", [Ring.attach, Ring.reattach])
def test_a_build_with_another_abi_is_refused(runtime_directory, way) -> None:
    new_ring(runtime_directory).close()
    for geometry in (0, COPY):
        overwrite(runtime_directory / "ring", geometry + ABI, (0x04802001).to_bytes(4, "little"))
    with pytest.raises(errors.WrongAbi, match="0x04802001, this one has 0x08802001"):
        way(runtime_directory / "ring")


@pytest.mark.parametrize("missing", [1, 4096, CAPACITY_BYTES, -1, -4096, -CAPACITY_BYTES])
def test_readers_refuse_another_length_and_the_writer_mends_it(runtime_directory, missing: int) -> None:
    new_ring(runtime_directory).close()
    os.truncate(ring_file(runtime_directory / "ring"), HEADER_BYTES + CAPACITY_BYTES - missing)
    with pytest.raises(errors.WrongLength, match=f"its header says {HEADER_BYTES + CAPACITY_BYTES}"):
        Ring.attach(runtime_directory / "ring")
    with Ring.reattach(runtime_directory / "ring") as ring:
        assert ring.check is not None
        assert ring.check.rebuilt == ("size",)
        assert ring.writer().publish(b"x") == 0
    Ring.attach(runtime_directory / "ring").close()


@pytest.mark.parametrize("position", [*range(16, 128, 9), 127])
def test_a_changed_bit_of_the_header_is_seen(runtime_directory, position: int) -> None:
    new_ring(runtime_directory).close()
    byte = ring_bytes(runtime_directory / "ring")[position]
    overwrite(runtime_directory / "ring", position, bytes([byte ^ 1]))
    with pytest.raises(errors.NotARing, match="checksum"):
        Ring.attach(runtime_directory / "ring")


def test_a_header_that_changes_after_it_was_checked_is_corrupt_not_a_crash(ring: Ring) -> None:
    """A local producer writes its own ring, header and all, while the broker reads it."""
    ring.writer().publish(b"x")
    with Ring.attach(ring.path) as attached:
        for capacity in (1 << 32, 1 << 17, 0, 3, 2**64 - 1):
            overwrite(ring.path, CAPACITY, capacity.to_bytes(8, "little"))
            with pytest.raises(errors.Corrupt, match="has changed since"):
                attached.reader(start="oldest")
            with pytest.raises(errors.Corrupt, match="has changed since"):
                attached.extremes()


def test_a_ring_of_a_stranger_is_refused_unless_named(ring: Ring) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(ring_file(ring.path), 12345, -1)
    with pytest.raises(errors.ForeignOwner, match="owned by uid 12345") as caught:
        Ring.attach(ring.path)
    assert caught.value.owner == 12345
    Ring.attach(ring.path, owners={12345}).close()
    with pytest.raises(errors.ForeignOwner):
        Ring.attach(ring.path, owners={54321})


def test_a_cursor_file_that_is_none_is_refused_by_readers(ring: Ring) -> None:
    for content in (b"x", bytes(CURSORS_BYTES), b"BRIMURCS" + bytes(CURSORS_BYTES)):
        cursor_file(ring.path).write_bytes(content)
        with pytest.raises(errors.NotARing, match="not a cursor file"):
            Ring.attach(ring.path)


# ---- taking over ----


def test_a_living_writer_keeps_its_ring(ring: Ring) -> None:
    with pytest.raises(errors.WriterAlive, match="another process writes this ring"):
        Ring.reattach(ring.path)
    with Child("import sys; from ringbuf import Ring; Ring.reattach(sys.argv[1])", ring.path) as child:
        assert "WriterAlive" in child.wait()[2]


def test_a_ring_goes_on_where_it_was_closed(runtime_directory) -> None:
    with new_ring(runtime_directory) as ring:
        for i in range(1000):
            ring.writer().publish(payload_of(i))
        end = ring.extremes()
    with Ring.reattach(runtime_directory / "ring") as again:
        assert again.extremes() == end
        assert again.writer().publish(payload_of(1000)) == 1000
        reader = again.reader(start="oldest", verify=True)
        first = reader.offset
        assert drained(reader) == [payload_of(i) for i in range(first, 1001)]


def test_a_ring_that_was_never_written_can_be_taken_over(runtime_directory) -> None:
    new_ring(runtime_directory).close()
    with Ring.reattach(runtime_directory / "ring") as ring:
        assert ring.writer().publish(b"x") == 0


def test_the_lock_goes_with_close_even_while_records_are_in_hand(runtime_directory) -> None:
    with new_ring(runtime_directory) as ring:
        reader = ring.reader()
        ring.writer().publish(b"x")
        record = reader.poll()
    with Ring.reattach(runtime_directory / "ring") as again:
        assert again.writer().publish(b"y") == 1
    assert record is not None
    assert record.bytes() == b"x"


def test_own_slots_of_the_dead_are_free_again(runtime_directory) -> None:
    code = """
import os, signal, sys
from ringbuf import Ring
ring = Ring.create(sys.argv[1], capacity_bytes=65536, epoch=1)
readers = [ring.reader(local=True, blocks_writer=True) for _ in range(8)]
os.kill(os.getpid(), signal.SIGKILL)
"""
    with Child(code, runtime_directory / "r") as child:
        child.wait()
    with Ring.reattach(runtime_directory / "r") as ring:
        assert ring.slots() == []
        assert ring.writer().publish_many([bytes(1000)] * 200) == 200


@pytest.mark.parametrize("damage", ["missing", "short", "other"])
def test_a_writer_mends_the_cursor_file_that_its_readers_broke(runtime_directory, damage: str) -> None:
    with new_ring(runtime_directory) as ring:
        ring.writer().publish(b"x")
    file = cursor_file(ring.path)
    mode = stat.S_IMODE(file.stat().st_mode)
    file.unlink() if damage == "missing" else file.write_bytes(
        b"" if damage == "short" else bytes(CURSORS_BYTES)
    )
    with Ring.reattach(ring.path) as again, Ring.attach(ring.path) as attached:
        assert stat.S_IMODE(file.stat().st_mode) == mode
        assert drained(attached.reader(start="oldest")) == [b"x"]
        assert again.writer().publish(b"y") == 1


def test_an_end_that_contradicts_the_watermark_is_found_by_the_records(runtime_directory) -> None:
    with new_ring(runtime_directory) as ring:
        ring.writer().publish(b"x")
    for pair in (0x88, 0x98):
        overwrite(ring.path, pair, (1 << 40).to_bytes(8, "little"))
    with Ring.reattach(ring.path) as again:
        assert again.check is not None
        assert again.check.rebuilt == ("end",)
        assert again.writer().publish(b"y") == 1
        assert drained(again.reader(start="oldest")) == [b"x", b"y"]


# ---- slots ----


def test_slots_say_who_reads_and_how_far(ring: Ring) -> None:
    own = ring.reader(local=True, blocks_writer=True, name="log")
    with Ring.attach(ring.path) as attached:
        foreign = attached.reader(name="ä" * 40)
        ring.writer().publish(b"x")
        assert foreign.poll() is not None
        assert foreign.poll() is None, "a slot is told when there is nothing to read, else once a chunk"
        first, second = ring.slots()
        assert (first.local, first.state, first.name, first.offset, first.pid) == (
            True,
            "blocking",
            "log",
            0,
            os.getpid(),
        )
        assert (second.local, second.state, second.offset, second.lost) == (False, "plain", 1, 0)
        assert second.cursor == foreign.cursor
        assert second.name.startswith("ä" * 15)
    own.close()
    assert ring.slots() == []


def test_no_other_process_has_the_slots_of_the_writer(ring: Ring) -> None:
    with Ring.attach(ring.path) as attached, ring.reader(local=True, blocks_writer=True, name="log"):
        assert [slot.name for slot in ring.slots()] == ["log"]
        assert attached.slots() == []
        for file in (ring_file(ring.path), cursor_file(ring.path)):
            assert b"log" not in file.read_bytes()


def test_the_registry_is_full_when_all_readers_live(ring: Ring) -> None:
    readers = [ring.reader(local=True) for _ in range(LOCAL_SLOTS)]
    with pytest.raises(errors.NoFreeSlot, match="all 8 reader slots"):
        ring.reader(local=True)
    readers.pop().close()
    readers.append(ring.reader(local=True))
    readers += [ring.reader() for _ in range(REMOTE_SLOTS)]
    assert len({(it.slot, i < LOCAL_SLOTS) for i, it in enumerate(readers)}) == LOCAL_SLOTS + REMOTE_SLOTS
    with Ring.attach(ring.path) as attached:
        with pytest.raises(errors.NoFreeSlot, match="all 64 reader slots"):
            attached.reader()
        readers.pop().close()
        attached.reader()


def test_a_reader_that_nobody_holds_gives_its_slot_back(ring: Ring) -> None:
    reader = ring.reader(blocks_writer=True)
    ring.writer().publish(b"x")
    record = reader.poll()
    del reader
    assert len(ring.slots()) == 1
    assert record is not None
    assert record.bytes() == b"x"
    del record
    assert ring.slots() == []


def test_a_slot_of_the_dead_is_swept_and_taken_again(ring: Ring) -> None:
    code = (
        "import sys; from ringbuf import Ring; r = Ring.attach(sys.argv[1]).reader(); print(r.slot); input()"
    )
    with Child(code, ring.path) as child:
        assert child.line() == "0"
        assert ring.sweep() == 0
        child.kill()
    assert [slot.state for slot in ring.slots()] == ["plain"]
    assert ring.sweep() == 1
    assert ring.slots() == []
    with Child(code, ring.path) as child:
        assert child.line() == "0"
        child.kill()
    with Ring.attach(ring.path) as attached:
        assert attached.reader().slot == 0, "a free lock is proof enough, swept or not"


def test_a_closed_ring_says_so(ring: Ring) -> None:
    ring.close()
    ring.close()
    for use in (ring.extremes, ring.slots, ring.writer, ring.reader, lambda: ring.durable(1)):
        with pytest.raises(errors.RingClosed, match="ring"):
            use()
    assert ring.sweep() == 0


def test_who_waits_for_durability_is_woken_when_it_is_there(ring: Ring) -> None:
    assert not ring.wait_durable(1, 0.0)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(ring.wait_durable, position, 20.0) for position in (32, 64, 96)]
        ring.durable(64)
        assert waits[0].result(PATIENCE_S)
        assert waits[1].result(PATIENCE_S)
        ring.durable(96)
        assert waits[2].result(PATIENCE_S)
    assert ring.wait_durable(96, 0.0)
    assert not ring.wait_durable(97, 0.001)


def test_durable_is_what_the_log_says(ring: Ring) -> None:
    ring.writer().publish(b"x")
    ring.durable(96)
    with Ring.attach(ring.path) as attached:
        assert attached.extremes().durable_position == 96


def test_nothing_but_the_ring_maps_its_memory_once_it_is_closed(runtime_directory) -> None:
    with new_ring(runtime_directory) as ring:
        ring.writer().publish(b"x")
        ring.reader(start="oldest").poll()
    assert str(runtime_directory) not in Path("/proc/self/maps").read_text()
