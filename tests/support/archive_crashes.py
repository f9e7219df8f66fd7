"""Crashes of an archiving at each of its steps: the segment is there, or a whole archive of it.

A seed makes a small log, of which one segment is archived.  Each step is one call of the disk: the power is
cut there, which loses unsynced bytes by chance, or only the process is killed.
"""

from random import Random

import pytest

from persistence.archive import Archive, ArchiveFile, archive_segment
from persistence.segment.format import segment_name
from tests.support.archives import SMALL, archived_records, ends_of
from tests.support.logs import DIRECTORY, Written, recovered, typical
from tests.support.simfiles import PowerCut, SimFiles


def crash_at_each_step(seed: int) -> int:
    """Number of crash states of that seed. Raises AssertionError or FormatError if one lost a record."""
    written = typical(seed)
    ends = list(ends_of(written.files).items())
    base, end = ends[seed % len(ends)]
    steps = steps_of(written.files.kill(), base, end)
    for step in range(steps + 1):  # also after the last one: the segment is gone then
        files = written.files.kill()
        files.random = Random(seed * 1000 + step)
        files.short_writes = True
        with pytest.raises(PowerCut):
            _archive_until(files, base, end, step)
        for disk in (files.crash(), files.kill()):
            _judge(disk, written, base, end)
    return 2 * (steps + 1)


def steps_of(files: SimFiles, base: int, end: int) -> int:
    """Number of calls of the disk that an archiving makes."""
    before = files.operations
    _archive(files, base, end)
    return files.operations - before


def _archive(files: SimFiles, base: int, end: int) -> None:
    """As log maintenance: the segment is removed when its archive is durable."""
    archive_segment(files, DIRECTORY, base, end, group_bytes=SMALL)
    files.unlink(f"{DIRECTORY}/{segment_name(base)}")
    files.dirsync(DIRECTORY)


def _archive_until(files: SimFiles, base: int, end: int, step: int) -> None:
    left = step

    def hook(operation: str, path: str) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1

    files.hook = hook
    _archive(files, base, end)
    raise PowerCut  # short writes made it longer than it was


def _judge(files: SimFiles, written: Written, base: int, end: int) -> None:
    """After recovery each record is there, in the segment or in an archive that is right."""
    names = files.listdir(DIRECTORY)
    log, report = recovered(files)
    assert report.damage == ()
    log.close()
    assert not any(name.endswith(".tmp") for name in files.listdir(DIRECTORY))
    if segment_name(base) in names:
        _archive(files, base, end)  # and what was left undone can be done
    archive = ArchiveFile.open(files, DIRECTORY, base)
    with archive.opened() as handle:
        for index in range(len(archive.catalogue.groups)):
            archive.check(handle, index)
    assert archive.damage == {}
    here = Archive(files, DIRECTORY)
    for name, epoch in archive.rings():
        its = written.records[name, epoch]
        found = archived_records(here, name, epoch)
        assert found.items() <= its.items()
        assert len(found) == sum(group.records for group in archive.groups(name, epoch))
