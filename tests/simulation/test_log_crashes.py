"""The log survives every crash that the simulated disk can think of, and the simulation sees mistakes.

`./dev simulate log` judges a million states.  A failure names its seed: run_seeds([seed]) brings it back.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from persistence import Log, LogWriter
from persistence.durable_file import read_file
from persistence.log import recovery
from persistence.log.footer_builder import FooterBuilder
from persistence.segment import clean_shutdown, scan, scan_native
from persistence.segment.format import SegmentHeader, segment_name, unpack_catalogue
from persistence.segment.writer import ActiveSegment
from tests.support.called_disk import CalledDisk
from tests.support.log_simulation import DIRECTORY, KEPT_BYTES, SEGMENT_BYTES, Simulation, Violation
from tests.support.simfiles import SimFiles
from tests.support.walk_twin import WalkTwin

SEEDS = 5
MUTANT_SEEDS = 100  # within which each mistake must show
SHOWN_BY = {  # mistakes that few histories show, with a seed that is tried before all others
    "it acknowledges what a recovery could not sync": 29,
    "it believes a sync that has failed": 6,
    "it believes an old checkpoint": 6,
    "it believes the kernel after a failed sync": 7,
    "it forgets what it could not write": 3,
    "it names a segment before that holds what the last one loses": 6,
    "it names an archive too early": 2,
    "it releases ring memory too early": 12,
    "it stays in a segment that has failed": 4,
    "it syncs again after a sync has failed": 8,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterable[None]:
    """Disable the log lines: disks fail thousands of times here."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def run_seeds(
    seeds: Iterable[int],
    memory: Path,
    log_type: type[Log] = Log,
    writer_type: type[LogWriter] = LogWriter,
    **forced: object,
) -> int:
    """States that were judged."""
    return sum(Simulation(it, memory, log_type, writer_type, **forced).run()["states"] for it in seeds)


def test_what_was_acknowledged_survives_every_crash(runtime_directory: Path) -> None:
    states = run_seeds(range(SEEDS), runtime_directory)
    print(f"{states} crash states, seeds 0 to {SEEDS - 1}")
    assert states > 1_000


# ---- mistakes ----


class ForgetsDirectories(SimFiles):
    """A log that never syncs its directory."""

    def dirsync(self, path: str) -> None:
        """Not done."""


class NamesTooEarly(SimFiles):
    """A log that renames a segment before its first bytes are on the disk."""

    def fdatasync(self, handle: int) -> None:
        if not self._handles[handle][0].endswith(".tmp"):
            super().fdatasync(handle)


class NamesArchivesTooEarly(SimFiles):
    """A log that lets a segment go for an archive that is only in the kernel's memory."""

    def fdatasync(self, handle: int) -> None:
        if ".parquet." not in self._handles[handle][0]:
            super().fdatasync(handle)


class RollsWithoutSync(CalledDisk):
    """A log that begins a new segment while the old one is only in the kernel's memory."""

    def __init__(self, files: SimFiles, c: Any) -> None:
        self._c = c
        super().__init__(files, c)

    def _on_sync(self, context: Any) -> int:
        rolls = self._c.extents_written < self._c.extents_queued  # The next extent does not fit.
        return 0 if rolls else super()._on_sync(context)


class StaysInTheSegment(Log):
    """A log that continues in the same file after a failure, and trusts the next sync."""

    def _give_up(self) -> None:
        pass


class SkipsTheHole(Log):
    """A log whose new segment begins behind what the failed one was given, not behind what is durable."""

    def _give_up(self) -> None:
        end = self.commit.c.base + self.commit.end
        super()._give_up()
        self.commit.leave(end)


class ForgetsWhatFailed(Log):
    """A log that does not write again what a round could not."""

    def _give_up(self) -> None:
        super()._give_up()
        for ring_id in self._joined:
            self.commit.drop(ring_id)


class PublishesCarried(Log):
    """A log that does not say that a recovery could not sync some of what it has."""

    carries = False


class ReleasesTooEarly(LogWriter):
    """A writer that lets the ring overwrite what has been handed to the kernel."""

    def step(self, *, sync=False):
        pause_ns = super().step(sync=sync)
        for joined in self._joined.values():
            joined.reader.release(joined.c.taken)
        return pause_ns


class PublishesTooEarly(LogWriter):
    """A writer that calls durable what it has taken."""

    def step(self, *, sync=False):
        pause_ns = super().step(sync=sync)
        for joined in self._joined.values():
            joined.ring.durable(joined.c.taken)
        return pause_ns


class ClaimsWhatIsWritten(LogWriter):
    """A writer whose extents claim as durable what is only written."""

    def step(self, *, sync=False):
        c = self._commit.c
        if c.descriptor >= 0:
            c.durable_position = c.base + c.end
        return super().step(sync=sync)


def named_first(patch: pytest.MonkeyPatch) -> None:
    """A segment gets its name before it holds what a recovery could not sync."""
    begin = ActiveSegment.begin

    def first_name(files, directory, temporary, handle, header, opening, carried):
        active = begin(files, directory, temporary, handle, header, opening)
        if carried:
            active.write(carried, header.base_position)
        return active

    patch.setattr(ActiveSegment, "begin", first_name)


def no_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CalledDisk, "_on_sync", lambda self, context: 0)


def failed_sync_believed(patch: pytest.MonkeyPatch) -> None:
    sync = CalledDisk._on_sync
    patch.setattr(CalledDisk, "_on_sync", lambda self, context: 0 * sync(self, context))


def sync_tried_again(patch: pytest.MonkeyPatch) -> None:
    sync = CalledDisk._on_sync
    patch.setattr(CalledDisk, "_on_sync", lambda self, context: sync(self, context) and sync(self, context))


def rolled_without_sync(patch: pytest.MonkeyPatch) -> None:
    def stand_in(files: SimFiles, c: Any) -> CalledDisk:
        return RollsWithoutSync(files, c)

    patch.setattr(SimFiles, "stand_in", stand_in)


def block_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CalledDisk, "_read_into", lambda self, out, length, place: length)


def under_way_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A write that is not done when the next one begins is never done."""
    patch.setattr(SimFiles, "result", lambda self, slot: len(self._under_way.pop(slot).given))


def no_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scan_native, "lib", WalkTwin(checks=False))


def tail_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        scan, "_end", lambda parts, proven: max(it.end for it in parts if not isinstance(it, scan._Gap))
    )


def recovered_without_sync(patch: pytest.MonkeyPatch) -> None:
    def settle(files, directory, path, table, state):
        handle = files.open(path, create=True)
        recovery._cut(files, handle, directory, table, state)
        files.close(handle)
        return table

    patch.setattr(recovery, "_repair_last", settle)


def one_seed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentHeader, "seed", property(lambda self: 1))
    patch.setattr(FooterBuilder, "add", lambda self, base: None)  # What is rare needs its operations.


def disk(kind: type[SimFiles]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr("tests.support.log_simulation.SimFiles", kind)


def old_checkpoint_believed(patch: pytest.MonkeyPatch) -> None:
    def closed(files: SimFiles, directory: str, base: int) -> scan.SegmentTable | None:
        try:
            data = read_file(files, f"{directory}/{clean_shutdown.MARKER_NAME}")
        except FileNotFoundError:
            return None
        *_, end, _, _ = clean_shutdown._HEADER.unpack_from(data)
        table = scan.open_table(files, files.open(f"{directory}/{segment_name(base)}"), "x")
        table.catalogue, table.end, table.proven = unpack_catalogue(data[64:]), end, base + end
        return table

    patch.setattr(recovery, "closed_table", closed)


def kernel_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_write_again", lambda files, handle, table: None)


MISTAKES = {
    "it never syncs": (no_sync, Log, LogWriter),
    "it syncs again after a sync has failed": (sync_tried_again, Log, LogWriter),
    "it believes a sync that has failed": (failed_sync_believed, Log, LogWriter),
    "it checks no extent": (no_checksum, Log, LogWriter),
    "it keeps what lies behind a torn place": (tail_kept, Log, LogWriter),
    "it claims as durable what is only written": (None, Log, ClaimsWhatIsWritten),
    "it shows what it has not synced": (recovered_without_sync, Log, LogWriter),
    "it believes the kernel after a failed sync": (kernel_believed, Log, LogWriter),
    "it believes an old checkpoint": (old_checkpoint_believed, Log, LogWriter),
    "it forgets the directory": (disk(ForgetsDirectories), Log, LogWriter),
    "it names a segment too early": (disk(NamesTooEarly), Log, LogWriter),
    "it names an archive too early": (disk(NamesArchivesTooEarly), Log, LogWriter),
    "it rolls without a sync": (rolled_without_sync, Log, LogWriter),
    "it stays in a segment that has failed": (None, StaysInTheSegment, LogWriter),
    "it skips what a failed segment has lost": (None, SkipsTheHole, LogWriter),
    "it forgets what it could not write": (None, ForgetsWhatFailed, LogWriter),
    "it names a segment before that holds what the last one loses": (named_first, Log, LogWriter),
    "it acknowledges what a recovery could not sync": (None, PublishesCarried, LogWriter),
    "it gives a recycled file no new seed": (one_seed, Log, LogWriter),
    "it releases ring memory too early": (None, Log, ReleasesTooEarly),
    "it acknowledges what it has only read": (None, Log, PublishesTooEarly),
    "it goes on in a block that it has not read": (block_not_read, Log, LogWriter),
    "it syncs while writes are under way": (under_way_forgotten, Log, LogWriter),
}

LAZY = {"world": [(name, "interval", DIRECTORY) for name in ("a-0", "b-0")], "kind": "mixed"}  # Few syncs.
EAGER = [(name, "disk", DIRECTORY) for name in ("a-0", "b-0")]
BUSY = {"upkept": False, "aged": False, "block_bytes": 512, "segment_bytes": SEGMENT_BYTES}
DIRECT = BUSY | {"direct": True, "kind": "large", "segment_bytes": 4 * SEGMENT_BYTES}
RARE: dict[str, dict[str, Any]] = {  # What brings about what is rare.
    # By blocks there are no zeros between a log's end and an earlier life of the file.
    "it gives a recycled file no new seed": BUSY
    | {"kind": "equal", "keep_bytes": KEPT_BYTES, "direct": True},
    "it claims as durable what is only written": LAZY | BUSY,
    "it keeps what lies behind a torn place": LAZY | BUSY,
    "it skips what a failed segment has lost": BUSY | {"kind": "mixed", "failures": 0.5, "keep_bytes": 0},
    "it stays in a segment that has failed": BUSY | {"failures": 0.5},
    "it syncs again after a sync has failed": BUSY | {"failures": 0.5},
    "it names a segment before that holds what the last one loses": BUSY
    | {"world": EAGER, "kind": "mixed", "failures": 0.05, "bad_starts": 1.0, "cuts": 0.0},
    "it acknowledges what a recovery could not sync": LAZY | BUSY | {"bad_starts": 1.0, "cuts": 0.0},
    "it goes on in a block that it has not read": DIRECT,
    "it syncs while writes are under way": DIRECT,
    "it believes the kernel after a failed sync": LAZY | BUSY | {"failures": 0.4, "cuts": 0.0},
    "it believes an old checkpoint": {"bad_starts": 0.0, "cuts": 0.0, "upkept": False},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(
    mistake: str, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, log_type, writer_type = MISTAKES[mistake]
    if patch is not None:
        patch(monkeypatch)
    seeds = sorted(range(MUTANT_SEEDS), key=lambda seed: seed != SHOWN_BY.get(mistake))
    with pytest.raises(Violation) as caught:
        run_seeds(seeds, runtime_directory, log_type, writer_type, **RARE.get(mistake, {}))
    print(f"{mistake}: {caught.value}")
