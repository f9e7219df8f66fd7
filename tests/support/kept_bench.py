"""A Bench whose sessions are kept: killed and started again, in one process, on the same memory files.

with Lives() as lives:
    bench = lives.start()
    ...
    bench = lives.restart()          # as after kill -9
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from edge.mqtt import ConnAck, Connect, Packet, Properties, ReasonCode, Version
from edge.recovery.read_journal import SavedState, read_saved_state
from edge.recovery.restore_sessions import Restored, restore
from edge.session_store.journal_writer import JournalTarget
from edge.session_store.spill_file import SpillFile
from ringbuf import Ring
from ringbuf.ring import ring_file
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import BEGIN_MS, Bench, Wire

JOURNAL_BYTES = 1 << 20


class Lives:
    """One broker after another in one directory."""

    def __init__(
        self,
        *,
        journal_bytes: int = JOURNAL_BYTES,
        output_waits: bool = False,
        in_log_bytes: int = 0,
        spill: bool = True,
        **bench: Any,
    ) -> None:
        """`output_waits`: a log syncs the journal, when synced() says so; `in_log_bytes`: as Place has it;
        `spill`: there is a spill file.
        """
        self._spill = spill
        self._in_log_bytes = in_log_bytes
        self._output_waits = output_waits
        self._options = bench
        self._journal_bytes = journal_bytes
        self._stack = ExitStack()
        self.directory: Path = self._stack.enter_context(memory_directory())
        self.now_ms, self.step_ns = BEGIN_MS, 0
        self.restored: Restored | None = None
        self.found = SavedState()
        self.past: Any = None
        self.bench: Bench | None = None
        self._ring: Ring | None = None

    def start(self) -> Bench:
        """A broker that has found what the last has left."""
        path = self.directory / "sessions"
        is_there = ring_file(path).exists()
        self._ring = ring = (
            Ring.reattach(path)
            if is_there
            else Ring.create(path, capacity_bytes=self._journal_bytes, epoch=1)
        )
        bench = Bench(directory=self.directory, now_ms=self.now_ms, step_ns=self.step_ns, **self._options)
        self.bench = bench
        file = self.directory / "sessions.state"
        writer = ring.writer()
        found = read_saved_state([[file]], ring, self.past)
        self.found = replace(found, frames=list(found.frames))  # keep() replaces the file
        if self._spill:
            SpillFile(self.directory).open(
                bench.engine, (ring.epoch, self.found.journal_epoch), fresh=not self.found.frames
            )
        self.restored = restore(
            bench.broker,
            found,
            {bench.partition.name: bench.partition},
            self.past,
            now_s=bench.now_ms / 1000,
            now_ns=bench.now_ns,
        )
        bench.broker.keep(
            JournalTarget(ring, writer, ((file, False),), self._output_waits, self._in_log_bytes)
        )
        bench.settle()
        return bench

    @property
    def ring(self) -> Ring | None:
        """The journal's, while there is a life."""
        return self._ring

    def journal_end(self) -> int:
        """The position after the last record of the journal."""
        assert self._ring is not None
        return self._ring.extremes().end_position

    def synced(self, position: int | None = None) -> None:
        """The log has synced the journal, up to there or all of it."""
        assert self.bench is not None
        assert self._ring is not None
        self._ring.durable(self.journal_end() if position is None else position)
        self.bench.settle()

    def kill(self, away_ms: int = 0) -> None:
        """The broker is gone between two instructions."""
        assert self.bench is not None
        assert self._ring is not None
        self.now_ms, self.step_ns = self.bench.now_ms + away_ms, self.bench.step_ns
        self.bench.engine.spill_close()  # whenever Python frees the engine, it leaves the file alone
        self.bench.crash()
        self._ring.close()
        self.bench = None

    def stop(self, away_ms: int = 0) -> None:
        """Stop in order."""
        assert self.bench is not None
        assert self._ring is not None
        self.now_ms, self.step_ns = self.bench.now_ms + away_ms, self.bench.step_ns
        self.bench.close()
        self._ring.close()
        self.bench = None

    def restart(self, away_ms: int = 0) -> Bench:
        """Killed, and started again."""
        self.kill(away_ms)
        return self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bench is not None:
            self.kill()
        self._stack.close()


def connect(
    bench: Bench, client_id: str = "c", expiry_s: int = 3600, **fields: Any
) -> tuple[Wire, list[Packet]]:
    """A client of MQTT 5 that resumes its session, and the packets after its CONNACK."""
    wire = bench.wire(Version.V5)
    fields.setdefault("clean_start", False)
    properties = Properties(session_expiry_interval_s=expiry_s)
    wire.send(Connect(client_id, version=Version.V5, properties=properties, **fields))
    first, *rest = wire.received()
    assert isinstance(first, ConnAck)
    assert first.reason_code is ReasonCode.SUCCESS
    return wire, rest


def is_known(bench: Bench, client_id: str = "c") -> bool:
    """True if the broker reports a session of that client."""
    wire = bench.wire(Version.V5)
    properties = Properties(session_expiry_interval_s=3600)
    wire.send(Connect(client_id, version=Version.V5, clean_start=False, properties=properties))
    answer = wire.received()[0]
    assert isinstance(answer, ConnAck)
    return answer.session_present
