"""Check the segments of a log, repair it, compress them: verify, repair and archive of `brim segments`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge.cli.progress import progress
from edge.cli.words import bytes_in_words, count_in_words
from edge.errors import EdgeError
from edge.log_view import LogView
from persistence import Log, LogLocked, OsFiles, RecoveryReport
from persistence.archive import ArchiveFile, archive_name, archive_segment
from persistence.archive.layout import ARCHIVE_SUFFIX
from persistence.errors import ArchiveUnavailable, FormatError, NotArchived
from persistence.format import SEGMENT_SUFFIX, segment_name
from persistence.indexing import Indexer
from persistence.recovery import QUARANTINE
from persistence.scan import read_table

__all__ = ["Told", "archive", "repair", "verify"]


@dataclass(frozen=True)
class Told:
    """What a verb has to say: for machines, and for people.  `well`: nothing needs attention."""

    facts: dict[str, Any]
    lines: list[str]
    well: bool


# ---- verify ----


@dataclass(frozen=True)
class Flaw:
    """A place of a file that is not what was written there."""

    log: str
    file: str
    place: int
    length: int
    ring: str
    kept: int  # records of it that prove themselves and are served
    reason: str = ""

    def __str__(self) -> str:
        where = f"{self.log}/{self.file}"
        if self.reason:
            return f"{where}: {self.reason}"
        whose = f" of {self.ring}, {count_in_words(self.kept)} records of it saved" if self.ring else ""
        return f"{where} at {self.place}: {count_in_words(self.length)} bytes are damaged{whose}"


def verify(view: LogView) -> Told:
    """Reads every segment and archive, from the disk to the last checksum."""
    flaws: list[Flaw] = []
    checked = size = 0
    with progress("verifying", sum(_file_bytes(it) for it in view.readers)) as advance:
        for directory, reader in view.readers.items():
            bases = reader.bases()
            ends = {base: after - base for base, after in pairwise(bases)}
            archived = [it.base for it in reader.archive.segments() if it.base not in bases]
            for base in archived + bases:
                look = _check_archive if base in archived else _check_segment
                try:
                    length, found = look(view.short(directory), directory, base, ends.get(base))
                except FileNotFoundError:  # Retention has taken it meanwhile.
                    continue
                checked, size = checked + 1, size + length
                flaws += found
                advance(length)
    facts = {"files": checked, "bytes": size, "damage": [asdict(it) for it in flaws]}
    verdict = f"{len(flaws)} damaged places" if flaws else "no damage"
    summary = f"{count_in_words(checked)} files, {bytes_in_words(size)} read: {verdict}"
    return Told(facts, [*map(str, flaws), summary], well=not flaws)


def _file_bytes(directory: Path) -> int:
    kinds = {SEGMENT_SUFFIX, ARCHIVE_SUFFIX}
    return sum(it.stat().st_size for it in directory.iterdir() if it.suffix in kinds)


def _check_segment(log: str, directory: Path, base: int, ends_at: int | None) -> tuple[int, list[Flaw]]:
    files, name = OsFiles(), segment_name(base)
    handle = files.open(str(directory / name))
    try:
        size = files.size(handle)
        try:
            table = read_table(files, handle, name, ends_at=ends_at)
        except FormatError as error:
            return size, [Flaw(log, name, 0, size, "", 0, str(error))]
        return size, [Flaw(log, name, it.place, it.length, it.ring_name, it.kept) for it in table.damage]
    finally:
        files.close(handle)


def _check_archive(log: str, directory: Path, base: int, _: int | None) -> tuple[int, list[Flaw]]:
    name = archive_name(base)
    path = str(directory / name)
    try:
        found = ArchiveFile.open(OsFiles(), path)
    except FormatError as error:
        size = os.stat(path).st_size
        return size, [Flaw(log, name, 0, size, "", 0, str(error))]
    with found.opened() as handle:
        for index in range(len(found.footer.windows)):
            found.check(handle, index)
    return found.size, [Flaw(log, name, 0, 0, "", 0, f"{part}: {why}") for part, why in found.damage.items()]


# ---- repair ----


def repair(view: LogView) -> Told:
    """What a start of the broker does to each log, and what it has found."""
    facts: dict[str, Any] = {"logs": []}
    lines: list[str] = []
    for directory in view.readers:
        with _opened(directory) as (log, report):
            log.write()
            log.sync()  # what the disk refused to a start before, if anything
            indexer = Indexer(log.files, str(directory))
            for base in log.reader.bases():
                indexer.sealed(log.reader, base)  # one that is there and right is left as it is
            lines += _repaired(view.short(directory), directory, report)
            facts["logs"].append({"directory": str(directory), **asdict(report)})
    view.look()
    after = verify(view)
    return Told({**facts, "verified": after.facts}, lines + after.lines, well=after.well)


def _repaired(name: str, directory: Path, report: RecoveryReport) -> Iterator[str]:
    if report.torn is not None:
        segment, place, length = report.torn.segment, report.torn.place, count_in_words(report.torn.length)
        yield f"{name}/{segment}: cut at {place}, {length} bytes were half written"
    if report.damage or report.torn is not None:
        yield f"{name}: what was damaged or cut is kept in {directory / QUARANTINE}"
    yield from (f"{name}: {note}" for note in report.notes)
    yield f"{name}: whole, with {report.segments} segments and {len(report.rings)} rings"


@contextmanager
def _opened(directory: Path) -> Iterator[tuple[Log, RecoveryReport]]:
    """A log that nobody else writes.  Raises EdgeError."""
    with Log(directory, retain_bytes=0) as log:
        try:
            report = log.recover()
        except LogLocked as error:
            hint = (
                "stop the broker; it repairs when it starts, and archives by itself with [log] archive = true"
            )
            raise EdgeError(f"the log {directory} is being written", hint=hint) from error
        except OSError as error:
            raise EdgeError(f"log {directory}: {error.strerror}", hint="run as the broker's user") from error
        yield log, report


# ---- archive ----


def archive(view: LogView) -> Told:
    """Compresses every sealed segment; the segment goes when its archive has been read back."""
    done: list[dict[str, Any]] = []
    refused: list[str] = []
    for directory in view.readers:
        with _opened(directory) as (log, _):
            bases = log.reader.bases()
            ends = {base: after - base for base, after in pairwise(bases)}
            with progress(f"archiving {view.short(directory)}", sum(ends.values())) as advance:
                for base, ends_at in ends.items():
                    try:
                        found = archive_segment(log.files, str(directory), base, ends_at)
                    except (NotArchived, FormatError) as error:
                        refused.append(
                            f"{view.short(directory)}/{segment_name(base)} is left as it is: {error}"
                        )
                    except ArchiveUnavailable as error:
                        raise EdgeError(str(error), hint="pip install backports.zstd") from error
                    else:
                        log.reader.archive.add(base)
                        log.remove(base)
                        done.append({"log": str(directory), **found._asdict()})
                    advance(ends_at)
    before, after = (sum(it[key] for it in done) for key in ("segment_bytes", "archive_bytes"))
    times = f", {before / after:.1f} times less" if after else ""
    sizes = f"{bytes_in_words(before)} are {bytes_in_words(after)}{times}"
    summary = f"{count_in_words(len(done))} segments archived: {sizes}"
    facts = {"archived": done, "refused": refused}
    return Told(facts, [*refused, summary], well=not refused)
