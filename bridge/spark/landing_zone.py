"""Landing zone: lists drained files by name, and reads them.

A file may be present as a Parquet file (bridge/sinks/parquet.py). Its name is that of the drained file with
another ending, and parquet_files.py reads it. If both forms are present, the drained file is used.

A root is a local path, or a URL of a file system that pyarrow knows: file, s3, gs, abfs, hdfs. Credentials
come from the source that the store's own tools use. Options such as a region or an endpoint are part of the
URL, as in s3://bucket/prefix?region=eu-west-1&endpoint_override=127.0.0.1:9000.

Planning uses only names: a name contains the partition and the offsets of the records in its file.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from bridge.arrow import parquet_files
from bridge.errors import DrainedFileError, SourceOptionError
from bridge.format import drained_file, file_parser
from bridge.format.drained_file import FileFooter
from bridge.format.file_name import PARQUET_SUFFIX, FileName, as_drained
from bridge.format.file_parser import ParsedFile

__all__ = ["DayDirectory", "Landing", "StoredFile", "name_of"]

TIMED_DIRECTORIES = ("local", "hdfs")  # file systems that keep the time of the last change of a directory
TAIL_BYTES = 4096  # read first for a footer; most footers have about 300 bytes


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """One drained file. Sort order: by edge, then in the order of draining."""

    name: FileName
    path: str  # in the file system, not a URL
    length: int
    modified_s: float  # seconds since 1970; 0 if the store does not report it


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
        opened = self._open()
        self._refuse_what_is_no_root(opened)
        files: dict[FileName, StoredFile] = {}
        tables = 0
        for info in self._entries(opened, edges):
            name = name_of(info.path)
            if name is None:
                tables += info.path.endswith(PARQUET_SUFFIX)
                continue
            stored = _stored(name, info)
            key = replace(name, day="")
            files[key] = min(files.get(key, stored), stored)
        # Otherwise a query over the wrong place would find nothing, and look correct.
        if tables and not files:
            raise SourceOptionError(
                f"path {self.root!r} holds Parquet files, and none that a bridge has drained",
                hint="a table: read it with spark.read.parquet",
            )
        return sorted(files.values())

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
        self, day: DayDirectory, *, behind: int, known: Mapping[str, StoredFile]
    ) -> Iterator[StoredFile]:
        """Files of a day whose drain_seq is above `behind`; those of `known`, by path, as they are there."""
        opened = self._open()
        if isinstance(opened.filesystem, fs.LocalFileSystem):
            wanted = _local_paths(day.path, behind)
            yield from (known[path] for path in wanted if path in known)
            infos = opened.filesystem.get_file_info([path for path in wanted if path not in known])
        else:
            infos = [info for info in _listed(opened, day.path) if _number(info.base_name) > behind]
        for info in infos:
            name = name_of(info.path)
            if name is not None and info.type == fs.FileType.File:
                yield _stored(name, info)

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
            raise DrainedFileError("is gone", name=path, hint="see option failOnDataLoss") from error
        if len(data) != length:
            raise DrainedFileError(f"has {len(data)} bytes, and had {length} when it was planned", name=path)
        parsed = file_parser.parse(data, path)
        if replace(parsed.name, day="") != _without_day(path):
            raise DrainedFileError(f"has the name of another file: it holds {parsed.name.path}", name=path)
        return parsed

    def parquet(self, path: str) -> Any:
        """Open a Parquet file; the caller closes it. Raises DrainedFileError: it is gone."""
        try:
            return self._open().filesystem.open_input_file(path)
        except FileNotFoundError as error:
            raise DrainedFileError("is gone", name=path, hint="see option failOnDataLoss") from error

    def footer(self, path: str, length: int) -> FileFooter:
        """Read only the footer. Raises DrainedFileError."""
        opened = self._open()
        with opened.filesystem.open_input_file(path) as file:
            if path.endswith(PARQUET_SUFFIX):
                return parquet_files.footer(file, path)
            tail = file.read_at(min(TAIL_BYTES, length), max(length - TAIL_BYTES, 0))
            total_bytes = drained_file.footer_length(tail) + drained_file.TRAILER_BYTES
            if total_bytes > len(tail):
                tail = file.read_at(min(total_bytes, length), max(length - total_bytes, 0))
        return drained_file.parse_footer(tail)


def _listed(opened: _Opened, path: str, *, recursive: bool = False) -> list[Any]:
    """Entries of a directory; none if it was removed after its parent was listed."""
    selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
    entries: list[Any] = opened.filesystem.get_file_info(selector)
    return entries


def _local_paths(directory: str, behind: int) -> list[str]:
    """Paths of files with a higher drain_seq, without a system call for each: a day may have many files."""
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if _number(entry.name) > behind]
    except FileNotFoundError:  # as above
        return []


def _edge_directories(top: Sequence[Any], edges: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Edges that match these patterns, with their directories."""
    for entry in top:
        edge = entry.base_name.removeprefix("edge=")
        if entry.type == fs.FileType.Directory and edge != entry.base_name and matches(edge, edges):
            yield edge, entry


def _stored(name: FileName, info: Any) -> StoredFile:
    return StoredFile(name, info.path, info.size, info.mtime_ns / 1e9 if info.mtime_ns else 0.0)


def _number(name: str) -> int:
    """The drain_seq at the start of a name; 0: the name begins with something else."""
    return int(name[:16]) if name[:16].isdecimal() else 0


def matches(name: str, patterns: Sequence[str]) -> bool:
    """True if a name matches one of these patterns, with * for anything, or if no pattern is given."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def name_of(path: str) -> FileName | None:
    """The name of the drained file at that path; None: another kind of file."""
    return FileName.parse(as_drained(path))


def _without_day(path: str) -> FileName | None:
    name = FileName.parse(path)
    return name and replace(name, day="")
