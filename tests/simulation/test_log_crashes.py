"""The log survives every crash that the simulated disk can think of, and the simulation sees mistakes.

`./dev simulate log` judges a million states.  A failure names its seed: run_seeds([seed]) brings it back.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from persistence import Log, LogWriter, checkpoint, recovery, scan, walk
from persistence.format import SegmentHeader, segment_name, unpack_catalogue
from persistence.indexing import Indexer
from persistence.segment import ActiveSegment
from tests.support.called_disk import CalledDisk
from tests.support.log_simulation import DIRECTORY, KEPT_BYTES, SEGMENT_BYTES, Simulation, Violation
from tests.support.simfiles import SimFiles
from tests.support.walk_twin import WalkTwin

SEEDS = 10
MUTANT_SEEDS = 100  # within which each mistake must show


@pytest.fixture(autouse=True)
def quiet() -> Iterable[None]:
    """Disks fail thousands of times here, and the log says so each time."""
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
    assert states > 2_000


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
        if ".archive." not in self._handles[handle][0]:
            super().fdatasync(handle)


class RollsWithoutSync(Log):
    """A log that begins a new segment while the old one is only in the kernel's memory."""

    def sync(self) -> None:
        active = self._active
        if active is not None and sys._getframe(1).f_code.co_name == "write":
            active.sync = lambda: None  # type: ignore[method-assign]
        super().sync()


class StaysInTheSegment(Log):
    """A log that goes on in the same file after a failure, and believes the next sync."""

    def _give_up(self) -> None:
        pass


class SkipsTheHole(Log):
    """A log whose new segment begins behind what the failed one was given, not behind what is durable."""

    def _give_up(self) -> None:
        end = self._active.end_position if self._active else 0
        super()._give_up()
        self.durable_position = end


class NamesBeforeItHolds(Log):
    """A log whose next segment has its name before it holds what a recovery could not sync."""

    _carried = property(lambda self: 0, lambda self, number: None)


class AnyEpoch(dict[int, int]):
    """Takes every epoch for that of the ring."""

    def get(self, ring_id, default=None):
        return ANY


class ConfusesLives(Log):
    """A log that tells a ring what has become durable of the one before it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._joined = AnyEpoch()


class ReleasesTooEarly(LogWriter):
    """A writer that lets the ring overwrite what has been handed to the kernel."""

    def _take_from(self, joined, now):
        taken = super()._take_from(joined, now)
        joined.reader.release(joined.taken)
        return taken


class PublishesTooEarly(LogWriter):
    """A writer that calls durable what it has taken."""

    def _take_from(self, joined, now):
        taken = super()._take_from(joined, now)
        joined.ring.durable(joined.taken)
        return taken


def no_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActiveSegment, "sync", lambda self: None)


def sync_tried_again(patch: pytest.MonkeyPatch) -> None:
    def sync(self: ActiveSegment) -> None:
        try:
            self._files.fdatasync(self._handle)
        except OSError:
            self._files.fdatasync(self._handle)

    patch.setattr(ActiveSegment, "sync", sync)


def no_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk, "lib", WalkTwin(checks=False))


def tail_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        scan, "_end", lambda parts, proven: max(it.end for it in parts if not isinstance(it, scan._Gap))
    )


def everything_claimed_durable(patch: pytest.MonkeyPatch) -> None:
    write = ActiveSegment.write
    patch.setattr(ActiveSegment, "write", lambda self, batch, durable: write(self, batch, self.end_position))


def recovered_without_sync(patch: pytest.MonkeyPatch) -> None:
    def settle(files, directory, path, table, state):
        handle = files.open(path, create=True)
        recovery._cut(files, handle, directory, table, state)
        files.close(handle)
        return table

    patch.setattr(recovery, "_settle", settle)


def one_seed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentHeader, "seed", property(lambda self: 1))
    patch.setattr(Indexer, "add", lambda self, base: None)  # What is rare needs its operations.


def disk(kind: type[SimFiles]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr("tests.support.log_simulation.SimFiles", kind)


def old_checkpoint_believed(patch: pytest.MonkeyPatch) -> None:
    def closed(files: SimFiles, directory: str, base: int) -> scan.SegmentTable | None:
        try:
            data = checkpoint._read(files, f"{directory}/{checkpoint.CHECKPOINT_NAME}")
        except FileNotFoundError:
            return None
        *_, end, _, _ = checkpoint._HEADER.unpack_from(data)
        table = scan.open_table(files, files.open(f"{directory}/{segment_name(base)}"), "x")
        table.catalogue, table.end, table.proven = unpack_catalogue(data[64:]), end, base + end
        return table

    patch.setattr(recovery, "closed_table", closed)


def kernel_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_write_again", lambda files, handle, table: None)


MISTAKES = {
    "it never syncs": (no_sync, Log, LogWriter),
    "it syncs again after a sync has failed": (sync_tried_again, Log, LogWriter),
    "it checks no extent": (no_checksum, Log, LogWriter),
    "it keeps what lies behind a torn place": (tail_kept, Log, LogWriter),
    "it claims as durable what is only written": (everything_claimed_durable, Log, LogWriter),
    "it shows what it has not synced": (recovered_without_sync, Log, LogWriter),
    "it believes the kernel after a failed sync": (kernel_believed, Log, LogWriter),
    "it believes an old checkpoint": (old_checkpoint_believed, Log, LogWriter),
    "it forgets the directory": (disk(ForgetsDirectories), Log, LogWriter),
    "it names a segment too early": (disk(NamesTooEarly), Log, LogWriter),
    "it names an archive too early": (disk(NamesArchivesTooEarly), Log, LogWriter),
    "it rolls without a sync": (None, RollsWithoutSync, LogWriter),
    "it stays in a segment that has failed": (None, StaysInTheSegment, LogWriter),
    "it skips what a failed segment has lost": (None, SkipsTheHole, LogWriter),
    "it names a segment before that holds what the last one loses": (None, NamesBeforeItHolds, LogWriter),
    "it takes an older ring for this one": (None, ConfusesLives, LogWriter),
    "it gives a recycled file no new seed": (one_seed, Log, LogWriter),
    "it releases ring memory too early": (None, Log, ReleasesTooEarly),
    "it acknowledges what it has only read": (None, Log, PublishesTooEarly),
}

BAD_STARTS = {"bad_starts": 1.0, "upkept": False, "aged": False}
LAZY = {"world": [(name, "interval", DIRECTORY) for name in ("a-0", "b-0")], "kind": "mixed"}  # Few syncs.
EAGER = [(name, "disk", DIRECTORY) for name in ("a-0", "b-0")]
BUSY = {"upkept": False, "aged": False, "block_bytes": 512, "segment_bytes": SEGMENT_BYTES}
RARE: dict[str, dict[str, Any]] = {  # What brings about what is rare.
    # By blocks there are no zeros between a log's end and an earlier life of the file.
    "it gives a recycled file no new seed": BUSY
    | {"kind": "equal", "keep_bytes": KEPT_BYTES, "in_c": True, "direct": True},
    "it claims as durable what is only written": LAZY | BUSY,
    "it keeps what lies behind a torn place": LAZY | BUSY,
    "it skips what a failed segment has lost": BUSY | {"kind": "mixed", "failures": 0.5, "keep_bytes": 0},
    "it stays in a segment that has failed": BUSY | {"failures": 0.5},
    "it syncs again after a sync has failed": BUSY | {"failures": 0.5},
    "it names a segment before that holds what the last one loses": BUSY
    | {"world": EAGER, "kind": "mixed", "failures": 0.05, "bad_starts": 1.0, "cuts": 0.0},
    "it takes an older ring for this one": {**BAD_STARTS, "cuts": 1.0},
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
    forced = {"in_c": False} | RARE.get(mistake, {})
    with pytest.raises(Violation) as caught:
        run_seeds(range(MUTANT_SEEDS), runtime_directory, log_type, writer_type, **forced)
    print(f"{mistake}: {caught.value}")


# ---- mistakes of rounds in C, as far as Python can plant them ----


class PublishesTooEarlyInC(LogWriter):
    """A writer whose rounds call durable what they have taken."""

    def round(self, *, sync=False):
        super().round(sync=sync)
        for joined in self._joined.values():
            joined.ring.durable(joined.taken)


class ForgetsWhatFailed(Log):
    """A log that does not write again what a round could not."""

    def take_back(self, end, durable_position, proven, waiting, written):
        super().take_back(end, durable_position, proven, [], 0)


def no_sync_in_c(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CalledDisk, "_on_sync", lambda self, context: 0)


def failed_sync_believed_in_c(patch: pytest.MonkeyPatch) -> None:
    sync = CalledDisk._on_sync
    patch.setattr(CalledDisk, "_on_sync", lambda self, context: 0 * sync(self, context))


def block_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CalledDisk, "_read_into", lambda self, out, length, place: length)


def under_way_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A write that is not done when the next one begins is never done."""
    patch.setattr(SimFiles, "result", lambda self, slot: len(self._under_way.pop(slot).given))


DIRECT = BUSY | {"direct": True, "kind": "large", "segment_bytes": 4 * SEGMENT_BYTES}

MISTAKES_IN_C = {
    "it never syncs": (no_sync_in_c, Log, LogWriter),
    "it believes a sync that has failed": (failed_sync_believed_in_c, Log, LogWriter),
    "it loses what a round could not write": (None, ForgetsWhatFailed, LogWriter),
    "it acknowledges what it has only read": (None, Log, PublishesTooEarlyInC),
    "it goes on in a block that it has not read": (block_not_read, Log, LogWriter),
    "it syncs while writes are under way": (under_way_forgotten, Log, LogWriter),
}
RARE_IN_C: dict[str, dict[str, Any]] = {
    "it goes on in a block that it has not read": DIRECT,
    "it syncs while writes are under way": DIRECT,
}


@pytest.mark.parametrize("mistake", MISTAKES_IN_C)
def test_a_mistake_planted_around_rounds_is_caught(
    mistake: str, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, log_type, writer_type = MISTAKES_IN_C[mistake]
    if patch is not None:
        patch(monkeypatch)
    with pytest.raises(Violation) as caught:
        run_seeds(
            range(MUTANT_SEEDS),
            runtime_directory,
            log_type,
            writer_type,
            in_c=True,
            **RARE_IN_C.get(mistake, {}),
        )
    print(f"{mistake}: {caught.value}")
