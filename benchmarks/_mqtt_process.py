"""One broker of the MQTT benchmark: a process with loopback ports, its start, its costs.

Owns the process from exec to its end. Never knows which program runs in it.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.mqtt import Connect, encode

ROOT = Path(__file__).resolve().parent.parent
START_S = 20.0
STOP_S = 15.0
LOOK_S = 0.0005  # between two attempts to connect to a starting broker
ANSWER_S = 1.0
SETTLED_S = 0.05
CONNACK_BYTES = 4


@dataclass(frozen=True)
class Ports:
    """Loopback ports of a broker; 0: no listener of this kind."""

    mqtt: int
    tls: int = 0
    ws: int = 0


Start = Callable[[Path, Ports], AbstractContextManager["Broker"]]


@dataclass(frozen=True)
class Program:
    """A broker that can be started; `listeners`: of "tls" and "ws", in addition to plain MQTT."""

    start: Start
    listeners: frozenset[str] = frozenset()

    def ports(self, listeners: frozenset[str] = frozenset()) -> Ports:
        """Free ports for plain MQTT and these listeners."""
        return Ports(free_port(), *(free_port() if it in listeners else 0 for it in ("tls", "ws")))


@dataclass(frozen=True)
class Broker:
    """A running broker. `start_ms`: from exec to the first CONNACK.

    `slow`: it answers before it has worked, so its processor time shows when it is done.
    """

    name: str
    ports: Ports
    pid: int
    start_ms: float = 0.0
    slow: bool = False

    @property
    def port(self) -> int:
        """Port of its plain MQTT listener."""
        return self.ports.mqtt

    def _pids(self) -> list[int]:
        """Its process and all processes below it."""
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
        return found

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, of those that have ended too."""
        return sum(time.clock_gettime(cpu_clock(pid)) for pid in self._pids())

    def _status_bytes(self, *fields: str) -> int:
        total = 0
        for pid in self._pids():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in fields)
        return total * 1024

    def memory_bytes(self) -> int:
        """Memory of its own: without files, and without the pages of shared memory, which are the ring."""
        return self._status_bytes("RssAnon")

    def resident_bytes(self) -> int:
        """Resident memory with its programs and libraries, without the pages of shared memory."""
        return self._status_bytes("RssAnon", "RssFile")

    def settle(self, share: float = 0.1) -> float:
        """Wait until it needs less than `share` of a processor.

        Returns the moment (time.monotonic()) when that began.
        """
        before, since = self.cpu_s(), time.monotonic()
        while True:
            time.sleep(SETTLED_S)
            now = self.cpu_s()
            if now - before < SETTLED_S * share:
                return since
            before, since = now, time.monotonic()


def cpu_clock(pid: int) -> int:
    """Clock of the processor time of a process, as clock_getcpuclockid(3) makes it."""
    return ~pid << 3 | 2


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """True if a broker there accepts a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))  # another address, so that it cannot connect to itself
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
        probe.settimeout(ANSWER_S)
        try:
            probe.sendall(encode(Connect("first", keep_alive_s=0)))
            return len(probe.recv(CONNACK_BYTES, socket.MSG_WAITALL)) == CONNACK_BYTES
        except OSError:
            return False


@contextmanager
def process(
    name: str, command: list[str], ports: Ports, directory: Path, *, slow: bool = False
) -> Iterator[Broker]:
    """Run a broker until the end of the block.

    Its output goes to a file, which is shown if it does not start.
    """
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        begun = time.monotonic()
        child = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    try:
        while not answers(ports.mqtt):
            if child.poll() is not None or time.monotonic() > begun + START_S:
                raise SystemExit(f"{name} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(LOOK_S)
        yield Broker(name, ports, child.pid, (time.monotonic() - begun) * 1000, slow)
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
