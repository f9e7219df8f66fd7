"""Where the state of sessions is, from start to stop: the journal's ring, the files, and its part of the log.

    runtime_dir/sessions.ring    the journal (edge/state/keeper.py); the rest of it may be in its log
    runtime_dir/sessions.state   the checkpoint, while nothing has to outlive a power cut; else it is
    state_dir/sessions.state     here, synced, and the journal is logged, in LOG_DIRECTORY/sessions
    .../sessions.state.copy      the same again: a damaged file costs nothing
    runtime_dir/sessions.reserve room for that checkpoint in a file system that is full
    runtime_dir/sessions.spill   what rings have overwritten and sessions wait for (edge/state/spill.py)
    state_dir/retained.state     retained messages (edge/state/retained_file.py)

Owns these names.  A file in the place that is not used any more is removed: it would come back years later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edge.config import Config
from edge.epochs import Epochs
from edge.logs import pairs
from edge.ring_files import LogEnd, LoggedRecords, ring_to_write
from edge.state.keeper import Keeper, Place
from edge.state.reserve import Reserve
from edge.state.restoring import Found, PastLog, find, restore
from edge.state.retained_file import RetainedFile
from edge.state.spill import SpillFile
from ringbuf import Ring
from ringbuf.ring import cursor_file, ring_file

if TYPE_CHECKING:
    from edge.broker import Broker
    from edge.router import PartitionLike
    from persistence import Log, Source

__all__ = ["SESSIONS_RING", "StateHome", "forget_state", "state_level"]

log = logging.getLogger(__name__)

SESSIONS_RING = "sessions"
FILE_NAME = "sessions.state"
FILE_NAMES = (FILE_NAME, f"{FILE_NAME}.copy")
RETAINED_NAME = "retained.state"
IN_LOG_TIMES = 16  # a journal's ring may have so many times its size behind a checkpoint, if it has a log


def state_level(config: Config) -> Literal["process", "interval", "disk"]:
    """What sessions outlive: as [sessions] says, else what the most durable stream does."""
    if config.sessions.durability is not None:
        return config.sessions.durability
    held = {stream.durability for stream in config.stream}
    return "disk" if "disk" in held else "process" if held == {"process"} else "interval"


def forget_state(config: Config) -> None:
    """Nothing is kept: what an earlier life has left is not to come back later."""
    ring_file(config.runtime_dir / SESSIONS_RING).unlink(missing_ok=True)
    cursor_file(config.runtime_dir / SESSIONS_RING).unlink(missing_ok=True)
    for directory in (config.runtime_dir, config.state_dir):
        for name in FILE_NAMES:
            (directory / name).unlink(missing_ok=True)
    (config.state_dir / RETAINED_NAME).unlink(missing_ok=True)
    SpillFile(config.runtime_dir).remove()
    Reserve(config.runtime_dir).release()


class StateHome:
    """Made at the start; then find(), restore(), close().

    Raises RingsUnavailable: no room in memory for the journal.
    """

    def __init__(
        self,
        config: Config,
        epochs: Epochs,
        log_ends: Mapping[str, tuple[int, int]],
        past: LoggedRecords | None = None,
    ) -> None:
        self.level = state_level(config)
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
            prepare=lambda ring: ring.writer(when_full="reject", gates="listed"),
            mode=0o600,
        )
        # It has wills and facts of clients, and only the broker reads it.  Former versions made it 0640.
        with suppress(OSError):
            ring_file(config.runtime_dir / SESSIONS_RING).chmod(0o600)
        self._needed = (self.ring.epoch, 0)  # epoch and offset: what is before may go from the log
        self._found = Found()
        self.retained = RetainedFile(config.state_dir / RETAINED_NAME, sync=self.level != "process")
        self._directory = config.runtime_dir
        self._spill = SpillFile(config.runtime_dir)
        self._keeper: Keeper | None = None
        self._closed = False

    @property
    def _files(self) -> list[Path]:
        """The checkpoint and its copy, in the place that is used."""
        return self._places[self.level != "process"]

    def source(self) -> Source:
        """The journal, as the log takes it."""
        from persistence import Source

        level: Literal["interval", "disk"] = "disk" if self.level == "disk" else "interval"
        return Source(self.ring, level, self._sync_interval_ms, self._sync_bytes)

    def trim(self, journal_log: Log) -> None:
        """Lets go of what a checkpoint has made superfluous, whenever a segment is sealed."""
        journal_log.on_sealed.append(lambda _: self._trimmed(journal_log))

    def find(self, past: PastLog | None) -> Found:
        """Reads what there is, before anybody writes."""
        self._found = find(self._places, self.ring, past)
        return self._found

    def knows(self, ring: Ring) -> bool:
        """Whether what was found speaks of this ring, in this life of it."""
        return (ring.name, ring.epoch) in self._found.rings

    def restore(self, broker: Broker, partitions: Mapping[str, PartitionLike], past: PastLog | None) -> None:
        """Brings back what was found, and keeps it from now on.  Before anybody is served."""
        epochs = (self.ring.epoch, self._found.journal_epoch)
        self._spill.open(broker.engine, epochs, fresh=not self._found.frames)
        if self._found.frames:
            restored = restore(
                broker, self._found, partitions, past, now_s=time.monotonic(), now_ns=time.time_ns()
            )
            log.info("sessions restored %s", pairs(**restored._asdict()))
            if restored.lost:
                log.warning(
                    "records lost that sessions waited for: they were in memory that is gone %s",
                    pairs(records=restored.lost),
                )
        self._found = Found()
        self._keeper = broker.keeper
        broker.keeper.on_checkpoint = self._checkpointed
        files = tuple((file, self.level != "process") for file in self._files)
        in_log_bytes = 0 if self.level == "process" else IN_LOG_TIMES * self.ring.capacity_bytes
        reserve = Reserve(self._directory) if self.level == "process" else None
        place = Place(self.ring, self._writer, files, self.level == "disk", in_log_bytes, reserve)
        try:
            broker.keep(place)
        except OSError as error:
            log.error("sessions cannot be written down, and end with the broker %s", pairs(reason=error))
            return
        for file in self._places[self.level == "process"]:
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the ring back, and leaves no files behind where nothing is kept.  May be called twice."""
        if self._closed:
            return
        self._closed = True
        self.retained.stop()
        self._spill.close()
        Reserve(self._directory).release()
        extremes = self.ring.extremes()
        self.ring.close()
        if self._keeper is not None and self._keeper.held == 0:
            for file in self._files:
                file.unlink(missing_ok=True)
            self._spill.remove()
            self.ring.unlink()
        elif extremes.end_offset == self.ring.first_offset:  # a checkpoint says it all
            self.ring.unlink()

    def _checkpointed(self, offset: int) -> None:
        self._needed = (self.ring.epoch, offset)

    def _trimmed(self, journal_log: Log) -> None:
        for facts in journal_log.reader.segments():
            ends = [(it.epoch, it.end_offset) for it in facts.rings]
            if facts.state in ("sealed", "flushed") and all(end <= self._needed for end in ends):
                journal_log.remove(facts.base)
