"""Damage of one file of a broker's state, and what may follow from it.

A DamagedState makes its base once (state_base.py) and keeps an image of it.  Each case copies the image to
the place where it was made, damages one file of one kind, lets a broker live on it (state_life.py), and
compares what users saw with what the broker had been given:

    it starts and serves; nothing is false; what is lost was hit; what is lost is reported

What was hit are the messages whose record has a byte in the damaged part of the file.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from persistence.archive import ArchiveFile, archive_segment
from persistence.files import OsFiles
from persistence.segment.footer import FOOTER_MAGIC
from persistence.segment.format import EXTENT_HEADER_BYTES, HEADER_PAGE_BYTES, segment_name, unpack_extent
from ringbuf.constants import HEADER_BYTES
from tests.support.archives import ends_of
from tests.support.state_base import READERS, RINGS, Base, Ending, make_base, says_the_truth
from tests.support.state_life import LAST, Seen, live

Pair = tuple[str, bytes]

KINDS: dict[str, tuple[str, ...]] = {
    "ring": ("run/memory-0.ring", "run/lazy-0.ring", "run/safe-0.ring"),
    "cursors": ("run/*.cursors",),
    "epochs": ("state/epochs", "state/epochs.copy"),
    "installation": ("state/installation", "state/installation.copy", "run/installation"),
    "segments": ("state/log/*.log",),
    "footers": ("state/log/*.log",),
    "archives": ("state/log/*.parquet",),
    "session snapshot": ("state/sessions.state*",),
    "session journal": ("run/sessions.ring", "state/log/sessions/*.log"),
    "spill file": ("run/sessions.spill",),
    "retained store": ("state/retained.state",),
    "offsets": ("state/consumers/offsets",),
    "bridge checkpoint": ("state/bridge/lake.checkpoint",),
    "log checkpoint": ("state/log/checkpoint", "state/log/sessions/checkpoint"),
}

DAMAGES = {  # how, and how often
    "bit": 25,
    "byte": 15,
    "zeros": 15,
    "block": 15,
    "cut": 10,
    "empty": 5,
    "grown": 10,
    "removed": 5,
}
ROW_GROUP_BYTES = 32 << 10
STOPS, LIVES_AGAIN = 0.2, 0.1  # shares of the cases
ZEROS_MAX, BLOCK_BYTES, GROWTH_MAX, PAGE_BYTES = 4096, 512, 20_000, 4096
HEADER_MAX = 100  # before a payload: headers of its record and, alone in a run, of the extent; its topic
COPY_MAX, NAME_MAX = 136, 16  # in the spill file: before a payload, with the header of the copy; behind it


class Hit(NamedTuple):
    """A part of a file."""

    path: Path
    begin: int
    end: int


class _Archived(NamedTuple):
    """A part of an archive, and the records that cannot be read if it is damaged."""

    begin: int
    end: int
    records: bytes


@dataclass
class Case:
    """One damage, and what was wrong."""

    kind: str
    damage: str
    text: str
    wrong: list[str]
    lost: int  # messages, and a place of the consumer group
    reported: bool  # by a log line or the status
    seen: Seen


class DamagedState:
    """A base, damaged again and again.  A context manager: directories of its own below `directory`."""

    def __init__(self, directory: Path, ending: Ending) -> None:
        self._place = directory / f"{ending}-place"
        self._image = directory / f"{ending}-image"
        self._place.mkdir(mode=0o750)
        self.base: Base = make_base(self._place, ending)
        self._place.rename(self._image)
        messages = [*self.base.perhaps, *(it for its in self.base.sent.values() for it in its)]
        self._published = frozenset((it.topic, it.payload) for it in messages)
        logs = b"".join(it.read_bytes() for it in sorted(self._image.glob("state/log/*.log")))
        self._logged = frozenset(it for it in self._published if it[1] in logs)
        self._last = frozenset((it.topic, it.payload) for it in self.base.hurried)
        self._held: frozenset[Pair] = frozenset()  # what readers find in the ring without a log
        self._whole = self._live(stops=True)
        self._held = frozenset(self._whole.rings["memory-0"]) & self._published
        if wrong := self._wrong(self._whole, _Permitted()):
            raise AssertionError(f"without damage: {wrong}: {self._whole.trouble} {self._whole.lines}")

    def try_one(self, kind: str, seed: str) -> Case:
        """One case of that kind; the same seed is the same damage to the same layout."""
        rng = Random(f"{kind} {seed}")
        self._copy()
        archived = self._archive(rng) if kind == "archives" else []
        try:
            files = sorted(it for glob in KINDS[kind] for it in self._place.glob(glob))
            if kind == "footers":
                files = [it for it in files if FOOTER_MAGIC in it.read_bytes()]
            assert files, f"no file of kind {kind} after {self.base.ending}"
            path = rng.choice(files)
            first = path.read_bytes().rfind(FOOTER_MAGIC) if kind == "footers" else 0
            choices = {
                name: it for name, it in DAMAGES.items() if first == 0 or name not in ("empty", "removed")
            }
            damage = rng.choices([*choices], [*choices.values()])[0]
            hit = self._damage(path, damage, first, rng)
            permitted = self._permitted(kind, damage, hit) if not archived else self._archived(archived, hit)
            text = f"{kind} {seed}: {damage} of {path.relative_to(self._place)} at {hit.begin} to {hit.end}"
            seen = live(self._place, len(self.base.retained), stops=rng.random() < STOPS)
            wrong = self._wrong(seen, permitted)
            if rng.random() < LIVES_AGAIN:
                again = live(self._place, 0, stops=False)
                wrong += [f"in the next life: {it}" for it in (*again.trouble, *self._is_true(again))]
        finally:
            shutil.rmtree(self._place)
        wrong = [f"{text}: {it}" for it in wrong]
        lost = sum(map(len, self._lost(seen).values())) + (seen.floor < self.base.committed)
        return Case(kind, damage, text, wrong, lost, bool(seen.lines or seen.lost), seen)

    def _copy(self) -> None:
        shutil.copytree(self._image, self._place)

    def _archive(self, rng: Random) -> list[_Archived]:
        """Archive a sealed segment; the parts of the new file with their records."""
        files, directory = OsFiles(), str(self._place / "state/log")
        ends = ends_of(files, directory)
        base = rng.choice(sorted(ends)[:-1])
        archive_segment(files, directory, base, ends[base], group_bytes=ROW_GROUP_BYTES)
        (self._place / "state/log" / segment_name(base)).unlink()
        archive = ArchiveFile.open(files, directory, base)
        parts = []
        with archive.opened() as handle:
            for index, group in enumerate(archive.catalogue.groups):
                records = archive.records(handle, index)
                assert records is not None
                parts.append(_Archived(group.place, group.place + group.length, bytes(records.view)))
        footer = _Archived(parts[-1].end, archive.size + 1, b"".join(it.records for it in parts))
        return [*parts, footer]

    def _live(self, *, stops: bool) -> Seen:
        self._copy()
        try:
            return live(self._place, len(self.base.retained), stops=stops)
        finally:
            shutil.rmtree(self._place)

    # ---- damage ----

    def _damage(self, path: Path, damage: str, first: int, rng: Random) -> Hit:
        data = bytearray(path.read_bytes())
        begin, end = self._place_in(data, first, rng), len(data)
        if damage == "removed":
            path.unlink()
            return Hit(path, 0, end)
        if damage == "grown":
            data += rng.randbytes(rng.randrange(1, GROWTH_MAX))
            begin = end
        elif damage in ("cut", "empty"):
            begin = begin if damage == "cut" else 0
            del data[begin:]
        else:
            begin, end = _changed(data, begin, damage, rng)
        path.write_bytes(data)
        return Hit(path, begin, end)

    def _place_in(self, data: bytearray, first: int, rng: Random) -> int:
        """Mostly where there is something."""
        pages = [at for at in range(first, len(data), PAGE_BYTES) if any(data[at : at + PAGE_BYTES])]
        if not pages or rng.random() < 0.1:
            return rng.randrange(first, len(data))
        page = rng.choice(pages)
        return rng.randrange(page, min(page + PAGE_BYTES, len(data)))

    # ---- what may follow ----

    def _permitted(self, kind: str, damage: str, hit: Hit) -> _Permitted:
        image = self._image / hit.path.relative_to(self._place)
        margins = (COPY_MAX, NAME_MAX) if kind == "spill file" else (HEADER_MAX, 0)
        messages = frozenset(self._hit(image.read_bytes(), hit, *margins))
        if kind == "ring":
            if not hit.path.exists() or hit.path.stat().st_size < HEADER_BYTES:
                messages = frozenset((it.topic, it.payload) for it in self.base.sent[hit.path.stem])
                if hit.path.stem == "memory-0":  # the spill file has the others
                    messages = self._held
            return _Permitted(messages=messages - self._logged)
        if kind == "session journal" and self.base.ending == "busy":
            return _Permitted(messages=self._last)
        if kind == "segments":
            return _Permitted(messages=messages | self._last_of_rings(hit))
        if kind in ("retained store", "spill file"):
            return _Permitted(messages=messages)
        if kind == "offsets":
            return _Permitted(offsets=True, silent=damage in ("removed", "cut"))  # as if it was never there
        return _Permitted()

    def _archived(self, parts: list[_Archived], hit: Hit) -> _Permitted:
        records = b"".join(it.records for it in parts if it.begin < hit.end and hit.begin < it.end)
        return _Permitted(messages=frozenset(it for it in self._published if it[1] in records))

    def _last_of_rings(self, hit: Hit) -> set[Pair]:
        """Messages in the last extents of each ring in that segment, and of each round of a ring, if the
        damage has hit their headers.

        The header names the ring; without it, only the ring's next extent shows whose records these are, and
        where they stood.
        """
        image = self._image / hit.path.relative_to(self._place)
        base = int(image.stem)
        following = [it for it in (int(path.stem) for path in image.parent.glob("*.log")) if it > base]
        data = image.read_bytes()[: min(following) - base if following else None]
        last: dict[int, tuple[int, int]] = {}
        lasts: list[tuple[int, int]] = []
        place = HEADER_PAGE_BYTES
        while place + EXTENT_HEADER_BYTES <= len(data) and (header := unpack_extent(data, place)).length:
            end = place + EXTENT_HEADER_BYTES + header.length
            if header.ring_position % PAGE_BYTES == 0 and header.ring_id in last:
                lasts.append(last[header.ring_id])
            last[header.ring_id] = place, end
            place = end
        parts = [
            Hit(hit.path, *it)
            for it in (*lasts, *last.values())
            if it[0] < hit.end and hit.begin < it[0] + EXTENT_HEADER_BYTES
        ]
        return {it for part in parts for it in self._hit(data, part, 0, 0)}

    def _hit(self, data: bytes, hit: Hit, before: int, behind: int) -> Iterator[Pair]:
        """Messages of which the damaged part has a byte, or one that close."""
        for topic, payload in self._published:
            at = data.find(payload)
            while at >= 0:
                if at - before < hit.end and hit.begin < at + len(payload) + behind:
                    yield topic, payload
                at = data.find(payload, at + 1)

    # ---- what was seen ----

    def _lost(self, seen: Seen) -> dict[str, set[Pair]]:
        """Messages that should have been seen, by where."""
        base = self.base
        lost: dict[str, set[Pair]] = {}
        for name in READERS:
            wanted = {(it.topic, it.payload) for it in base.waiting[name]}
            lost[f"queue of {name}"] = wanted - set(seen.delivered.get(name, ()))
        lost["in flight"] = {(it.topic, it.payload) for it in base.in_flight} - set(
            seen.delivered.get("flight", ())
        )
        lost["retained"] = set(base.retained.items()) - set(seen.retained.items())
        for name in RINGS[1:]:
            lost[f"log of {name}"] = {(it.topic, it.payload) for it in base.sent[name]} - set(
                seen.logs.get(name, ())
            )
        lost["ring memory-0"] = set(self._held - set(seen.rings.get("memory-0", ())))
        return {where: messages for where, messages in lost.items() if messages}

    def _wrong(self, seen: Seen, permitted: _Permitted) -> list[str]:
        found = [*seen.trouble, *self._is_true(seen)]
        found += [*self._lost_more(seen, permitted), *self._goes_back(seen, permitted)]
        has_lost = bool(self._lost(seen)) or (seen.floor < self.base.committed and not permitted.silent)
        if has_lost and not seen.lines and not seen.lost:
            found.append("lost something and reported nothing")
        return found

    def _is_true(self, seen: Seen) -> Iterable[str]:
        shown = [*seen.delivered.values(), seen.retained.items(), *seen.rings.values(), *seen.logs.values()]
        for topic, payload in (it for its in shown for it in its):
            known = (topic, payload) in self._published or _is_of_users(topic, payload)
            if not known or not says_the_truth(topic, payload):
                yield f"false: {topic} {payload[:40]!r}"
        for message, times in Counter(seen.delivered.get("flight", ())).items():
            if times > 1:
                yield f"doubled at QoS 2: {message[0]} {message[1][:20]!r}"
        for place in seen.drained:
            yield f"drained twice: {place}"

    def _lost_more(self, seen: Seen, permitted: _Permitted) -> Iterable[str]:
        for where, messages in self._lost(seen).items():
            if more := messages - permitted.messages:
                yield f"lost {len(more)} of {where} that were not hit"
        for name in {*READERS, "flight", "publisher"} - set(seen.present):
            if not permitted.sessions:
                yield f"lost session {name}"
        for line in seen.lines:
            if line.startswith("USER") and not permitted.sessions:
                yield line

    def _goes_back(self, seen: Seen, permitted: _Permitted) -> Iterable[str]:
        """Epochs only rise, and a group is nowhere ahead of what it has done."""
        if not hasattr(self, "_whole"):
            return
        for name, epoch in seen.epochs.items():
            if epoch < self._whole.epochs[name]:
                yield f"epoch of {name} went back from {self._whole.epochs[name]} to {epoch}"
        if seen.floor != self.base.committed and not (permitted.offsets and seen.floor < self.base.committed):
            yield f"the group was at {self.base.committed} and is at {seen.floor}"


class _Permitted(NamedTuple):
    """Permitted losses of a damage."""

    messages: frozenset[Pair] = frozenset()
    sessions: bool = False
    offsets: bool = False
    silent: bool = False  # where nothing is left that could show it


def _is_of_users(topic: str, payload: bytes) -> bool:
    """True if a user of this life has published it."""
    number = payload.split(b" ", 2)[1:2]
    return (topic.endswith("/p") and number == [b"0"]) or number == [b"%d" % LAST]


def _changed(data: bytearray, begin: int, damage: str, rng: Random) -> tuple[int, int]:
    """Change a part of the data in place."""
    if damage == "block":
        begin -= begin % BLOCK_BYTES
        end = min(begin + BLOCK_BYTES, len(data))
        data[begin:end] = rng.randbytes(end - begin)
    elif damage == "zeros":
        end = min(begin + rng.randrange(1, ZEROS_MAX), len(data))
        data[begin:end] = bytes(end - begin)
    else:
        end = begin + 1
        data[begin] ^= 1 << rng.randrange(8) if damage == "bit" else rng.randrange(1, 256)
    return begin, end
