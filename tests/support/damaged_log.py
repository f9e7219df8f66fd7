"""A small log, whole and closed, and its losses when a bit flips or a file is cut short.

Half of the logs have archives of their first segments.  The records of each byte are known before, and so are
the records that may be lost with it: of an archive those of a row group, or all if the footer is damaged.
"""

from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import NamedTuple

from persistence.archive import ARCHIVE_SUFFIX, ArchiveFile, archive_segment
from persistence.segment.format import EXTENT_HEADER_BYTES, HEADER_PAGE_BYTES, segment_name, unpack_extent
from ringbuf.record import span
from tests.support.archives import ends_of
from tests.support.logs import DIRECTORY, Written, read_all, recovered
from tests.support.simfiles import SimFiles

SEGMENT_BYTES = 9216
IN_PLACE_BYTES = 4500
GROUP_BYTES = 1024  # of an archive
ROUNDS = 9

Record = tuple[str, int, int]  # ring, epoch, offset


class LostTooMuch(AssertionError):
    """More than the damaged record is gone, or a record is read that was never written."""


class Room(NamedTuple):
    """Place of a record, with all bytes that must be intact for reading it."""

    path: str
    begin: int
    end: int
    record: Record
    run_end: int  # of the extent: what is behind it may be the proof that it was on the disk


class DamagedLog:
    """A log of some small segments: runs of all sizes, epochs that change, a record filled in place."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.written = self._write()
        disk = self.written.files
        self.paths = [name for name, data, _ in disk.contents() if data and name.startswith(DIRECTORY)]
        sizes = [len(disk.names[path].cache) for path in self.paths]
        self._ends = list(accumulate(sizes))
        self._rooms = self._find()
        if self._lost(disk.kill()):
            raise LostTooMuch(f"seed {seed}: records are lost before anything is damaged")

    def _write(self) -> Written:
        written = Written.empty(self.seed, segment_bytes=SEGMENT_BYTES)
        epochs = {"a-0": 7, "b-0": 7}
        in_place = self.random.randrange(ROUNDS)
        for step in range(ROUNDS):
            for name, epoch in epochs.items():
                epochs[name] = epoch + (self.random.random() < 0.1)
                sizes = self.random.choices((0, 1, 40, 150), k=self.random.randrange(1, 5))
                written.add(name, epochs[name], [self.random.randbytes(size) for size in sizes])
            if step == in_place:
                written.add_in_place("a-0", epochs["a-0"], self.random.randbytes(IN_PLACE_BYTES))
            written.sync()
            written.log.run_maintenance()
        written.log.close()
        self._archive(written.files)
        return written

    def _archive(self, files: SimFiles) -> None:
        ends = ends_of(files)
        for base in sorted(ends)[: self.random.choice((0, 0, 1, len(ends) - 1))]:
            archive_segment(files, DIRECTORY, base, ends[base], group_bytes=GROUP_BYTES)
            files.unlink(f"{DIRECTORY}/{segment_name(base)}")
            files.dirsync(DIRECTORY)

    def _find(self) -> list[Room]:
        """Of every record.  The payloads are random, so bytes tell which is which."""
        rooms = [it for path in self.paths if path.endswith(ARCHIVE_SUFFIX) for it in self._archived(path)]
        for (name, epoch), its in self.written.records.items():
            for offset, data in its.items():
                for path in self.paths:
                    at = bytes(self.written.files.names[path].cache).find(data)
                    if path.endswith(".log") and at >= 0:
                        alone = EXTENT_HEADER_BYTES if len(data) > IN_PLACE_BYTES else 0
                        end = span(at + len(data))
                        run_end = next(it for it in self._run_ends(path) if it >= end)
                        rooms.append(Room(path, at - alone, end, (name, epoch, offset), run_end))
        return rooms

    def _archived(self, path: str) -> Iterator[Room]:
        """Of the records of an archive: each is in its row group, and in the footer."""
        archive = ArchiveFile.at(self.written.files, path)
        groups = archive.catalogue.groups
        footer = max(it.place + it.length for it in groups)
        for group in groups:
            for offset in self.written.records[group.ring, group.epoch]:
                if group.first_offset <= offset < group.end_offset:
                    for begin, end in ((group.place, group.place + group.length), (footer, archive.size)):
                        yield Room(path, begin, end, (group.ring, group.epoch, offset), archive.size)

    def _run_ends(self, path: str) -> Iterator[int]:
        """Of the extents of a whole segment."""
        data = bytes(self.written.files.names[path].cache)
        place = HEADER_PAGE_BYTES
        while place < len(data):
            place += EXTENT_HEADER_BYTES + unpack_extent(data, place).length
            yield place

    # ---- damage ----

    def flip(self) -> None:
        """A random bit of a random byte.  Raises LostTooMuch."""
        byte = self.random.randrange(self._ends[-1])
        index = next(index for index, end in enumerate(self._ends) if byte < end)
        path = self.paths[index]
        at = byte - (self._ends[index - 1] if index else 0)
        bit = self.random.randrange(8)
        files = self.written.files.kill()
        files.flip(path, at * 8 + bit)
        may = {it.record for it in self._rooms if it.path == path and it.begin <= at < it.end}
        self._judge(files, may, f"bit {bit} of byte {at} of {path}")

    def cut(self) -> None:
        """A random file ends at a random place.  Raises LostTooMuch."""
        path = self.random.choice(self.paths)
        files = self.written.files.kill()
        at = self.random.randrange(len(files.names[path].cache))
        for data in (files.names[path].cache, files.names[path].disk):
            del data[at:]
        last = path == max(it for it in self.paths if it.endswith(".log"))
        may = {it.record for it in self._rooms if it.path == path and (it.run_end if last else it.end) > at}
        self._judge(files, may, f"{path} ends at {at}")

    def _judge(self, files: SimFiles, may: set[Record], what: str) -> None:
        try:
            lost = self._lost(files)
        except LostTooMuch as error:
            raise LostTooMuch(f"seed {self.seed}, {what}: {error}") from None
        except Exception as error:
            raise LostTooMuch(f"seed {self.seed}, {what}: the start is refused: {error!r}") from error
        if lost - may:
            raise LostTooMuch(f"seed {self.seed}, {what}: lost {sorted(lost)}, of which {sorted(may)} may be")

    def _lost(self, files: SimFiles) -> set[Record]:
        """Records that a start does not find any more.  Raises LostTooMuch: it finds other records."""
        log, _ = recovered(files, segment_bytes=SEGMENT_BYTES)
        lost: set[Record] = set()
        for (name, epoch), its in self.written.records.items():
            found = read_all(log, name, epoch)
            for offset, data in found.items():
                if its.get(offset) != data:
                    raise LostTooMuch(f"{name} {epoch} {offset} is not what was written")
            lost |= {(name, epoch, offset) for offset in its if offset not in found}
        log.close()
        return lost
