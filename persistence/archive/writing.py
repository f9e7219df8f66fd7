"""From a sealed segment to its archive, in steps that a crash may end anywhere.

    write BASE.archive.PID.tmp -> fdatasync -> read it back, record by record, beside the segment
    -> rename to BASE.archive -> dirsync

The segment is never touched: whoever owns the log lets it go, after this has returned.  So there is a whole
archive or none, and until it is known to be right, and its name is on the disk, the segment is there.  What
was on its way when a process died ends in ".tmp", which recovery removes.

Memory: a few windows, whatever the segment's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from persistence.archive.columns import Keys
from persistence.archive.file import ArchiveFile
from persistence.archive.layout import (
    BLOCK_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    WINDOW_BYTES,
    Footer,
    Frame,
    Page,
    Trailer,
    WindowEntry,
    archive_name,
    pack_header,
)
from persistence.archive.source import SegmentSource, SourceWindow
from persistence.archive.zstd import check_available, compress
from persistence.errors import FormatError, NotArchived, Stopped
from persistence.files import Buffer, Files, size_of
from persistence.format import segment_name
from ringbuf import crc32c

__all__ = ["Archived", "Sizes", "archive_segment", "same_records"]


class Archived(NamedTuple):
    """What has become of a segment."""

    base: int
    records: int
    segment_bytes: int  # of its log: what lies behind in its file is not counted
    archive_bytes: int


class Sizes(NamedTuple):
    """How a segment is cut; see layout.py."""

    window_bytes: int = WINDOW_BYTES
    block_bytes: int = BLOCK_BYTES


def archive_segment(
    files: Files,
    directory: str,
    base: int,
    ends_at: int,
    *,
    sizes: Sizes | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Archived:
    """Makes the archive of the sealed segment at `base` of the log in `directory`, which ends at that place.

    It is whole, durable and proven when this returns; one that is there already is proven anew.  Raises
    NotArchived: the segment is damaged; Stopped: `stopped` said so; FormatError; ArchiveUnavailable; OSError.
    """
    check_available()
    sizes = sizes or Sizes()
    segment = os.path.join(directory, segment_name(base))
    target = os.path.join(directory, archive_name(base))
    with SegmentSource.opened(files, segment, base, ends_at, sizes.window_bytes) as source:
        if not _is_there(files, target, source):
            temporary = f"{target}.{os.getpid()}.tmp"
            try:
                _write(files, temporary, source, sizes, stopped)
                if not same_records(files, temporary, source, stopped):
                    raise NotArchived(f"{source.table.name}: what was archived reads differently")
                files.rename(temporary, target)
            except BaseException:
                with suppress(OSError):
                    files.unlink(temporary)
                raise
        files.dirsync(directory)
        records = sum(run.records for window in source.windows for run in window.runs)
        return Archived(base, records, source.table.end, size_of(files, target))


def _is_there(files: Files, target: str, source: SegmentSource) -> bool:
    """Whether a right archive is there; a wrong one is removed."""
    try:
        if same_records(files, target, source):
            return True
    except FileNotFoundError:
        return False
    except FormatError:
        pass
    files.unlink(target)
    return False


# ---- writing ----


class _Output:
    """A file that is written from its begin to its end."""

    def __init__(self, files: Files, handle: int, seed: int) -> None:
        self.files, self.handle, self.seed = files, handle, seed
        self.place = 0

    def write(self, data: Buffer) -> None:
        rest = memoryview(data)
        while rest:
            written = self.files.pwritev(self.handle, [rest], self.place)
            self.place += written
            rest = rest[written:]

    def frame(self, plain: memoryview | bytes) -> Frame:
        """Compresses, writes, and says where."""
        data = compress(plain)
        frame = Frame(self.place, len(data), len(plain), crc32c(data, self.seed))
        self.write(data)
        return frame

    def truncate(self) -> None:
        """What an earlier life of the name has left behind the end goes."""
        self.files.ftruncate(self.handle, self.place)


@contextmanager
def _created(files: Files, path: str) -> Iterator[int]:
    handle = files.open(path, create=True)
    try:
        yield handle
    finally:
        files.close(handle)


def _write(files: Files, path: str, source: SegmentSource, sizes: Sizes, stopped: Callable[[], bool]) -> None:
    header = pack_header(source.table.header)
    seed = int.from_bytes(header[-4:], "little")
    keys = Keys()
    for number, window in enumerate(source.windows):
        _check(stopped)
        at, data = 0, source.read(window)
        for run, epoch in zip(window.runs, source.epochs(window), strict=True):
            keys.enter(data[at : at + run.length], epoch, number)
            at += run.length
    keys.rank()
    table = source.table
    footer = Footer(table.end, table.opening, dict(table.catalogue), source.rings)
    with _created(files, path) as handle:
        out = _Output(files, handle, seed)
        out.write(header)
        assert out.place == HEADER_BYTES
        for window in source.windows:
            _check(stopped)
            footer.windows.append(_window(out, source, window, keys, sizes.block_bytes))
        end = 0
        for page in keys.pages():
            end += page.names
            footer.pages.append(Page(out.frame(page.data), end, page.first_name))
        packed, plain_length = footer.pack()
        trailer = Trailer(Frame(out.place, len(packed), plain_length, 0))
        out.write(packed)
        out.write(trailer.pack(seed, packed))
        out.truncate()
        files.fdatasync(handle)


def _window(
    out: _Output, source: SegmentSource, window: SourceWindow, keys: Keys, block_bytes: int
) -> WindowEntry:
    data = source.read(window)
    epochs = source.epochs(window)
    columns = keys.split(data, window.runs, epochs, block_bytes)
    begin, blocks = 0, []
    for cut in columns.cuts:
        blocks.append(out.frame(columns.body[begin:cut]))
        begin = cut
    head = out.frame(columns.head)
    count = sum(run.records for run in window.runs)
    times = columns.first_timestamp_ns, columns.last_timestamp_ns
    return WindowEntry(head, blocks, window.runs, count, *times, crc32c(data, out.seed))


def _check(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise Stopped("asked to stop")


# ---- proving ----


def same_records(
    files: Files, path: str, source: SegmentSource, stopped: Callable[[], bool] = lambda: False
) -> bool:
    """Whether the archive at `path` restores every record of the segment, bit by bit, and says the same of
    it.

    Both are read from their files.  Raises FormatError: it is damaged; OSError.
    """
    archive = ArchiveFile.open(files, path)
    table, footer = source.table, archive.footer
    said = (footer.end, footer.opening, footer.closing, footer.rings)
    if archive.header._replace(magic=table.header.magic) != table.header:
        return False
    if said != (table.end, table.opening, table.catalogue, source.rings):
        return False
    if [entry.runs for entry in footer.windows] != [window.runs for window in source.windows]:
        return False
    with archive.opened() as handle:
        for index, window in enumerate(source.windows):
            _check(stopped)
            restored, data, at = archive.window_records(handle, index), source.read(window), 0
            for found in restored:
                if bytes(data[at : at + len(found.view)]) != bytes(found.view):  # views compare byte by byte
                    return False
                at += len(found.view)
            if at != len(data):
                return False
    return True


assert TRAILER_BYTES < HEADER_BYTES  # a file of a header and a trailer is longer than either
