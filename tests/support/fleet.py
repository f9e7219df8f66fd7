"""A fleet of machines that drain to one lake, and the ledger that their publisher keeps.

A machine is a state directory, a runtime directory and a broker process with a bridge.  The ledger knows what
each machine has acknowledged; the lake is read without the code that wrote it.
"""

import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.cli import main
from tests.support.brim_process import BrimProcess
from tests.support.fleet_table import FleetTable, spark_command
from tests.support.lake_ledger import table_of
from tests.support.paho_client import Paho
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

TOPICS = 8  # that a machine publishes to, so that all its partitions get some
ACK_S = 20.0


@dataclass
class Lake:
    """A place for drained files.

    `copy` makes a directory of the files that are there now.  `table`: a table that is made of them, if any.
    """

    url: str
    copy: Callable[[], Path]
    options: Mapping[str, str] = field(default_factory=dict)
    table: FleetTable | None = None

    def payloads(self) -> Counter[str]:
        """Number of times each payload is in the lake; records of one identity count once."""
        root = self.copy()
        files = sorted(root.rglob("[0-9]*.brim"))
        rows = table_of([(str(path), path.read_bytes()) for path in files]).to_pylist()
        found: dict[tuple[Any, ...], str] = {}
        for row in rows:
            identity = tuple(row[key] for key in ("edge", "stream", "partition", "epoch", "offset"))
            payload = row["payload"].decode()
            assert found.setdefault(identity, payload) == payload, f"two records have identity {identity}"
        return Counter(found.values())

    def edges(self) -> set[str]:
        """Edge ids that have files there."""
        return {path.name.removeprefix("edge=") for path in self.copy().glob("edge=*")}

    def verdict(self) -> tuple[int, dict[str, Any]]:
        """Exit status and answer of `brim spark gaps`."""
        status, answer = spark_command("gaps", str(self.copy()), "--json")
        return status, json.loads(answer)


@dataclass
class Ledger:
    """Payloads that publishers were promised."""

    acknowledged: list[str] = field(default_factory=list)

    def check(self, lake: Lake, copied: Sequence[str] = ()) -> None:
        """Assert that lake and table have each acknowledged payload once, and that `gaps` says complete.

        `copied`: payloads that are there once more, under another edge id.
        """
        there, expected = lake.payloads(), Counter(self.acknowledged) + Counter(copied)
        missing = list(expected - there)
        assert not missing, f"{len(missing)} of {len(self.acknowledged)} are not there, such as {missing[:3]}"
        doubled = list(there - expected)
        assert not doubled, f"{len(doubled)} are there too often, such as {doubled[:3]}"
        status, said = lake.verdict()
        assert (status, said["verdict"], said["missing"], said["lost"]) == (0, "complete", 0, 0), said
        if lake.table is not None:
            lake.table.check(self.acknowledged, copied)


@dataclass
class Machine:
    """`name` is in its payloads.  `clock`: see clocked_broker.py; "": the right one."""

    name: str
    lake: Lake
    ledger: Ledger
    directory: Path
    runtime_dir: Path
    edge: str = "plant"
    clock: str = ""
    partitions: int = 1
    stream: str = "default"
    durability: str = "process"
    bridge_name: str = "lake"
    log_dir: Path | None = None  # apart from the state directory
    _broker: BrimProcess | None = None
    _count: int = 0

    @property
    def config(self) -> Path:
        """The configuration of its broker."""
        return self.directory / "brim.toml"

    @property
    def installation(self) -> str:
        """The id in its state directory."""
        data = (self.state_dir / "installation").read_bytes()
        return data.partition(b'"id":"')[2][:32].decode()

    @property
    def state_dir(self) -> Path:
        """The directory of its identity, log and checkpoints."""
        return self.directory / "state"

    def start(self) -> None:
        """Returns when it serves clients."""
        self.directory.mkdir(exist_ok=True)
        self.runtime_dir.mkdir(exist_ok=True)
        module = "tests.support.clocked_broker" if self.clock else "edge"
        self._broker = BrimProcess(
            self.runtime_dir, self.directory, self._settings(), bridge=False, module=module, edge=self.edge
        )
        self._broker.start()

    def _settings(self) -> str:
        options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.lake.options.items())
        log = f"[log]\ndirectory = {json.dumps(str(self.log_dir))}\n" if self.log_dir else ""
        return f"""{log}
[[stream]]
name = "{self.stream}"
topics = ["#"]
partitions = {self.partitions}
durability = "{self.durability}"
ring_bytes = "1 MiB"
[[bridge]]
name = "{self.bridge_name}"
streams = ["{self.stream}"]
to = "{self.lake.url}"
linger_ms = 50
backoff_max_ms = 500
[bridge.options]
{options}
"""

    def publish(self, count: int) -> None:
        """Messages with QoS 1, each acknowledged when this returns."""
        assert self._broker is not None
        client = Paho(self._broker.port, f"publisher-{self.name}").client
        sent = []
        for _ in range(count):
            self._count += 1
            payload = f"{self.name} {self._count}"
            sent.append((payload, client.publish(f"plant/{self._count % TOPICS}", payload, qos=1)))
        for payload, message in sent:
            message.wait_for_publish(ACK_S)
            assert message.is_published(), payload
            self.ledger.acknowledged.append(payload)
        client.disconnect()
        client.loop_stop()

    def bridge(self) -> dict[str, Any]:
        """The state of its bridge."""
        found: dict[str, Any] = report_of(self.runtime_dir)["bridges"][0]
        return found

    def drain(self) -> None:
        """Wait until the lake has all of it."""
        assert self._broker is not None
        wait_until(self._is_drained)

    def _is_drained(self) -> bool:
        there = self.lake.payloads()
        return all(it in there for it in self.ledger.acknowledged if it.startswith(f"{self.name} "))

    def run(self, count: int) -> None:
        """Start, publish, drain, stop."""
        self.start()
        self.publish(count)
        self.drain()
        self.stop()

    def command(self, *words: str) -> None:
        """Run `brim` with these words and the runtime directory of this machine; it ends with status 0."""
        with redirect_stdout(io.StringIO()):
            assert main([*words, "--runtime-dir", str(self.runtime_dir)]) == 0

    def stop(self) -> str:
        """With SIGTERM; return its log.  The table, if any, gets the files that are new."""
        broker, self._broker = self._broker, None
        log = broker.stop() if broker is not None else ""
        if self.lake.table is not None:
            self.lake.table.ingest()
        return log

    def kill(self) -> None:
        """With SIGKILL, if it runs."""
        if self._broker is not None and self._broker.running:
            self._broker.kill()
        self._broker = None

    def reboot(self) -> None:
        """Lose what is in memory."""
        shutil.rmtree(self.runtime_dir)

    def reimage(self) -> None:
        """All but the lake is gone."""
        self.reboot()
        shutil.rmtree(self.directory)
