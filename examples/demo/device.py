"""Loop of a publisher, for any client: take readings, number them and publish them at a given rate.

Owns the payload, the rate, and the status lines on standard output (one JSON object each half second) that
the demo shows. Never uses MQTT: device_amqtt.py, device_paho.py and burst.py do, and record acknowledgements
in their Journal.

    payload    JSON: {"n": number of the message, "value": number, "sent_ns": wall clock, "details": {...}}

SIGTERM ends the readings. Messages that wait are still delivered, for at most FINISH_S, and the journal is
saved. All memory is bounded: above PENDING_MAX unacknowledged messages no reading is taken, and the omission
is counted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from examples.demo.journal import Journal
from examples.demo.vitals import Reading

PENDING_MAX = 20_000  # below MQTT's 65535 packet identifiers: each message uses one
STATUS_S = 0.5
FINISH_S = 40.0  # for a broker that has just started again
BEHIND_S = 0.5  # a delay above this is not made up for

Supply = Callable[[], Sequence[Reading]]


class Payload(msgspec.Struct):
    """Payload of every message of the demo, without `details`, which only people and Spark read."""

    n: int
    value: float
    sent_ns: int


class Message(NamedTuple):
    """A message in flight."""

    device: str
    n: int
    payload: bytes


@dataclass(frozen=True)
class Options:
    """Options of a publisher, from its arguments."""

    port: int
    rate: float  # messages per second
    journal: Path
    name: str  # of the machine, in topics
    kinds: tuple[str, ...]

    @classmethod
    def parse(cls, description: str, arguments: Sequence[str] | None = None) -> Options:
        """Parse the command line."""
        parser = argparse.ArgumentParser(description=description.partition("\n")[0])
        parser.add_argument("--port", type=int, required=True, help="of the broker, on 127.0.0.1")
        parser.add_argument("--rate", type=float, required=True, help="messages a second")
        parser.add_argument("--journal", type=Path, required=True, help="file to write at the end")
        parser.add_argument("--name", required=True, help="the machine's, in topics")
        parser.add_argument("--kinds", nargs="*", default=[], help="of devices: cpu, memory, ...")
        options = parser.parse_args(arguments)
        return cls(options.port, options.rate, options.journal, options.name, tuple(options.kinds))


class Device:
    """Readings into messages, at a rate. Created in the main thread, because it handles SIGTERM."""

    def __init__(self, options: Options, supply: Supply) -> None:
        self.journal = Journal()
        self.connected = False
        self.stopping = False
        self._options, self._supply = options, supply
        self._next = time.monotonic()
        self._next_status = self._next
        self._finish_by = float("inf")
        self._readings = 1  # of the previous round
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo handles Ctrl-C, and ends this process

    def due(self) -> list[Message]:
        """Messages to publish now, numbered; none while stopping or while too many wait."""
        self._report()
        now = time.monotonic()
        if self.stopping or now < self._next:
            return []
        if self.journal.pending >= PENDING_MAX:
            self.journal.skipped += self._readings
            self._next = now + self._readings / self._options.rate
            return []
        readings = self._supply()
        self._readings = max(len(readings), 1)
        self._next = max(self._next + self._readings / self._options.rate, now - BEHIND_S)
        return [self._message(reading) for reading in readings]

    def delay_s(self) -> float:
        """Seconds until the next messages are due."""
        ahead = 0.05 if self.stopping else self._next - time.monotonic()
        return min(max(ahead, 0.0), 0.05)

    def finished(self) -> bool:
        """True if stopping, and all messages are acknowledged or given up."""
        if not self.stopping:
            return False
        self._finish_by = min(self._finish_by, time.monotonic() + FINISH_S)
        return self.journal.pending == 0 or time.monotonic() > self._finish_by

    def close(self) -> None:
        """Save the journal."""
        self.journal.save(self._options.journal)
        self._next_status = 0.0
        self._report()

    def _message(self, reading: Reading) -> Message:
        n = self.journal.published(reading.device)
        content = {"n": n, "value": reading.value, "sent_ns": time.time_ns(), "details": reading.details}
        return Message(reading.device, n, msgspec.json.encode(content))

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._next_status:
            self._next_status = now + STATUS_S
            print(json.dumps({**self.journal.figures(), "connected": self.connected}), flush=True)

    def _stop(self, _signal: int, _frame: object) -> None:
        self.stopping = True


def explain(error: BaseException) -> None:
    """Write one line to the log of this process."""
    print(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}", file=sys.stderr, flush=True)
