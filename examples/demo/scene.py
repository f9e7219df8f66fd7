"""Scene of a run: its directories, port and configuration, and their removal.

Owns all files on disk and in memory that the demo makes, except for the results in the output directory.

    root/               in the temporary directory: brim.toml, and
        state/          the broker's: log, checkpoints, epochs
        drained/        the sink
        logs/           standard error of every process
        counts/         journals and reports of publishers and subscribers
        table/          the table of Spark; temporary/: Spark's temporary files
    runtime/            in /dev/shm: rings and sockets
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from pathlib import Path

from bridge.format.file_name import SUFFIX, FileName
from brim import Ring
from edge.config.schema import host_edge_id
from examples.demo.vitals import level

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
    """Scene of one run. Created at the start; close() at the end."""

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
        """Remove the files in memory, and also those on disk unless `keep`."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        if not keep:
            shutil.rmtree(self.root, ignore_errors=True)


class Sink:
    """Directory to which the bridge drains. It can be made to fail for every user, including root."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._away = directory.with_name(f"{directory.name}-unplugged")

    def cut(self) -> None:
        """Replace the directory by a file, as if a share had lost its server."""
        if self.directory.exists():
            self.directory.rename(self._away)
        self.directory.write_text("Nothing can be stored below a file.\n")

    def mend(self) -> None:
        """Restore the directory with its content."""
        self.directory.unlink()
        if self._away.exists():
            self._away.rename(self.directory)

    def held(self) -> tuple[int, int]:
        """Numbers of files and records, by the names of the files; equal to the result of counting them."""
        files = records = 0
        root = self.directory if self.directory.is_dir() else self._away
        for path in root.rglob(f"*{SUFFIX}"):
            name = FileName.parse(path.relative_to(root).as_posix())
            if name is not None:
                files += 1
                records += name.last_offset - name.first_offset + 1
        return files, records


class Rings:
    """Number of stored records, read from the memory of the rings: needs no answer of the broker."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._rings: dict[Path, Ring] = {}
        self._ends: dict[tuple[str, int], int] = {}  # (ring, epoch) -> records

    def stored(self) -> int:
        """Number of records, in all rings and epochs."""
        for ring in self._rings.values():
            self._ends[ring.name, ring.epoch] = ring.extremes().end_offset - ring.first_offset
        return sum(self._ends.values())

    def refresh(self) -> None:
        """Find the present rings; called after each start of the broker."""
        self.stored()
        self.close()
        for path in sorted(self._runtime.glob("*-*.ring")):  # rings of partitions, not the broker's own
            self._rings[path] = Ring.attach(path.with_suffix(""))

    def epochs(self) -> dict[str, int]:
        """Present epoch of each ring."""
        return {ring.name: ring.epoch for ring in self._rings.values()}

    def ends(self) -> dict[str, int]:
        """Offset of the next record of each ring."""
        return {ring.name: ring.extremes().end_offset for ring in self._rings.values()}

    def close(self) -> None:
        """Release the memory; the counts stay known."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()


def _free_port() -> int:
    """A free TCP port. The broker uses the same port after a restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
