"""Checkpoint: progress of a bridge towards one sink, in the only file that a drain owns.

There is one file for each sink of an edge, in an envelope (persistence/durable_file.py) with the magic
"BRIMCKPT" and zlib's crc32. It is replaced as a whole. NAME.lock, an flock, prevents two drains from using it
at once. The body is a msgpack map:

    edge, sink     the edge id and the URL of the sink
    drain_seq      the highest number N such that the sink has all files up to N
    day            YYYY-MM-DD, the dt in the name of that file; "" before the first
    cursors        [[stream, partition, epoch, epoch_first_offset, accounted_offset,
                   next_offset, previous, ahead, owed, and where one is not empty
                   earlier_lost, earlier_skipped], ...]: progress of each partition
                   (bridge/format/cursor.py)
    skipped        [[stream, partition, ranges], ...]: of a cursor with drained records between
                   accounted_offset and next_offset, the ranges that the next file declares
                   skipped; without it, all of them are skipped
    intents        write intents of the files in flight, each as a map of its fields, in the
                   order in which they were decided
    losses         [[stream, partition, lost_by, skipped_records, lost, skipped, lost_ranges,
                   skipped_ranges], ...]: records that no file will ever hold
                   (bridge/drain/losses.py); absent without losses
    streams        streams, and producers as "stream@producer", that this bridge had to drain;
                   absent if not known
    schemas        {id: text} of the payload schemas of files in flight and of new files; absent if
                   there are none. `payloads` of an intent is one of these ids
    columns        {name: type} of all fields of payload schemas until now; absent if there are none
    free           numbers of files that were given up: the next files take them
    turn           turn at the sink in which all of this was compared with its names
                   (bridge/sinks/lease_holder.py); absent if there was none
    paused         True if an operator has paused the bridge

Order of the steps. It turns at-least-once puts into exactly-once files:

    begin(intents)  saved before the sink gets the files.  After a crash the intents are there: the same files
                    are built again and put under the same names
    finish()        when the sink has a file and all files before it: drain_seq and cursor move, the intent is
                    removed.  Saved with the next begin() or by save().  If a crash loses this step, the file
                    is put again, and found to be there

A sink without names for its records gets no intents; only save() counts.

A damaged file is renamed to NAME.damaged and treated as absent: the sink's content then determines the
progress. A checkpoint of a log, which has the same magic (persistence/segment/clean_shutdown.py), is refused
and stays in place. So is one of a later VERSION with a correct checksum: treated as absent, it would cause
all records to be sent again to a sink that takes records.

Rule for change: keys may be added. Any other change raises VERSION, and earlier versions are still read. The
envelope is the same in every version. Version 1 had one
file in flight, as "intent", and cursors without ahead and owed. Versions 1 and 2 had epochs of 32 bits, as in
rings. Since version 3 they are those of the lake (bridge/format/installation.py).
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from bridge.drain.losses import Losses
from bridge.errors import CheckpointBusy, CheckpointError, CheckpointMismatch, CheckpointNewer
from bridge.format.cursor import Cursor, Spans
from bridge.format.drained_file import as_tuples
from bridge.format.write_intent import WriteIntent
from persistence.durable_file import Envelope, read_file, remedy_of, replace_file
from persistence.files import Files, OsFiles
from persistence.segment.clean_shutdown import is_marker

log = logging.getLogger(__name__)

MAGIC = b"BRIMCKPT"
VERSION = 3
OTHER_PLACE = (
    "to drain to another place from the start, give the bridge another name; to forget how far it was, "
    "remove this file"
)
MAX_BYTES = 16 << 20  # 100 bytes per partition: far above the needs of one edge

ENVELOPE = Envelope(MAGIC, VERSION, zlib.crc32)


@dataclass
class Checkpoint:
    """Progress of a bridge, in memory. Created by open(); belongs to one thread."""

    path: Path
    edge: str
    sink: str
    files: Files
    drain_seq: int = 0
    day: str = ""
    cursors: dict[tuple[str, int], Cursor] = field(default_factory=dict)
    losses: dict[tuple[str, int], Losses] = field(default_factory=dict)
    intents: list[WriteIntent] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    turn: str = ""
    paused: bool = False
    fresh: bool = True  # nothing has been saved yet: the sink may have newer facts
    saved: bool = True  # the file has this state
    _lock: int = -1

    @classmethod
    def open(cls, path: Path, edge: str, sink: str, files: Files | None = None) -> Checkpoint:
        """Open and lock the checkpoint at `path` until close(); create it if it does not exist.

        Raises CheckpointBusy, CheckpointMismatch, CheckpointNewer, CheckpointError (its directory cannot be
        used).
        """
        files = files or OsFiles()
        checkpoint = cls(path, edge, sink, files)
        try:
            files.makedirs(str(path.parent))
            checkpoint._lock = files.lock(f"{path}.lock")
        except BlockingIOError as error:
            raise CheckpointBusy(
                f"{path} is in use by another bridge",
                hint="stop the other one, or give this one another name",
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
        """Read the checkpoint at `path`, of any edge and sink. A bridge may be using it. Never save it.

        Returns None if it does not exist or cannot be read.
        """
        checkpoint = cls(path, "", "", OsFiles())
        try:
            values = _unpack(checkpoint._read())
            checkpoint._take(values)
            checkpoint.edge, checkpoint.sink = values["edge"], values["sink"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return checkpoint

    def close(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock >= 0:
            self.files.close(self._lock)
            self._lock = -1

    def number(self, begun: Sequence[WriteIntent] = ()) -> int:
        """Number of the next file, after those in flight and `begun`."""
        taken = {intent.drain_seq for intent in begun}
        for number in self.free:
            if number not in taken:
                return number
        return max([self.drain_seq, *taken, *(intent.drain_seq for intent in self.intents)]) + 1

    def use_schema(self, schema: tuple[str, str], columns: dict[str, str]) -> None:
        """Use this payload schema, id and text, for new files. It is saved with the next intent."""
        in_flight = {intent.payloads for intent in self.intents}
        kept = {name: text for name, text in self.schemas.items() if name in in_flight}
        self.schemas = kept | ({schema[0]: schema[1]} if schema[0] else {})
        self.columns = columns

    def begin(self, intents: Sequence[WriteIntent], *, saved: bool = True) -> None:
        """Record write intents and save them. Raises CheckpointError: they were not recorded."""
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
        """Complete the first file in flight: the sink has it."""
        intent = self.intents[0]
        key = intent.stream, intent.partition
        known = self.losses.get(key, Losses())
        if (losses := known.after(intent)) is not known:
            self.losses[key] = losses
        self._account_for_first()

    @property
    def settled_to(self) -> int:
        """The highest number such that no file up to it is in flight. Any thread may read it.

        It is below drain_seq while a file in flight has the number of one that was given up.
        """
        return min([self.drain_seq, *(intent.drain_seq - 1 for intent in self.intents)])

    def _account_for_first(self) -> None:
        """Remove the first file in flight, and move its cursor behind it."""
        intent = self.intents.pop(0)
        key = intent.stream, intent.partition
        known = self.cursors.get(key)
        if known is None or known.epoch != intent.epoch:
            first = intent.epoch_first_offset
            known = Cursor(*key, intent.epoch, first, first).passed(intent.first_offset)
        self.cursors[key] = known.after(intent)
        if intent.drain_seq > self.drain_seq:
            self.drain_seq, self.day = intent.drain_seq, intent.name(self.edge).day
        self.saved = False

    def give_up(self) -> None:
        """Give up the first file in flight: its records are gone, and the sink does not have it.

        The next file of its partition declares them, and the next file of all takes its number.
        """
        intent = self.intents[0]
        key = intent.stream, intent.partition
        self._account_for_first()
        cursor = self.cursors[key]
        self.cursors[key] = replace(
            cursor,
            owed=(*cursor.owed, *intent.lost, (intent.first_offset, intent.last_offset)),
            skipped=(*cursor.skipped, *intent.skipped),
            previous=intent.previous,
            earlier_lost=(*intent.earlier_lost, *cursor.earlier_lost),
            earlier_skipped=(*intent.earlier_skipped, *cursor.earlier_skipped),
        )
        self.free = sorted([*self.free, intent.drain_seq])

    def abandon(self) -> None:
        """Drop all write intents; files that were not completed are decided again."""
        self.intents = []

    def move(self, cursor: Cursor) -> None:
        """Set the cursor of a partition. It is saved with the next save: its facts can be found again."""
        self.cursors[cursor.stream, cursor.partition] = cursor
        self.saved = False

    def compared_in(self, turn: str) -> None:
        """Record that in this turn all was compared with the sink. It is saved with the next save."""
        self.turn, self.saved = turn, self.saved and turn == self.turn

    def save(self) -> None:
        """Write this state to the disk. Raises CheckpointError."""
        try:
            replace_file(self.files, str(self.path), [self._pack()])
        except OSError as error:
            raise _unusable(self.path, error) from error
        self.fresh, self.saved = False, True

    def _pack(self) -> bytes:
        losses = [(*key, *loss.pack()) for key, loss in self.losses.items()]
        skipped = [(*key, cursor.skipped) for key, cursor in self.cursors.items() if _split(cursor)]
        body = msgspec.msgpack.encode(
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
                **({"skipped": skipped} if skipped else {}),
                **({"schemas": self.schemas} if self.schemas else {}),
                **({"columns": self.columns} if self.columns else {}),
                **({"streams": self.streams} if self.streams else {}),
                **({"turn": self.turn} if self.turn else {}),
            }
        )
        return ENVELOPE.pack(body)

    def _load(self) -> None:
        try:
            data = self._read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(self.path, error) from error
        if is_marker(data):
            raise CheckpointMismatch(
                f"{self.path} is the checkpoint of a log, not of a bridge",
                hint="put it back into the directory of that log; a bridge creates a missing one",
            )
        if (version := _version(data)) > VERSION:
            raise CheckpointNewer(
                f"{self.path}: version {version}, and this Brim reads up to {VERSION}",
                hint="run the Brim that wrote it, or a later one; or move this file away to begin again: "
                "Kafka and MQTT then get all records of the log again",
            )
        try:
            values = _unpack(data)
            self._take(values)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            log.error("checkpoint damaged, renamed path=%s.damaged reason=%r", self.path, error)
            self.files.rename(str(self.path), f"{self.path}.damaged")
            return
        if values["sink"] != self.sink or values["edge"] != self.edge:
            raise CheckpointMismatch(
                f"{self.path} belongs to edge {values['edge']!r} and sink {values['sink']}, "
                f"not to {self.edge!r} and {self.sink}",
                hint=mismatch_remedy(values["edge"], self.edge)
                if values["sink"] == self.sink
                else OTHER_PLACE,
            )

    def _take(self, values: dict[str, Any]) -> None:
        """Take all but edge and sink. Raises ValueError, TypeError, KeyError: nothing was taken."""
        split = {(stream, partition): ranges for stream, partition, ranges in values.get("skipped", ())}
        cursors = [_cursor(fields, split.get(fields[:2])) for fields in values["cursors"]]
        intents = [WriteIntent(**fields) for fields in values["intents"]]
        free, paused = list(values["free"]), bool(values["paused"])
        streams = tuple(values.get("streams", ()))
        losses = {
            (stream, partition): Losses(*fields) for stream, partition, *fields in values.get("losses", ())
        }
        schemas, columns = dict(values.get("schemas", {})), dict(values.get("columns", {}))
        self.schemas, self.columns = schemas, columns
        self.drain_seq, self.day, self.fresh = values["drain_seq"], values["day"], False
        self.intents, self.free, self.paused, self.losses = intents, free, paused, losses
        self.streams, self.turn = streams, str(values.get("turn", ""))
        self.cursors = {(cursor.stream, cursor.partition): cursor for cursor in cursors}

    def _read(self) -> bytes:
        return read_file(self.files, str(self.path), MAX_BYTES)


def _fields(cursor: Cursor) -> tuple[Any, ...]:
    """Its values in the order of the file, without those of earlier epochs if there are none."""
    values = dataclasses.astuple(cursor)[:-1]
    values = (*values[:4], cursor.accounted_offset, *values[4:])
    return values if any(values[-2:]) else values[:-2]


def _cursor(fields: tuple[Any, ...], skipped: Spans | None) -> Cursor:
    """The cursor with these values of the file, and the ranges that it has to declare skipped."""
    accounted, following = fields[4], fields[5]
    passed = ((accounted, following - 1),) if accounted < following else ()
    cursor = Cursor(*fields[:4], *fields[5:])
    return replace(cursor, skipped=passed if skipped is None else skipped)


def _split(cursor: Cursor) -> bool:
    """True if the records between the offsets of a cursor in the file are not all skipped."""
    return bool(cursor.skipped) and cursor.skipped != ((cursor.accounted_offset, cursor.next_offset - 1),)


def _map(intent: WriteIntent) -> dict[str, Any]:
    """Its fields, without empty fields of earlier epochs, causes and the installation."""
    seldom = {"earlier_lost", "earlier_skipped", "damaged", "logged", "installation", "payloads"}
    return {key: value for key, value in dataclasses.asdict(intent).items() if value or key not in seldom}


def mismatch_remedy(old: str, new: str) -> str:
    """The remedy for a checkpoint of edge `old` where the configuration has `new`."""
    return (
        f"to continue under the new name, run `brim bridge rename-edge {old} {new} --config FILE`; to keep "
        f'the old one, set edge_id = "{old}"'
    )


def streams_in(path: Path) -> frozenset[str]:
    """Streams that the bridge of a checkpoint had to drain; empty: not known."""
    checkpoint = Checkpoint.peek(path)
    return (
        frozenset()
        if checkpoint is None
        else frozenset(checkpoint.streams or (stream for stream, _ in checkpoint.cursors))
    )


def cursors_in(path: Path) -> list[Cursor] | None:
    """Cursors in a checkpoint that a bridge may be using; None: it is absent or unreadable."""
    checkpoint = Checkpoint.peek(path)
    return None if checkpoint is None else list(checkpoint.cursors.values())


def _version(data: bytes) -> int:
    """Version of a bridge's checkpoint with a correct checksum; 0 otherwise."""
    try:
        return ENVELOPE.unpack(data)[0]
    except ValueError:
        return 0


def _unpack(data: bytes) -> dict[str, Any]:
    """The body. Raises ValueError, TypeError, RecursionError: damage, or another version."""
    version, body = ENVELOPE.unpack(data)
    if version not in {1, 2, VERSION}:
        raise ValueError(f"version {version}")
    values = as_tuples(msgspec.msgpack.decode(body))
    if not isinstance(values, dict):
        raise TypeError(f"a body of {type(values).__name__}")
    if version == 1:
        values |= {"intents": [values["intent"]] if values["intent"] else [], "free": [], "paused": False}
    return values


def _unusable(path: Path, error: OSError) -> CheckpointError:
    file = error.filename2 or error.filename or path
    return CheckpointError(f"{file}: {error.strerror}", hint=remedy_of(error))
