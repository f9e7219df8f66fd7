"""Backup in the order that makes the copy valid: state first, then the log, then the epochs.

    session snapshot -> other state files -> the log has all records of that time -> segments -> epochs

So nothing in the state refers to a record that the log of the backup lacks. The log of the session journal is
only copied from a stopped broker: a snapshot of a running one needs no journal behind it.

A backup is made in DIR.partial, which becomes DIR at the end.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edge.backup.file_copy import Advance, copy_database, copy_file
from edge.backup.layout import (
    LAST,
    LOG,
    STATE,
    BrokerFiles,
    archives_in,
    is_journal,
    snapshot_files,
    state_files,
)
from edge.backup.log_tail import logged_end, tail_of
from edge.backup.manifest import BackupFile, Manifest, partial_of, write_manifest
from edge.delayed.ring import RING as DELAYED_RING
from edge.delayed.store import FILE_NAME as DELAYED
from edge.delayed.store import is_exclusive, read_ring_cursor
from edge.errors import EdgeError
from edge.recovery.state_files import SESSIONS_RING
from edge.session_store.snapshot_file import SavedSnapshot
from edge.session_store.spill_file import SPILL_NAME
from edge.user_names import user_name
from persistence import LogReader, OsFiles
from persistence.durable_file import remedy_of
from persistence.read.directories import logs_in
from persistence.segment.format import segment_name
from ringbuf import Ring
from ringbuf.errors import RingError
from ringbuf.ring import Extremes

LOG_WAIT_S, LOG_LOOK_S = 10.0, 0.05


def make_backup(
    files: BrokerFiles,
    target: Path,
    *,
    brim: str,
    save: Callable[[], object] | None = None,
    links: bool = True,
    advance: Advance = lambda _: None,
) -> Manifest:
    """Make a backup in `target`, which must not exist or be empty, and return its manifest.

    `save` lets a running broker write its snapshot; None: the broker is stopped, and the caller has locked
    its directories. Raises EdgeError.
    """
    partial = partial_of(target)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise EdgeError(f"{target} is not empty", hint="name a new directory for each backup")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(mode=0o750)
    except FileExistsError as error:
        hint = f"an earlier backup was interrupted; rm -r {partial}"
        raise EdgeError(f"{partial} exists", hint=hint) from error
    except OSError as error:
        raise EdgeError(
            f"{target} cannot be made: {error.strerror}", hint="name another directory"
        ) from error
    try:
        manifest = _Backup(files, partial, save, links, advance).make(brim)
        os.rename(partial, target)
        OsFiles().dirsync(str(target.absolute().parent))
    except EdgeError as error:
        raise EdgeError(
            f"backup not made: {error}", hint=f"rm -r {partial}; {error.hint or 'try again'}"
        ) from error
    except OSError as error:
        place = error.filename or partial
        raise EdgeError(
            f"backup not made: {place}: {error.strerror}", hint=f"{_remedy_of(error)}; rm -r {partial}"
        ) from error
    return manifest


def _remedy_of(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "free space, or name another directory"
    return remedy_of(error) if error.errno == errno.EFBIG else "run as the broker's user or root"


def total_bytes(files: BrokerFiles) -> int:
    """Approximate size of a backup, for a progress bar."""
    paths = [path for path, _ in state_files(files)] + snapshot_files(files)
    paths += [path for directory in logs_in(files.log_directory) for path in directory.glob("*")]
    total = 0
    for path in paths:
        with suppress(OSError):  # retention may remove a segment meanwhile
            total += path.stat().st_size if path.suffix != ".tmp" else 0
    return total


@dataclass
class _Backup:
    files: BrokerFiles
    root: Path
    save: Callable[[], object] | None
    links: bool
    advance: Advance
    copied: list[BackupFile] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def make(self, brim: str) -> Manifest:
        self._copy_state()
        readers = self._log_readers()
        self._wait_for_log(readers)
        self._copy_delayed()
        for directory, reader in readers.items():
            if self.save is None or not is_journal(directory):
                self._copy_log(directory, reader)
        for name in LAST:
            self._copy(self.files.state_dir / name, f"{STATE}/{name}")
        manifest = Manifest(
            brim=brim,
            created_ns=time.time_ns(),
            edge_id=self.files.edge_id,
            user=user_name(self.files.state_dir.stat().st_uid),
            is_live=self.save is not None,
            missing=tuple(self.missing),
            files=tuple(self.copied),
        )
        for directory in (self.root, *(path for path in self.root.rglob("*") if path.is_dir())):
            OsFiles().dirsync(str(directory))
        write_manifest(self.root, manifest)
        return manifest

    def _copy(self, source: Path, name: str, *, limit: int | None = None, links: bool = False) -> None:
        """Copy a file, unless the broker has removed it meanwhile."""
        with suppress(FileNotFoundError):
            may_link = links and self.links
            self.copied.append(copy_file(source, self.root, name, self.advance, limit=limit, links=may_link))

    def _copy_state(self) -> None:
        if self.save is not None:
            self.save()
        if not self.files.keeps_sessions:
            self.missing.append("sessions and retained messages: sessions.keep is false")
        for path in snapshot_files(self.files):
            self._copy(path, f"{STATE}/{path.name}")
        for path, name in state_files(self.files):
            self._copy(path, name)

    def _is_delayed_unreadable(self, store: Path) -> bool:
        """True if a broker runs, and only its process can read the delayed messages."""
        return self.save is not None and is_exclusive(store)

    def _copy_delayed(self) -> None:
        """Copy the delayed messages, also while the broker writes them."""
        if (self.files.runtime_dir / DELAYED).exists():
            self.missing.append('delayed messages in memory ([delayed] has durability = "process")')
        if not (source := self.files.state_dir / DELAYED).exists():
            return
        if self._is_delayed_unreadable(source):
            self.missing.append(f"delayed messages: on this file system only a stopped broker's: {source}")
            return
        try:
            self.copied.append(copy_database(source, self.root, f"{STATE}/{DELAYED}", self.advance))
        except sqlite3.Error as error:
            (self.root / STATE / DELAYED).unlink(missing_ok=True)
            self.missing.append(f"delayed messages: {source}: {error}")

    def _log_readers(self) -> dict[Path, LogReader]:
        directories = [path for path in logs_in(self.files.log_directory) if path.is_dir()]
        return {directory: LogReader(OsFiles(), str(directory)) for directory in directories}

    def _copy_log(self, directory: Path, reader: LogReader) -> None:
        """Link segments that are never written again; copy the others up to their last valid byte."""
        place = f"{LOG}/{directory.relative_to(self.files.log_directory).as_posix()}/".replace("/./", "/")
        reader.refresh()
        tail = tail_of(directory, reader)
        for segment in reader.segments():
            if segment.state != "archived":
                name = segment_name(segment.base)
                end = tail.end if tail is not None and tail.name == name else segment.bytes
                limit = None if segment.indexed or segment.state == "lost" else end
                self._copy(directory / name, place + name, limit=limit, links=segment.indexed)
        for archive in archives_in(directory):
            self._copy(archive, place + archive.name, links=True)

    # ---- records of the rings ----

    def _wait_for_log(self, readers: dict[Path, LogReader]) -> None:
        """Wait until the log has all records that were in the rings at the beginning."""
        spill = self.files.runtime_dir / SPILL_NAME
        if spill.exists() and spill.stat().st_size:
            text = "messages for absent sessions that their rings have overwritten"
            self.missing.append(f"{text}: {spill}")
        for path in sorted(self.files.runtime_dir.glob("*.ring")):
            name = path.name.removesuffix(".ring")
            try:
                with Ring.attach(path.with_suffix("")) as ring:
                    epoch, extremes = ring.epoch, ring.extremes()
            except (RingError, OSError) as error:
                self.missing.append(f"ring {name}: {error}")
                continue
            self._add_missing(readers, name, epoch, extremes)

    def _add_missing(self, readers: dict[Path, LogReader], name: str, epoch: int, ring: Extremes) -> None:
        records = ring.end_offset - ring.oldest_offset
        if name == DELAYED_RING:
            self._add_not_stored(epoch, ring)
        elif name == SESSIONS_RING:
            if self.save is None and self._behind_snapshot(epoch, ring.end_position):
                text = "changes of sessions in memory: the broker did not stop cleanly; start and stop it"
                self.missing.append(text)
        elif self.files.is_logged(name):
            end = ring.end_offset
            if left := self._left_below(end, lambda: logged_end(readers, name, epoch, end)):
                self.missing.append(f"ring {name}: records that the log does not have yet: {left}")
        elif records:
            self.missing.append(f'ring {name}: records in memory (durability = "process"): {records}')

    def _add_not_stored(self, epoch: int, ring: Extremes) -> None:
        """Report delayed messages that are acknowledged and not in their file: it gets them some milliseconds
        later, but not from a broker that was killed, or on a full disk.
        """
        store = self.files.state_dir / DELAYED
        if (self.files.runtime_dir / DELAYED).exists() or self._is_delayed_unreadable(store):
            return  # reported as a whole

        def stored_end() -> int:
            with suppress(sqlite3.Error):
                stored_epoch, offset = read_ring_cursor(store)
                return max(ring.oldest_offset, offset if stored_epoch == epoch else 0)
            return ring.oldest_offset

        if left := self._left_below(ring.end_offset, stored_end):
            self.missing.append(f"delayed messages: records that {store} does not have yet: {left}")

    def _behind_snapshot(self, epoch: int, end_position: int) -> bool:
        """True if the session journal in memory has changes that the copied snapshot lacks."""
        for path in snapshot_files(self.files):
            with suppress(OSError, ValueError):
                origin = SavedSnapshot(path).origin
                return (origin.epoch, origin.position) < (epoch, end_position)
        return end_position > 0

    def _left_below(self, end_offset: int, saved_end: Callable[[], int]) -> int:
        """Number of records below `end_offset` that are not saved, after a wait for a running broker."""
        deadline = time.monotonic() + (LOG_WAIT_S if self.save is not None else 0)
        while True:
            left = end_offset - saved_end()
            if left <= 0 or time.monotonic() >= deadline:
                return max(left, 0)
            time.sleep(LOG_LOOK_S)
