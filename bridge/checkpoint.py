"""How far a sink has got: the file that a drain owns, and all that it owns.

One file for each sink of an edge, written whole: to NAME.tmp, synced, renamed over NAME, and the directory
synced.  NAME.lock, an flock, keeps two drains from working with it at once.  Little-endian:

    byte  size  field
       0     8  magic            "BRIMCKPT"
       8     4  version          VERSION
      12     4  length           of the body
      16     4  crc32            zlib's, of bytes 0 .. 16 and the body
      20    12  zeros
      32        body             msgpack map:
                  edge, sink     whose it is
                  drain_seq      the highest number of a unit that the sink has, and all decided on before it
                  day            YYYY-MM-DD, the dt in its name; "" before the first
                  cursors        [[stream, partition, epoch, epoch_first_offset, accounted_offset,
                                 next_offset, previous, ahead, owed, and where one is not empty
                                 earlier_lost, earlier_skipped], ...]: how far each partition has been
                                 drained (bridge/cursor.py)
                  intents        the units under way, each as a map of its fields, in the order in which they
                                 were decided on
                  losses         [[stream, partition, lost_by, skipped_records, lost, skipped, lost_ranges,
                                 skipped_ranges], ...]: records that no file will ever hold
                                 (bridge/losses.py); left out where there are none
                  streams        streams, and producers as "stream@producer", that this bridge has had to
                                 drain; left out where it is not known
                  free           numbers of units that were given up: the next ones take them
                  paused         whether somebody has said so

Order of things, which makes at-least-once puts exactly-once files:

    begin(intents)  saved before the sink hears of the units.  A crash from here on finds the intents, builds
                    the same units again, and puts them under the same names
    finish()        when the sink has a unit and all before it: drain_seq and cursor move, the intent is gone.
                    Saved with the next begin() or by save(): what a crash forgets is put again, and is there

For a sink that cannot tell what it has, nothing is begun, and save() alone counts.

A damaged file is put aside as NAME.damaged and taken for none: what the sink holds says how far it has got.
A log's, which has the same magic (persistence/checkpoint.py), is refused and stays where it is; so is one of
a later VERSION whose checksum holds: taken for none, all would be sent again to whoever keeps records singly.

Rule for change: keys may be added; any other change raises VERSION, and versions before are still read.  The
32 bytes in front of the body, and what the checksum is of, are the same in every version.
Version 1 had one unit under way, as "intent", and cursors without ahead and owed.  Versions 1 and 2 had
epochs of 32 bits, as rings have them; since version 3 they are those of the lake (bridge/installation.py).
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack

from bridge.cursor import Cursor
from bridge.errors import CheckpointBusy, CheckpointError, CheckpointForeign, CheckpointNewer
from bridge.losses import Losses
from bridge.unit import Intent
from persistence.checkpoint import is_checkpoint
from persistence.files import Files, OsFiles

__all__ = ["Checkpoint", "cursors_in", "foreign_remedy", "streams_in"]

log = logging.getLogger(__name__)

MAGIC = b"BRIMCKPT"
VERSION = 3
OTHER_PLACE = (
    "to drain to another place from the start, give the bridge another name; to forget how far it was, "
    "remove this file"
)
MAX_BYTES = 16 << 20  # 100 bytes a partition: far above what one edge has

_HEADER = struct.Struct("<8sII")
_CRC = struct.Struct("<I12x")


@dataclass
class Checkpoint:
    """The state in memory.  Made by open(); belongs to one thread."""

    path: Path
    edge: str
    sink: str
    files: Files
    drain_seq: int = 0
    day: str = ""
    cursors: dict[tuple[str, int], Cursor] = field(default_factory=dict)
    losses: dict[tuple[str, int], Losses] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    streams: tuple[str, ...] = ()
    paused: bool = False
    fresh: bool = True  # nothing has been saved yet: the sink may know better
    saved: bool = True  # the file says what is here
    _lock: int = -1

    @classmethod
    def open(cls, path: Path, edge: str, sink: str, files: Files | None = None) -> Checkpoint:
        """The checkpoint at `path`, locked until close(); a new one if there is none.

        Raises CheckpointBusy, CheckpointForeign, CheckpointNewer, CheckpointError (its directory cannot be
        used).
        """
        files = files or OsFiles()
        checkpoint = cls(path, edge, sink, files)
        try:
            files.makedirs(str(path.parent))
            checkpoint._lock = files.lock(f"{path}.lock")
        except BlockingIOError as error:
            raise CheckpointBusy(
                f"{path}: another drain works with it", hint="stop that one, or give this bridge its own name"
            ) from error
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            checkpoint._load()
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    @classmethod
    def peek(cls, path: Path) -> Checkpoint | None:
        """The checkpoint at `path` as it is now, of whatever edge and sink; somebody may be working with it.

        None: there is none, or none that can be read.  Never to be saved.
        """
        checkpoint = cls(path, "", "", OsFiles())
        try:
            found = _unpack(checkpoint._read())
            checkpoint._take(found)
            checkpoint.edge, checkpoint.sink = found["edge"], found["sink"]
        except (OSError, ValueError, TypeError, KeyError, msgpack.UnpackException):
            return None
        return checkpoint

    def close(self) -> None:
        """Give the lock back.  May be called twice."""
        if self._lock >= 0:
            self.files.close(self._lock)
            self._lock = -1

    def number(self, begun: Sequence[Intent] = ()) -> int:
        """For the unit that is decided on next, after those under way and `begun`."""
        taken = {intent.drain_seq for intent in begun}
        for number in self.free:
            if number not in taken:
                return number
        return max([self.drain_seq, *taken, *(intent.drain_seq for intent in self.intents)]) + 1

    def begin(self, intents: Sequence[Intent], *, saved: bool = True) -> None:
        """These units are under way, and the file says so.  Raises CheckpointError: they are not."""
        before = self.intents, self.free
        self.intents = [*self.intents, *intents]
        numbers = {intent.drain_seq for intent in intents}
        self.free = [number for number in self.free if number not in numbers]
        if saved:
            try:
                self.save()
            except CheckpointError:
                self.intents, self.free = before
                raise

    def finish(self) -> None:
        """The sink has the first unit under way."""
        intent = self.intents[0]
        key = intent.stream, intent.partition
        known = self.losses.get(key, Losses())
        if (losses := known.after(intent)) is not known:
            self.losses[key] = losses
        self._account_for_first()

    def _account_for_first(self) -> None:
        """The first unit under way is not under way any more; its cursor moves behind it."""
        intent = self.intents.pop(0)
        key = intent.stream, intent.partition
        known = self.cursors.get(key)
        if known is None or known.epoch != intent.epoch:
            first = intent.epoch_first_offset
            known = Cursor(*key, intent.epoch, first, first, intent.first_offset)
        self.cursors[key] = known.after(intent)
        if intent.drain_seq > self.drain_seq:
            self.drain_seq, self.day = intent.drain_seq, intent.name(self.edge).day
        self.saved = False

    def give_up(self) -> None:
        """The first unit under way will never be: its records are gone, and the sink has not got it.

        The next unit of its partition declares them, and the next of all takes its number.
        """
        intent = self.intents[0]
        key = intent.stream, intent.partition
        self._account_for_first()
        cursor = self.cursors[key]
        self.cursors[key] = replace(
            cursor,
            owed=(*cursor.owed, *intent.lost, (intent.first_offset, intent.last_offset)),
            previous=intent.previous,
            earlier_lost=(*intent.earlier_lost, *cursor.earlier_lost),
            earlier_skipped=(*intent.earlier_skipped, *cursor.earlier_skipped),
        )
        self.free = sorted([*self.free, intent.drain_seq])

    def abandon(self) -> None:
        """No unit is under way any more; what was not finished will be decided on anew."""
        self.intents = []

    def move(self, cursor: Cursor) -> None:
        """Set where a partition stands.  Kept with the next save: what it says can be found out again."""
        self.cursors[cursor.stream, cursor.partition] = cursor
        self.saved = False

    def save(self) -> None:
        """What is here is on the disk.  Raises CheckpointError."""
        try:
            self._write(self._pack())
        except OSError as error:
            raise _unusable(self.path, error) from error
        self.fresh, self.saved = False, True

    def _write(self, data: bytes) -> None:
        """Replace the file.  A second name, because a rename shows all of it or nothing."""
        temporary = f"{self.path}.tmp"
        handle = self.files.open(temporary, create=True)
        try:
            self.files.ftruncate(handle, 0)
            at = 0
            while at < len(data):
                at += self.files.pwritev(handle, [data[at:]], at)
            self.files.fdatasync(handle)
        finally:
            self.files.close(handle)
        self.files.rename(temporary, str(self.path))
        self.files.dirsync(str(self.path.parent))

    def _pack(self) -> bytes:
        losses = [(*key, *it.pack()) for key, it in self.losses.items()]
        body: bytes = msgpack.packb(
            {
                "edge": self.edge,
                "sink": self.sink,
                "drain_seq": self.drain_seq,
                "day": self.day,
                "cursors": [_fields(cursor) for cursor in self.cursors.values()],
                "intents": [_map(intent) for intent in self.intents],
                "free": self.free,
                "paused": self.paused,
                **({"losses": losses} if losses else {}),
                **({"streams": self.streams} if self.streams else {}),
            }
        )
        head = _HEADER.pack(MAGIC, VERSION, len(body))
        return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body

    def _load(self) -> None:
        try:
            data = self._read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(self.path, error) from error
        if is_checkpoint(data):
            raise CheckpointForeign(
                f"{self.path}: it is the checkpoint of a log, not of a bridge",
                hint="put it back into the directory of that log; a bridge's is made anew when it is missing",
            )
        if (version := _version(data)) > VERSION:
            raise CheckpointNewer(
                f"{self.path}: version {version}, and this Brim reads up to {VERSION}",
                hint="run the Brim that wrote it, or a later one; to begin anew, which sends what the log "
                "has to Kafka or MQTT again, move this file away",
            )
        try:
            found = _unpack(data)
            self._take(found)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            log.error("checkpoint damaged, put aside path=%s.damaged reason=%r", self.path, error)
            self.files.rename(str(self.path), f"{self.path}.damaged")
            return
        if found["sink"] != self.sink or found["edge"] != self.edge:
            raise CheckpointForeign(
                f"{self.path}: it is of edge {found['edge']!r} and sink {found['sink']}, "
                f"not of {self.edge!r} and {self.sink}",
                hint=foreign_remedy(found["edge"], self.edge) if found["sink"] == self.sink else OTHER_PLACE,
            )

    def _take(self, found: dict[str, Any]) -> None:
        """Take all but edge and sink.  Raises ValueError, TypeError, KeyError: nothing is taken."""
        cursors = [Cursor(*fields) for fields in found["cursors"]]
        intents = [Intent(**fields) for fields in found["intents"]]
        free, paused = list(found["free"]), bool(found["paused"])
        streams = tuple(found.get("streams", ()))
        losses = {(stream, partition): Losses(*it) for stream, partition, *it in found.get("losses", ())}
        self.drain_seq, self.day, self.fresh = found["drain_seq"], found["day"], False
        self.intents, self.free, self.paused, self.losses = intents, free, paused, losses
        self.streams = streams
        self.cursors = {(cursor.stream, cursor.partition): cursor for cursor in cursors}

    def _read(self) -> bytes:
        handle = self.files.open(str(self.path))
        try:
            return self.files.read(handle, min(self.files.size(handle), MAX_BYTES), 0)
        finally:
            self.files.close(handle)


def _fields(cursor: Cursor) -> tuple[Any, ...]:
    """Its values in their order, without the last two where both are empty."""
    values = dataclasses.astuple(cursor)
    return values if any(values[-2:]) else values[:-2]


def _map(intent: Intent) -> dict[str, Any]:
    """Its fields, without those of earlier epochs, of causes and the installation where there are none."""
    seldom = {"earlier_lost", "earlier_skipped", "damaged", "logged", "installation"}
    return {key: it for key, it in dataclasses.asdict(intent).items() if it or key not in seldom}


def foreign_remedy(old: str, new: str) -> str:
    """The remedy for a checkpoint of edge `old` where the configuration has `new`."""
    return (
        f"to go on under the new name, run `brim bridge rename-edge {old} {new} --config FILE`; to keep the "
        f'old one, set edge_id = "{old}"'
    )


def streams_in(path: Path) -> frozenset[str]:
    """Streams that the bridge of a checkpoint has had to drain; none: it is not known."""
    found = Checkpoint.peek(path)
    return (
        frozenset() if found is None else frozenset(found.streams or (stream for stream, _ in found.cursors))
    )


def cursors_in(path: Path) -> list[Cursor] | None:
    """How far each partition has been drained, by a checkpoint that somebody else may be working with.

    None: there is none, or none that can be read.
    """
    found = Checkpoint.peek(path)
    return None if found is None else list(found.cursors.values())


def _version(data: bytes) -> int:
    """That of a checkpoint of a bridge, whose checksum holds; else 0."""
    try:
        return _verified(data)[0]
    except ValueError:
        return 0


def _verified(data: bytes) -> tuple[int, bytes]:
    """Version and body.  Raises ValueError: damage."""
    body = data[_HEADER.size + _CRC.size :]
    if len(data) < _HEADER.size + _CRC.size:
        raise ValueError(f"{len(data)} bytes")
    magic, version, length = _HEADER.unpack_from(data)
    if (magic, length) != (MAGIC, len(body)):
        raise ValueError(f"magic {magic!r}, {length} of {len(body)} bytes")
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(body, zlib.crc32(data[: _HEADER.size])):
        raise ValueError("the checksum does not hold")
    return version, body


def _unpack(data: bytes) -> dict[str, Any]:
    """The body.  Raises ValueError: damage, or another version."""
    version, body = _verified(data)
    if version not in {1, 2, VERSION}:
        raise ValueError(f"version {version}")
    found = msgpack.unpackb(body, use_list=False)
    if not isinstance(found, dict):
        raise TypeError(f"a body of {type(found).__name__}")
    if version == 1:
        found |= {"intents": [found["intent"]] if found["intent"] else [], "free": [], "paused": False}
    return found


def _unusable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{error.filename or path}: {error.strerror}",
        hint="make room on that disk, and let the user that runs the bridge write there",
    )
