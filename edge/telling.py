"""Telling: a bridge in a process of its own says over the control socket how far its sink has the rings.

Owns a thread and a connection.  Publishers of streams with durability = "upstream" wait for what is said
here, so only the latest of each ring matters, and what is lost is said until it has been heard.  A broker
that is not there, or starts again, is told everything when it is.

Never holds up the bridge: moved() takes a lock for as long as it takes to note a number.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from edge.control import Connection, Done, Drained
from edge.directories import StrPath
from edge.errors import BrokerUnreachable, EdgeError
from edge.levels import Lost
from edge.logs import pairs

__all__ = ["Telling"]

log = logging.getLogger(__name__)

RETRY_S = 1.0
STOP_S = 10.0  # an answer is waited for half as long
LOST_MOST = 256  # ranges of one ring: more become one


@dataclass
class _Ring:
    epoch: int = 0
    offset: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    told: bool = True


class Telling:
    """What `bridge` has, for the broker of `runtime_dir`; None: this user's own.  From start() to stop()."""

    def __init__(self, bridge: str, runtime_dir: StrPath | None) -> None:
        self._bridge = bridge
        self._directory = runtime_dir
        self._rings: dict[str, _Ring] = {}
        self._news = threading.Condition()
        self._stopping = False
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="brim-bridge-tell", daemon=True)

    def moved(self, ring_name: str, epoch: int, offset: int, lost: Lost) -> None:
        """As Drain tells it, on the bridge's thread."""
        with self._news:
            ring = self._rings.setdefault(ring_name, _Ring())
            if ring.epoch != epoch:
                ring.lost.clear()
            ring.epoch, ring.offset, ring.told = epoch, offset, False
            ring.lost += lost
            if len(ring.lost) > LOST_MOST:
                ring.lost[:] = [(ring.lost[0][0], ring.lost[-1][1])]
            self._news.notify()

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Says what is left to say, if the broker is there, and ends."""
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
                self._news.wait_for(lambda: self._stopping or self._untold())
                if not self._untold():
                    break
            try:
                self._tell()
                failure = ""
            except EdgeError as error:
                self._drop(forget=isinstance(error, BrokerUnreachable))
                if str(error) != failure:
                    failure = str(error)
                    log.warning("publishers may wait: the broker is not told %s", pairs(reason=failure))
                with self._news:
                    if self._news.wait_for(lambda: self._stopping, RETRY_S):
                        break
        self._drop(forget=False)

    def _untold(self) -> list[str]:
        return [name for name, ring in self._rings.items() if not ring.told]

    def _tell(self) -> None:
        """Everything that is news.  Raises EdgeError: it stays news."""
        connection = self._connection = self._connection or Connection(self._directory)
        with self._news:
            untold = self._untold()
        for name in untold:
            with self._news:
                ring = self._rings[name]
                lost = len(ring.lost)
                said = Drained(self._bridge, name, ring.epoch, ring.offset, tuple(ring.lost))
            connection.ask(said, Done)
            with self._news:
                if (ring.epoch, ring.offset) == (said.epoch, said.offset):
                    ring.told = True
                if ring.epoch == said.epoch:
                    del ring.lost[:lost]

    def _drop(self, *, forget: bool) -> None:
        """`forget`: the next broker knows nothing of what this one was told."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if forget:
            with self._news:
                for ring in self._rings.values():
                    ring.told = False
