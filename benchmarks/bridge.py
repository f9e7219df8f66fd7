"""The drain and each sink's own client in a bare loop; the broker with and without a bridge.

    python -m benchmarks.bridge [--rounds 3] [--mib 128] [--seconds 3] [--no-ingest]
                                [--sinks directory,s3,kafka,mqtt,parquet]

In each round the same records are drained from a ring, drained from a log, and pushed by a bare loop over
the sink's own library: the files of the drain, built before, as many at once. A ratio compares figures of one
round. Prints a table of medians and, as its last line, one JSON object.

    SINK_ring_over_bare, SINK_log_over_bare    MB/s of the drain over those of the bare loop
    SINK_ring_records_s, SINK_ring_mb_s        and so for log and bare
    ingest_q0_BRIDGE_over_none, and q1         MQTT messages a second of a broker whose records are drained
                                               to a directory meanwhile, over those of one without a bridge;
                                               in the broker's process (embedded) or its own (process).  As
                                               many as the broker takes: if all processors are busy, the drain
                                               takes processor time from the broker
    ingest_q0_half_BRIDGE_over_none, and q1    the same, at half of the rate of the one without a bridge
    ..._broker_cpu_process_over_none           processor time of the broker for each message, over that of one
                                               without a bridge: the cost of a drain in its own process

The drain reads, copies, verifies, numbers, and writes its intents to the disk. The bare loop only pushes
files that were made before. Before the timing the client is connected, and the drain has sent some files, for
which it gets its memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks import _bridge_kafka, _bridge_others, _bridge_sinks
from benchmarks._bridge_sinks import WINDOW, Lane, NotThere
from benchmarks._log_device import Elsewhere
from benchmarks._log_own import INGEST, memory
from benchmarks._mqtt_process import Broker, Ports, free_port, process
from benchmarks._mqtt_tests import RATES
from benchmarks._mqtt_tests import run as run_load
from bridge.drain.checkpoint import Checkpoint
from bridge.drain.drain import Drain
from bridge.drain.settings import BridgeSettings
from bridge.format.file_builder import DrainedFile
from bridge.source.partition_source import RecordLog
from edge.config.schema import Bridge
from edge.load import Scenario
from edge.server.bridge_settings import copied_settings
from persistence import Log, LoggedRing, LogWriter
from ringbuf import Ring

LANES: dict[str, Callable[[Path], AbstractContextManager[Lane]]] = {
    **_bridge_sinks.LANES,
    **_bridge_kafka.LANES,
    **_bridge_others.LANES,
}
MIB = 1 << 20
EPOCH = 1
DEVICES = 1000
HOT_BYTES = 1 * MIB  # of the ring before the log: what is older is in the log alone
PAYLOAD = b'{"device":"press-%04d","seq":%d,"temperature":21.%02d,"pressure":1013.2,"state":"running"}'


Figures = dict[str, list[float]]


class Took(NamedTuple):
    """Drained bytes and records, and the time."""

    seconds: float
    records: int


def fill(ring: Ring, mib: int, each_half_mib: Callable[[], object] = lambda: None) -> int:
    """Fill a ring with telemetry of 1000 devices in turn. Returns the number of records."""
    writer = ring.writer()
    told = 0
    for number in range(10**9):
        device = number % DEVICES
        payloads = [PAYLOAD % (device, number * 4 + it, number % 100) for it in range(4)]
        writer.publish_many(payloads, f"plant/7/press-{device:04d}/telemetry")
        if writer.end_position - told >= MIB // 2:
            told = writer.end_position
            each_half_mib()
            if told >= (mib - 1) * MIB:
                return (number + 1) * 4
    raise AssertionError


@contextmanager
def hot(place: Path, mib: int) -> Iterator[tuple[Path, RecordLog | None, int]]:
    """Records in a ring that has all of them."""
    capacity = 1 << (mib * MIB - 1).bit_length()
    with memory() as run, Ring.create(run / "all-0", capacity_bytes=capacity, epoch=EPOCH) as ring:
        yield run, None, fill(ring, mib)


@contextmanager
def cold(place: Path, mib: int) -> Iterator[tuple[Path, RecordLog | None, int]]:
    """Records in a log, whose files are in the page cache; the ring has only the last ones."""
    with (
        memory() as run,
        Ring.create(run / "all-0", capacity_bytes=HOT_BYTES, epoch=EPOCH) as ring,
        Log(place / "log", retain_bytes=1 << 40) as log,
    ):
        log.recover()
        writer = LogWriter(log)
        writer.add(LoggedRing(ring, "interval"))
        try:
            count = fill(ring, mib, writer.finish)
            writer.finish()
            for path in (place / "log").iterdir():
                path.read_bytes()  # the writer bypasses the page cache
            yield run, log.reader, count
        finally:
            writer.close()


class Keeping:
    """Sink that keeps the files for the bare loop: the same files, built before."""

    url = "keep://"

    def __init__(self) -> None:
        self.files: list[DrainedFile] = []

    def begin(self, edge: str) -> None:
        """Nothing to do."""

    def put(self, file: DrainedFile) -> None:
        """Keep a copy: the drain reuses its memory."""
        self.files.append(DrainedFile(file.name, tuple(bytes(it) for it in file.parts), file.footer, ()))

    def names(self, prefix: str) -> Iterator[str]:
        """No names."""
        return iter(())

    def close(self) -> None:
        """Nothing to do."""


def drained(run: Path, log: RecordLog | None, sink: object, window: int = WINDOW, warm: int = 0) -> Took:
    """Drain all records.

    The first `warm` files, or some more, are not counted: they get memory and connections.
    """
    with tempfile.TemporaryDirectory(prefix="brim-bench-") as state:
        chosen = BridgeSettings(
            **copied_settings(Bridge(name="bench", to="x:", window=window, live_share=0.0)),
            edge_id="edge-1",
            runtime_dir=run,
            state_dir=Path(state),
            options={},
            spool_bytes={},
        )
        checkpoint = Checkpoint.open(chosen.checkpoint_path, "edge-1", sink.url)  # type: ignore[attr-defined]
        drain = Drain(chosen, sink, checkpoint, log)  # type: ignore[arg-type]
        drain.partitions.flushing = True
        try:
            drain.intake_paused = True
            drain.step()  # attaches, and lists the sink's names once
            _drain_until(drain, warm)
            before, begun = replace(drain.totals), time.perf_counter()
            _drain_until(drain, sys.maxsize)
            return Took(time.perf_counter() - begun, drain.totals.records - before.records)
        finally:
            drain.close()
            checkpoint.close()
            sink.close()  # type: ignore[attr-defined]


def _drain_until(drain: Drain, files: int) -> None:
    """Step until the sink has at least this number of files and none is in flight, or all are drained."""
    while True:
        drain.intake_paused = drain.totals.files + drain.in_flight >= files
        if drain.step() <= 0:
            continue
        if drain.in_flight:
            drain.wait_for_one()
        elif drain.intake_paused or drain.drained():
            return


def timed(push: Callable[[Sequence[DrainedFile]], None], files: Sequence[DrainedFile]) -> float:
    """Seconds of a push."""
    begun = time.perf_counter()
    push(files)
    return time.perf_counter() - begun


def rates(name: str, lane: Lane, place: Path, rounds: int, mib: int, found: Figures) -> None:
    """Rates of one sink."""
    with ExitStack() as stack:
        mib = min(mib, lane.mib_most) + lane.warm_files * 8
        sources = {"ring": stack.enter_context(hot(place, mib)), "log": stack.enter_context(cold(place, mib))}
        keeping = Keeping()
        drained(*sources["ring"][:2], keeping, window=1)
        files = keeping.files[lane.warm_files :]
        records = sum(file.footer.count for file in files)
        record_bytes = sum(file.length for file in files) / records
        lane.prepare(files)
        for _ in range(rounds):
            lane.clear()
            records_s = {"bare": records / timed(lane.push, files)}
            for source, (run, log, _) in sources.items():
                lane.clear()
                took = drained(run, log, lane.open(), warm=lane.warm_files)
                records_s[source] = took.records / took.seconds
            for way, it in records_s.items():
                found.setdefault(f"{name}_{way}_mb_s", []).append(it * record_bytes / 1e6)
                found.setdefault(f"{name}_{way}_records_s", []).append(it)
                if way != "bare":
                    found.setdefault(f"{name}_{way}_over_bare", []).append(it / records_s["bare"])
        lane.clear()


# ---- ingest ----


@contextmanager
def broker(place: Path, bridged: str) -> Iterator[list[Broker]]:
    """`brim run`. `bridged`: "none", "embedded", or "process", which is then the second broker."""
    port, root = free_port(), place / bridged
    root.mkdir()
    with memory() as run, ExitStack() as stack:
        lines = [f"runtime_dir = {json.dumps(str(run))}", f"state_dir = {json.dumps(str(root))}",
                 "[[listener]]", f"port = {port}"]  # fmt: skip
        if bridged != "none":
            lines += ["[[bridge]]", 'name = "lake"', f"to = {json.dumps((root / 'lake').as_uri())}",
                      f"in_broker = {json.dumps(bridged == 'embedded')}"]  # fmt: skip
        config = root / "brim.toml"
        config.write_text("\n".join(lines) + "\n")
        edge = [sys.executable, "-m", "edge"]
        verb = ["run", "--config", str(config), "--log-level", "error", "--quiet"]
        started = stack.enter_context(process(f"brim-{bridged}", [*edge, *verb], Ports(port), place))
        run_it = [*edge, "bridge", "run", "--config", str(config)]
        bridge = [stack.enter_context(beside(run_it, run))] if bridged == "process" else []
        yield [started, *bridge]


@contextmanager
def beside(command: Sequence[str], run: Path) -> Iterator[Broker]:
    """A bridge in a process of its own, from its first answer on."""
    import subprocess

    from bridge.drain.control_socket import state_of

    bridge = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with suppress(Exception):
                state_of(run, "lake")
                break
            time.sleep(0.05)
        yield Broker("bridge", Ports(0), bridge.pid)
    finally:
        bridge.terminate()
        bridge.wait(40)


def ingest(place: Path, rounds: int, seconds: float, found: Figures) -> None:
    """Messages per second with a bridge relative to those without, and their costs for the broker."""
    with ExitStack() as stack:
        brokers = {it: stack.enter_context(broker(place, it)) for it in ("none", "embedded", "process")}
        for number in range(rounds + 1):  # the first warms up
            kept: Figures = found if number else {}
            for name, test in INGEST.items():
                full = compared(f"ingest_{name}", brokers, RATES[test], seconds, kept)
                half = replace(RATES[test], rate=full / 2)
                compared(f"ingest_{name}_half", brokers, half, seconds, kept)


def compared(what: str, brokers: dict[str, list[Broker]], of: Scenario, seconds: float, to: Figures) -> float:
    """The same load to each broker, one after the other. Returns the rate of the one without a bridge.

    Only with a bridge in its own process, the broker's processor time excludes the drain.
    """
    took: dict[str, tuple[float, float]] = {}
    for bridged, processes in brokers.items():
        for others in brokers.values():
            for it in others:
                it.settle()  # the last load is drained
        result, elapsed, cpu_s = run_load(processes[0], of, seconds)
        took[bridged] = result.sent / elapsed, cpu_s / max(result.sent, 1)
    rate, cost = took["none"]
    to.setdefault(f"{what}_none_s", []).append(rate)
    for bridged in ("embedded", "process"):
        to.setdefault(f"{what}_{bridged}_over_none", []).append(took[bridged][0] / rate)
    to.setdefault(f"{what}_broker_cpu_process_over_none", []).append(took["process"][1] / cost)
    return rate


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--sinks", default=",".join(LANES))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--no-ingest", action="store_true")
    parser.add_argument("--directory", type=Path, help="where lake and log are made (a temporary one)")
    chosen = parser.parse_args()
    found: Figures = {}
    begun, elsewhere = time.monotonic(), Elsewhere()
    with tempfile.TemporaryDirectory(prefix="brim-bench-", dir=chosen.directory) as made:
        for name in filter(None, chosen.sinks.split(",")):
            place = Path(made) / name
            place.mkdir()
            try:
                with LANES[name](place) as lane:
                    rates(name, lane, place, chosen.rounds, chosen.mib, found)
            except NotThere as why:
                print(f"NOT MEASURED: {name}: {why}", file=sys.stderr)
        if not chosen.no_ingest:
            ingest(Path(made), chosen.rounds, chosen.seconds, found)
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, value in medians.items():
        low, high = min(found[name]), max(found[name])
        print(f"{name:<40} {value:>14,.2f}   {low:>14,.2f} .. {high:,.2f}")
    print(f"others kept {elsewhere.cores(time.monotonic() - begun):.1f} processors busy")
    print(json.dumps({name: float(f"{value:.4g}") for name, value in medians.items()}))


if __name__ == "__main__":
    main()
