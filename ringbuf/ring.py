"""Ring: the two files of one partition, created, attached or taken over.

Owns both mappings, the writer's lock and the reader slots.  Never reads or writes records: Writer and Reader
do that.  Layout: c/ring/layout.h.
"""

import errno
import os
import stat
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from ringbuf.check import Check, Restore, checked
from ringbuf.constants import (
    CAPACITY_MAX_BYTES,
    CAPACITY_MIN_BYTES,
    CURSORS_BYTES,
    HEADER_BYTES,
    LOCAL_SLOTS,
    NAME_MAX_BYTES,
    REFUSAL_CAUSES,
    REMOTE_SLOTS,
    SLOT_STATES,
)
from ringbuf.errors import (
    Corrupt,
    ForeignOwner,
    NotARing,
    OffsetGone,
    RingClosed,
    RingError,
    UsedAfterFork,
)
from ringbuf.files import (
    WRITER_LOCK_BYTE,
    cursor_file,
    cursors_to_read,
    epoch_in,
    identity,
    inspected,
    locked_whole,
    made_cursors,
    opened_cursors,
    ring_file,
)
from ringbuf.native import Writer, ffi, lib
from ringbuf.reader import Reader
from ringbuf.reader_slots import NoSlot, SlotTable
from ringbuf.shared_mapping import Mapping, PrivateMemory

__all__ = ["Extremes", "Ring", "SlotInfo", "cursor_file", "epoch_in", "ring_file"]

POPULATE_BYTES = 128 << 10  # in one step, which holds the GIL: 0.1 ms
SPIN_NS = 50_000  # waking the other core costs about 30 us, so a spin of this length pays
QUEUE_TIMEOUT_MS = 200  # as RocketMQ's waitTimeMillsInSendQueue: fail early instead of queueing
WRITER_DEFAULTS: Final[dict[str, str | int]] = {
    "when_full": "reject",
    "queue_timeout_ms": QUEUE_TIMEOUT_MS,
    "blocking_readers": "all",
    "keys": "any",
}


class Extremes(NamedTuple):
    """Begin and end of a ring, and the position up to which the log has synced."""

    end_position: int
    end_offset: int
    oldest_position: int
    oldest_offset: int
    durable_position: int
    reserve_position: int


class SlotInfo(NamedTuple):
    """Content of a reader's slot.  In the cursor file, the values are claims of that reader."""

    slot: int
    local: bool  # a reader in the writing process
    state: str  # plain, blocking, evicted
    name: str
    pid: int
    cursor: int
    offset: int
    lost: int


class Ring:
    """One partition in shared memory.  Paths are given without suffix: PATH.ring, PATH.cursors."""

    def __init__(self, path: Path, memory: Mapping, cursors: Mapping | None, *, writable: bool) -> None:
        self.path = path
        self._memory = memory
        self._cursors = cursors
        self._writable = writable
        self._writer: Writer | None = None
        self._writer_arguments: dict[str, str | int] = {}  # arguments of the first writer() call
        self._wakeup: tuple[Any, int] | None = None
        self._wakeups: list[Any] = []  # wakeups that the writer may still use on another thread
        self._commit_index: Any = ffi.NULL
        self._word: Mapping | None = None  # the header, for refuse() while another process writes the ring
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._changing = threading.RLock()  # serializes writer(), reader() and close() of several threads
        facts = inspected(memory)
        self.name: str = ffi.string(facts.name).decode()
        self.epoch: int = facts.epoch
        self.capacity_bytes: int = facts.capacity_bytes
        # Bytes of a chunk.  The index has the first record of each chunk; a seek by offset begins there.
        self.chunk_bytes: int = max(self.capacity_bytes // lib.RB_INDEX_ENTRIES, lib.RB_CHUNK_MIN_BYTES)
        self.first_offset: int = facts.first_offset
        self.created_ns: int = facts.created_ns
        self._local_memory = PrivateMemory(path, CURSORS_BYTES)
        self._local = SlotTable(self._local_memory, LOCAL_SLOTS)
        self._remote = None if cursors is None else SlotTable(cursors, REMOTE_SLOTS)
        self.check: Check | None = None
        """Result of the check by reattach(); None for a ring that was not taken over."""

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        capacity_bytes: int = 64 << 20,
        epoch: int,
        first_offset: int = 0,
        mode: int = 0o640,
        populate: bool = True,
        lock_memory: bool = False,
        huge_pages: bool = False,
    ) -> Self:
        """Create a new, empty ring; this process is its writer.

        `capacity_bytes`: a power of two, 64 KiB to 4 GiB; a record may take a quarter of it.
        `epoch`: u32.  It seeds the checksums and is part of each record's identity.  Never use an epoch twice
        for the same name.
        `mode`: of the ring file.  Users who may read it may also write the cursor file.
        `populate`: touch all pages now.  `lock_memory`: keep them from being swapped.  `huge_pages`: request
        huge pages, which tmpfs must allow.

        Raises FileExistsError, RingError, and OSError with the remedy in its text.
        """
        path = Path(path)
        _check_geometry(path.name, capacity_bytes, epoch)
        if ring_file(path).exists():  # checked before its cursor file is replaced
            raise FileExistsError(
                errno.EEXIST, "is a ring already; reattach() or unlink()", str(ring_file(path))
            )
        temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
        temporary.unlink(missing_ok=True)
        memory = Mapping.create(
            temporary,
            HEADER_BYTES + capacity_bytes,
            mode,
            populate=populate,
            lock_memory=lock_memory,
            huge_pages=huge_pages,
        )
        try:
            memory.lock(WRITER_LOCK_BYTE)
            lib.rb_format(
                memory.pointer,
                capacity_bytes,
                epoch,
                first_offset,
                path.name.encode(),
                time.time_ns(),
                identity(),
            )
            lib.rb_geometry_copy(memory.pointer)
            memory.path = ring_file(path)
            ring = cls(path, memory, made_cursors(path, mode, memory), writable=True)
            os.link(temporary, ring_file(path))  # appears complete, and never replaces another file
        except BaseException:
            memory.close()
            raise
        finally:
            temporary.unlink()
        return ring

    @classmethod
    def reattach(cls, path: Path | str, restore: Restore = lambda *_: False) -> Self:
        """Take over the ring at `path`; this process becomes its writer.

        For a ring whose writer died at any instruction, or that was created for this process.  Every record
        is verified first.  `restore` may fill a place without valid records from a copy.  Other damage
        becomes a gap, which readers count as lost records.  `check` has the result.

        A missing or damaged cursor file is replaced; any reader can damage it.  Readers that still map the
        old file do not block the writer.  Raises FileNotFoundError, WriterAlive, NotARing and its subclasses.
        """
        path = Path(path)
        memory, mended = locked_whole(ring_file(path))
        cursors = None
        try:
            try:
                cursors = opened_cursors(path, memory)
            except (FileNotFoundError, NotARing):
                cursors = made_cursors(path, stat.S_IMODE(os.fstat(memory.descriptor).st_mode), memory)
            memory.patch(lib.RB_REFUSAL_AT, bytes([lib.RB_REFUSAL_LOST]), restore=False)
            ring = cls(path, memory, cursors, writable=True)
            ring.check = checked(memory, restore, mended)
        except BaseException:
            memory.close()
            if cursors is not None:
                cursors.close()
            raise
        return ring

    @classmethod
    def attach(cls, path: Path | str, *, owners: Collection[int] | None = None) -> Self:
        """Open the ring at `path` for reading; its memory is mapped read-only.

        A user who may not write the cursor file gets readers without slots.  These cannot block the writer,
        and they poll for records instead of being woken.

        `owners`: uids whose files are accepted; by default this process's uid and root.  Raises
        FileNotFoundError, PermissionError, ForeignOwner, NotARing and its subclasses.
        """
        path = Path(path)
        memory = Mapping.open(ring_file(path), writable=False)
        cursors = None
        try:
            trusted = {os.getuid(), 0} if owners is None else set(owners)
            if memory.owner not in trusted:
                raise ForeignOwner(memory.path, memory.owner, sorted(trusted))
            inspected(memory)
            cursors = cursors_to_read(path, memory)
            return cls(path, memory, cursors, writable=False)
        except BaseException:
            memory.close()
            if cursors is not None:
                cursors.close()
            raise

    def writer(
        self,
        *,
        when_full: Literal["reject", "block"] | None = None,
        queue_timeout_ms: int | None = None,
        blocking_readers: Literal["all", "admitted"] | None = None,
        keys: Literal["any", "topics"] | None = None,
    ) -> Writer:
        """The ring's only Writer; every call returns the same object.

        The ring is full if a blocking reader blocks the space.  publish() then returns None at once
        ("reject", the default) or after `queue_timeout_ms` ("block"; default 200).  A reader in
        another process that blocks for that long is evicted.
        `blocking_readers`: the readers in other processes that may block the writer: "all", or only
        those "admitted" by admit().
        `keys`: "any", or "topics", which raises InvalidTopic for a key that is not an MQTT topic name.

        Later calls leave the arguments out or repeat them.  Raises RingError for other values.
        """
        self._require_writable()
        given = {
            "when_full": when_full,
            "queue_timeout_ms": queue_timeout_ms,
            "blocking_readers": blocking_readers,
            "keys": keys,
        }
        with self._changing:
            self._require_open()
            if self._writer is None:
                chosen = {
                    name: WRITER_DEFAULTS[name] if value is None else value for name, value in given.items()
                }
                self._writer = Writer(
                    self._memory.memory,
                    self._cursor_memory.memory,
                    self._local_memory.memory,
                    self.sweep,
                    chosen["when_full"] == "block",
                    int(chosen["queue_timeout_ms"]) * 1_000_000,
                    chosen["blocking_readers"] == "admitted",
                    chosen["keys"] == "topics",
                )
                self._writer_arguments = chosen
                self._configure_writer()
            for name, value in given.items():
                if value is not None and value != (known := self._writer_arguments[name]):
                    raise RingError(
                        f"ring {self.name} has a writer with {name}={known!r}, not {value!r}; "
                        "give the arguments in the first call of writer(), and none later"
                    )
            return self._writer

    def reader(
        self,
        *,
        name: str = "",
        start: Literal["latest", "oldest"] | int = "latest",
        blocks_writer: bool = False,
        local: bool = False,
        overrun: Literal["raise", "count"] = "raise",
        verify: bool = False,
        for_log: bool = False,
        spin_ns: int = SPIN_NS,
        with_slot: bool = True,
    ) -> Reader:
        """A new reader.

        `name`: up to 31 bytes, shown to people.
        `start`: the end, the oldest record, or an offset (OffsetGone if the ring does not have it).
        `blocks_writer`: block the writer instead of being lapped.
        `local`: use a slot that only the writing process can take and that is never evicted (log, bridge).
        `overrun`: raise Overrun, or count lost records in Reader.lost and continue.
        `verify`: check every record's checksum; for rings that other processes write.
        `for_log`: return committed records even if readers are shown only durable ones.
        `spin_ns`: time that a wait spins before it sleeps.
        `with_slot=False`: take no slot.  Such a reader is not listed, cannot block the writer, and polls
        instead of being woken.  Their number is unlimited.

        Raises NoFreeSlot; close() a reader to give its slot back.
        """
        if local:
            self._require_writable()
        self._require_open()
        table, slots = (self._local, self._local_memory) if local else (self._remote, self._cursors)
        if blocks_writer and table is None:
            raise RingError(
                f"{cursor_file(self.path)}: may not be written by this user, and a blocking reader has a "
                "slot there; read without blocks_writer, or get write permission"
            )
        with self._changing:
            self._require_open()
            taken = table.take(name) if with_slot and table is not None else NoSlot()
            try:
                reader = Reader(
                    self._memory.memory,
                    slots.memory if slots is not None and taken.slot >= 0 else None,
                    taken.slot,
                    blocks_writer,
                    overrun == "count",
                    verify,
                    for_log,
                    spin_ns,
                )._take(self._memory, taken, self.epoch)
            except BaseException:
                taken.leave()
                raise
            self._readers.add(reader)
        try:
            if start == "oldest":
                reader.seek_oldest()
            elif start != "latest":
                reader.seek(start)
        except OffsetGone:
            reader.close()
            raise
        return reader

    def extremes(self) -> Extremes:
        """Current begin and end of the ring."""
        self._require_open()
        extremes = ffi.new("rb_extremes *")
        if lib.rb_extremes_read(self._memory.pointer, self._memory.size, extremes) != lib.RB_OK:
            raise Corrupt(f"{self._memory.path}: the ring's header has changed since it was opened")
        return Extremes(
            extremes.end_position,
            extremes.end_offset,
            extremes.oldest_position,
            extremes.oldest_offset,
            extremes.durable_position,
            extremes.reserve_position,
        )

    def durable(self, position: int) -> None:
        """Publish that the log has synced everything below `position`."""
        self._require_writable()
        lib.rb_durable_store(*self.pointers, position)

    def show_durable(self, yes: bool) -> None:
        """Show all readers only durable records (True), or all committed records (False, as in a new ring).

        Committed records that are not durable are then hidden.  Records already read stay readable.
        """
        self._require_writable()
        lib.rb_visible_when_durable_set(self._memory.pointer, yes)

    def wait_durable(self, position: int, timeout_s: float) -> bool:
        """Wait, without the GIL, until the log has synced everything below `position`.  False on timeout.

        Only in the process that writes the ring, from any of its threads.  Signal handlers run during the
        wait.
        """
        self._require_writable()
        deadline, result = time.monotonic() + timeout_s, lib.RB_INTERRUPTED
        while result == lib.RB_INTERRUPTED:
            left_ns = max(int((deadline - time.monotonic()) * 1e9), 0)
            result = lib.rb_durable_wait(self._memory.pointer, position, left_ns)
        return bool(result == lib.RB_OK)

    @property
    def pointers(self) -> tuple[Any, Any, Any]:
        """For C, until close(): memory of the ring, of the cursor file and of the local readers' slots."""
        self._require_open()
        return self._memory.pointer, self._cursor_memory.pointer, self._local_memory.pointer

    def set_wakeup(self, wakeup: Any, index: int) -> None:
        """Have the writer signal `wakeup` (an rb_wakeup) as number `index` at each publish; None: stop."""
        self._wakeup = None if wakeup is None else (wakeup, index)
        if wakeup is not None and wakeup not in self._wakeups:
            self._wakeups.append(wakeup)
        self._configure_writer()

    def followed_by(self, reader: Reader) -> None:
        """Have the writer record its commits for `reader` in a commit index (c/ring/commit_index.h).

        For a blocking reader in the writer's process that takes long runs: it need not read each record's
        header.
        """
        if self._commit_index == ffi.NULL:
            self._commit_index = ffi.gc(lib.rb_commit_index_new(), lib.rb_commit_index_free)
            self._configure_writer()
        reader.follow(self._commit_index)

    def _configure_writer(self) -> None:
        writer = self._writer  # referenced here, because another thread may close the ring
        if writer is not None:
            pointer = ffi.cast("rb_writer *", writer.address)
            lib.rb_writer_wakeup(pointer, *(self._wakeup or (ffi.NULL, 0)))
            lib.rb_writer_commit_index(pointer, self._commit_index)

    def admit(self, slot: int) -> None:
        """Let the blocking reader in this slot block a writer with blocking_readers="admitted"."""
        writer = self.writer()  # referenced here, because C has its address
        lib.rb_writer_admit(ffi.cast("rb_writer *", writer.address), slot)

    def evict(self, slot: int) -> None:
        """Stop the reader in this slot of the cursor file from blocking the writer."""
        writer = self.writer()  # referenced here, because C has its address
        lib.rb_writer_evict(ffi.cast("rb_writer *", writer.address), slot)

    def sweep(self) -> int:
        """Free the slots of dead processes and return their number; a Writer on a full ring calls this."""
        return self._remote.sweep() if self._remote is not None and self._remote.is_open else 0

    def mend(self) -> int:
        """Restore length and header of a cursor file that another user has damaged.  Returns `faults`."""
        if self._cursors is not None:
            self._cursors.restore()
            cursors, memory = self._cursors, self._memory
            is_whole = lib.rb_inspect_cursors(cursors.pointer, cursors.size, memory.pointer) == lib.RB_OK
            if not is_whole and self._writer is not None:
                lib.rb_format_cursors(cursors.pointer, memory.pointer)
        return self.faults

    @property
    def faults(self) -> int:
        """Number of times that this process found one of the files shortened by another process."""
        return self._memory.faults + (0 if self._cursors is None else self._cursors.faults)

    @property
    def is_lost(self) -> bool:
        """True if the ring's memory is only zeros because another process has shortened its file."""
        return self._memory.is_lost

    def refuse(self, why: int) -> None:
        """Make the writer, another process, refuse records for the cause `why` (REFUSAL_*); 0: permit.

        A publish is then refused after the writer's queue timeout.  For a process that may write the file and
        has opened the ring with attach().  Raises PermissionError.
        """
        self._require_open()
        if self._word is None:
            if not why and not lib.rb_is_refused(self._memory.pointer):
                return
            # the open file, even if its name means another one now
            same = Path(f"/proc/self/fd/{self._memory.descriptor}")
            self._word = Mapping.open(same, writable=True, size_most=HEADER_BYTES)
        lib.rb_refuse(self._word.pointer, why, time.monotonic_ns())

    def refused(self) -> dict[str, int]:
        """Number of records refused since the ring was created, by cause."""
        self._require_open()
        return {cause: lib.rb_refused(self._memory.pointer, why) for cause, why in REFUSAL_CAUSES.items()}

    def slots(self) -> list[SlotInfo]:
        """All taken slots.  Slots of the writing process are first; other processes do not see them."""
        self._require_open()
        facts = ffi.new("rb_slot_info *")
        slots = []
        for local, mapping, table in (
            (True, self._local_memory, self._local),
            (False, self._cursors, self._remote),
        ):
            if mapping is None or table is None:
                continue
            for slot in range(table.count):
                lib.rb_slot_read(mapping.pointer, slot, facts)
                if facts.state != lib.RB_SLOT_FREE:
                    name = ffi.string(facts.name).decode(errors="replace")
                    state = SLOT_STATES.get(facts.state, f"unknown ({facts.state})")
                    slots.append(
                        SlotInfo(slot, local, state, name, facts.pid, facts.cursor, facts.offset, facts.lost)
                    )
        return slots

    def populate(self) -> Iterator[None]:
        """Touch all pages, a part at each step, for a ring that was created with populate=False.

        The content stays: other threads may write meanwhile.
        """
        self._require_writable()
        for begin in range(0, self._memory.size, POPULATE_BYTES):
            self._memory.populate(begin, min(POPULATE_BYTES, self._memory.size - begin))
            yield

    def close(self) -> None:
        """Close the writer and all readers; release the locks.  The files stay."""
        if self._memory.forked:  # a thread that the fork did not copy may hold the lock
            self._close()
        else:
            with self._changing:
                self._close()

    def _close(self) -> None:
        if self._writer is not None:  # first: it would overwrite unread records once no reader gates
            self._writer.close()
            self._writer = None
        for reader in list(self._readers):
            reader.close()
        self._readers.clear()
        self._memory.close()
        if self._cursors is not None:
            self._cursors.close()
        if self._word is not None:
            self._word.close()

    def unlink(self) -> None:
        """Remove the files.  Processes that have them mapped keep the memory."""
        ring_file(self.path).unlink(missing_ok=True)
        cursor_file(self.path).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ring {self.path} epoch={self.epoch} capacity_bytes={self.capacity_bytes}>"

    @property
    def _cursor_memory(self) -> Mapping:
        if self._cursors is None:
            raise RingError(f"{cursor_file(self.path)}: may not be written by this user")
        return self._cursors

    def _require_open(self) -> None:
        if self._memory.forked:
            raise UsedAfterFork("ring")
        if self._memory.descriptor < 0:
            raise RingClosed(f"ring {self.path}")

    def _require_writable(self) -> None:
        self._require_open()
        if not self._writable:
            raise RingError(
                f"{self.path}: attached to read; its writer is made by Ring.create() or Ring.reattach()"
            )


def _check_geometry(name: str, capacity_bytes: int, epoch: int) -> None:
    if not name or len(name.encode()) > NAME_MAX_BYTES:
        raise RingError(f"ring name {name!r} must have 1 to {NAME_MAX_BYTES} bytes; shorten it")
    if (
        capacity_bytes & (capacity_bytes - 1)
        or not CAPACITY_MIN_BYTES <= capacity_bytes <= CAPACITY_MAX_BYTES
    ):
        next_up = 1 << max(capacity_bytes - 1, 1).bit_length()
        nearest = min(max(next_up, CAPACITY_MIN_BYTES), CAPACITY_MAX_BYTES)
        raise RingError(
            f"capacity_bytes {capacity_bytes} must be a power of two from {CAPACITY_MIN_BYTES} to "
            f"{CAPACITY_MAX_BYTES}; the nearest is {nearest}"
        )
    if not 0 <= epoch < 1 << 32:
        raise RingError(f"epoch {epoch} must fit 32 bits")
