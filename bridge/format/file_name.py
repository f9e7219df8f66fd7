"""Name of a drained file: the path of a file in a directory, the key of an object in a store.

    edge={edge}/dt={YYYY-MM-DD}/
    {drain_seq:016}-{stream}-p{partition:04}-e{epoch:010}-{first:020}-{last:020}.brim

The suffix of a compressed file is .brim.zst, that of the same records as Parquet is .parquet. A merged file
(merged_file.py) has .merged before that suffix, the highest drain_seq of the files that it replaces, and
their first and last offset. A merged Parquet file is first written as _merged/NAME.new, a name that other
readers of Parquet pass over. An epoch of version 2 of the format has 19 digits. A name determines the
content: nothing in a file depends on the time at which the file is written or read again. Names are enough to
prove completeness. The drain_seqs of an edge are dense. The offset ranges of each (edge, stream, partition,
epoch) are contiguous, except for ranges that a footer declares.

Owns the form of names. Never decides which records a file holds (bridge/drain/next_files.py), and never reads
a file. Only the standard library at import.

Invariant: FileName.parse() of a path of a drained file gives the same fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from bridge.errors import BadName, DrainedFileError

SUFFIX, COMPRESSED_SUFFIX, PARQUET_SUFFIX = ".brim", ".brim.zst", ".parquet"
MERGED_SUFFIX = ".merged"  # before the other suffix
STAGED_DIRECTORY, STAGED_SUFFIX = "_merged", ".new"

_EDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}(@[A-Za-z0-9][A-Za-z0-9_-]{0,63})?")
_PATH = re.compile(
    rf"(?:.*/)?edge=(?P<edge>{_EDGE.pattern})/dt=(?P<day>\d{{4}}-\d\d-\d\d)/"
    rf"(?P<seq>\d{{16}})-(?P<stream>{_STREAM.pattern})-p(?P<partition>\d{{4,10}})"
    rf"-e(?P<epoch>\d{{10}}|\d{{19}})-(?P<first>\d{{20}})-(?P<last>\d{{20}})"
    rf"(?P<merged>\{MERGED_SUFFIX})?\{SUFFIX}(?P<zst>\.zst)?"
)


def as_drained(path: str) -> str:
    """Name of the drained file for a name of any form."""
    path = published(path)
    stem = path.removesuffix(PARQUET_SUFFIX)
    return path if stem == path else stem + SUFFIX


def is_parquet(path: str) -> bool:
    """True if the file at that path is a Parquet file, published or staged."""
    return path.removesuffix(STAGED_SUFFIX).endswith(PARQUET_SUFFIX)


def is_staged(path: str) -> bool:
    """True if that is the path of a staged file."""
    return path.endswith(STAGED_SUFFIX)


def staged(path: str) -> str:
    """Path at which the merged file of that path is staged."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/{STAGED_DIRECTORY}/{name}{STAGED_SUFFIX}"


def published(path: str) -> str:
    """Path at which a staged file is published; the path itself for any other file."""
    if not is_staged(path):
        return path
    directory, _, name = path.removesuffix(STAGED_SUFFIX).rpartition("/")
    return f"{directory.removesuffix(f'/{STAGED_DIRECTORY}')}/{name}"


def check_edge(edge: str) -> str:
    """Return `edge` if names can hold it. Raises BadName."""
    if not _EDGE.fullmatch(edge):
        raise BadName(
            f"edge id {edge!r}", hint="write 1 to 64 of A-Z, a-z, 0-9, . - and _, a letter or digit first"
        )
    return edge


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """Fields in the name of a drained file. Sorted names of an edge are in the order of draining."""

    edge: str
    drain_seq: int
    stream: str
    partition: int
    epoch: int
    first_offset: int
    last_offset: int
    day: str  # YYYY-MM-DD
    compressed: bool = False
    merged: bool = False  # it replaces several drained files; drain_seq is the highest of theirs

    @property
    def path(self) -> str:
        """Path relative to the root of the sink, with forward slashes."""
        return (
            f"edge={self.edge}/dt={self.day}/{self.drain_seq:016d}-{self.stream}-p{self.partition:04d}"
            f"-e{self.epoch:010d}-{self.first_offset:020d}-{self.last_offset:020d}"
            f"{MERGED_SUFFIX if self.merged else ''}{COMPRESSED_SUFFIX if self.compressed else SUFFIX}"
        )

    @classmethod
    def parse(cls, path: str) -> FileName | None:
        """The name in the last three parts of `path`; None: another kind of file."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        partition, epoch, first, last = (int(match[key]) for key in ("partition", "epoch", "first", "last"))
        name = cls(
            match["edge"],
            int(match["seq"]),
            match["stream"],
            partition,
            epoch,
            first,
            last,
            match["day"],
            match["zst"] is not None,
            match["merged"] is not None,
        )
        return name if name.last_offset >= name.first_offset else None


def check_name(held: FileName, name: FileName | None, path: str = "") -> None:
    """Raise DrainedFileError if a file called `name` holds another, `held`. Days may differ."""
    if name is None or replace(held, day=name.day) != name:
        raise DrainedFileError(f"has the name of another file: it holds {held.path}", name=path)
