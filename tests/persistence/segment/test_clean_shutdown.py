"""A closed log starts without its last segment being read; a checkpoint that is wrong costs only time."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence import Log
from persistence.segment.clean_shutdown import MARKER_NAME, is_marker
from tests.support.logs import DIRECTORY, Written, quarantined, read_all, recovered, typical
from tests.support.simfiles import SimFiles

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "persistence"
CHECKPOINT = f"{DIRECTORY}/{MARKER_NAME}"
OPTIONS = {"segment_bytes": 9216}
WRITTEN = typical()


def segments(files: SimFiles) -> list[str]:
    return sorted(it for it in files.names if it.endswith(".log"))


def told(files: SimFiles) -> object:
    """All that a start says and does, and all that can be read behind it."""
    log, report = recovered(files, **OPTIONS)
    read = {key: read_all(log, *key) for key in WRITTEN.records}
    said = report.rings, report.segments, report.end_position, report.torn, report.damage, report.notes
    epochs = {name: log.epochs(name) for name, _ in WRITTEN.records}
    facts = [(it.base, it.bytes, it.rings) for it in log.reader.segments()]
    log.close()
    here = {it: bytes(files.names[it].cache) for it in segments(files)}
    return said, read, epochs, facts, here


def without(files: SimFiles) -> SimFiles:
    files.names.pop(CHECKPOINT, None)
    return files


BARE = told(without(WRITTEN.files.kill()))


class CountingFiles(SimFiles):
    """Counts what is read of each file."""

    counts: dict[str, int]

    def read(self, handle: int, length: int, position: int) -> bytes:
        data = super().read(handle, length, position)
        path = self._handles[handle][0]
        self.counts[path] = self.counts.get(path, 0) + len(data)
        return data


def large(closed: bool = True) -> tuple[CountingFiles, Written]:
    written = Written.empty()
    for step in range(40):
        written.add("a-0", 7, [Random(step).randbytes(2000)] * 4)
        written.sync()
    if closed:
        written.log.close()
    files = CountingFiles(Random(0), dict(written.files.names))
    files.counts = {}
    return files, written


def test_a_log_that_was_closed_starts_without_reading_its_last_segment() -> None:
    files, written = large()
    last = segments(files)[-1]
    size = len(files.names[last].cache)
    log, report = recovered(files)
    assert size > 300_000
    assert files.counts[last] < 20_000
    assert report.rings["a-0"].end_offset == 160
    assert report.end_position == log.durable_position == size
    assert read_all(log, "a-0", 7) == written.records["a-0", 7]
    files, _ = large(closed=False)
    recovered(files)
    assert files.counts[last] >= size


def test_nor_does_it_when_a_start_has_come_between_and_written_nothing() -> None:
    files, written = large()
    last = segments(files)[-1]
    log, _ = recovered(files)
    log.run_maintenance()
    assert log.reader.segments()[-1].indexed
    log.close()
    files.counts = {}
    again, report = recovered(files)
    assert files.counts[last] < 20_000
    assert report.rings["a-0"].end_offset == 160
    assert read_all(again, "a-0", 7) == written.records["a-0", 7]


def test_a_start_with_it_is_a_start_without_it() -> None:
    assert CHECKPOINT in WRITTEN.files.names
    assert told(WRITTEN.files.kill()) == BARE


def test_a_checkpoint_with_a_flipped_bit_is_none() -> None:
    random = Random(1)
    for byte in range(len(WRITTEN.files.names[CHECKPOINT].cache)):
        files = WRITTEN.files.kill()
        files.flip(CHECKPOINT, 8 * byte + random.randrange(8))
        assert told(files) == BARE, f"byte {byte}"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.binary(max_size=200) | st.integers(0, 200))
def test_a_checkpoint_that_is_cut_or_something_else_is_none(what: bytes | int) -> None:
    files = WRITTEN.files.kill()
    data = files.names[CHECKPOINT].cache
    data[:] = data[:what] if isinstance(what, int) else what
    assert told(files) == BARE


def test_the_checkpoint_of_a_bridge_is_none() -> None:
    """They have one magic."""
    files = WRITTEN.files.kill()
    data = files.names[CHECKPOINT].cache
    assert is_marker(bytes(data))
    data[:] = (GOLDEN.parent / "bridge" / "checkpoint-v2.bin").read_bytes()
    assert not is_marker(bytes(data))
    assert told(files) == BARE


def go_on(files: SimFiles, name: str, payload: bytes, *, close: bool) -> Written:
    """Another life of the log."""
    log, report = recovered(files, **OPTIONS)
    written = Written(files, log, {key: dict(its) for key, its in WRITTEN.records.items()})
    end = report.rings[name].end_offset
    written.add(name, 9, [payload] * 5, first=end)
    written.sync()
    if close:
        log.close()
    return written


def older_checkpoint(files: SimFiles) -> SimFiles:
    """The one of the life before, over a log that went on and was killed."""
    before = bytes(files.names[CHECKPOINT].cache)
    files = go_on(files, "a-0", b"new", close=False).files.kill()
    files.names[CHECKPOINT].cache[:] = before
    return files


def later_checkpoint(files: SimFiles) -> SimFiles:
    """One of a later life, over the log of an earlier one."""
    later = bytes(go_on(files.kill(), "a-0", b"new", close=True).files.names[CHECKPOINT].cache)
    files.names[CHECKPOINT].cache[:] = later
    return files


def shorter_segment(files: SimFiles) -> SimFiles:
    del files.names[segments(files)[-1]].cache[-500:]
    return files


def longer_segment(files: SimFiles) -> SimFiles:
    files.names[segments(files)[-1]].cache += bytes(4096)
    return files


def zeroed_tail(files: SimFiles) -> SimFiles:
    """As of a copy that was made while the log was written: of the right size, but not all there."""
    data = files.names[segments(files)[-1]].cache
    data[-3000:] = bytes(3000)
    return files


def last_segment_gone(files: SimFiles) -> SimFiles:
    files.unlink(segments(files)[-1])
    return files


@pytest.mark.parametrize(
    "change",
    [older_checkpoint, later_checkpoint, shorter_segment, longer_segment, zeroed_tail, last_segment_gone],
)
def test_a_checkpoint_that_does_not_fit_the_log_is_none(change: Callable[[SimFiles], SimFiles]) -> None:
    files = change(WRITTEN.files.kill())
    assert CHECKPOINT in files.names
    assert told(files.kill()) == told(without(files.kill()))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_a_power_cut_at_any_moment_of_two_lives_leaves_what_a_start_without_finds(seed: int, at: int) -> None:
    """`at`: operations of the disk until it comes; the second life closes its log, too."""
    files = WRITTEN.files.kill()
    files.random = Random(seed)
    crashed: list[SimFiles] = []
    left = at

    def hook(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            crashed.append(files.crash())

    files.hook = hook
    go_on(files, "b-0", bytes(seed % 4000), close=True)
    files.hook = None
    state = crashed[0] if crashed else files.crash()
    assert told(state.kill()) == told(without(state.kill()))


def test_what_is_damaged_in_a_closed_segment_is_found_when_its_index_is_made() -> None:
    written = Written.empty()
    written.add("a-0", 7, [bytes([i]) * 100 for i in range(10)])
    written.sync()
    written.log.close()
    (path,) = segments(written.files)
    written.files.flip(path, 8 * bytes(written.files.names[path].cache).find(bytes([4]) * 100))
    log, report = recovered(written.files)
    assert report.damage == ()
    log.run_maintenance()
    (damage,) = log.reader.damaged.values()
    assert (damage.ring_name, damage.kept, damage.lost) == ("a-0", 9, ((4, 5),))
    assert list(quarantined(written.files)) == [damage]
    assert set(read_all(log, "a-0", 7)) == set(range(10)) - {4}


def test_a_log_that_could_not_be_synced_is_not_called_closed() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.sync()

    def refuse(operation: str, path: str) -> None:
        if operation == "fdatasync":
            raise OSError(5, "injected")

    written.files.hook = refuse
    written.log.close()
    assert CHECKPOINT not in written.files.names


def test_a_checkpoint_is_written_as_it_always_was() -> None:
    assert bytes(WRITTEN.files.names[CHECKPOINT].cache) == (GOLDEN / "checkpoint-v1.bin").read_bytes()


def test_a_real_log_is_closed_and_started(tmp_path: Path) -> None:
    for number in range(3):
        with Log(tmp_path) as log:
            report = log.recover()
            assert (report.segments, report.torn, report.notes) == (number, None, ())
            log.join("a-0", number + 1, number)
            Written(SimFiles(Random(0)), log).add("a-0", number + 1, [b"x"], first=number)
            log.write()
            log.sync()
        assert (tmp_path / MARKER_NAME).stat().st_size > 64


if __name__ == "__main__" and not (GOLDEN / "checkpoint-v1.bin").exists():
    (GOLDEN / "checkpoint-v1.bin").write_bytes(bytes(WRITTEN.files.names[CHECKPOINT].cache))
