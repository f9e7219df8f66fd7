"""Journal of a publisher: the messages that it has published, and those that the broker acknowledged.

Owns the numbers: the messages of a device are 0, 1, 2, ... in the order in which they were first passed to
the MQTT client. A message that is sent again after a reconnect keeps its number and its bytes. It counts as
acknowledged when its PUBACK has been seen, and never otherwise.

The publisher's thread calls published(), that of its client acknowledged(): each writes only its own
counters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.demo.tally import Tally


@dataclass
class Journal:
    """Journal of one publisher. `pending`: messages published and not acknowledged yet."""

    counts: dict[str, int] = field(default_factory=dict)  # device -> messages published
    acked: Tally = field(default_factory=Tally)
    published_count: int = 0
    acked_count: int = 0
    resent: int = 0  # sent again at most once, because the acknowledgement was missing
    reconnects: int = 0
    skipped: int = 0  # readings not taken, because too many messages waited for the broker

    @property
    def pending(self) -> int:
        """Number of messages without an acknowledgement."""
        return self.published_count - self.acked_count

    def published(self, device: str) -> int:
        """Count one more message of `device`. Returns its number."""
        n = self.counts.get(device, 0)
        self.counts[device] = n + 1
        self.published_count += 1
        return n

    def acknowledged(self, device: str, n: int) -> None:
        """Record the acknowledgement of a message. Called once for each."""
        self.acked.add(device, n)
        self.acked_count += 1

    def figures(self) -> dict[str, Any]:
        """Counters for the screen."""
        names = ("published_count", "acked_count", "resent", "reconnects", "skipped")
        return {name: getattr(self, name) for name in names}

    def save(self, path: Path) -> None:
        """Write `path`, and next to it the tally of acknowledged messages."""
        self.acked.save(path.with_suffix(".acked"))
        path.write_text(json.dumps({"counts": self.counts, **self.figures()}))


@dataclass(frozen=True)
class JournalFile:
    """Content of a publisher's journal file."""

    name: str
    counts: dict[str, int]
    acked: Tally
    figures: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> JournalFile:
        """Read the file that Journal.save() wrote."""
        values = json.loads(path.read_text())
        return cls(path.stem, values.pop("counts"), Tally.load(path.with_suffix(".acked")), values)
