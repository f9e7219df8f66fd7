"""State files: the journal ring, the snapshot files and the journal's part of the log, from start to stop.

    runtime_dir/sessions.ring    the journal (edge/session_store/journal_writer.py); its log may have older
                                 parts
    runtime_dir/sessions.state   the snapshot, if state need not survive a power cut; otherwise it is
    state_dir/sessions.state     here, synced, and the journal is logged, in LOG_DIRECTORY/sessions. While
                                 that log fails, the journal continues without it, and a snapshot that the
                                 disk does not take is in runtime_dir
    .../sessions.state.copy      a second copy, in case the file is damaged
    runtime_dir/sessions.reserve space for that snapshot in a full file system
    runtime_dir/sessions.spill   overwritten records that sessions wait for (edge/session_store/spill_file.py)
    state_dir/retained.state     retained messages (edge/recovery/retained_store.py)

Owns these names. A file in the place that is no longer used is removed; otherwise a later change of the
configuration would bring back old state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edge.config.schema import Config, Durability
from edge.logging_setup import pairs
from edge.recovery.read_journal import PastLog, SavedState, read_saved_state
from edge.recovery.retained_store import RetainedStore
from edge.session_store.journal_writer import JournalTarget, SessionJournal
from edge.session_store.reserve import Reserve
from edge.session_store.spill_file import SpillFile
from edge.streams.absent_rings import is_ring_of_stream
from edge.streams.epochs import Epochs
from edge.streams.ring_files import LogEnd, LoggedRecords, ring_to_write
from persistence.durable_file import problem_of, remedy_of
from ringbuf import Ring
from ringbuf.ring import cursor_file, ring_file

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker
    from edge.broker.engine_rings import PartitionLike
    from persistence import Log, LoggedRing

log = logging.getLogger(__name__)

SESSIONS_RING = "sessions"
FILE_NAME = "sessions.state"
FILE_NAMES = (FILE_NAME, f"{FILE_NAME}.copy")
RETAINED_NAME = "retained.state"
IN_LOG_TIMES = 16  # with a log, the journal may hold so many times its ring's size behind a snapshot


def forget_state(config: Config) -> None:
    """Remove the state files of an earlier run, so that nothing old returns later."""
    ring_file(config.runtime_dir / SESSIONS_RING).unlink(missing_ok=True)
    cursor_file(config.runtime_dir / SESSIONS_RING).unlink(missing_ok=True)
    for directory in (config.runtime_dir, config.state_dir):
        for name in FILE_NAMES:
            (directory / name).unlink(missing_ok=True)
    (config.state_dir / RETAINED_NAME).unlink(missing_ok=True)
    SpillFile(config.runtime_dir).remove()
    Reserve(config.runtime_dir).release()


class StateFiles:
    """State files: created at the start, then find(), restore(), close().

    Raises RingsUnavailable if there is no memory for the journal.
    """

    def __init__(
        self,
        config: Config,
        epochs: Epochs,
        log_ends: Mapping[str, tuple[int, int]],
        past: LoggedRecords | None = None,
    ) -> None:
        self.durability = config.sessions_durability
        directories = config.runtime_dir, config.state_dir
        self._places = [[directory / name for name in FILE_NAMES] for directory in directories]
        self._sync_interval_ms = min(stream.sync_interval_ms for stream in config.stream)
        self._sync_bytes = min(stream.synced_after_bytes for stream in config.stream)
        self.ring, self._writer = ring_to_write(
            config.runtime_dir / SESSIONS_RING,
            config.sessions.journal_bytes,
            epochs,
            log_end=LogEnd(*log_ends.get(SESSIONS_RING, ())),
            past=past,
            prepare=lambda ring: ring.writer(when_full="reject", blocking_readers="admitted"),
            mode=0o600,
        )
        # The ring contains wills and facts of clients, and only the broker reads it. Former versions used
        # mode 0640.
        with suppress(OSError):
            ring_file(config.runtime_dir / SESSIONS_RING).chmod(0o600)
        # Epoch and offset: the log may drop what is before. Nothing, until a snapshot of this start is saved:
        # until then a power cut leaves the former snapshot, which needs the journal of its own epoch.
        self._needed = (0, 0)
        self._found = SavedState()
        self.retained = RetainedStore(config.state_dir / RETAINED_NAME, sync=self.durability.is_logged)
        self._directory = config.runtime_dir
        self._spill = SpillFile(config.runtime_dir)
        self._journal: SessionJournal | None = None
        self._is_away = threading.Event()  # set while the journal's ring is not in its log, which fails
        self._closed = False

    @property
    def _files(self) -> list[Path]:
        """The snapshot and its copy, in the directory that is in use."""
        return self._places[self.durability.is_logged]

    def logged_ring(self) -> LoggedRing:
        """The ring of the journal, with its options for the log."""
        from persistence import LogAbsence, LoggedRing

        options = (self.durability.sync_mode, self._sync_interval_ms, self._sync_bytes)
        return LoggedRing(self.ring, *options, LogAbsence(self._is_away, self._is_on_disk))

    def trim(self, journal_log: Log) -> None:
        """Remove segments that a snapshot has made superfluous, whenever a segment is sealed."""
        journal_log.on_sealed.append(lambda _: self._trimmed(journal_log))

    def find(self, past: PastLog | None) -> SavedState:
        """Read the saved state, before anything is written."""
        self._found = read_saved_state(self._places, self.ring, past)
        return self._found

    def knows(self, ring: Ring) -> bool:
        """True if the saved state refers to this epoch of this ring."""
        return (ring.name, ring.epoch) in self._found.rings

    def _removed(self, partitions: Mapping[str, PartitionLike]) -> str:
        """Names of the rings of the saved state whose stream, or partition, was removed."""
        names = {name for name, _ in self._found.rings if is_ring_of_stream(name)} - partitions.keys()
        return ",".join(sorted(names)) or "none"

    def restore(self, broker: Broker, partitions: Mapping[str, PartitionLike], past: PastLog | None) -> None:
        """Restore the saved state, and keep it from now on. Must be called before any client is served."""
        epochs = (self.ring.epoch, self._found.journal_epoch)
        self._spill.open(broker.engine, epochs, fresh=not self._found.frames)
        if self._found.frames:
            from edge.recovery.restore_sessions import restore

            restored = restore(
                broker, self._found, partitions, past, now_s=time.monotonic(), now_ns=time.time_ns()
            )
            log.info("sessions restored %s", pairs(**restored._asdict()))
            if restored.lost:
                log.warning(
                    "queued records lost: no ring, spill file or log of their stream has them; keep a "
                    '[[stream]] until its queues are empty, or give it a log: durability = "interval" %s',
                    pairs(records=restored.lost, removed_rings=self._removed(partitions)),
                )
        self._found = SavedState()
        self._journal = broker.journal
        broker.journal.on_snapshot = self._snapshot_saved
        files = tuple((file, self.durability.is_logged) for file in self._files)
        in_log_bytes = IN_LOG_TIMES * self.ring.capacity_bytes if self.durability.is_logged else 0
        reserve = None if self.durability.is_logged else Reserve(self._directory)
        on_disk = self.durability is Durability.DISK
        spare = tuple(self._places[0]) if self.durability.is_logged else ()
        place = JournalTarget(
            self.ring, self._writer, files, on_disk, in_log_bytes, reserve, spare, self._is_away.is_set
        )
        offset = self.ring.extremes().end_offset
        try:
            broker.keep(place)
        except OSError as error:
            log.error(
                "session snapshot failed at start, sessions end with the broker until it is written; %s %s",
                remedy_of(error),
                pairs(reason=problem_of(error)),
            )
            return
        if not broker.journal.failure:
            self._snapshot_saved(offset)

    def close(self) -> None:
        """Close the ring, and remove the files if nothing is kept. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self.retained.stop()
        self._spill.close()
        Reserve(self._directory).release()
        extremes = self.ring.extremes()
        self.ring.close()
        if self._journal is not None and self._journal.sessions_saved == 0:
            for file in (file for files in self._places for file in files):
                file.unlink(missing_ok=True)
            self._spill.remove()
            self.ring.unlink()
        elif extremes.end_offset == self.ring.first_offset:  # a snapshot contains everything
            self.ring.unlink()

    def _is_on_disk(self) -> bool:
        """True if the last snapshot is on the disk. For any thread."""
        return self._journal is not None and not self._journal.failure

    def _snapshot_saved(self, offset: int) -> None:
        self._needed = (self.ring.epoch, offset)
        for file in self._places[not self.durability.is_logged]:  # of another durability
            file.unlink(missing_ok=True)

    def _trimmed(self, journal_log: Log) -> None:
        for segment in journal_log.reader.segments():
            ends = [(ring.epoch, ring.end_offset) for ring in segment.rings]
            if segment.state in ("sealed", "flushed") and all(end <= self._needed for end in ends):
                journal_log.remove(segment.base)
