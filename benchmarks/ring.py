"""The ring, iceoryx2, zenoh, pyzmq and multiprocessing.Pipe: round trips, wake-ups, in place, rates.

    python -m benchmarks.ring [--rounds 5] [--quick] [--only iceoryx2,pipe]

Two processes for each library, made once; in each round every library takes its turn at every measurement,
and a ratio compares figures of one round. Prints a table of medians and, as its last line, one JSON object:
for each measurement the ratio of Brim to each peer (in time or rate), and some figures of Brim only.

    poll_64             round trip of 64 bytes copied in, both sides spinning, one core each
    wait_same_core_64   the same with both sides asleep when it comes, both on one core
    wait_two_cores_64   the same, one core each
    inplace_4k, _64k, _4m   round trip of a message filled in place (first and last byte), both sides spinning
    rate_64             64 bytes one by one, one way, nothing lost
    rate_64_batch       Brim by 256, the peers as before: they have no call for many
    merge_32            64 bytes one by one from 32 writers to one reader; only Brim and pyzmq
    inplace_4m_over_64  Brim's round trip in place of 4 MiB, over that of 64 bytes; 4k_over_64k likewise
    publish_p99_over_p50_beside_busy_thread   of one publish, while another thread of the process computes

A peer that does not spin well (zenoh, pyzmq, Pipe have threads or system calls behind them) is also
measured asleep, and the better figure counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks._ring_links import BATCH, LINKS, PEERS, SMALL, WRITERS, pin

LARGE = {"inplace_64": SMALL, "inplace_4k": 4 << 10, "inplace_64k": 64 << 10, "inplace_4m": 4 << 20}
ASLEEP = ("wait_same_core_64", "wait_two_cores_64", "poll_64_asleep")
RATES = ("rate_64", "rate_64_batch", "merge_32")
TRIPS = {"brim": 20_000, "iceoryx2": 5_000, "zenoh": 400, "pyzmq": 1_000, "pipe": 2_000}
LARGE_TRIPS = {"brim": 20_000, "iceoryx2": 5_000, "zenoh": 40, "pyzmq": 40, "pipe": 40}
MESSAGES = {"brim": 2_000_000, "iceoryx2": 100_000, "zenoh": 100_000, "pyzmq": 200_000, "pipe": 60_000}
BATCHED = 6_000_000
MERGED = {"brim": 2_000_000, "pyzmq": 200_000}


# ---- in the two processes of a library ----


def ping(
    send: Callable[[Any], Any], poll: Callable[[], Any], touch: Callable[[Any], Any], what: Any, count: int
) -> array[int]:
    """Round trips, each in ns."""
    now, times = time.perf_counter_ns, array("q", bytes(8 * count))
    for i in range(count):
        begun = now()
        send(what)
        while (message := poll()) is None:
            pass
        touch(message)
        message = None
        times[i] = now() - begun
    return times


def echo(
    send: Callable[[Any], Any], poll: Callable[[], Any], touch: Callable[[Any], Any], what: Any, count: int
) -> None:
    """The other side of ping."""
    for _ in range(count):
        while (message := poll()) is None:
            pass
        touch(message)
        message = None
        send(what)


def round_trip(link: Any, left: bool, case: str, count: int) -> dict[str, float]:
    """p50 and p99 in ns; empty for the right side."""
    asleep = case in ASLEEP
    pin(0 if left or case == "wait_same_core_64" else 1)
    link.settle(asleep)
    size = LARGE.get(case, SMALL)
    what: int | bytes
    if case in LARGE:
        special = hasattr(link, "filler")
        send, what = (link.filler(size) if special else link.fill), size
        poll = link.receive_of(size) if hasattr(link, "receive_of") else link.poll
    else:
        send, what, poll = link.send, bytes(SMALL), link.wait if asleep else link.poll
    touch = link.toucher(size) if hasattr(link, "toucher") else link.touch
    if not left:
        echo(send, poll, touch, what, count)
        return {}
    times = sorted(ping(send, poll, touch, what, count)[count // 10 :])
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}


def flood(link: Any, count: int) -> None:
    """Send one by one."""
    send, payload = link.flood, bytes(SMALL)
    for _ in range(count):
        while send(payload) is None:
            pass


def drain(link: Any, count: int) -> float:
    """Receive one by one. Returns messages per second."""
    poll, left = link.drain, count - 1
    while poll() is None:
        pass
    begun = time.perf_counter_ns()
    while left:
        if poll() is not None:
            left -= 1
    return (count - 1) * 1e9 / (time.perf_counter_ns() - begun)


def flood_many(link: Any, count: int) -> None:
    """Send by batches."""
    payloads = [bytes(SMALL)] * BATCH
    for _ in range(count // BATCH):
        link.flood_many(payloads)


def drain_many(link: Any, count: int) -> float:
    """Receive by batches, with an object for each record. Returns records per second."""
    left = count // BATCH * BATCH
    read = link.drain_many
    while not len(batch := read(BATCH)):
        pass
    begun, left = time.perf_counter_ns(), left - len(batch)
    counted = left
    while left:
        batch = read(BATCH)
        for _record in batch:
            pass
        left -= len(batch)
    return counted * 1e9 / (time.perf_counter_ns() - begun)


def flood_merge(link: Any, count: int) -> None:
    """Send one by one, from each writer in turn; all of them block."""
    payload = bytes(SMALL)
    for _ in range(count // WRITERS):
        for send in link.merge_floods:
            send(payload)


def drain_merge(link: Any, count: int) -> float:
    """Receive from all writers. Returns messages per second."""
    read, left = link.drain_merge, count // WRITERS * WRITERS
    while not (got := read()):
        pass
    begun = time.perf_counter_ns()
    left -= got
    counted = left
    while left:
        left -= read()
    return float(counted * 1e9 / (time.perf_counter_ns() - begun))


def rate(link: Any, left: bool, case: str, count: int) -> dict[str, float]:
    """Messages per second, as the right side measures them."""
    pin(0 if left else 1)
    link.settle(False)
    send, receive = {
        "rate_64": (flood, drain),
        "rate_64_batch": (flood_many, drain_many),
        "merge_32": (flood_merge, drain_merge),
    }[case]
    if left:
        send(link, count)
        return {}
    return {"rate": receive(link, count)}


def serve(name: str, left: bool, directory: Path, orders: Connection) -> None:
    """One side of a library: makes its half of the link, then runs the measurements of its orders."""
    link = LINKS[name](left, directory)
    orders.send("made")
    orders.recv()
    link.connect()
    orders.send("connected")
    while (order := orders.recv()) is not None:
        case, count = order
        found = (rate if case in RATES else round_trip)(link, left, case, count)
        if hasattr(link, "rest"):
            link.rest()
        orders.send(found)
    link.close()
    orders.send("closed")


# ---- in the process that sends the orders ----


class Pair:
    """Both processes of one library."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._orders, self._processes = [], []
        for left in (True, False):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(name, left, directory, theirs), daemon=True)
            process.start()
            self._orders.append(ours)
            self._processes.append(process)
            self._answer(ours)
        self._both("go")

    def _answer(self, orders: Connection) -> Any:
        if not wait([orders, *(process.sentinel for process in self._processes)], 300):
            raise TimeoutError(f"{self.name} does not answer")
        if not orders.poll(0):
            raise ChildProcessError(f"a process of {self.name} has ended")
        return orders.recv()

    def _both(self, order: Any) -> list[Any]:
        for orders in self._orders:
            orders.send(order)
        return [self._answer(orders) for orders in self._orders]

    def measure(self, case: str, count: int) -> dict[str, float]:
        """Results of both sides."""
        left, right = self._both((case, count))
        return {**left, **right}

    def close(self) -> None:
        """End both processes."""
        self._both(None)
        for process in self._processes:
            process.join()


@contextmanager
def pairs(names: list[str]) -> Iterator[list[Pair]]:
    """The libraries' processes, all connected."""
    with tempfile.TemporaryDirectory(prefix="brim-bench-", dir="/dev/shm") as directory:
        before = set(os.listdir("/dev/shm"))
        links = [Pair(name, Path(directory)) for name in names]
        yield links
        for pair in links:
            pair.close()
        for left in set(os.listdir("/dev/shm")) - before:
            if left.endswith(".zenoh") or left.startswith("iox2_"):  # which these two leave behind
                Path("/dev/shm", left).unlink()


def cases_of(name: str) -> list[tuple[str, int]]:
    """Cases of a library, with the number of repetitions."""
    cases = [(case, TRIPS[name]) for case in ("poll_64", "wait_same_core_64", "wait_two_cores_64")]
    if name not in ("brim", "iceoryx2"):
        cases.append(("poll_64_asleep", TRIPS[name]))
    cases += [(case, LARGE_TRIPS[name]) for case in LARGE if case != "inplace_64" or name == "brim"]
    cases.append(("rate_64", MESSAGES[name]))
    if name == "brim":
        cases.append(("rate_64_batch", BATCHED))
    if name in MERGED:
        cases.append(("merge_32", MERGED[name]))
    return cases


Round = dict[tuple[str, str], dict[str, float]]


def one_round(links: list[Pair], scale: float) -> Round:
    """Every library at every case: case by case, so that compared measurements run close together."""
    found: Round = {}
    order = sorted({case for pair in links for case, _ in cases_of(pair.name)})
    for case in order:
        for pair in links:
            count = dict(cases_of(pair.name)).get(case)
            if count is not None:
                found[case, pair.name] = pair.measure(
                    case, max(20, int(count * scale) // BATCH * BATCH or 20)
                )
    return found


def better(found: Round, case: str, name: str) -> float:
    """Ratio of Brim to a peer, in one round."""
    if case == "rate_64_batch":
        return found[case, "brim"]["rate"] / found["rate_64", name]["rate"]
    if case in RATES:
        return found[case, "brim"]["rate"] / found[case, name]["rate"]
    theirs = found[case, name]["p50"]
    if case == "poll_64" and ("poll_64_asleep", name) in found:
        theirs = min(theirs, found["poll_64_asleep", name]["p50"])
    return theirs / found[case, "brim"]["p50"]


# ---- Brim alone ----


def publish_times(directory: Path, readers: int, busy: bool, count: int = 100_000) -> list[int]:
    """Sorted ns of single publishes, with `readers` attached; `busy`: while a thread of the process
    computes.
    """
    from ringbuf import Ring

    stop = False

    def compute() -> None:
        number = 0
        while not stop:
            number += 1

    with (
        Ring.create(directory / "own", capacity_bytes=16 << 20, epoch=1) as ring,
        Ring.attach(ring.path) as other,
    ):
        attached = [other.reader() for _ in range(readers)]
        publish, now, payload = ring.writer().publish, time.perf_counter_ns, bytes(SMALL)
        times = array("q", bytes(8 * count))
        thread = threading.Thread(target=compute)
        if busy:
            thread.start()
        for i in range(count):
            begun = now()
            publish(payload)
            times[i] = now() - begun
        stop = True
        if busy:
            thread.join()
        assert len(attached) == readers
        ring.unlink()
    return sorted(times)


def own_figures() -> dict[str, float]:
    """Medians of some runs."""
    pin(0)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="brim-bench-", dir="/dev/shm") as it:
        for _ in range(5):
            for name, readers, busy in (
                ("0_readers", 0, False),
                ("30_readers", 30, False),
                ("busy", 0, True),
            ):
                times = publish_times(Path(it), readers, busy)
                found.setdefault(f"publish_{name}_p50_ns", []).append(times[len(times) // 2])
                found.setdefault(f"publish_{name}_p99_ns", []).append(times[len(times) * 99 // 100])
                found.setdefault(f"publish_{name}_mean_ns", []).append(
                    sum(times[: len(times) * 999 // 1000]) / len(times)
                )
    return {name: round(statistics.median(values), 1) for name, values in found.items()}


# ---- output ----


def median_of(rounds: list[Round], case: str, name: str, what: str) -> float | None:
    """Median over the rounds; None: not measured."""
    values = [
        found[case, name][what] for found in rounds if (case, name) in found and what in found[case, name]
    ]
    return statistics.median(values) if values else None


def told(value: float | None, case: str) -> str:
    """A figure as text: us, or thousands per second."""
    if value is None:
        return "-"
    return f"{value / 1e6:.2f} M/s" if case in RATES else f"{value / 1000:.2f} us"


def table(rounds: list[Round], names: list[str]) -> None:
    """Medians by library."""
    cases = ["poll_64", *reversed(ASLEEP), *LARGE, *RATES]
    print(f"{'':20}" + "".join(f"{name:>14}" for name in names))
    for case in cases:
        what = "rate" if case in RATES else "p50"
        print(
            f"{case:20}" + "".join(f"{told(median_of(rounds, case, name, what), case):>14}" for name in names)
        )
        if case == "poll_64":
            row = "".join(f"{told(median_of(rounds, case, name, 'p99'), case):>14}" for name in names)
            print(f"{case + ' p99':20}" + row)


def summary(rounds: list[Round], peers: list[str], own: dict[str, float]) -> dict[str, Any]:
    """The last line."""
    whole: dict[str, Any] = {}
    compared = [case for case in ("poll_64", *ASLEEP, *LARGE, *RATES) if case != "inplace_64"]
    for case in compared:
        if case == "poll_64_asleep":  # counts as poll_64
            continue
        able = [name for name in peers if case != "merge_32" or name in MERGED]
        ratios = {name: [better(found, case, name) for found in rounds] for name in able}
        whole[case] = {name: round(statistics.median(values), 2) for name, values in ratios.items()}
    for name, case, other in (
        ("4m_over_64", "inplace_4m", "inplace_64"),
        ("4k_over_64k", "inplace_4k", "inplace_64k"),
    ):
        over = [found[case, "brim"]["p50"] / found[other, "brim"]["p50"] for found in rounds]
        whole[f"inplace_{name}"] = round(statistics.median(over), 3)
    whole["publish_p99_over_p50_beside_busy_thread"] = round(
        own["publish_busy_p99_ns"] / own["publish_busy_p50_ns"], 2
    )
    for case in ("poll_64", *ASLEEP[:2], *LARGE):
        for what in ("p50", "p99"):
            whole[f"brim_{case}_{what}_ns"] = median_of(rounds, case, "brim", what)
    for case in RATES:
        whole[f"brim_{case}_per_s"] = round(median_of(rounds, case, "brim", "rate") or 0)
    return {**whole, **own}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Compare the ring with its peers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages: to see that it works")
    parser.add_argument("--only", default=",".join(PEERS), help="peers, separated by commas")
    options = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("two cores are needed: one for each side")
    peers = [name for name in options.only.split(",") if name]
    if unknown := [name for name in peers if name not in PEERS]:
        parser.error(f"no such peer: {', '.join(unknown)}; write some of {', '.join(PEERS)}")
    names = ["brim", *peers]
    with pairs(names) as made:
        rounds = []
        for number in range(options.rounds + 1):  # the first warms up
            print(f"   round {number} of {options.rounds}{'' if number else ' (warming up)'} ...", flush=True)
            rounds.append(one_round(made, 0.1 if options.quick or number == 0 else 1.0))
    own = own_figures()
    table(rounds[1:], names)
    none, thirty = own["publish_0_readers_p50_ns"], own["publish_30_readers_p50_ns"]
    busy, worst = own["publish_busy_p50_ns"], own["publish_busy_p99_ns"]
    print(f"publish, clock reads included: {none:.0f} ns; with 30 readers {thirty:.0f} ns", end="; ")
    print(f"beside a busy thread {busy:.0f} ns, p99 {worst:.0f} ns")
    print(json.dumps(summary(rounds[1:], peers, own)))


if __name__ == "__main__":
    main()
