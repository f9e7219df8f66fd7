"""Verification of segments and archives, to the last byte, for `brim segments verify` and repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edge.cli.humanize import bytes_in_words, count_in_words, counted
from edge.cli.progress import progress
from edge.errors import EdgeError
from edge.log.offline_reader import LogView
from persistence import DamagedRange, Files, LogReader
from persistence.archive import ARCHIVE_SUFFIX, archive_name
from persistence.errors import ArchiveUnavailable, FormatError
from persistence.files import FreshFiles
from persistence.maintenance.scrub import scrub_archive, scrub_segment
from persistence.segment.footer import place_of
from persistence.segment.format import SEGMENT_SUFFIX, segment_name
from persistence.segment.scan import read_header
from persistence.segment.verify import CheckedSegment, check_segment

FAILING_DISK = "if more places are damaged each time, the disk is failing: copy the log away, then replace it"


@dataclass(frozen=True)
class CommandResult:
    """Report of a verb, for machines and for people. `well`: True if nothing needs attention."""

    report: dict[str, Any]
    lines: list[str]
    well: bool


@dataclass(frozen=True)
class Flaw:
    """A damaged place of a file."""

    log: str
    file: str
    place: int
    length: int
    ring: str
    kept: int  # records of it that are valid and readable
    lost: int = 0  # records that are not, if their number is known
    reason: str = ""
    mends: bool = False  # a repair recreates it, without a loss

    def __str__(self) -> str:
        where = f"{self.log}/{self.file}"
        if self.reason:
            return f"{where}: {self.reason}"
        whose = f" of {self.ring}, {counted(self.kept, 'record')} of it saved" if self.ring else ""
        lost = f", {count_in_words(self.lost)} lost" if self.lost else ""
        return f"{where} at {self.place}: {counted(self.length, 'byte')} damaged{whose}{lost}"


@dataclass
class Findings:
    """Damage found in the files of some logs."""

    files: int = 0
    bytes: int = 0
    flaws: list[Flaw] = field(default_factory=list)
    indexes: Counter[str] = field(default_factory=Counter)  # footers of sealed segments, by state

    @property
    def report(self) -> dict[str, Any]:
        """Findings for machines."""
        damage = [asdict(flaw) for flaw in self.flaws]
        return {"files": self.files, "bytes": self.bytes, "damage": damage, "indexes": dict(self.indexes)}

    def lines(self) -> Iterator[str]:
        """Findings for people."""
        yield from map(str, self.flaws)
        verdict = f"{len(self.flaws)} damaged places" if self.flaws else "no damage"
        yield f"{counted(self.files, 'file')}, {bytes_in_words(self.bytes)} read: {verdict}"


def verify(view: LogView) -> CommandResult:
    """Read every segment and archive from the disk, and verify all checksums. Changes nothing."""
    findings = Findings()
    with progress("verifying", sum(map(file_bytes, view.readers))) as advance:
        for directory, reader in view.readers.items():
            look_through(view.short(directory), directory, reader, findings, advance)
    findings.flaws = [flaw for flaw in findings.flaws if _is_there(view, flaw)]
    lines = [*findings.lines(), *_advice(findings)]
    return CommandResult(findings.report, lines, well=not findings.flaws)


def look_through(
    name: str,
    directory: Path,
    reader: LogReader,
    findings: Findings,
    advance: Callable[[float], None],
    on_sealed: Callable[[CheckedSegment], object] = lambda _: None,
) -> None:
    """Verify the files of one log, called `name`, and report progress to `advance`.

    `on_sealed` gets each sealed segment. Files that retention removes meanwhile are skipped.
    """
    files = _Watched(advance)
    here = set(reader.bases())
    archived = [segment.base for segment in reader.archive.segments() if segment.base not in here]
    for base in sorted({*here, *archived}):
        try:
            if base not in here:
                _look_at_archive(files, name, directory, base, findings)
            elif (end := reader.tables.end_of(base)) is None:
                _look_at_last(files, name, directory, base, findings)
            else:
                checked = check_segment(files, str(directory), base, end)
                _enter_sealed(name, directory, checked, findings)
                on_sealed(checked)
        except FileNotFoundError:
            continue
        except ArchiveUnavailable as error:
            raise EdgeError(str(error)) from error
        except OSError as error:
            findings.files += 1
            findings.flaws.append(Flaw(name, segment_name(base), 0, 0, "", 0, reason=str(error)))


def file_bytes(directory: Path) -> int:
    """Size of the files of one log."""
    total = 0
    for file in directory.iterdir():
        with suppress(FileNotFoundError):  # retention may remove it meanwhile
            total += file.stat().st_size if file.suffix in {SEGMENT_SUFFIX, ARCHIVE_SUFFIX} else 0
    return total


class _Watched(FreshFiles):
    """Files that are read from the disk, with a progress report."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance

    def read(self, handle: int, length: int, position: int) -> bytes:
        data = super().read(handle, length, position)
        self._advance(len(data))
        return data


def _enter_sealed(name: str, directory: Path, checked: CheckedSegment, findings: Findings) -> None:
    file = segment_name(checked.base)
    findings.files += 1
    findings.bytes += (directory / file).stat().st_size
    findings.indexes[checked.footer] += checked.footer != "none"
    findings.flaws += [_flaw(name, damage, checked.reason) for damage in checked.damage]
    if checked.footer == "wrong":
        place, reason = place_of(checked.end), "its index does not match its records"
        findings.flaws.append(Flaw(name, file, place, 0, "", 0, reason=reason, mends=True))


def _look_at_last(files: Files, name: str, directory: Path, base: int, findings: Findings) -> None:
    """Verify the last segment, up to its proven end."""
    whole = scrub_segment(files, str(directory), base, None)
    findings.files, findings.bytes = findings.files + 1, findings.bytes + whole.bytes
    findings.flaws += [_flaw(name, place, _headless(files, directory, place)) for place in whole.places]


def _headless(files: Files, directory: Path, damage: DamagedRange) -> str:
    """Reason why a segment without a valid header is unreadable; otherwise ""."""
    if damage.place:
        return ""
    handle = files.open(str(directory / damage.segment))
    try:
        read_header(files, handle)
    except FormatError as error:
        return str(error)
    finally:
        files.close(handle)
    return ""


def _look_at_archive(files: Files, name: str, directory: Path, base: int, findings: Findings) -> None:
    scrubbed = scrub_archive(files, str(directory), base)
    file = archive_name(base)
    findings.files, findings.bytes = findings.files + 1, findings.bytes + (directory / file).stat().st_size
    findings.flaws += [
        Flaw(name, file, 0, 0, "", 0, reason=f"{part}: {why}") for part, why in scrubbed.parts.items()
    ]


def _flaw(name: str, damage: DamagedRange, reason: str) -> Flaw:
    lost = sum(end - first for first, end in damage.lost)
    return Flaw(
        name, damage.segment, damage.place, damage.length, damage.ring_name, damage.kept, lost, reason
    )


def _is_there(view: LogView, flaw: Flaw) -> bool:
    """True unless the file was removed during the read, when its bytes may belong to another file."""
    return any(view.short(reader) == flaw.log and (reader / flaw.file).exists() for reader in view.readers)


def _advice(findings: Findings) -> Iterator[str]:
    if findings.flaws:
        yield "intact records are read as before; next: stop the broker, then `brim segments repair`"
        yield FAILING_DISK
    elif missing := findings.indexes["missing"]:
        yield f"{count_in_words(missing)} of them have no index yet, and are searched instead"
