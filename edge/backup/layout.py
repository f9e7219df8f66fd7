"""Layout of a backup, and the files of a broker that belong to it.

    DIR/manifest.json   manifest.py
    DIR/state/          the state directory, with the session snapshot, and without locks and temporary files
    DIR/log/            the log directory: segments, archives

Owns these names. New state files of later versions are part of a backup without a change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.config.schema import Config, Durability
from edge.delayed.store import FILE_NAME as DELAYED
from edge.recovery.state_files import FILE_NAMES, SESSIONS_RING
from edge.streams.ring_files import stream_of
from persistence.archive import ARCHIVE_SUFFIX

STATE, LOG = "state", "log"
INSTALLATION = "installation"  # in the directories of state, rings and log
# Copied last, so that they contain every epoch that other files of the backup refer to.
LAST = ("epochs", "epochs.copy", INSTALLATION, "installation.copy")
_NOT_COPIED = re.compile(r"(.*\.)?(lock|LOCK|tmp|new|sock|bad|damaged|reserve)")


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """Directories of a broker, and its streams with a log."""

    edge_id: str
    runtime_dir: Path
    state_dir: Path
    log_directory: Path
    logged_streams: frozenset[str]
    keeps_sessions: bool

    @classmethod
    def of_config(cls, config: Config) -> BrokerFiles:
        """Files of a broker with this configuration."""
        logged = frozenset(stream.name for stream in config.stream if stream.durability.is_logged)
        directories = (config.runtime_dir, config.state_dir, config.log_directory)
        return cls(config.edge_id, *directories, logged, config.sessions.keep)

    @classmethod
    def of_settings(cls, settings: dict[str, Any]) -> BrokerFiles:
        """Files of a running broker, from the settings that its control socket reports."""
        state_dir = Path(settings["state_dir"])
        logged = frozenset(
            stream["name"] for stream in settings["stream"] if Durability(stream["durability"]).is_logged
        )
        log_directory = Path(settings["log"]["directory"] or state_dir / "log")
        return cls(
            settings["edge_id"],
            Path(settings["runtime_dir"]),
            state_dir,
            log_directory,
            logged,
            settings["sessions"]["keep"],
        )

    def is_logged(self, ring_name: str) -> bool:
        """True if the stream of the ring has a log."""
        return stream_of(ring_name) in self.logged_streams


def snapshot_files(files: BrokerFiles) -> list[Path]:
    """The session snapshot and its copy, in the directory that the broker uses."""
    candidates = [[place / name for name in FILE_NAMES] for place in (files.runtime_dir, files.state_dir)]
    present = [[path for path in paths if path.exists()] for paths in candidates]
    return max(present, key=lambda paths: max((path.stat().st_mtime_ns for path in paths), default=0))


def state_files(files: BrokerFiles) -> Iterator[tuple[Path, str]]:
    """Files of the state directory without LAST, snapshots and log, each with the name in a backup."""
    for path in sorted(files.state_dir.rglob("*")):
        name = path.relative_to(files.state_dir).as_posix()
        if path.is_symlink() or not path.is_file() or path.is_relative_to(files.log_directory):
            continue
        if name in (DELAYED, f"{DELAYED}-wal", f"{DELAYED}-shm"):  # copied as one database
            continue
        if name not in (*LAST, *FILE_NAMES) and not _NOT_COPIED.fullmatch(path.name):
            yield path, f"{STATE}/{name}"


def archives_in(directory: Path) -> list[Path]:
    """Archives of one log."""
    return sorted(directory.glob(f"*{ARCHIVE_SUFFIX}"))


def is_journal(directory: Path) -> bool:
    """True for the log of the session journal."""
    return directory.name == SESSIONS_RING
