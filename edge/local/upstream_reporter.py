"""Upstream reporter: sends the progress of a bridge in a separate process to the broker, by the control
socket.

Owns a thread and a connection. Publishers of streams with durability = "upstream" wait for these reports. So
only the latest progress of each ring matters, and lost offsets are repeated until a report has succeeded. A
broker that is absent, or restarts, gets everything once it is there: also losses that its predecessor got.

Never delays the bridge: report_progress() takes a lock only to store a number.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from edge.broker.durability import Lost
from edge.config.directories import StrPath
from edge.errors import BrokerUnreachable, EdgeError
from edge.local.protocol import Connection, Done, Drained
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

RETRY_S = 1.0
LOOK_S = 1.0  # between two looks if the broker still runs: a new one knows no progress
STOP_S = 10.0  # one answer is waited for half as long
LOST_MAX = 256  # ranges of one ring


@dataclass(slots=True)
class _Ring:
    epoch: int = 0
    offset: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)  # not reported yet
    reported: list[tuple[int, int]] = field(default_factory=list)  # the latest, for a broker that restarts
    is_reported: bool = True

    def report_again(self) -> None:
        """Report everything again, to a broker that knows none of it."""
        self.lost, self.reported, self.is_reported = _bounded([*self.reported, *self.lost]), [], False


def _bounded(lost: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most LOST_MAX ranges that cover `lost`: those with the fewest offsets between them are joined."""
    lost = sorted(lost)
    while len(lost) > LOST_MAX:
        at = min(range(1, len(lost)), key=lambda gap: lost[gap][0] - lost[gap - 1][1])
        lost[at - 1 : at + 1] = [(lost[at - 1][0], max(lost[at - 1][1], lost[at][1]))]
    return lost


class UpstreamReporter:
    """Progress of `bridge` for the broker of `runtime_dir`; None: of this user. From start() to stop()."""

    def __init__(self, bridge: str, runtime_dir: StrPath | None) -> None:
        self._bridge = bridge
        self._directory = runtime_dir
        self._rings: dict[str, _Ring] = {}
        self._news = threading.Condition()
        self._stopping = False
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="brim-bridge-report", daemon=True)

    def report_progress(self, ring_name: str, epoch: int, offset: int, lost: Lost) -> None:
        """Store new progress. Called by Drain, on the bridge's thread."""
        with self._news:
            ring = self._rings.setdefault(ring_name, _Ring())
            if ring.epoch != epoch:
                ring = self._rings[ring_name] = _Ring(epoch)
            ring.offset, ring.is_reported = offset, False
            ring.lost = _bounded([*ring.lost, *lost])
            self._news.notify()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send the remaining progress, if the broker is there, and end the thread."""
        with self._news:
            self._stopping = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    # ---- the thread ----

    def _run(self) -> None:
        failure = ""
        while True:
            with self._news:
                look_s = None if self._connection is None else LOOK_S
                self._news.wait_for(lambda: self._stopping or self._unreported(), look_s)
                if self._stopping and not self._unreported():
                    break
            try:
                self._report()
                failure = ""
            except EdgeError as error:
                self._drop(forget=isinstance(error, BrokerUnreachable))
                if str(error) != failure:
                    failure = str(error)
                    log.warning(
                        "upstream progress not reported, publishers may wait %s", pairs(reason=failure)
                    )
                with self._news:
                    if self._news.wait_for(lambda: self._stopping, RETRY_S):
                        break
        self._drop(forget=False)

    def _unreported(self) -> list[str]:
        return [name for name, ring in self._rings.items() if not ring.is_reported]

    def _report(self) -> None:
        """Send all unreported progress. Raises EdgeError: it stays unreported."""
        connection = self._connection = self._connection or Connection(self._directory)
        connection.receive()  # raises BrokerUnreachable if the broker has ended
        with self._news:
            unreported = self._unreported()
        for name in unreported:
            with self._news:
                ring = self._rings[name]
                lost, ring.lost, ring.is_reported = ring.lost, [], True
                report = Drained(self._bridge, name, ring.epoch, ring.offset, tuple(lost))
            try:
                connection.request(report, Done)
            except EdgeError:
                with self._news:
                    ring.lost, ring.is_reported = _bounded([*lost, *ring.lost]), False
                raise
            with self._news:
                ring.reported = [*ring.reported, *lost][-LOST_MAX:]

    def _drop(self, *, forget: bool) -> None:
        """Close the connection. `forget`: report everything again, to a broker that knows none of it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if forget:
            with self._news:
                for ring in self._rings.values():
                    ring.report_again()
