"""Log maintenance: keeps, archives and deletes segments of a broker's logs by configured rules.

Owns one Maintenance for each log of a LogSet, the thread that they share, and the process of idle priority
for long work. The log of the sessions is left out: its writer removes replaced segments itself.

Retention holds come from `holds`: functions from the name of a ring to Floors. They are called on the
maintenance thread, about once a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from edge.config.schema import Config
from edge.log.log_set import LogSet, disk_rules
from edge.streams.ring_files import stream_of
from persistence.log.log import Log
from persistence.maintenance.background_process import BackgroundProcess
from persistence.maintenance.maintenance import Maintenance, MaintenanceRules, MaintenanceThread
from persistence.maintenance.retention_rules import Floor, StreamRules
from ringbuf import Ring, RingError

Status = dict[str, Any]


class LogMaintenance:
    """Use: start(), after the logs; stop(), before they are closed."""

    def __init__(
        self,
        logs: LogSet,
        config: Config,
        without: Iterable[Path] = (),
        rings: Callable[[], Iterable[Ring]] = tuple,
    ) -> None:
        """Create the maintenance. `without`: directories of logs that it must not touch. `rings`: those whose
        consumers can also read them in memory.
        """
        self._rings = rings
        self.holds: list[Callable[[str], Iterable[Floor]]] = []
        self._logs = logs
        self._streams: dict[str, StreamRules] = {}
        self.apply(config)
        self._full: dict[str, set[str]] = {}  # directory -> full streams
        log = config.log
        rules = MaintenanceRules(
            retain_bytes=log.retain_bytes,
            retain_s=log.retain_s,
            segment_age_s=log.segment_age_s,
            archive=log.archive,
            disk=disk_rules(log),
            scrub_bytes_per_s=log.scrub_bytes_per_s,
            scrub_interval_s=log.scrub_interval_s,
        )
        self._rules, self._without = rules, {str(path) for path in without}
        worker = BackgroundProcess()
        self._maintained: list[Maintenance] = []
        self._thread = MaintenanceThread(self._maintained, worker)
        self._worker = worker
        for ring_log in logs.logs():
            self.add(ring_log)
        logs.on_log = self.add  # a new local producer may open another log

    def apply(self, config: Config) -> None:
        """Use the rules of the streams of another configuration from now on; from any thread."""
        self._streams = {
            stream.name: StreamRules(
                stream.name, stream.retain_bytes, stream.retain_s, stream.discard, stream.hold_bytes
            )
            for stream in config.stream
        }

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, log: Log) -> None:
        """Maintain this log too; from any thread."""
        if log.directory not in self._without:
            self._maintained.append(self._maintenance_of(log))
            log.on_sealed.append(lambda _: self._thread.wake())

    def stop(self) -> None:
        """End the thread. Unfinished work of the idle process starts again after the next start."""
        self._thread.stop()

    def status(self) -> Status:
        """Status of all logs together, for `brim status`. Reads the disk: not for the event loop."""
        return _together([maintenance.status() for maintenance in self._maintained])

    def _maintenance_of(self, log: Log) -> Maintenance:
        return Maintenance(
            log,
            self._rules,
            self._worker,
            stream_of=self._rules_of,
            floors=self._floors,
            on_full=partial(self._on_full, log.directory),
            roll=partial(self._roll, log.directory),
            block=partial(self._logs.block, log.directory),
        )

    def _roll(self, directory: str) -> None:
        if (thread := self._logs.thread_in(directory)) is not None:
            thread.roll()

    def _rules_of(self, ring_name: str) -> StreamRules:
        name = stream_of(ring_name)
        return self._streams.get(name) or StreamRules(name)

    def _floors(self, ring_name: str) -> list[Floor]:
        floors = [floor for hold in self.holds for floor in hold(ring_name)]
        for ring in self._rings():
            if ring.name == ring_name:
                with suppress(RingError):  # the ring is damaged: then all records count as lost
                    in_ring = ring.epoch, ring.extremes().oldest_offset
                    return [floor._replace(in_ring=in_ring) for floor in floors]
        return floors

    def _on_full(self, directory: str, streams: set[str]) -> None:
        self._full[directory] = streams
        self._logs.refuse(lambda ring: stream_of(ring) in set().union(*self._full.values()))


def _together(each: list[Status]) -> Status:
    """Combine status: counters added, for the disk the worst state."""
    order = ("ok", "warn", "delete", "read_only")
    total: Status = {"disk_step": "ok", "full_streams": [], "trouble": ""}
    counted = ("bytes_by_state", "bytes_by_stream", "deleted", "forced_records", "unread_records")
    for name in counted:
        total[name] = dict(sum((Counter(row[name]) for row in each), Counter()))
    for status in each:
        total["disk_step"] = max(total["disk_step"], status["disk"]["step"], key=order.index)
        total["full_streams"] = sorted({*total["full_streams"], *status["full_streams"]})
        total["trouble"] = total["trouble"] or status["trouble"]
    archives = [row["archive"] for row in each]
    total["archive"] = {
        name: sum(archive[name] for archive in archives)
        for name in ("segments", "refused", "damaged", "plain_bytes")
    }
    archived_bytes = total["bytes_by_state"].get("archived", 0)
    total["archive"]["ratio"] = (
        round(total["archive"]["plain_bytes"] / archived_bytes, 2) if archived_bytes else 0.0
    )
    scrubs = [row["scrub"] for row in each]
    total["scrub"] = {name: sum(scrub[name] for scrub in scrubs) for name in ("read_bytes", "damaged")}
    total["scrub"]["passes"] = min((scrub["passes"] for scrub in scrubs), default=0)
    total["scrub"]["ended_ns"] = min((scrub["ended_ns"] or 0 for scrub in scrubs), default=0)
    return total
