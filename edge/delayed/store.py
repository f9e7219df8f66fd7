"""Store of delayed messages: an SQLite file with an index on the due time.

    message    id, due_ns (scale of clock.py), topic, flags, properties and payload as in a record, checksum
    state      one row: epoch of the ring, offset of its first record that is not stored yet; number and bytes
               of messages; a pair of scale and wall time
    tenant     number and bytes of the messages of each tenant, by its name

Owns the file and its format: _TABLES, with APPLICATION_ID and SCHEMA_VERSION as SQLite's application_id and
user_version. Rule for change: another schema gets another version, also in the only row of a table `format`
(version), and this one still reads version 1, which had no table `tenant`. No checksum covers the header of
the file. So a version that is not known and not in `format` is damage, which is repaired, and so is another
application_id: the tables are read.

Each transaction changes the table of tenants, too, so that a start reads no messages. After damage all
messages are counted: when a damaged message is removed, and at a start that finds transactions lost.

Each transaction inserts messages together with that offset, so that a kill neither loses nor repeats a
record of the ring. A file that SQLite cannot read is renamed to NAME.bad, and the store begins empty. A start
is refused by a file of a later version. A file that cannot be opened or created now, such as on a full disk,
is left alone.

Invariants: memory is bounded by CACHE_BYTES and one batch, however many messages there are. Identifiers are
never used twice.

A power cut or damage may leave wrong frames in the write-ahead log, and SQLite drops the transactions behind
them. A start reports dropped transactions, and then checks the whole file. A single dropped transaction may
also come from a kill. The ring then still has its records, so the store only sets `is_interrupted`: the
caller knows the ring, and reports the loss if the ring does not have them.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from edge.auth.tenant_names import MARK, prefix_in, tenant_of
from edge.config.directories import file_system
from edge.delayed.write_ahead_log import Dropped, dropped_transactions
from edge.errors import NewerState
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

APPLICATION_ID = 0x4272646C  # "Brdl"
NO_STATE = "the table of the state is empty"
SCHEMA_VERSION = 2
FILE_NAME = "delayed.sqlite"
CACHE_BYTES = 16 << 20
WAL_PAGES = 1_000  # of the write-ahead log; then SQLite moves them to the file
OVERHEAD_BYTES = 64  # of a message in table and index; MQ_DELAYED_OVERHEAD_BYTES
FILE_MODE = 0o640
_COPY_ON_WRITE = ("btrfs", "bcachefs")  # see is_exclusive()

_IDENTITY = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
_TENANT_TABLE = """
CREATE TABLE IF NOT EXISTS tenant (
    name TEXT PRIMARY KEY, messages INTEGER NOT NULL, bytes INTEGER NOT NULL
) STRICT;
"""
_BYTES = "length(CAST(topic AS BLOB)) + length(properties) + length(payload)"
_COUNT = f"SELECT count(*), coalesce(sum({_BYTES} + ?), 0) FROM message"  # noqa: S608 - no user's text
_COUNT_TENANTS = f"""
INSERT INTO tenant SELECT
    substr(topic, length(:mark) + 1, instr(substr(topic, length(:mark) + 1), '/') - 1) AS tenant_name,
    count(*), sum({_BYTES} + :overhead)
FROM message WHERE substr(topic, 1, length(:mark)) = :mark GROUP BY tenant_name HAVING tenant_name <> ''
"""  # noqa: S608 - no user's text
_TABLES = """
CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT, due_ns INTEGER NOT NULL, topic TEXT NOT NULL,
    flags INTEGER NOT NULL, properties BLOB NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE INDEX message_due ON message (due_ns, id);
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    messages INTEGER NOT NULL, bytes INTEGER NOT NULL, scale_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL
) STRICT;
INSERT INTO state VALUES (1, 0, 0, 0, 0, 0, 0);
"""
_SELECT = "SELECT id, due_ns, topic, flags, properties, payload, checksum FROM message "


TenantUse: TypeAlias = Counter[tuple[str, str]]  # "messages" and "bytes", by name of the tenant


class DelayedMessage(Struct, frozen=True):
    """A message to be stored."""

    due_ns: int
    topic: str
    flags: int
    properties: bytes
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that count for messages_max_bytes."""
        return len(self.topic.encode()) + len(self.properties) + len(self.payload) + OVERHEAD_BYTES

    @property
    def checksum(self) -> int:
        """CRC-32 of topic, flags, properties and payload."""
        head = zlib.crc32(self.topic.encode() + b"\0%d\0%d\0" % (self.flags, len(self.properties)))
        return zlib.crc32(self.payload, zlib.crc32(self.properties, head))


class StoredMessage(DelayedMessage, frozen=True):
    """A message of the store."""

    id: int
    is_intact: bool


def use_of(messages: Iterable[DelayedMessage]) -> TenantUse:
    """Number and bytes of the messages of each tenant."""
    use: TenantUse = Counter()
    for message in messages:
        if name := tenant_of(prefix_in(message.topic)):
            use[name, "messages"] += 1
            use[name, "bytes"] += message.size
    return use


class DelayedStore:
    """The store. Used by one thread. Methods raise sqlite3.Error, and have changed nothing then."""

    def __init__(self, path: Path, *, synced: bool) -> None:
        """Describe the store, not open. `synced`: a commit of new messages returns after the file's sync."""
        self.path = path
        self.is_open = False
        self.renamed: Path | None = None  # a file that could not be read
        self.is_interrupted = False  # SQLite has dropped the last transaction
        self.messages = self.stored_bytes = 0
        self.tenant_use: TenantUse = Counter()  # replaced, never changed
        self.ring_cursor = (0, 0)  # epoch and offset of the next record to store
        self.clock: tuple[int, int] | None = None
        self._synced = synced
        self._index = -1  # descriptor, see dropped_transactions()

    def open(self) -> None:
        """Open or create the file. Raises NewerState.

        Raises OSError, sqlite3.OperationalError: no permission, no room.
        """
        try:
            self._load()
        except (OSError, NewerState):
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                self.close()
                raise
            self.rename(str(error))  # damage; SQLITE_ERROR: no such table, or an unknown file format
            self._load()

    def _load(self) -> None:
        self.close()  # an attempt that failed
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE))
        self._db = _connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=16)
        self._db.text_factory = _text
        self._commits_are_synced = True  # the default of SQLite
        execute = self._db.execute
        execute("PRAGMA locking_mode = NORMAL")
        execute(f"PRAGMA cache_size = {-(CACHE_BYTES >> 10)}")
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        self._sync_commits(False)
        is_empty = execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        dropped = self._dropped_transactions()
        if is_empty:
            self._db.executescript("BEGIN;" + _IDENTITY + _TABLES + _TENANT_TABLE + "COMMIT;")
        is_current = self._is_current()
        row = execute("SELECT epoch, next_offset, messages, bytes, scale_ns, wall_ns FROM state").fetchone()
        if row is None:
            raise sqlite3.DatabaseError(NO_STATE)
        self.messages, self.stored_bytes = row[2:4]
        if row[5]:  # otherwise the file is new, and may follow a renamed one
            self.ring_cursor, self.clock = (row[0], row[1]), (row[4], row[5])
        if dropped:
            self._check_all()
        if dropped or not is_current:
            execute("BEGIN IMMEDIATE")
            execute(_TENANT_TABLE)
            self._count_tenants()
            execute("COMMIT")
        if not is_current:
            self._db.executescript(_IDENTITY)
        self.tenant_use = self._stored_use()
        self.is_open = True

    def _is_current(self) -> bool:
        """True if the header is that of this version. False: the caller writes it.

        Raises NewerState, sqlite3.DatabaseError.
        """
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID and version in (1, SCHEMA_VERSION):
            return bool(version == SCHEMA_VERSION)
        with suppress(sqlite3.OperationalError):  # no such table
            if self._db.execute("SELECT version FROM format").fetchone() == (version,):
                raise NewerState(self.path, f"version {version} of the schema", f"1 to {SCHEMA_VERSION}")
        self._check_all()
        facts = pairs(file=self.path, application_id=application, version=version)
        log.warning("header of the delayed messages damaged, repaired %s", facts)
        return False

    def _dropped_transactions(self) -> int:
        """Number of transactions that are lost behind a wrong frame of the log. Before the first write."""
        dropped = Dropped()
        with suppress(FileNotFoundError):
            if not is_exclusive(self.path):
                self._index = os.open(f"{self.path}-shm", os.O_RDONLY | os.O_CLOEXEC)
            (page_bytes,) = self._db.execute("PRAGMA page_size").fetchone()
            dropped = dropped_transactions(self.path, self._index, page_bytes)
        self.is_interrupted = dropped.may_be_kill
        if dropped.may_be_kill or not dropped.transactions:
            return 0
        self.report_dropped(dropped.transactions)
        return dropped.transactions

    def report_dropped(self, transactions: int) -> None:
        """Report transactions that SQLite has dropped."""
        facts = pairs(file=f"{self.path}-wal", transactions=transactions)
        log.warning("delayed messages lost or repeated after a power cut or damage to the file %s", facts)

    def _check_all(self) -> None:
        """Check the whole file: a checkpoint may have put pages of lost transactions there. Raises
        sqlite3.DatabaseError.
        """
        (result,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(result)

    def _count_tenants(self) -> None:
        """Count the messages of each tenant. In a transaction."""
        self._db.execute("DELETE FROM tenant")
        self._db.execute(_COUNT_TENANTS, {"mark": MARK, "overhead": OVERHEAD_BYTES})

    def _change_tenants(self, changes: TenantUse) -> None:
        names = {name for name, _ in changes}
        rows = [(name, changes[name, "messages"], changes[name, "bytes"]) for name in names]
        self._db.executemany(
            "INSERT INTO tenant VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE"
            " SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes",
            rows,
        )
        self._db.execute("DELETE FROM tenant WHERE messages = 0")

    def _stored_use(self) -> TenantUse:
        use: TenantUse = Counter()
        for name, messages, size in self._db.execute("SELECT name, messages, bytes FROM tenant"):
            use[name, "messages"], use[name, "bytes"] = messages, size
        return use

    def rename(self, reason: str) -> None:
        """Rename a file that cannot be read. open() then begins an empty one. Raises OSError."""
        self.close()
        self.renamed = self.path.with_suffix(self.path.suffix + ".bad")
        facts = pairs(file=self.renamed, reason=reason, messages=self.messages or "unknown")
        log.error("delayed messages unreadable, file renamed and messages lost %s", facts)
        self.path.replace(self.renamed)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{self.renamed}{suffix}")
        self.messages = self.stored_bytes = 0
        self.tenant_use = Counter()

    def apply(
        self,
        added: Sequence[DelayedMessage],
        removed: Iterable[StoredMessage],
        postponed: Iterable[tuple[int, int]],
        ring_cursor: tuple[int, int],
        clock: tuple[int, int],
        *,
        sync: bool = False,
    ) -> TenantUse:
        """Insert, remove and postpone messages in one transaction, which also stores ring_cursor and clock.

        `postponed`: id and new due_ns of messages. Returns the use of tenants by `added`.
        """
        removed = list(removed)
        rows = [(m.due_ns, m.topic, m.flags, m.properties, m.payload, m.checksum) for m in added]
        size = self.stored_bytes + sum(m.size for m in added) - sum(m.size for m in removed)
        count = self.messages + len(added) - len(removed)
        added_use, use = use_of(added), self.tenant_use
        changes = Counter(added_use)
        changes.subtract(use_of(removed))
        # A power cut may undo an unsynced removal, and its message is repeated: sync() bounds their number.
        self._sync_commits(sync or (self._synced and bool(added)))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            insert = "INSERT INTO message (due_ns, topic, flags, properties, payload, checksum) VALUES "
            self._db.executemany(insert + "(?, ?, ?, ?, ?, ?)", rows)
            self._db.executemany("DELETE FROM message WHERE id = ?", [(m.id,) for m in removed])
            later = [(due_ns, number) for number, due_ns in postponed]
            self._db.executemany("UPDATE message SET due_ns = ? WHERE id = ?", later)
            if not all(message.is_intact for message in removed):
                self._count_tenants()
                use = self._stored_use()
                count, size = self._db.execute(_COUNT, (OVERHEAD_BYTES,)).fetchone()
            elif changes:
                self._change_tenants(changes)
                use = self._stored_use()
            self._db.execute(
                "UPDATE state SET epoch = ?, next_offset = ?, messages = ?, bytes = ?, scale_ns = ?,"
                " wall_ns = ?",
                (*ring_cursor, count, size, *clock),
            )
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.messages, self.stored_bytes, self.ring_cursor = count, size, ring_cursor
        self.tenant_use = use
        return added_use

    def sync(self, clock: tuple[int, int]) -> None:
        """Make all earlier transactions durable."""
        self.apply((), (), (), self.ring_cursor, clock, sync=True)

    def _sync_commits(self, synced: bool) -> None:
        if synced != self._commits_are_synced:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._commits_are_synced = synced

    def due(self, now_ns: int, limit: int, bytes_max: int) -> list[StoredMessage]:
        """The first due messages, by due time: at most `limit`, and about `bytes_max` of payloads."""
        messages: list[StoredMessage] = []
        query = _SELECT + "WHERE due_ns <= ? ORDER BY due_ns, id LIMIT ?"
        cursor = self._db.execute(query, (now_ns, limit))
        for row in cursor:
            messages.append(_message(row))
            bytes_max -= len(row[5])
            if bytes_max <= 0:
                break
        cursor.close()
        return messages

    def next_due_ns(self) -> int | None:
        """Due time of the first message; None if the store is empty."""
        row = self._db.execute("SELECT due_ns FROM message ORDER BY due_ns LIMIT 1").fetchone()
        return None if row is None else int(row[0])

    def find(self, message_id: int) -> StoredMessage | None:
        """The message with this id; None if the store does not have it."""
        row = self._db.execute(_SELECT + "WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else _message(row)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self.is_open = False
        if hasattr(self, "_db"):
            self._db.close()
        index, self._index = self._index, -1  # it is closed even if the disk reports an error then
        if index >= 0:
            with suppress(OSError):
                os.close(index)


def _message(row: tuple[int, int, str, int, bytes, bytes, int]) -> StoredMessage:
    number, due_ns, topic, flags, properties, payload, checksum = row
    message = StoredMessage(due_ns, topic, flags, properties, payload, number, True)
    return message if message.checksum == checksum else replace(message, is_intact=False)


def list_messages(path: Path, after: tuple[int, int], limit: int, payload_max: int) -> list[dict[str, Any]]:
    """Messages after (due_ns, id), in the order of delivery. For any thread. Raises sqlite3.Error."""
    with read_only(path) as db:
        rows = db.execute(
            "SELECT id, due_ns, topic, flags, length(payload), substr(payload, 1, ?) FROM message "
            "WHERE (due_ns, id) > (?, ?) ORDER BY due_ns, id LIMIT ?",
            (payload_max, *after, limit),
        ).fetchall()
    names = ("id", "due_ns", "topic", "flags", "size_bytes", "payload")
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_ring_cursor(path: Path) -> tuple[int, int]:
    """Epoch and offset of the next record of the ring to store. For any process. Raises sqlite3.Error."""
    with read_only(path) as db:
        row = db.execute("SELECT epoch, next_offset FROM state").fetchone()
    if row is None:
        raise sqlite3.DatabaseError(NO_STATE)
    return row[0], row[1]


def is_exclusive(path: Path) -> bool:
    """True if only the process that has opened the store can read it.

    SQLite maps a file with the index of its write-ahead log. A file system that writes each change to a new
    place has no room for it on a full disk, and the kernel ends the process (SIGBUS). There the index is in
    the memory of the process.
    """
    return file_system(path.parent) in _COPY_ON_WRITE


def _connect(path: Path, query: str = "", **options: Any) -> sqlite3.Connection:
    vfs = "unix-excl" if is_exclusive(path) else "unix"
    database: sqlite3.Connection
    database = sqlite3.connect(f"{path.absolute().as_uri()}?vfs={vfs}{query}", uri=True, **options)
    return database


def read_only(path: Path) -> closing[sqlite3.Connection]:
    """The store, to read: for threads of its broker, and for other processes if it is not exclusive or no
    broker has it open. Raises sqlite3.Error.
    """
    db = _connect(path, "&mode=ro")
    db.text_factory = _text
    return closing(db)


def _text(value: bytes) -> str:
    """A damaged topic, which a checksum finds later. SQLite's own conversion fails for the whole query."""
    return value.decode("utf-8", "replace")
