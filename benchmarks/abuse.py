"""Abuse: latency of honest clients while others misbehave, and the memory that the broker needs for it.

    ./dev bench abuse [--only NAME] [--clients 50] [--rate 1000]

Starts a broker with the default limits, and honest clients in a process of their own, which publish and
subscribe on schedule at QoS 1 (tests/support/honest_clients.py). Then the abuses of tests/support/abuse.py
run one after another, at the size of an attack. Prints for each its duration, p50, p99 and worst latency of
the honest clients, and memory of the broker: before, maximum, and after the end of the abuse. The last line
is JSON.

The abuser has the lowest priority: in a plant it has a machine of its own. It still shares the cores with the
broker and the honest clients, and the kernel works for the abuser's sockets on them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import psutil

from tests.support.abuse import ABUSES, UNDO
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.directories import memory_directory

LOWEST_PRIORITY = 19
SIZES = {
    "polite": 1_000,
    "silent_connections": 400,
    "trickled_connect": 200,
    "huge_claims": 100,
    "garbage": 1_000,
    "huge_publish": 100,
    "many_subscriptions": 20_000,
    "deep_topic": 65_000,
    "many_topics": 1_000_000,
    "many_retained": 100_000,
    "retained_topics": 300_000,
    "many_sessions": 100_000,
    "never_reads": 200,
    "never_acknowledges": 1_000,
    "never_releases": 60_000,
    "take_overs": 500,
    "connect_storm": 10_000,
    "subscription_churn": 10_000,
    "heavy_properties": 5_000,
    "connection_crowd": 10_000,
    "half_packets": 3_000,
    "large_wills": 5_000,
    "deaf_crowd": 20,
    "mute_crowd": 20,
    "connect_properties": 200,
    "subscribe_properties": 50,
    "four_mb_of_filters": 50,
    "filter_bomb": 500,
}
MIB = 1 << 20
QUIET_S = 2.0  # between two abuses: only honest clients


class Memory:
    """Peak memory of a process, sampled every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self.most = 0

    def now(self) -> int:
        """Private memory and touched pages of its rings, in bytes."""
        return int(self._process.memory_info().rss)

    def __enter__(self) -> Self:
        self.most = self.now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, self.now())


def felt(honest: ModuleChild) -> dict[str, float]:
    """Latencies of the honest clients since the last call."""
    honest.say("report")
    row: dict[str, float] = json.loads(honest.line())
    return row


def one(name: str, broker: BrimProcess, honest: ModuleChild) -> dict[str, float]:
    """Run one abuse. Returns a row of the table."""
    before, begin_s = psutil.Process(broker.pid).memory_info().rss, time.monotonic()
    felt(honest)
    with Memory(broker.pid) as memory:
        seen = ABUSES[name](broker.port, SIZES[name])
    took_s = time.monotonic() - begin_s
    while (row := felt(honest))["sent"] == 0:  # the abuse ended before a message was due
        time.sleep(0.05)
    if name in UNDO:
        UNDO[name](broker.port, SIZES[name])
    time.sleep(QUIET_S)
    after = psutil.Process(broker.pid).memory_info().rss
    sizes = {"before_mib": before / MIB, "most_mib": memory.most / MIB, "after_mib": after / MIB}
    return {**row, "took_s": took_s, **{key: round(value, 1) for key, value in sizes.items()}, **seen}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="./dev bench abuse")
    parser.add_argument("--only", choices=sorted(ABUSES), action="append", help="may be given again")
    parser.add_argument("--clients", type=int, default=50, help="honest ones")
    parser.add_argument("--rate", type=float, default=1_000, help="their messages a second, in all")
    chosen = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    names = ("s", "p50 ms", "p99 ms", "max ms", "lost", "MiB", "most", "after")
    print(f"{'':22}{names[0]:>7}" + "".join(f"{it:>9}" for it in names[1:]))
    with (
        memory_directory() as runtime,
        tempfile.TemporaryDirectory(prefix="brim-abuse-") as directory,
        BrimProcess(runtime, Path(directory)) as broker,
        ModuleChild("tests.support.honest_clients", broker.port, chosen.clients, chosen.rate) as honest,
    ):
        honest.lines_until("ready")
        os.nice(LOWEST_PRIORITY)
        time.sleep(QUIET_S)
        for name in chosen.only or ABUSES:
            it = rows[name] = one(name, broker, honest)
            print(
                f"{name:22}{it['took_s']:7.1f}{it['p50_ms']:9.2f}{it['p99_ms']:9.2f}{it['max_ms']:9.2f}"
                f"{it['lost']:9}{it['before_mib']:9}{it['most_mib']:9}{it['after_mib']:9}",
                flush=True,
            )
    print(json.dumps(rows))
    return 1 if any(row["lost"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
