"""Vital signs of this machine: each part is a device, with a topic, a value and details.

    topic                          value                      details
    host/NAME/cpu/0                % busy, over a second      mhz, user, system, iowait (% of the second)
    host/NAME/memory               % in use                   total_bytes, available_bytes, swap_percent
    host/NAME/load                 1 minute load average      load5, load15
    host/NAME/temperature/CHIP     degrees Celsius            label, high
    host/NAME/disk/vda             bytes a second             read_bytes, write_bytes, read_count, write_count
    host/NAME/net/eth0             bytes a second             sent_bytes, received_bytes, packets, errors
    host/NAME/process/0            % of a CPU                 pid, name, rss_bytes   (0 is the busiest)

Owns reading them, by psutil, and their names. Never publishes and never numbers messages. Loads and rates are
over the last second, for any rate of reading: the kernel counts in steps of 10 ms. Parts that a machine does
not have (temperatures, in most virtual ones) are left out.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import psutil

WINDOW_S = 1.0  # of loads and rates
SLOW_S = 1.0  # between two readings of values that cost milliseconds or hardly change
PROCESSES = 5  # of the table's top
NOT_A_DISK = re.compile(r"^(loop|ram|zram|dm-|sr)")  # parts of other disks, or memory


class Reading(NamedTuple):
    """One value of one device. `details` are its components."""

    device: str
    value: float
    details: dict[str, Any]


class Window:
    """Counters of the last WINDOW_S."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[tuple[float, tuple[float, ...]]]] = {}

    def change(self, name: str, now: float, counters: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
        """Seconds since the oldest counters in the window, and the growth of each since then; zeros at
        first.
        """
        samples = self._kept.setdefault(name, deque(maxlen=4096))
        samples.append((now, counters))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW_S:
            samples.popleft()
        then, before = samples[0]
        return now - then, tuple(new - old for new, old in zip(counters, before, strict=True))


class Vitals:
    """Readings of some kinds of device, at the moment of read(). Belongs to one thread.

    `name` is the machine's in topics. `kinds`: some of KINDS.
    """

    def __init__(self, name: str, kinds: Collection[str]) -> None:
        self._prefix = f"host/{level(name)}"
        self._sources = [source for kind, sources in KINDS.items() if kind in kinds for source in sources]
        self._window = Window()
        self._next_slow = 0.0
        self._mhz: list[float] = []
        self._processes: dict[int, tuple[float, float]] = {}  # pid -> CPU seconds, time

    def read(self) -> list[Reading]:
        """Present readings. Devices that cost milliseconds, or hardly change, are included once a second."""
        now = time.monotonic()
        slow = now >= self._next_slow
        if slow:
            self._next_slow = now + SLOW_S
        values = [
            reading
            for source, is_slow in self._sources
            if slow or not is_slow
            for reading in source(self, now)
        ]
        return [
            Reading(f"{self._prefix}/{device}", round(value, 3), details) for device, value, details in values
        ]

    def _cpus(self, now: float) -> Iterator[Reading]:
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            counters = (times.user + times.nice, times.system, times.iowait, times.idle)
            seconds, (user, system, iowait, idle) = self._window.change(f"cpu{number}", now, counters)
            total = (user + system + iowait + idle) or 1.0
            details = {
                "mhz": self._mhz[number] if number < len(self._mhz) else None,
                "user": round(100 * user / total, 1),
                "system": round(100 * system / total, 1),
                "iowait": round(100 * iowait / total, 1),
            }
            yield Reading(f"cpu/{number}", 100 * (user + system) / total if seconds else 0.0, details)

    def _frequencies(self, _now: float) -> Iterator[Reading]:
        """Frequencies: a detail of the CPUs, no device.

        Read once a second, because some machines need long for it.
        """
        self._mhz = [round(frequency.current, 1) for frequency in psutil.cpu_freq(percpu=True) or []]
        yield from ()

    def _memory(self, _now: float) -> Iterator[Reading]:
        memory = psutil.virtual_memory()
        details = {"total_bytes": memory.total, "available_bytes": memory.available}
        yield Reading("memory", memory.percent, {**details, "swap_percent": psutil.swap_memory().percent})

    def _load(self, _now: float) -> Iterator[Reading]:
        load1, load5, load15 = psutil.getloadavg()
        yield Reading("load", load1, {"load5": round(load5, 2), "load15": round(load15, 2)})

    def _temperatures(self, _now: float) -> Iterator[Reading]:
        for chip, sensors in getattr(psutil, "sensors_temperatures", dict)().items():
            for number, sensor in enumerate(sensors):
                details = {"label": sensor.label, "high": sensor.high}
                yield Reading(f"temperature/{level(chip)}-{number}", sensor.current, details)

    def _disks(self, now: float) -> Iterator[Reading]:
        for name, disk in psutil.disk_io_counters(perdisk=True).items():
            if NOT_A_DISK.match(name) or not (disk.read_count or disk.write_count):
                continue
            seconds, (grown,) = self._window.change(name, now, (disk.read_bytes + disk.write_bytes,))
            details = {
                key: getattr(disk, key) for key in ("read_bytes", "write_bytes", "read_count", "write_count")
            }
            yield Reading(f"disk/{level(name)}", grown / seconds if seconds else 0.0, details)

    def _nets(self, now: float) -> Iterator[Reading]:
        for name, net in psutil.net_io_counters(pernic=True).items():
            if not (net.packets_sent or net.packets_recv):
                continue
            seconds, (grown,) = self._window.change(f"net {name}", now, (net.bytes_sent + net.bytes_recv,))
            details = {
                "sent_bytes": net.bytes_sent,
                "received_bytes": net.bytes_recv,
                "packets": net.packets_sent + net.packets_recv,
                "errors": net.errin + net.errout + net.dropin + net.dropout,
            }
            yield Reading(f"net/{level(name)}", grown / seconds if seconds else 0.0, details)

    def _top(self, now: float) -> Iterator[Reading]:
        """The busiest processes since the previous call."""
        seen, rows = {}, []
        for process in psutil.process_iter(["name", "cpu_times", "memory_info"], ad_value=None):
            times, memory = process.info["cpu_times"], process.info["memory_info"]
            if times is None or memory is None:
                continue
            used = times.user + times.system
            before, then = self._processes.get(process.pid, (used, now))
            seen[process.pid] = (used, now)
            percent = 100 * (used - before) / (now - then) if now > then else 0.0
            rows.append((percent, process.pid, process.info["name"], memory.rss))
        self._processes = seen
        rows.sort(key=lambda row: (-row[0], row[1]))
        for rank, (percent, pid, name, rss) in enumerate(rows[:PROCESSES]):
            yield Reading(f"process/{rank}", percent, {"pid": pid, "name": name, "rss_bytes": rss})


def level(name: str) -> str:
    """`name` as one level of a topic."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "unnamed"


Source = Callable[[Vitals, float], Iterator[Reading]]

# Kinds of devices with their sources; True: slow.
KINDS: dict[str, list[tuple[Source, bool]]] = {
    "cpu": [(Vitals._frequencies, True), (Vitals._cpus, False)],
    "memory": [(Vitals._memory, False)],
    "load": [(Vitals._load, False)],
    "temperature": [(Vitals._temperatures, True)],
    "disk": [(Vitals._disks, False)],
    "net": [(Vitals._nets, False)],
    "process": [(Vitals._top, True)],
}
