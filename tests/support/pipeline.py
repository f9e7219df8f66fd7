"""All of Brim as processes: publishers, a broker, a bridge of its own, an upstream that is cut, and Spark.

Two forms.  `kept`: all that the broker takes is in its log until the bridge has drained it, so all of it must
arrive, once.  `small`: rings and a log that are deliberately too small for a cut, so something is lost, and
must be declared to the offset.  Publishers and ledger live in the process of the test; the
others may be killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from bridge.drain.control_socket import state_of
from bridge.errors import BridgeUnreachable
from brim import producer
from tests.support.children import ModuleChild
from tests.support.lake_ledger import (
    Missing,
    check_complete,
    check_report,
    lost_of,
    missing_in,
    table_of,
)
from tests.support.mass_publisher import Ledger, MassProducer, MassPublisher
from tests.support.outside_client import drain, pump
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.spark_session import SHORT_LIFE
from tests.support.upstreams import Upstream

Form = Literal["kept", "small"]

BRIDGE = "lake"
SETTLE_S = 400.0  # what waits is drained, on a machine that does other things as well
IDLE_S = 1.1  # longer than the greatest age of a bridge's status
SPARK_S = 1200.0
AGAIN = 200  # messages that are under way when a connection is lost
# A log that syncs slowly makes publishers wait; at the default of 200 ms they would be disconnected.
STREAMS: dict[Form, str] = {
    "kept": """
[log]
segment_bytes = 4194304
retain_bytes = 0
[[stream]]
name = "kept"
topics = ["kept/#"]
partitions = 2
ring_bytes = 1048576
durability = "interval"
sync_interval_ms = 20
sync_bytes = 65536
queue_timeout_ms = 20000
when_full = "block"
[[producer]]
name = "cam"
stream = "kept"
ring_bytes = 1048576
""",
    "small": """
[log]
segment_bytes = 1048576
retain_bytes = 1048576
[[stream]]
name = "memory"
topics = ["memory/#"]
ring_bytes = 131072
[[stream]]
name = "disk"
topics = ["disk/#"]
ring_bytes = 131072
durability = "interval"
sync_interval_ms = 20
sync_bytes = 8192
hold_bytes = 0
queue_timeout_ms = 20000
[[producer]]
name = "cam"
stream = "memory"
ring_bytes = 131072
""",
}
# Topics of the MQTT publishers with the sizes of their messages, and those of the local producer.
TOPICS: dict[Form, dict[str, int]] = {
    "kept": {"kept/a": 16, "kept/b": 40, "kept/c": 100, "kept/d": 300},
    "small": {"memory/a": 40, "disk/a": 1500},
}
PRODUCER: dict[Form, tuple[str, str, int]] = {
    "kept": ("kept", "kept/cam", 64),
    "small": ("memory", "memory/cam", 64),
}

FINISH = """
import sys
from bridge.spark.jobs import bronze, gaps
lake, table, form, *settings = sys.argv[1:]
status = bronze.main([lake, "--to", table, form, "--json", *settings])
sys.exit(status or gaps.main([lake, "--table", table, "--json", *settings]))
"""
SPARK_SETTINGS = [f"--conf=spark.sql.{it}" for it in ("shuffle.partitions=1", "adaptive.enabled=false")]


class Stuck(AssertionError):
    """Something does not get to its end."""


class Pipeline:
    """A context manager: at its end all processes are gone.

    `memory` is a directory on tmpfs, `disk` one for all else.  `bridge` and `spark` are what runs as bridge
    and as bronze job; others may have a mistake planted.
    """

    def __init__(
        self,
        form: Form,
        memory: Path,
        disk: Path,
        upstream: Upstream,
        *,
        settings: str = "",
        bridge: Sequence[str] = ("edge",),
        spark: str = "bridge.spark.jobs.bronze",
        table_format: str = "parquet",
    ) -> None:
        self.form: Form = form
        self.table = disk / "table"
        self.upstream = upstream
        self._memory, self._disk = memory, disk
        self._port = free_port()
        self._settings = settings
        self.bridge, self.spark = bridge, spark  # what is started next
        self._settings_of_job = [f"--format={table_format}", *SPARK_SETTINGS]
        self._bridge: subprocess.Popen[bytes] | None = None
        self._spark: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()
        self._log = disk / "bridge.log"
        self.each = 0  # messages that each publisher may publish, in all; who repeats, a few more
        self.publishers = [MassPublisher(n, *it) for n, it in enumerate(TOPICS[form].items())]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.upstream)
            config = self._disk / "brim.toml"
            config.write_text(self._configuration())
            self._start_broker()
            stack.push(self._end_broker)
            stream, topic, size = PRODUCER[self.form]
            writer = stack.enter_context(producer("cam", stream, runtime_dir=self._memory))
            self.producer = MassProducer(len(self.publishers), topic, size, writer)
            for it in self.publishers:
                it.connect(self._port)
                stack.callback(it.close)
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def ledgers(self) -> list[Ledger]:
        """Of all publishers."""
        return [*(it.ledger for it in self.publishers), self.producer.ledger]

    @property
    def records(self) -> int:
        """That were acknowledged."""
        return sum(it.acked for it in self.ledgers)

    # ---- publishing ----

    def allow(self, each: int) -> None:
        """From now on each publisher may publish as many, in all."""
        self.each = max(self.each, each)
        for it in self.publishers:
            it.allowed = max(it.allowed, each)

    def work(self, seconds: float) -> None:
        """Lets publishers publish for a moment."""
        until = time.monotonic() + seconds
        self.producer.publish(min(self.each, self.producer.ledger.sent + 1000))
        pump(self.publishers, lambda: time.monotonic() > until or all(it.done for it in self.publishers))
        assert all(it.connected for it in self.publishers), "the broker has closed a connection"
        time.sleep(max(until - time.monotonic(), 0))

    def publish(self, each: int) -> None:
        """Until each publisher has published as many, in all, and they are acknowledged.  Raises Stuck."""
        self.allow(each)
        deadline = time.monotonic() + SETTLE_S
        while not (self.producer.ledger.sent == self.each and all(it.done for it in self.publishers)):
            if time.monotonic() > deadline:
                raise Stuck(f"publishers are not acknowledged: {self.ledgers}")
            self.work(0.001)

    def reconnect(self, number: int) -> None:
        """A publisher loses its connection with messages under way, and repeats what was not acknowledged."""
        publisher = self.publishers[number]
        publisher.allowed += AGAIN
        publisher.send()
        publisher.connect(self._port)

    # ---- the broker ----

    def kill_broker(self) -> None:
        """With -9; publishers take the acknowledgements that it had still written."""
        self._broker.kill()
        drain(self.publishers)

    def restart_broker(self) -> None:
        """After kill_broker(); publishers connect and repeat what was not acknowledged."""
        self._start_broker()
        for it in self.publishers:
            it.connect(self._port)

    def _start_broker(self) -> None:
        self._broker = ModuleChild("edge", "run", "--config", self._disk / "brim.toml")
        self._broker.patience_s = SETTLE_S
        self._broker.lines_until("ready")

    def _end_broker(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.__exit__(kind, error, trace)

    # ---- the bridge ----

    def start_bridge(self) -> None:
        """Does not wait for it."""
        config = str(self._disk / "brim.toml")
        command = [sys.executable, "-m", *self.bridge, "bridge", "run", BRIDGE, "--config", config]
        with self._log.open("ab") as log:
            self._bridge = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def until_bridge_has_died(self) -> None:
        """By its own hand."""
        assert self._bridge is not None
        self._bridge.wait(SETTLE_S)
        self._bridge = None

    def kill_bridge(self) -> None:
        """With -9."""
        assert self._bridge is not None
        if (status := self._bridge.poll()) is not None:
            raise Stuck(f"the bridge has ended by itself, with status {status}: {self._last_words()}")
        self._bridge.kill()
        self._bridge.wait()
        self._bridge = None

    def state(self) -> dict[str, Any] | None:
        """Status that the bridge reports; None: it does not report yet."""
        with suppress(BridgeUnreachable):
            return state_of(self._memory, BRIDGE)
        return None

    def until_state(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait until the status of the bridge fits.  Raises Stuck."""
        deadline = time.monotonic() + SETTLE_S
        while not ((state := self.state()) and holds(state)):
            if time.monotonic() > deadline or (self._bridge and self._bridge.poll() is not None):
                raise Stuck(f"bridge not {what}: {state}; {self._last_words()}")
            time.sleep(0.02)

    def settle(self) -> None:
        """All records have been drained, and the bridge stops on request.  Raises Stuck."""
        self.upstream.mend()
        self.upstream.reset()
        deadline, idle_since = time.monotonic() + SETTLE_S, 0.0
        while not idle_since or time.monotonic() < idle_since + IDLE_S:
            state = self.state()
            idle = state is not None and state["condition"] == "idle" and state["lag_records"] == 0
            idle_since = (idle_since or time.monotonic()) if idle else 0.0
            if time.monotonic() > deadline:
                raise Stuck(f"not drained: {state}; {self._last_words()}")
            time.sleep(0.05)
        assert self._bridge is not None
        self._bridge.send_signal(signal.SIGTERM)
        if status := self._bridge.wait(SETTLE_S):
            raise Stuck(f"the bridge ends with status {status}: {self._last_words()}")
        self._bridge = None

    def _last_words(self) -> str:
        return self._log.read_text()[-2000:]

    # ---- Spark ----

    def start_spark(self) -> None:
        """The job over what is there; does not wait for it."""
        command = self._ingest
        with (self._disk / "spark.log").open("ab") as log:
            self._spark = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env=brief(), start_new_session=True
            )

    @property
    def _ingest(self) -> list[str]:
        to = ["--to", str(self.table)]
        return [sys.executable, "-m", self.spark, *self.upstream.job, *to, *self._settings_of_job]

    def kill_spark(self) -> bool:
        """With -9: driver, JVM and workers.  Whether the job had not ended before."""
        assert self._spark is not None
        running = self._spark.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(self._spark.pid, signal.SIGKILL)
        self._spark.wait()
        self._spark = None
        return running

    @property
    def spark_runs(self) -> bool:
        """True if a job was started and has not ended."""
        return self._spark is not None and self._spark.poll() is None

    @property
    def batches(self) -> int:
        """That Spark has decided on."""
        return len(
            list((self.table.with_name(f"{self.table.name}.state") / "checkpoint" / "offsets").glob("[0-9]*"))
        )

    def finish_spark(self) -> dict[str, Any]:
        """The job once more, to its end, and the report of gaps over files and table.  Raises Stuck.

        Where there are no files, what the job says.
        """
        if not self.upstream.lake:
            return self._told([*self._ingest, "--json"])
        return self._told(
            [sys.executable, "-c", FINISH, self.upstream.lake, str(self.table), *self._settings_of_job]
        )

    def report(self) -> dict[str, Any]:
        """The report of gaps over the files alone."""
        return self._told([sys.executable, "-m", "bridge.spark.jobs.gaps", self.upstream.lake, "--json"])

    def _told(self, command: Sequence[str]) -> dict[str, Any]:
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=brief(), capture_output=True, text=True, timeout=SPARK_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Stuck(f"not done after {SPARK_S:.0f} s: {command}") from None
        try:
            said: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            raise Stuck(f"{command[-1]} says nothing: {run.stdout[-1000:]} {run.stderr[-3000:]}") from None
        return said

    def _end(self) -> None:
        for process, end in ((self._bridge, self.kill_bridge), (self._spark, self.kill_spark)):
            if process is not None:
                with suppress(Stuck):
                    end()

    def _configuration(self) -> str:
        names = {
            "edge_id": "edge-1",
            "runtime_dir": str(self._memory),
            "state_dir": str(self._disk / "state"),
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in names.items()]
        lines += ["[[listener]]", f"port = {self._port}", "[sys]", "interval_s = 0"]
        lines += ["[zmq]", "enabled = false", "[consumers]", "enabled = false", STREAMS[self.form]]
        lines += ["[[bridge]]", f'name = "{BRIDGE}"', "in_broker = false", "backoff_max_ms = 500"]
        lines += ["linger_ms = 100", self._settings, self.upstream.settings]
        return "\n".join(lines)


def brief() -> dict[str, str]:
    """The environment of a Spark that lives for less than a minute: Java optimises less."""
    return {**os.environ, "JAVA_TOOL_OPTIONS": SHORT_LIFE}


def check(pipeline: Pipeline) -> Missing:
    """The drained files, by the ledger; what was lost, and declared.  Raises Lost."""
    table, report = table_of(pipeline.upstream.contents()), pipeline.report()
    if pipeline.form == "kept":
        check_complete(table, pipeline.ledgers)
        missing = missing_in(table)
        assert not any(missing.values()) or report["lost"] == 0
    else:
        missing = dict(lost_of(table, it) for it in pipeline.ledgers)
    check_report(report, missing, in_table=False)
    return missing
