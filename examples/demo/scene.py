"""Where a run takes place: its directories, its port, its configuration; and how they all go away again.

Owns everything on disk and in memory that the demo makes, but for what it is asked to leave in the output
directory.

    root/               in the temporary directory: brim.toml, and
        state/          the broker's: log, checkpoints, epochs
        drained/        the sink
        logs/           standard error of every process
        counts/         journals and reports of publishers and subscribers
        table/          what Spark makes; temporary/: and what it needs meanwhile
    runtime/            in /dev/shm: rings and sockets
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from pathlib import Path

from bridge.drained import SUFFIX, Name
from edge.config import host_edge_id
from examples.demo.vitals import level
from ringbuf import Ring

__all__ = ["Rings", "Scene", "Sink"]

CONFIG = """\
# Written by the demo.
edge_id = {edge_id}
runtime_dir = {runtime}
state_dir = {state}

[[listener]]
host = "127.0.0.1"
port = {port}

[[stream]] # this machine's vital signs: a PUBACK says that it is on the disk
name = "vitals"
topics = ["host/#"]
durability = "disk"

[[stream]] # the recording, for load: on the disk within 200 ms
name = "replay"
topics = ["replay/#"]
partitions = 2
durability = "interval"
sync_interval_ms = 200

[[bridge]]
name = "lake"
to = {sink}
streams = ["vitals", "replay"]
backoff_max_ms = 4000 # how long at most until it finds the sink again
"""


class Scene:
    """Made at the start; close() at the end."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="brim-demo-"))
        memory = Path("/dev/shm")
        self.runtime = Path(
            tempfile.mkdtemp(prefix="brim-demo-", dir=memory if memory.is_dir() else self.root)
        )
        names = ("logs", "counts", "table", "temporary")
        self.logs, self.counts, self.table, self.temporary = (self.root / name for name in names)
        for name in names:
            (self.root / name).mkdir()
        self.state = self.root / "state"
        self.sink = Sink(self.root / "drained")
        self.port = _free_port()
        self.edge_id = host_edge_id()
        self.machine = level(socket.gethostname())
        self.config = self.root / "brim.toml"
        values = {
            "edge_id": self.edge_id,
            "runtime": str(self.runtime),
            "state": str(self.state),
            "sink": self.sink.directory.as_uri(),
        }
        text = {key: json.dumps(value) for key, value in values.items()}  # a JSON string is a TOML string
        self.config.write_text(CONFIG.format(**text, port=self.port))

    def close(self, *, keep: bool) -> None:
        """Remove the memory, and the rest too unless it is to be kept."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        if not keep:
            shutil.rmtree(self.root, ignore_errors=True)


class Sink:
    """The directory that the bridge drains to; it can be made to fail, for everybody, root too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._away = directory.with_name(f"{directory.name}-unplugged")

    def cut(self) -> None:
        """The directory is gone, and a file is in its place: like a share that has lost its server."""
        if self.directory.exists():
            self.directory.rename(self._away)
        self.directory.write_text("Nothing can be stored below a file.\n")

    def mend(self) -> None:
        """It is back, with what it held."""
        self.directory.unlink()
        if self._away.exists():
            self._away.rename(self.directory)

    def held(self) -> tuple[int, int]:
        """Files and records that it holds, by the names of the files: as good as counting them."""
        files = records = 0
        root = self.directory if self.directory.is_dir() else self._away
        for path in root.rglob(f"*{SUFFIX}"):
            name = Name.parse(path.relative_to(root).as_posix())
            if name is not None:
                files += 1
                records += name.last_offset - name.first_offset + 1
        return files, records


class Rings:
    """How much the broker has stored, read from the rings' own memory: it needs no answer from the broker."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._rings: dict[Path, Ring] = {}
        self._ends: dict[tuple[str, int], int] = {}  # (ring, epoch) -> records

    def stored(self) -> int:
        """Records, in all rings and epochs."""
        for ring in self._rings.values():
            self._ends[ring.name, ring.epoch] = ring.extremes().end_offset - ring.first_offset
        return sum(self._ends.values())

    def refresh(self) -> None:
        """Look which rings there are: after each start of the broker."""
        self.stored()
        self.close()
        for path in sorted(self._runtime.glob("*-*.ring")):  # of partitions, not of the broker's own
            self._rings[path] = Ring.attach(path.with_suffix(""))

    def epochs(self) -> dict[str, int]:
        """Of each ring now."""
        return {ring.name: ring.epoch for ring in self._rings.values()}

    def close(self) -> None:
        """Let go of the memory; what was counted stays known."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()


def _free_port() -> int:
    """A port that nobody listens on; the broker has to come back on the same."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
