"""Brim's log and other stores: each takes records in commits, which are on the disk when the call returns.

A record has the same bytes everywhere, a topic and a payload. Each store is used in its fastest way with
durable commits: prepared statements and one transaction, one write batch, keys that rise. All are in the same
directory, and stay open from the first round to the last.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from persistence import Log, LoggedRing, LogThread, LogWriter
from ringbuf import Ring

TOPIC = b"plant/press/0007"
RING_BYTES = 64 << 20
RETAIN_BYTES = 256 << 20  # little, so that segments are reused soon, as in a full log
BATCH = 2000  # records that the producer publishes at once
PATIENCE_S = 30.0
LMDB_BYTES = 64 << 30  # of addresses

_KEY = struct.Struct(">Q")


class Store(Protocol):
    """Store with durable commits."""

    def commit(self, count: int) -> None:
        """Commit this number of new records; return when they are on the disk."""

    def close(self) -> None:
        """Close files and threads."""


class BrimLog:
    """A ring with its log at `disk`; a Store, too."""

    def __init__(self, directory: Path, payload_bytes: int, **options: Any) -> None:
        self.directory = directory
        self._memory = Path(tempfile.mkdtemp(prefix="brim-bench-", dir="/dev/shm"))
        self._stack = ExitStack()
        self._stack.callback(shutil.rmtree, self._memory)
        ring = Ring.create(self._memory / "bench-0", capacity_bytes=RING_BYTES, epoch=1)
        self.ring = self._stack.enter_context(ring)
        self.log = self._stack.enter_context(Log(directory, retain_bytes=RETAIN_BYTES, **options))
        self.log.recover()
        self._thread = LogThread(self.log, [LoggedRing(self.ring, "disk")])
        self._thread.start()
        self._stack.callback(self._thread.stop)
        self.writer = self.ring.writer()
        self._payload = bytes(payload_bytes)
        self._payloads: dict[int, list[bytes]] = {}

    def publish(self, count: int) -> int:
        """Publish records. Returns the number that the ring took."""
        payloads = self._payloads.setdefault(count, [self._payload] * count)
        return self.writer.publish_many(payloads, key=TOPIC)

    def commit(self, count: int) -> None:
        """See Store."""
        assert self.publish(count) == count
        self.settle()

    def settle(self) -> None:
        """Wait until all published records are durable."""
        if not self.ring.wait_durable(self.writer.end_position, PATIENCE_S):
            raise SystemExit("the log has said nothing for half a minute")

    def ack(self) -> float:
        """µs from publish() of one record until its publisher knows that it is durable."""
        started = time.perf_counter()
        self.commit(1)
        return (time.perf_counter() - started) * 1e6

    def run(self, seconds: float) -> tuple[float, float]:
        """Durable bytes and records per second, while a producer keeps the ring filled."""
        before = self.ring.extremes().durable_position
        first, started = self.log.stats.records, time.perf_counter()
        while (now := time.perf_counter()) - started < seconds:
            if self.publish(BATCH) < BATCH:
                self.ring.wait_durable(self.ring.extremes().durable_position + 1, 0.01)
        records_s = (self.log.stats.records - first) / (now - started)
        bytes_s = (self.ring.extremes().durable_position - before) / (now - started)
        self.settle()
        return bytes_s, records_s

    def warm(self) -> None:
        """Run until segments are reused, the normal state of a log."""
        removed = self.log.stats.segments_removed
        until = time.perf_counter() + PATIENCE_S
        while self.log.stats.segments_removed < removed + 3 and time.perf_counter() < until:
            self.run(0.2)

    def roll(self) -> None:
        """Begin a segment with the next record."""
        self._thread.roll()

    def close(self) -> None:
        """Close ring and log; the log's files stay."""
        self._stack.close()


class InlineLog:
    """The log without its thread, as a library: the caller writes and syncs, as in the other stores."""

    def __init__(self, directory: Path, payload_bytes: int) -> None:
        self._memory = Path(tempfile.mkdtemp(prefix="brim-bench-", dir="/dev/shm"))
        self._ring = Ring.create(self._memory / "inline-0", capacity_bytes=RING_BYTES, epoch=1)
        self.log = Log(directory, retain_bytes=RETAIN_BYTES)
        self.log.recover()
        self._writer = LogWriter(self.log)
        self._writer.add(LoggedRing(self._ring, "disk"))
        self._publish = self._ring.writer().publish_many
        self._payload = bytes(payload_bytes)
        self._payloads: dict[int, list[bytes]] = {}

    def commit(self, count: int) -> None:
        """See Store."""
        payloads = self._payloads.setdefault(count, [self._payload] * count)
        assert self._publish(payloads, key=TOPIC) == count
        self._writer.step()
        if self.log.needs_maintenance:
            self.log.run_maintenance()

    def warm(self) -> None:
        """See BrimLog."""
        until = time.perf_counter() + PATIENCE_S
        while self.log.stats.segments_removed < 3 and time.perf_counter() < until:
            self.commit(1000)

    def close(self) -> None:
        """See BrimLog."""
        self._writer.close()
        self.log.close()
        self._ring.close()
        shutil.rmtree(self._memory)


class SqliteStore:
    """WAL, synchronous=FULL: one statement, prepared once, and one transaction per commit."""

    def __init__(self, directory: Path, record: bytes) -> None:
        self._base = sqlite3.connect(directory / "sqlite", isolation_level=None)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")
        self._base.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, record BLOB NOT NULL)")
        self._record = (record,)

    def commit(self, count: int) -> None:
        """See Store."""
        insert = "INSERT INTO log (record) VALUES (?)"
        if count == 1:
            self._base.execute(insert, self._record)
            return
        self._base.execute("BEGIN")
        self._base.executemany(insert, [self._record] * count)
        self._base.execute("COMMIT")

    def close(self) -> None:
        """See Store."""
        self._base.close()


class LmdbStore:
    """Synced, which it is by default; keys rise, so pages are filled from left to right."""

    def __init__(self, directory: Path, record: bytes) -> None:
        import lmdb

        self._base = lmdb.open(str(directory / "lmdb"), map_size=LMDB_BYTES)
        self._record = record
        self._next = 0

    def commit(self, count: int) -> None:
        """See Store."""
        first, record, key = self._next, self._record, _KEY.pack
        with self._base.begin(write=True) as transaction:
            if count == 1:
                transaction.put(key(first), record, append=True)
            else:
                items = [(key(number), record) for number in range(first, first + count)]
                with transaction.cursor() as cursor:
                    cursor.putmulti(items, append=True)
        self._next += count

    def close(self) -> None:
        """See Store."""
        self._base.close()


class RocksStore:
    """Each write synced; several records are one WriteBatch."""

    def __init__(self, directory: Path, record: bytes) -> None:
        import rocksdict

        self._base = rocksdict.Rdict(str(directory / "rocksdb"), rocksdict.Options(raw_mode=True))
        options = rocksdict.WriteOptions()
        options.sync = True
        self._options, self._batch = options, rocksdict.WriteBatch
        self._base.set_write_options(options)
        self._record = record
        self._next = 0

    def commit(self, count: int) -> None:
        """See Store."""
        first, record, key = self._next, self._record, _KEY.pack
        if count == 1:
            self._base[key(first)] = record
        else:
            batch = self._batch(raw_mode=True)
            for number in range(first, first + count):
                batch.put(key(number), record)
            self._base.write(batch, self._options)
        self._next += count

    def close(self) -> None:
        """See Store."""
        self._base.close()


INSTALL = "pip install lmdb rocksdict  (./dev bench does so: they are in the group `bench` of pyproject.toml)"
PEERS: dict[str, Callable[[Path, bytes], Store]] = {
    "sqlite": SqliteStore,
    "lmdb": LmdbStore,
    "rocksdb": RocksStore,
}


@contextmanager
def opened(names: list[str], directory: Path, payload_bytes: int) -> Iterator[dict[str, Store]]:
    """Brim and the available peers; an unavailable one is reported."""
    with ExitStack() as stack:
        brim = BrimLog(directory / "brim", payload_bytes)
        stack.callback(brim.close)
        brim.warm()
        inline = InlineLog(directory / "inline", payload_bytes)
        stack.callback(inline.close)
        inline.warm()
        stores: dict[str, Store] = {"brim": brim, "inline": inline}
        for name in names:
            try:
                store = PEERS[name](directory, TOPIC + bytes(payload_bytes))
            except ImportError as missing:
                rule = "=" * 78
                print(f"{rule}\n{name} is NOT MEASURED: {missing}; {INSTALL}\n{rule}", flush=True)
                continue
            stack.callback(store.close)
            stores[name] = store
        yield stores


def commit_rate(store: Store, count: int, seconds: float) -> float:
    """Records per second, in commits of `count`."""
    commits, started = 0, time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        store.commit(count)
        commits += 1
    return commits * count / (now - started)


def ack_p50s(brim: BrimLog, syncs: Callable[[int], list[float]], count: int) -> tuple[float, float]:
    """Medians in µs: the log's ack, and a bare write and sync, in turns."""
    acks: list[float] = []
    bare: list[float] = []
    while len(acks) < count:
        acks += [brim.ack() for _ in range(10)]
        bare += syncs(10)
    return statistics.median(acks), statistics.median(bare)
