"""Repair and compression of a log without a writer: repair and archive of `brim segments`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edge.cli.humanize import bytes_in_words, count_in_words, counted
from edge.cli.progress import progress
from edge.cli.segments_verify import FAILING_DISK, CommandResult, Findings, file_bytes, look_through
from edge.errors import EdgeError
from edge.log.offline_reader import LogView
from edge.user_names import user_name
from persistence import Log, LogLocked, RecoveryReport
from persistence.archive import Archived, archive_segment
from persistence.errors import ArchiveUnavailable, FormatError, NotArchived
from persistence.files import FreshFiles
from persistence.segment.format import segment_name
from persistence.segment.quarantine import QUARANTINE, copy_to_quarantine
from persistence.segment.verify import CheckedSegment, mend

# ---- repair ----


@dataclass
class _Mended:
    """Repairs done to the logs, and those that failed."""

    indexes: int = 0
    copied: int = 0
    refused: list[str] = field(default_factory=list)


def repair(view: LogView) -> CommandResult:
    """Recover each log as at a start, copy damaged places, and recreate missing or wrong indexes."""
    logs: list[dict[str, Any]] = []
    lines: list[str] = []
    findings, mended = Findings(), _Mended()
    with progress("repairing", sum(map(file_bytes, view.readers))) as advance:
        for directory in view.readers:
            name = view.short(directory)
            with _opened(directory) as (log, report):
                log.write()
                log.sync()  # bytes that the disk refused at an earlier start, if any
                mend_it = partial(_mend, log, name, mended)
                look_through(name, directory, log.reader, findings, advance, mend_it)
            lines += _started(name, report)
            logs.append({"directory": str(directory), **asdict(report)})
    findings.flaws = [flaw for flaw in findings.flaws if not flaw.mends]
    outcome = {"logs": logs, **asdict(mended), "verified": findings.report}
    lines += [*_mended_lines(mended), *findings.lines(), *_advice(findings, mended)]
    return CommandResult(outcome, lines, well=not findings.flaws and not mended.refused)


def _mend(log: Log, name: str, mended: _Mended, checked: CheckedSegment) -> None:
    """Repair a sealed segment; the next start truncates the last one at its end."""
    file = f"{name}/{segment_name(checked.base)}"
    for damage in checked.damage if not checked.reason else ():
        refused = copy_to_quarantine(log.files, log.directory, damage)
        mended.copied += not refused
        mended.refused += [f"{name}: {refused}"] if refused else []
    if checked.base == log.reader.bases()[-1]:
        return
    try:
        mended.indexes += mend(log.files, log.directory, checked)
    except OSError as error:
        mended.refused.append(f"{file}: its index cannot be written: {error.strerror}")


def _started(name: str, report: RecoveryReport) -> Iterator[str]:
    if report.torn is not None:
        segment, place, length = report.torn.segment, report.torn.place, count_in_words(report.torn.length)
        yield f"{name}/{segment}: cut at {place}, {length} bytes were half written"
    yield from (f"{name}: {note}" for note in report.notes)
    yield f"{name}: {counted(report.segments, 'segment')}, {counted(len(report.rings), 'ring')}"


def _mended_lines(mended: _Mended) -> Iterator[str]:
    yield from mended.refused
    if mended.indexes:
        yield f"indexes that were missing or wrong, and are written again: {count_in_words(mended.indexes)}"
    if mended.copied:
        yield f"{counted(mended.copied, 'damaged place')} copied to {QUARANTINE}/ of the log"


def _advice(findings: Findings, mended: _Mended) -> Iterator[str]:
    """Next steps for the operator."""
    if mended.refused:
        yield "next: free space on the disk, then repair again"
    if findings.flaws:
        yield "intact records are read as before, and `brim segments export` copies them"
        yield "lost records may have been drained before; a file without readable records may be moved away"
        yield FAILING_DISK
    elif not mended.refused:
        yield "all is well: start the broker"


@contextmanager
def _opened(directory: Path) -> Iterator[tuple[Log, RecoveryReport]]:
    """Open a log that no other process writes. Raises EdgeError."""
    owner = directory.stat().st_uid
    if owner != os.geteuid():  # not even as root: the broker could not write files that root creates
        name = user_name(owner)
        user = f"'#{owner}'" if name.isdecimal() else name  # in a shell, # begins a comment
        hint = f"run as that user: sudo -u {user} brim segments ..."
        raise EdgeError(f"the log {directory} belongs to user {name}", hint=hint)
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


def archive(view: LogView) -> CommandResult:
    """Compress every sealed segment, and remove it after its archive was read back."""
    done: list[dict[str, Any]] = []
    refused: list[str] = []
    for directory in view.readers:
        name = view.short(directory)
        with _opened(directory) as (log, _):
            bases = log.reader.bases()[:-1]  # the last segment marks the end of the log
            ends = {base: end for base in bases if (end := log.reader.tables.end_of(base)) is not None}
            with progress(f"archiving {name}", sum(ends.values())) as advance:
                for base, ends_at in ends.items():
                    try:
                        archived = _archive(log, f"{name}/{segment_name(base)}", base, ends_at)
                    except (NotArchived, FormatError) as error:
                        refused.append(f"{name}/{segment_name(base)} is left as it is: {error}")
                    else:
                        done.append({"log": str(directory), **archived._asdict()})
                    advance(ends_at)
    before, after = (sum(result[key] for result in done) for key in ("segment_bytes", "archive_bytes"))
    times = f", {before / after:.1f} times less" if after else ""
    sizes = f"{bytes_in_words(before)} are {bytes_in_words(after)}{times}"
    summary = f"{counted(len(done), 'segment')} archived: {sizes}"
    report = {"archived": done, "refused": refused}
    return CommandResult(report, [*refused, summary], well=not refused)


def _archive(log: Log, file: str, base: int, ends_at: int) -> Archived:
    """Replace one segment by its archive. Raises NotArchived and FormatError; EdgeError: nothing can be."""
    try:
        archived = archive_segment(FreshFiles(), log.directory, base, ends_at)
    except ArchiveUnavailable as error:
        raise EdgeError(str(error)) from error
    except OSError as error:
        raise EdgeError(
            f"{file} cannot be archived: {error.strerror}",
            hint="free space on the disk, then repeat; finished archives are complete",
        ) from error
    log.reader.archive.add(base)
    log.remove(base)
    return archived
