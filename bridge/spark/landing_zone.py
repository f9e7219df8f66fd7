"""Landing zone: lists drained files by name, and reads them.

A file may be present as a Parquet file (bridge/sinks/parquet.py). Its name is that of the drained file with
another ending, and parquet_reader.py reads it. If both forms are present, the drained file is used.

A merged file (bridge/format/merged_file.py) is listed by files() as the files that it replaces, each with its
own name and footer, at the path of the merged file. names() lists it as one file, and opens nothing. While
replaced files are still present, the merged file is used (merged_files.py).

A root is a local path, or a URL of a file system that pyarrow knows: file, s3, gs, abfs, hdfs. Credentials
come from the source that the store's own tools use. Options such as a region or an endpoint are part of the
URL, as in s3://bucket/prefix?region=eu-west-1&endpoint_override=127.0.0.1:9000.

Planning uses names, which contain the partition and the offsets of the records in a file, and the footers of
merged files.
"""

from __future__ import annotations

import fnmatch
import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from bridge.arrow import parquet_reader
from bridge.errors import DrainedFileError, SourceOptionError
from bridge.format import drained_file, file_parser
from bridge.format.drained_file import FileFooter
from bridge.format.file_name import (
    PARQUET_SUFFIX,
    STAGED_DIRECTORY,
    FileName,
    as_drained,
    check_name,
    is_parquet,
    is_staged,
)
from bridge.format.file_parser import ParsedFile
from bridge.format.merged_file import check_merged, part_of, replaced_names

TIMED_DIRECTORIES = ("local", "hdfs")  # file systems that keep the time of the last change of a directory
TAIL_BYTES = 4096  # read first for a footer; most footers have about 300 bytes
GONE_HINT = "run the query again: a merged file may have replaced it; if not, see option failOnDataLoss"
READERS = 16  # footers of merged files read at once: object stores answer slowly, and in parallel


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A merged file, as a whole."""

    name: FileName
    length: int
    footer: FileFooter


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """One drained file, or a whole merged file. Sort order: by edge, then in the order of draining."""

    name: FileName
    path: str  # in the file system, not a URL
    length: int  # a share of the merged file that replaces it, by records
    modified_s: float  # seconds since 1970; 0 if the store does not report it
    merged: MergedFile | None = field(default=None, compare=False)  # it is, or replaces, this file


def better(one: StoredFile, other: StoredFile) -> StoredFile:
    """The file to read, of two with the same content: a merged file, not the file that it replaces."""
    return min(one, other, key=lambda file: (file.merged is None, is_staged(file.path), file))


def unique(files: Iterable[StoredFile]) -> list[StoredFile]:
    """The files, sorted; one that is present twice, under two days or in a merged file, once."""
    by_name: dict[FileName, StoredFile] = {}
    for file in files:
        key = replace(file.name, day="")
        by_name[key] = better(by_name[key], file) if key in by_name else file
    return sorted(by_name.values())


def parts_of(file: StoredFile) -> list[StoredFile]:
    """The files that a whole merged file replaces; any other file itself."""
    whole = file.merged
    if whole is None or file.name != whole.name:
        return [file]
    # Their own times are gone. They were before the end of the day.
    modified_s = min(file.modified_s, _day_end_s(whole.name.day))
    files, done, bytes_before = [], 0, 0
    for name in replaced_names(whole.name, whole.footer):
        done += name.last_offset - name.first_offset + 1
        bytes_to = whole.length * done // whole.footer.count
        files.append(StoredFile(name, file.path, bytes_to - bytes_before, modified_s, whole))
        bytes_before = bytes_to
    return files


class DayDirectory(NamedTuple):
    """Directory with the files of one edge and day."""

    edge: str
    name: str  # YYYY-MM-DD
    path: str
    modified_ns: int | None  # time of the last change of its entries; None: the file system has no such time


class _Opened(NamedTuple):
    filesystem: Any
    root: str


class Landing:
    """Drained files below `root`. Can be pickled: it holds no connection."""

    def __init__(self, root: str) -> None:
        self.root = root if "://" in root else os.path.abspath(root)

    def _open(self) -> _Opened:
        try:
            return _Opened(*fs.FileSystem.from_uri(self.root))
        except (pa.ArrowInvalid, UnicodeEncodeError, OSError) as error:
            raise SourceOptionError(
                f"path {self.root!r} cannot be opened: {error}",
                hint="write a path in UTF-8, or a URL that pyarrow knows",
            ) from error

    def files(self, edges: Sequence[str] = ()) -> list[StoredFile]:
        """All files of the edges whose names match one of these patterns (none: all), sorted.

        A file that is present twice, under two days, is returned once. Raises SourceOptionError if the place
        does not exist, or is not the root of a bridge's files; OSError if it cannot be listed.
        """
        return unique(part for file in self.with_footers(self.names(edges)) for part in parts_of(file))

    def names(self, edges: Sequence[str] = ()) -> list[StoredFile]:
        """As files(), with each merged file as one, without its footer. Opens no file."""
        opened = self._open()
        self._refuse_what_is_no_root(opened)
        infos = list(self._entries(opened, edges))
        files = unique(_stored_files(infos))
        # Otherwise a query over the wrong place would find nothing, and look correct.
        if not files and _are_of_others([info.path for info in infos]):
            raise SourceOptionError(
                f"path {self.root!r} holds Parquet files, and none that a bridge has drained",
                hint="a table: read it with spark.read.parquet",
            )
        return files

    def with_footers(self, files: Iterable[StoredFile]) -> list[StoredFile]:
        """The files, merged ones with their footers. One whose footer cannot be read has none."""
        files = list(files)
        merged = [file for file in files if file.name.merged and file.merged is None]
        if not merged:
            return files
        others = [file for file in files if not file.name.merged or file.merged is not None]
        opened = self._open()
        with _garbage_kept(), ThreadPoolExecutor(min(READERS, len(merged))) as pool:
            return others + [file for file in pool.map(partial(self._whole, opened), merged) if file]

    def edges(self) -> list[str]:
        """Edges that have a directory here, sorted. Raises as files() does."""
        opened = self._open()
        self._refuse_what_is_no_root(opened)
        return sorted(edge for edge, _ in _edge_directories(_listed(opened, opened.root), ()))

    def check(self) -> None:
        """Check the root. Raises SourceOptionError: it is absent or no root; OSError as files()."""
        self._refuse_what_is_no_root(self._open())

    def _refuse_what_is_no_root(self, opened: _Opened) -> None:
        if opened.filesystem.get_file_info(opened.root).type != fs.FileType.Directory:
            raise SourceOptionError(
                f"path {self.root!r} is no directory",
                hint="write the directory that the bridge drains to: its `to`, or --to",
            )
        below = re.fullmatch(r"(.*)/edge=([^/]+)(/dt=[^/]+)?/?", opened.root)
        if below is not None:
            raise SourceOptionError(
                f"path {self.root!r} is below the root",
                hint=f"write the path before edge=..., and option edge = {below[2]!r} for that edge alone",
            )

    def days(self, edges: Sequence[str]) -> list[DayDirectory]:
        """Directories of the days of these edges. Raises as files() does."""
        opened = self._open()
        self._refuse_what_is_no_root(opened)
        timed = opened.filesystem.type_name in TIMED_DIRECTORIES
        return [
            DayDirectory(edge, day.base_name.removeprefix("dt="), day.path, day.mtime_ns if timed else None)
            for edge, directory in _edge_directories(_listed(opened, opened.root), edges)
            for day in _listed(opened, directory.path)
            if day.type == fs.FileType.Directory and day.base_name.startswith("dt=")
        ]

    def files_of(
        self, day: DayDirectory, *, behind: int, known: Mapping[str, Sequence[StoredFile]]
    ) -> Iterator[StoredFile]:
        """Files of a day whose drain_seq is above `behind`, merged ones as names() lists them.

        Those of `known`, by path, are returned as they are there.
        """
        opened = self._open()
        if isinstance(opened.filesystem, fs.LocalFileSystem):
            wanted = _local_paths(day.path, behind)
            for path in wanted:
                yield from known.get(path, ())
            infos = opened.filesystem.get_file_info([path for path in wanted if path not in known])
        else:
            listed = _listed(opened, day.path, recursive=True)
            infos = [info for info in listed if _number(info.base_name) > behind]
        yield from _stored_files(info for info in infos if info.type == fs.FileType.File)

    def _whole(self, opened: _Opened, file: StoredFile) -> StoredFile | None:
        """A merged file with its footer; None: the files that it replaces are still there."""
        try:
            footer = self._footer(opened, file.path, file.length)
            check_merged(file.name, footer)
        except FileNotFoundError:  # a staged file is published under another name before it is removed
            return None
        except DrainedFileError:
            return None if is_staged(file.path) else file
        return replace(file, merged=MergedFile(file.name, file.length, footer))

    def _entries(self, opened: _Opened, edges: Sequence[str]) -> Iterator[Any]:
        """Files in the directories of these edges, and files next to the directories."""
        top = _listed(opened, opened.root)
        yield from (entry for entry in top if entry.type == fs.FileType.File)
        for _, directory in _edge_directories(top, edges):
            entries = _listed(opened, directory.path, recursive=True)
            yield from (entry for entry in entries if entry.type == fs.FileType.File)

    def read(self, path: str, length: int) -> ParsedFile:
        """Read and parse a file. Raises DrainedFileError: it is not the file of its name, or is cut."""
        opened = self._open()
        try:
            with opened.filesystem.open_input_file(path) as file:
                data = memoryview(file.read_buffer())
        except FileNotFoundError as error:
            raise DrainedFileError("is gone", name=path, hint=GONE_HINT) from error
        if len(data) != length:
            raise DrainedFileError(f"has {len(data)} bytes, and had {length} when it was planned", name=path)
        parsed = file_parser.parse(data, path)
        check_name(parsed.name, FileName.parse(path), path)
        return parsed

    def parquet(self, path: str) -> Any:
        """Open a Parquet file; the caller closes it. Raises DrainedFileError: it is gone."""
        try:
            return self._open().filesystem.open_input_file(path)
        except FileNotFoundError as error:
            raise DrainedFileError("is gone", name=path, hint=GONE_HINT) from error

    def footer_of(self, file: StoredFile) -> FileFooter:
        """The footer of a file, also of one that was replaced. Raises as footer()."""
        if file.merged is not None:
            return part_of(file.merged.footer, file.name)
        return self.footer(file.path, file.length)

    def footer(self, path: str, length: int) -> FileFooter:
        """Read only the footer at `path`; that of the whole merged file. Raises DrainedFileError, OSError."""
        return self._footer(self._open(), path, length)

    def _footer(self, opened: _Opened, path: str, length: int) -> FileFooter:
        with opened.filesystem.open_input_file(path) as file:
            if is_parquet(path):
                return parquet_reader.footer(file, path)
            tail = file.read_at(min(TAIL_BYTES, length), max(length - TAIL_BYTES, 0))
            total_bytes = drained_file.footer_length(tail) + drained_file.TRAILER_BYTES
            if total_bytes > len(tail):
                tail = file.read_at(min(total_bytes, length), max(length - total_bytes, 0))
        return drained_file.parse_footer(tail)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect no garbage: while footers with thousands of entries are read, it takes most of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _stored_files(infos: Iterable[Any]) -> Iterator[StoredFile]:
    """The drained files among these entries."""
    for info in infos:
        if (name := name_of(info.path)) is not None:
            yield StoredFile(name, info.path, info.size, _modified_s(info))


def _listed(opened: _Opened, path: str, *, recursive: bool = False) -> list[Any]:
    """Entries of a directory; none if it was removed after its parent was listed."""
    selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
    entries: list[Any] = opened.filesystem.get_file_info(selector)
    return entries


def _local_paths(directory: str, behind: int) -> list[str]:
    """Paths of files with a higher drain_seq, without a system call for each: a day may have many files."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:  # as above
        return []
    paths = [f"{directory}/{name}" for name in names if _number(name) > behind]
    if STAGED_DIRECTORY in names:
        paths += _local_paths(f"{directory}/{STAGED_DIRECTORY}", behind)
    return paths


def _edge_directories(top: Sequence[Any], edges: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Edges that match these patterns, with their directories."""
    for entry in top:
        edge = entry.base_name.removeprefix("edge=")
        if entry.type == fs.FileType.Directory and edge != entry.base_name and matches(edge, edges):
            yield edge, entry


def _are_of_others(paths: Sequence[str]) -> bool:
    """True if there are Parquet files among these, and none that a bridge has drained."""
    return any(path.endswith(PARQUET_SUFFIX) for path in paths) and not any(map(name_of, paths))


def _modified_s(info: Any) -> float:
    return info.mtime_ns / 1e9 if info.mtime_ns else 0.0


def _day_end_s(day: str) -> float:
    try:
        return (datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()
    except ValueError:  # a name that no bridge writes, such as dt=2026-99-99
        return 0.0


def _number(name: str) -> int:
    """The drain_seq at the start of a name; 0: the name begins with something else."""
    return int(name[:16]) if name[:16].isdecimal() else 0


def matches(name: str, patterns: Sequence[str]) -> bool:
    """True if a name matches one of these patterns, with * for anything, or if no pattern is given."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def name_of(path: str) -> FileName | None:
    """The name of the drained file at that path; None: another kind of file."""
    return FileName.parse(as_drained(path))
