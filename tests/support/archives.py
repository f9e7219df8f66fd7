"""Archives for tests: made of small logs on a simulated disk, and read back."""

from itertools import pairwise

from persistence.archive import Archive, Archived, archive_name, archive_segment
from persistence.files import Files
from persistence.segment.format import base_of_name, segment_name
from persistence.segment.scan import read_table
from tests.support.log_simulation import records_in
from tests.support.logs import DIRECTORY, Written

SMALL = 4096  # bytes of a row group, so that a small log has several


def ends_of(files: Files, directory: str = DIRECTORY) -> dict[int, int]:
    """The end of each segment of a closed log, by base."""
    bases = sorted(base for base in map(base_of_name, files.listdir(directory)) if base is not None)
    ends = {base: following - base for base, following in pairwise(bases)}
    if bases:
        name = segment_name(bases[-1])
        handle = files.open(f"{directory}/{name}")
        ends[bases[-1]] = read_table(files, handle, name).end
        files.close(handle)
    return ends


def archive_all(written: Written, group_bytes: int = SMALL) -> list[Archived]:
    """Archive every segment of a closed log, and remove the segments."""
    made = []
    for base, end in ends_of(written.files).items():
        made.append(archive_segment(written.files, DIRECTORY, base, end, group_bytes=group_bytes))
        written.files.unlink(f"{DIRECTORY}/{segment_name(base)}")
    return made


def archived_records(
    archive: Archive, name: str, epoch: int, *, topic: bytes | None = None, limit_bytes: int = 1000
) -> dict[int, bytes]:
    """Every record of a ring and epoch that the archives give, by offset."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        if topic is None:
            ranges = archive.read(name, epoch, offset, limit_bytes)
        else:
            ranges = archive.read_topic(name, topic, epoch, offset, limit_bytes)
        if not ranges:
            return found
        for it in ranges:
            assert it.offset >= offset
            its = records_in(bytes(it.view))
            assert [number for number, _, _ in its] == list(range(it.offset, it.offset + it.count))
            found.update({number: bytes(it.view[begin:end]) for number, begin, end in its})
            offset = it.offset + it.count


def path_of(base: int) -> str:
    """The path of the archive of the segment at `base`."""
    return f"{DIRECTORY}/{archive_name(base)}"
