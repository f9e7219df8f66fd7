"""What a publisher knows for certain: which messages it has published, and which the broker acknowledged.

Owns the numbering: the messages of a device are 0, 1, 2, ... in the order in which they were first handed to
the MQTT client.  A message that goes out again after a reconnect keeps its number and its bytes.  It counts
as acknowledged when its PUBACK has been seen, and never otherwise.

published() is called by the publisher's thread, acknowledged() by that of its client: each writes its own
counters only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.demo.tally import Tally

__all__ = ["Journal", "JournalFile"]


@dataclass
class Journal:
    """Of one publisher.  `pending` is what was published and is not acknowledged yet."""

    counts: dict[str, int] = field(default_factory=dict)  # device -> messages published
    acked: Tally = field(default_factory=Tally)
    published_count: int = 0
    acked_count: int = 0
    resent: int = 0  # sent once more at most, because the acknowledgement had not come
    reconnects: int = 0
    skipped: int = 0  # readings not taken, because too many messages were waiting for the broker

    @property
    def pending(self) -> int:
        """Messages."""
        return self.published_count - self.acked_count

    def published(self, device: str) -> int:
        """The number of the next message of `device`, which is now published."""
        n = self.counts.get(device, 0)
        self.counts[device] = n + 1
        self.published_count += 1
        return n

    def acknowledged(self, device: str, n: int) -> None:
        """The broker has taken charge of this message.  Called once for each."""
        self.acked.add(device, n)
        self.acked_count += 1

    def facts(self) -> dict[str, Any]:
        """The counters, for the screen."""
        names = ("published_count", "acked_count", "resent", "reconnects", "skipped")
        return {name: getattr(self, name) for name in names}

    def save(self, path: Path) -> None:
        """`path`, and beside it the tally of what was acknowledged."""
        self.acked.save(path.with_suffix(".acked"))
        path.write_text(json.dumps({"counts": self.counts, **self.facts()}))


@dataclass(frozen=True)
class JournalFile:
    """What a publisher has left behind."""

    name: str
    counts: dict[str, int]
    acked: Tally
    facts: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> JournalFile:
        """What Journal.save() wrote."""
        facts = json.loads(path.read_text())
        return cls(path.stem, facts.pop("counts"), Tally.load(path.with_suffix(".acked")), facts)
