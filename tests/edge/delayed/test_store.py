"""The store of delayed messages: bounded batches in the order of due times, and the golden schema and rows.

`python -m tests.edge.delayed.test_store` writes the golden file of a new version.
"""

import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import asdict

from edge.delayed.store import (
    SCHEMA_VERSION,
    DelayedMessage,
    DelayedStore,
    StoredMessage,
    read_ring_cursor,
    use_of,
)
from tests.support.project import ROOT

PLACE, CLOCK = (1, 0), (0, 1)
STATE = ROOT / "tests" / "golden" / "state"
GOLDEN = STATE / f"delayed-v{SCHEMA_VERSION}.sql"
HOUR_NS = 3_600_000_000_000
MESSAGES = [
    DelayedMessage(2 * HOUR_NS, "plant/ä/stop", 1, bytes.fromhex("2600016b000176"), b"\x00now\xff"),
    DelayedMessage(HOUR_NS, "plant/1/start", 2, b"", b""),
    DelayedMessage(HOUR_NS, "plant/1/cancelled", 0, b"", b"x"),
    DelayedMessage(4 * HOUR_NS, "$tenant/acme/\u00e4", 1, b"\0", b"of a tenant"),
]
POSTPONED_NS, END, PAIR = 3 * HOUR_NS, (1_700_000_001, 42), (HOUR_NS // 2, 1_700_000_002_000_000_000)
STORED = [
    StoredMessage(**asdict(MESSAGES[0]), id=1, is_intact=True),
    StoredMessage(**asdict(MESSAGES[1]) | {"due_ns": POSTPONED_NS}, id=2, is_intact=True),
    StoredMessage(**asdict(MESSAGES[3]), id=4, is_intact=True),
]


def test_the_cursor_of_a_file_without_a_state_is_an_error_of_sqlite(tmp_path: Path) -> None:
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    store.open()
    store.close()
    assert read_ring_cursor(store.path) == (0, 0)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("DELETE FROM state")
        db.commit()
    with pytest.raises(sqlite3.DatabaseError, match="the table of the state is empty"):
        read_ring_cursor(store.path)


def test_a_batch_of_due_messages_is_bounded_by_bytes_and_by_number(tmp_path: Path) -> None:
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    store.open()
    messages = [DelayedMessage(due, "t", 0, b"", bytes(1000)) for due in (5, 3, 1, 4, 2, 9)]
    store.apply(messages, (), (), PLACE, CLOCK)
    assert [message.due_ns for message in store.due(5, 10, 1 << 20)] == [1, 2, 3, 4, 5]
    assert [message.due_ns for message in store.due(5, 2, 1 << 20)] == [1, 2]
    assert [message.due_ns for message in store.due(5, 10, 2500)] == [1, 2, 3]
    assert [message.due_ns for message in store.due(5, 10, 1)] == [1]
    store.close()


def test_another_process_that_opens_the_file_does_not_truncate_the_index_of_its_log(tmp_path: Path) -> None:
    """SQLite truncates it unless a process has this lock; the mapping of the broker would end in SIGBUS."""
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    store.open()
    lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'rb+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)"
    command = [sys.executable, "-c", lock, f"{store.path}-shm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in done.stderr
    store.close()
    assert not store.path.with_name("delayed.sqlite-shm").exists()


# ---- golden schema and rows ----


def write_typical(path: Path) -> None:
    """A store with a waiting, a postponed and a cancelled message, and one of a tenant."""
    store = DelayedStore(path, synced=False)
    store.open()
    store.apply(MESSAGES, (), (), (1_700_000_001, 41), (0, 1))
    cancelled = store.find(3)
    assert cancelled is not None
    store.apply((), [cancelled], [(2, POSTPONED_NS)], END, PAIR)
    store.close()


def dumped(path: Path) -> str:
    """The file as SQL, which does not depend on the version of SQLite."""
    with closing(sqlite3.connect(path)) as db:
        lines = [
            f"PRAGMA {name} = {db.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        tables = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type DESC, name"
        )
        for _, text in tables.fetchall():
            lines.append(f"{text};")
        for table in ("message", "state", "tenant", "sqlite_sequence"):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            values = " || ', ' || ".join(f"quote({name})" for name in names)
            rows = db.execute(f"SELECT {values} FROM {table} ORDER BY 1").fetchall()
            lines += [f"DELETE FROM {table};"] + [f"INSERT INTO {table} VALUES ({text});" for (text,) in rows]
    return "\n".join([*lines, ""])


def test_what_is_written_is_the_golden_schema_with_its_rows(tmp_path: Path) -> None:
    write_typical(tmp_path / "delayed.sqlite")
    assert dumped(tmp_path / "delayed.sqlite") == GOLDEN.read_text()


def test_the_golden_schema_is_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "delayed.sqlite")) as db:
        db.executescript(GOLDEN.read_text())
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    store.open()
    assert store.renamed is None
    assert (store.ring_cursor, store.clock) == (END, PAIR)
    assert (store.messages, store.stored_bytes) == (3, sum(message.size for message in STORED))
    assert store.tenant_use == use_of(STORED)
    assert store.due(4 * HOUR_NS, 10, 1 << 20) == STORED
    store.apply(MESSAGES[:1], (), (), END, PAIR)
    assert store.find(3) is None  # an identifier is not used again
    assert store.find(5) is not None
    store.close()


def test_a_file_of_version_1_gets_the_sums_of_tenants(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = "$tenant/b/x", "$tenantless"
    tenants = [MESSAGES[3], *(DelayedMessage(1, topic, 0, b"", b"") for topic in topics)]
    rows = [(m.topic, m.properties, m.payload) for m in tenants]
    with closing(sqlite3.connect(tmp_path / "delayed.sqlite")) as db:
        db.executescript((STATE / "delayed-v1.sql").read_text())
        db.executemany("INSERT INTO message VALUES (NULL, 1, ?, 0, ?, ?, 0)", rows)
        db.commit()
    for _ in range(2):
        store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
        store.open()
        assert store.renamed is None
        assert store.tenant_use == use_of(tenants)
        assert {name for name, _ in store.tenant_use} == {"acme", "b"}
        assert store.messages == 2  # as the golden file says
        store.close()
    assert "damaged" not in caplog.text


def test_sums_of_tenants_are_right_after_a_message_with_a_damaged_topic(tmp_path: Path) -> None:
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    store.open()
    messages = [DelayedMessage(1, f"$tenant/{name}/x", 0, b"", b"") for name in "aab"]
    store.apply(messages, (), (), PLACE, CLOCK)
    assert store.tenant_use == use_of(messages)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("UPDATE message SET topic = '$tenant/b/x' WHERE id = 1")
        db.commit()
    damaged = store.find(1)
    assert damaged is not None
    assert not damaged.is_intact
    store.apply((), [damaged], (), PLACE, CLOCK)
    assert store.tenant_use == use_of(messages[1:])
    store.close()
    store.open()
    assert store.tenant_use == use_of(messages[1:])
    store.close()


@pytest.mark.parametrize(("begin", "costs"), [(60, False), (68, False), (44, True)])
def test_a_flipped_bit_in_the_header_prevents_no_start(tmp_path: Path, begin: int, costs: bool) -> None:
    """user_version, application_id, and the format of the schema, which SQLite itself checks."""
    file = tmp_path / "delayed.sqlite"
    write_typical(file)
    before, content = dumped(file), file.read_bytes()
    for bit in range(begin * 8, begin * 8 + 32):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        store = DelayedStore(file, synced=False)
        store.open()
        store.close()
        assert store.renamed is None or costs
        assert store.renamed is not None or dumped(file) == before


def test_a_file_with_damage_outside_of_its_header_too_is_renamed(tmp_path: Path) -> None:
    file = tmp_path / "delayed.sqlite"
    write_typical(file)
    with closing(sqlite3.connect(file)) as db:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'message_due'"
        (page,) = db.execute(query).fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    damaged = bytearray(file.read_bytes())
    damaged[60] ^= 1  # user_version
    damaged[page * page_bytes - 20 : page * page_bytes] = bytes(20)  # keys of the index
    file.write_bytes(damaged)
    store = DelayedStore(file, synced=False)
    store.open()
    store.close()
    assert store.renamed is not None
    assert store.renamed.read_bytes()[60:] == damaged[60:]


def test_a_file_of_another_program_is_renamed_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "delayed.sqlite"
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE message (text)")
    before = file.read_bytes()
    store = DelayedStore(file, synced=False)
    store.open()
    assert store.messages == 0
    store.close()
    assert store.renamed is not None
    with closing(sqlite3.connect(store.renamed)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("message",)]
    assert len(store.renamed.read_bytes()) == len(before)


if __name__ == "__main__" and not GOLDEN.exists():
    with tempfile.TemporaryDirectory() as directory:
        write_typical(Path(directory, "delayed.sqlite"))
        GOLDEN.write_text(dumped(Path(directory, "delayed.sqlite")))
