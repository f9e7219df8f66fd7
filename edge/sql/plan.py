"""Plan of a query: the parts of rings, log and archive that it reads.

Each record is in one part. Records that several places have are taken from the log first, then from the ring.
DuckDB reads an archive itself if the archive is intact and all of its records are wanted from it. Everything
else, such as the intact rest of a damaged archive, is read through LogView.

Owns the choice; reads no records except to verify archives. Gaps between the parts count as losses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from edge.broker.subscription_tree import has_wildcard
from edge.errors import EdgeError
from edge.log.offline_reader import LogView
from edge.sql.losses import QueryLosses
from edge.sql.ring_records import visible_offsets
from edge.sql.topic_filters import any_topic, quoted
from edge.streams.ring_files import stream_of
from persistence.archive import Archive, ArchiveFile
from persistence.errors import FormatError
from persistence.segment.segment_info import RingInfo
from ringbuf import Ring
from ringbuf.errors import RingError

LATEST_NS = (1 << 63) - 1

Ends: TypeAlias = Mapping[tuple[str, int], int]  # by ring and epoch: the offset after the last record


@dataclass(frozen=True, slots=True)
class QueryScope:
    """The records that a query may read."""

    topics: tuple[str, ...] = ()  # topic filters; empty: all
    since_ns: int | None = None
    until_ns: int | None = None  # exclusive
    streams: tuple[str, ...] = ()  # together with `rings` empty: all
    rings: tuple[str, ...] = ()

    def has_ring(self, ring: str) -> bool:
        """True if the records of the ring are wanted; of a ring without a stream, only if it is named."""
        if not (self.streams or self.rings):
            return bool(stream_of(ring))  # the journal of sessions has no messages
        return ring in self.rings or stream_of(ring) in self.streams

    def overlaps(self, earliest_ns: int, latest_ns: int) -> bool:
        """True if records of these times may be wanted."""
        return (self.since_ns is None or latest_ns >= self.since_ns) and (
            self.until_ns is None or earliest_ns < self.until_ns
        )

    def condition(self, rings: Iterable[str]) -> str:
        """The condition in SQL on the columns of an archive; `rings` are all existing rings."""
        terms = []
        if self.topics:
            terms.append(any_topic(self.topics))
        if self.since_ns is not None:
            terms.append(f"timestamp_ns >= {self.since_ns}")
        if self.until_ns is not None:
            terms.append(f"timestamp_ns < {self.until_ns}")
        if self.streams or self.rings:
            chosen = ", ".join(quoted(ring) for ring in rings if self.has_ring(ring))
            terms.append(f"ring IN ({chosen})")
        return " AND ".join(f"({term})" for term in terms) or "true"


class Part(NamedTuple):
    """Records of one ring and epoch: first_offset <= offset < end_offset."""

    ring: str
    epoch: int
    first_offset: int
    end_offset: int
    earliest_ns: int = 0
    latest_ns: int = LATEST_NS
    records: int = -1  # -1: not known
    path: Path | None = None  # of the ring; None: in the log
    archive: ArchiveFile | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Ring and epoch."""
        return self.ring, self.epoch

    @property
    def order(self) -> tuple[str, int, bool, int]:
        """Sort key: of each ring and epoch the log by offsets, then the ring."""
        return self.ring, self.epoch, self.path is not None, self.first_offset


@dataclass(slots=True)
class Plan:
    """Parts of a query."""

    archives: list[ArchiveFile] = field(default_factory=list)  # which DuckDB reads
    parts: list[Part] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    rings: list[str] = field(default_factory=list)  # all names


def plan(
    view: LogView | None,
    runtime_dir: Path,
    scope: QueryScope,
    after: Ends,
    losses: QueryLosses,
    *,
    verify: bool = True,
) -> Plan:
    """The parts with all wanted records; of a ring and epoch in `after` only those from that offset on.

    `verify=False`: only the ends are needed. Raises EdgeError: a wanted stream or ring does not exist.
    """
    found = sorted([*_logged(view, losses), *_in_rings(runtime_dir, losses)], key=lambda part: part.order)
    rings = sorted({part.ring for part in found})
    _check_names(scope, rings)
    wanted = [part for part in found if scope.has_ring(part.ring)]
    ends: dict[tuple[str, int], int] = {}
    chosen, clipped = _without_repetition(wanted, scope, after, ends, losses)
    if not verify:
        return Plan(ends=ends, rings=rings)
    archives = {id(part.archive): part.archive for part in chosen if part.archive is not None}
    intact = _intact([archive for archive in archives.values() if id(archive) not in clipped], scope.topics)
    parts = [part for part in chosen if id(part.archive) not in intact]
    losses.count(sum(_inner_gap(part) for part in chosen if id(part.archive) in intact))
    return Plan([archive for archive in intact.values() if archive is not None], parts, ends, rings)


def _logged(view: LogView | None, losses: QueryLosses) -> Iterator[Part]:
    for directory, reader in view.readers.items() if view is not None else ():
        archives = _by_base(reader.archive)
        for segment in reader.segments():
            if segment.state == "lost" and segment.reason not in reader.lost.values():
                losses.note(f"{directory}, segment at {segment.base}", segment.reason)
            archive = archives.get(segment.base) if segment.state == "archived" else None
            yield from (_part(ring, archive) for ring in segment.rings if ring.end_offset > ring.first_offset)


def _by_base(archive: Archive) -> dict[int, ArchiveFile]:
    return {file.base: file for file in archive.all()}


def _part(ring: RingInfo, archive: ArchiveFile | None) -> Part:
    times = ring.first_timestamp_ns, ring.last_timestamp_ns
    span = ring.first_offset, ring.end_offset
    return Part(ring.name, ring.epoch, *span, *times, ring.records, None, archive)


def _in_rings(runtime_dir: Path, losses: QueryLosses) -> Iterator[Part]:
    for file in sorted(runtime_dir.glob("*.ring")) if runtime_dir.is_dir() else ():
        path = file.with_suffix("")
        try:
            with Ring.attach(path) as ring:
                if offsets := visible_offsets(ring):
                    yield Part(path.name, ring.epoch, offsets.start, offsets.stop, path=path)
        except FileNotFoundError:
            continue
        except (RingError, OSError) as error:
            losses.note(f"ring {file}", str(error))


def _check_names(scope: QueryScope, rings: Sequence[str]) -> None:
    streams = sorted({stream_of(ring) for ring in rings} - {""})
    for kind, names, known in (("stream", scope.streams, streams), ("ring", scope.rings, rings)):
        if unknown := [name for name in names if name not in known]:
            hint = f"rings and log have {', '.join(known)}" if known else "rings and log have no records"
            raise EdgeError(f"{kind} {unknown[0]!r} does not exist", hint=hint)


def _without_repetition(
    parts: Iterable[Part],
    scope: QueryScope,
    after: Ends,
    ends: dict[tuple[str, int], int],
    losses: QueryLosses,
) -> tuple[list[Part], set[int]]:
    """The parts without records of an earlier part, and the archives of which only a part is wanted.

    Updates `ends`, and counts records between two wanted parts of a ring and epoch that no part has.
    """
    chosen: list[Part] = []
    clipped: set[int] = set()
    for part in parts:
        begin = max(ends.get(part.key, 0), after.get(part.key, 0))
        gap = part.first_offset - begin if part.key in ends else 0
        ends[part.key] = max(part.end_offset, ends.get(part.key, 0), after.get(part.key, 0))
        if begin > part.first_offset and part.archive is not None:
            clipped.add(id(part.archive))
        if part.end_offset <= begin or not scope.overlaps(part.earliest_ns, part.latest_ns):
            continue
        losses.count(max(gap, 0))
        known = part.records if begin <= part.first_offset else -1
        chosen.append(part._replace(first_offset=max(part.first_offset, begin), records=known))
    return chosen, clipped


def _inner_gap(part: Part) -> int:
    return max(part.end_offset - part.first_offset - part.records, 0) if part.records >= 0 else 0


def _intact(archives: Sequence[ArchiveFile], topics: Collection[str]) -> dict[int, ArchiveFile | None]:
    """Archives that need no other reader, by identity; None: intact, and without any of the topics."""
    exact = [] if any(map(has_wildcard, topics)) else [topic.encode() for topic in topics]

    def checked(archive: ArchiveFile) -> bool | None:
        if any(group.verbatim for group in archive.catalogue.groups):
            return False
        try:
            with archive.opened() as handle:
                if exact and not any(archive.may_have_topic(handle, topic) for topic in exact):
                    return None
                return archive.is_intact(handle)
        except (FormatError, OSError):
            return False

    with ThreadPoolExecutor(thread_name_prefix="brim-sql") as pool:
        verdicts = zip(archives, pool.map(checked, archives), strict=True)
        return {
            id(archive): None if verdict is None else archive
            for archive, verdict in verdicts
            if verdict is not False
        }
