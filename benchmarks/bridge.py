"""The drain beside each sink's own client in a bare loop, and the broker with and without a bridge.

    python -m benchmarks.bridge [--rounds 3] [--mib 128] [--sinks directory,s3] [--seconds 3] [--no-ingest]

In each round the same records are drained from a ring, drained from a log whose ring has moved on, and pushed
by a bare loop over the sink's own library: the units of the drain, built before, as many at once.  A ratio
compares what was measured within one round.  Prints a table of medians and, as its last line, one JSON
object.

    SINK_ring_over_bare, SINK_log_over_bare    MB/s of the drain over those of the bare loop
    SINK_ring_records_s, SINK_ring_mb_s        and so for log and bare
    ingest_q0_50, ingest_q1_window100          MQTT messages a second of a broker whose records are drained
                                               to a directory meanwhile, over those of one without a bridge;
                                               in the broker's process (embedded) or its own (process)

The drain reads, copies, verifies and numbers; the bare loop does nothing but push.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks import _bridge_kafka, _bridge_sinks
from benchmarks._bridge_sinks import WINDOW, Lane, NotThere
from benchmarks._log_device import Elsewhere
from benchmarks._log_own import INGEST, free_port, memory
from benchmarks._mqtt_brokers import Broker, process
from benchmarks._mqtt_tests import measure
from bridge.checkpoint import Checkpoint
from bridge.drain import Drain
from bridge.settings import BridgeSettings
from bridge.source import ColdLog
from bridge.unit import Unit
from persistence import Log, LogWriter, Source
from ringbuf import Ring

LANES = _bridge_sinks.LANES | _bridge_kafka.LANES
MIB = 1 << 20
EPOCH = 1
DEVICES = 1000
HOT_BYTES = 1 * MIB  # of the ring before the log: what is older is in the log alone
PAYLOAD = b'{"device":"press-%04d","seq":%d,"temperature":21.%02d,"pressure":1013.2,"state":"running"}'


def fill(ring: Ring, mib: int, each_half_mib: Callable[[], object] = lambda: None) -> int:
    """Telemetry of 1000 devices in turn; how many records."""
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
def hot(place: Path, mib: int) -> Iterator[tuple[Path, ColdLog | None, int]]:
    """Records in a ring that has them all."""
    capacity = 1 << (mib * MIB - 1).bit_length()
    with memory() as run, Ring.create(run / "all-0", capacity_bytes=capacity, epoch=EPOCH) as ring:
        yield run, None, fill(ring, mib)


@contextmanager
def cold(place: Path, mib: int) -> Iterator[tuple[Path, ColdLog | None, int]]:
    """The same in a log, whose ring has moved on."""
    with (
        memory() as run,
        Ring.create(run / "all-0", capacity_bytes=HOT_BYTES, epoch=EPOCH) as ring,
        Log(place / "log", retain_bytes=1 << 40) as log,
    ):
        log.recover()
        writer = LogWriter(log)
        writer.add(Source(ring, "interval"))
        try:
            count = fill(ring, mib, writer.finish)
            writer.finish()
            yield run, log.reader, count
        finally:
            writer.close()


class Keeping:
    """Takes units and keeps what the bare loop is to push: the same files, built before."""

    url = "keep://"

    def __init__(self) -> None:
        self.units: list[Unit] = []

    def begin(self, edge: str) -> None:
        """Nothing to do."""

    def put(self, unit: Unit) -> None:
        """A copy: the drain uses its memory again."""
        self.units.append(Unit(unit.name, tuple(bytes(it) for it in unit.parts), unit.footer, ()))

    def names(self, prefix: str) -> Iterator[str]:
        """None."""
        return iter(())

    def close(self) -> None:
        """Nothing to do."""


def drained(run: Path, log: ColdLog | None, sink: object, window: int = WINDOW) -> float:
    """Seconds for all of it."""
    with tempfile.TemporaryDirectory(prefix="brim-bench-") as state:
        chosen = BridgeSettings(
            "bench", "edge-1", "x:", run, Path(state), window=window, linger_ms=1000, live_share=0.0
        )
        checkpoint = Checkpoint.open(chosen.checkpoint_path, "edge-1", sink.url)  # type: ignore[attr-defined]
        drain = Drain(chosen, sink, checkpoint, log)  # type: ignore[arg-type]
        drain.partitions.flushing = True
        try:
            drain.held = True
            drain.step()  # attached, and the sink has been asked: that is not done for each unit
            drain.held = False
            begun = time.perf_counter()
            while True:
                if drain.step() <= 0:
                    continue
                if drain.in_flight:
                    drain.wait_for_one()
                elif drain.drained():
                    break
            return time.perf_counter() - begun
        finally:
            drain.close()
            checkpoint.close()
            sink.close()  # type: ignore[attr-defined]


def timed(push: Callable[[Sequence[Unit]], None], units: Sequence[Unit]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    push(units)
    return time.perf_counter() - begun


Figures = dict[str, list[float]]


def rates(name: str, lane: Lane, place: Path, rounds: int, mib: int, found: Figures) -> None:
    """Of one sink."""
    with ExitStack() as stack:
        sources = {"ring": stack.enter_context(hot(place, mib)), "log": stack.enter_context(cold(place, mib))}
        keeping = Keeping()
        drained(*sources["ring"][:2], keeping, window=1)
        length = sum(unit.length for unit in keeping.units)
        lane.prepare(keeping.units)
        records = sources["ring"][2]
        for _ in range(rounds):
            lane.clear()
            seconds = {"bare": timed(lane.push, keeping.units)}
            for source, (run, log, count) in sources.items():
                lane.clear()
                assert count == records
                seconds[source] = drained(run, log, lane.open())
            for way, it in seconds.items():
                found.setdefault(f"{name}_{way}_mb_s", []).append(length / it / 1e6)
                found.setdefault(f"{name}_{way}_records_s", []).append(records / it)
                if way != "bare":
                    found.setdefault(f"{name}_{way}_over_bare", []).append(seconds["bare"] / it)
        lane.clear()


# ---- ingest ----


@contextmanager
def broker(place: Path, bridged: str) -> Iterator[Broker]:
    """`brim run`; bridged: "none", "embedded", or "process"."""
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
        started = stack.enter_context(process(f"brim-{bridged}", [*edge, *verb], port, place))
        if bridged == "process":
            stack.enter_context(beside([*edge, "bridge", "run", "--config", str(config)], run))
        yield started


@contextmanager
def beside(command: Sequence[str], run: Path) -> Iterator[None]:
    """A bridge in a process of its own, from when it answers."""
    import subprocess

    from bridge.control import ask

    bridge = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with suppress(Exception):
                ask(run, "lake", "state")
                break
            time.sleep(0.05)
        yield
    finally:
        bridge.terminate()
        bridge.wait(40)


def ingest(place: Path, rounds: int, seconds: float, found: Figures) -> None:
    """Messages a second with a bridge over those without."""
    with ExitStack() as stack:
        brokers = {it: stack.enter_context(broker(place, it)) for it in ("none", "embedded", "process")}
        for number in range(rounds + 1):  # the first warms up
            for name, test in INGEST.items():
                now = {bridged: measure(one, test, seconds).value for bridged, one in brokers.items()}
                for bridged in ("embedded", "process") if number else ():
                    key = f"ingest_{name}_{bridged}_over_none"
                    found.setdefault(key, []).append(now[bridged] / now["none"])


def main() -> None:
    """See above."""
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
