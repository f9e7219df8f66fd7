"""State of a later version of Brim: the start is refused, and no file is changed."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edge.consumers import offset_journal
from edge.delayed.store import FILE_NAME as DELAYED
from edge.delayed.store import SCHEMA_VERSION, DelayedStore
from edge.recovery.state_files import FILE_NAME as SESSIONS
from edge.recovery.state_files import RETAINED_NAME
from edge.session_store import snapshot_file
from edge.session_store.journal_records import STATE_VERSION
from persistence.durable_file import pack_frame
from ringbuf import crc32c
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S


def sessions(state: Path) -> Path:
    file = state / SESSIONS
    header = snapshot_file._HEADER.pack(snapshot_file.MAGIC, STATE_VERSION + 1, 1, 0, 0)
    file.write_bytes(header + crc32c(header).to_bytes(4, "little") + b"of a later version")
    return file


def retained(state: Path) -> Path:
    file = state / RETAINED_NAME
    file.write_bytes(pack_frame(b"z", b"later") + b"later")
    return file


def delayed(state: Path) -> Path:
    file = state / DELAYED
    store = DelayedStore(file, synced=True)
    store.open()
    store.close()
    with closing(sqlite3.connect(file)) as db:
        db.executescript(
            f"PRAGMA user_version = {SCHEMA_VERSION + 1}; CREATE TABLE format (version);"
            f"INSERT INTO format VALUES ({SCHEMA_VERSION + 1});"
        )
    return file


def offsets(state: Path) -> Path:
    file = state / "consumers" / "offsets"
    file.parent.mkdir()
    header = offset_journal._HEADER.pack(offset_journal.MAGIC, offset_journal.VERSION + 1)
    file.write_bytes(header + b"records of a later version")
    return file


@pytest.mark.parametrize("write", [sessions, retained, delayed, offsets])
def test_a_start_is_refused_and_names_file_and_remedy(
    write: Callable[[Path], Path], runtime_directory: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    file = write(state)
    before = file.read_bytes()
    config = tmp_path / "brim.toml"
    config.write_text(
        f'runtime_dir = "{runtime_directory}"\nstate_dir = "{state}"\n[[listener]]\nport = {free_port()}\n'
        "[zmq]\nenabled = false\n[consumers]\nenabled = true\n[delayed]\nenabled = true\n"
        '[sessions]\ndurability = "disk"\n[[stream]]\nname = "s"\ntopics = ["s/#"]\ndurability = "disk"\n'
    )
    command = [sys.executable, "-m", "edge", "run", "--config", str(config)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode not in (0, -9)
    assert f"{file} is of a later version of Brim" in ended.stderr
    assert "start the version that wrote it" in ended.stderr
    assert file.read_bytes() == before
    assert not [*file.parent.glob("*.bad"), *file.parent.glob("*.damaged")]
