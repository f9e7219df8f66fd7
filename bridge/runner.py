"""Bridge: a drain that runs, as a thread of the broker or as the whole of its own process.

Owns the thread, the waiting, the retries and what people see of it.  Never decides what is drained.

While nothing is there to drain, the thread sleeps until a record comes (ringbuf.bell): an idle bridge costs
nothing.  What fails is tried again after a random time of up to 0.5 s, 1 s, 2 s, ... 60 s (full jitter:
bridges that lost the same sink do not come back in step), for as long as it takes; one success starts anew.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

from bridge.checkpoint import Checkpoint
from bridge.drain import Drain, Moved, PartitionLag, Totals
from bridge.errors import BridgeError, CheckpointError, SinkBlocked, SinkUnavailable
from bridge.settings import BridgeSettings
from bridge.sink import RecordSink, Sink, open_sink
from bridge.source import ColdLog, ForeignLog
from ringbuf.bell import READERS_MOST, Sleeper

__all__ = ["Backoff", "Bridge", "BridgeState"]

log = logging.getLogger(__name__)

STATE_INTERVAL_S = 1.0  # how old what state() says may be
STOP_TIMEOUT_S = 35.0  # a put under way ends within 30 s

Condition = Literal["starting", "draining", "idle", "paused", "retrying", "blocked", "stopped", "failed"]


class Backoff:
    """How long to wait before the next try: uniformly up to a bound that doubles with each failure."""

    def __init__(self, least_s: float, most_s: float, random_source: random.Random | None = None) -> None:
        self.least_s, self.most_s = least_s, most_s
        self.failures = 0
        self._random = random_source or random.Random()

    def next_s(self) -> float:
        """After another failure: seconds to wait."""
        bound = min(self.most_s, self.least_s * 2.0 ** min(self.failures, 62))
        self.failures += 1
        return self._random.uniform(0, bound)

    def reset(self) -> None:
        """After a success."""
        self.failures = 0


@dataclass(frozen=True, slots=True)
class BridgeState:
    """What there is to know about a bridge, at most STATE_INTERVAL_S old.

    condition   starting, draining, idle (all is drained), paused, retrying, blocked (a name is taken by other
                content: resume() after it was dealt with), stopped, failed (a bug: see the log)
    lag_s       age of the oldest record that waits; 0: none does
    last_ack_age_s  since the sink has last taken something; None: not yet
    """

    name: str
    to: str
    condition: Condition
    drain_seq: int
    lag_records: int
    lag_bytes: int
    lag_s: float
    last_ack_age_s: float | None
    failures: int  # in a row
    last_error: str
    remedy: str
    totals: Totals
    partitions: tuple[PartitionLag, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


class Bridge:
    """Drains until it is stopped.

    start() and stop() run it in a thread; run() in the calling one.  The other methods may be called from any
    thread.  `sink` and `cold` replace what the settings say, and are then the caller's to close.
    `moved` is called on the bridge's thread (see Drain), and must not block.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        sink: Sink | None = None,
        cold: ColdLog | None = None,
        moved: Moved | None = None,
    ) -> None:
        self.settings = settings
        self._own_sink = sink is None
        self._sink = sink or open_sink(settings.to, settings.options)
        self._cold = cold or (ForeignLog(settings.log_dir) if settings.log_dir else None)
        self._moved = moved
        self._backoff = Backoff(settings.backoff_min_ms / 1000, settings.backoff_max_ms / 1000)
        self._sleeper = Sleeper()
        self._stopping = False
        self._paused = False
        self._blocked = False
        self._flush: threading.Event | None = None
        self._condition: Condition = "starting"
        self._error: Exception | None = None
        self._state = self._describe(None)
        self._state_at = 0.0
        self._shown: Condition = "starting"
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Run in a thread of its own.  Raises CheckpointBusy, CheckpointForeign, CheckpointError."""
        assert self._thread is None
        checkpoint = self._open_checkpoint()
        name = f"brim-bridge-{self.settings.name}"
        self._thread = threading.Thread(target=self._run, args=(checkpoint,), name=name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Run in this thread until another one calls stop().

        Not a signal handler of this thread: it might interrupt what stop() needs.  Raises as start().
        """
        self._run(self._open_checkpoint())

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Let the unit under way end, and begin no other; what waits stays where it is.

        Whether it ended in time.
        """
        self._stopping = True
        self._sleeper.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def pause(self) -> None:
        """Begin no more units until resume()."""
        self._paused = True
        self._sleeper.ring()

    def resume(self) -> None:
        """Go on, now: also from a back-off, or when blocked."""
        self._paused = self._blocked = False
        self._sleeper.ring()

    def flush(self, timeout_s: float) -> bool:
        """Drain what is in the rings now, whatever its linger.  Whether the sink has it all in time."""
        done = self._flush = threading.Event()
        self._sleeper.ring()
        try:
            return done.wait(timeout_s) and not self._ended.is_set()
        finally:
            self._flush = None

    def state(self) -> BridgeState:
        """As it stands."""
        return self._state

    # ---- the thread ----

    def _open_checkpoint(self) -> Checkpoint:
        settings = self.settings
        return Checkpoint.open(settings.checkpoint_path, settings.edge_id, self._sink.url)

    def _run(self, checkpoint: Checkpoint) -> None:
        assert not isinstance(self._sink, RecordSink)
        drain = Drain(self.settings, self._sink, checkpoint, self._cold, self._moved)
        ending: Condition = "failed"
        try:
            log.info(
                "bridge starts name=%s to=%s drain_seq=%d",
                self.settings.name,
                self._sink.url,
                drain.drain_seq,
            )
            while not self._stopping:
                self._sleep(drain, self._turn(drain))
            ending = "stopped"
        finally:
            self._condition = ending
            self._state = self._describe(drain)  # the last word: how far it came
            drain.close()
            checkpoint.close()
            if self._own_sink:
                self._sink.close()
            self._ended.set()
            log.info(
                "bridge ended name=%s condition=%s drain_seq=%d", self.settings.name, ending, drain.drain_seq
            )

    def _turn(self, drain: Drain) -> float:
        """One step of the drain, or the reason for none.  Seconds to sleep."""
        if self._paused or self._blocked:
            self._condition = "paused" if self._paused else "blocked"
            return STATE_INTERVAL_S
        flush = self._flush
        drain.flushing = flush is not None
        try:
            wait = drain.step()
            if wait > 0 and flush is not None and drain.drained():
                self._condition, self._error = "idle", None
                self._state = self._describe(drain)
                flush.set()
        except (SinkUnavailable, CheckpointError) as error:
            wait = self._backoff.next_s()
            self._fail("retrying", error, wait)
        except SinkBlocked as error:
            self._blocked = True
            wait = 0.0
            self._fail("blocked", error, wait)
        else:
            if self._backoff.failures:
                log.info(
                    "bridge goes on name=%s after=%d failures", self.settings.name, self._backoff.failures
                )
            self._backoff.reset()
            self._error = None
            self._condition = "idle" if wait > 0 else "draining"
        return wait

    def _fail(self, condition: Condition, error: BridgeError, wait: float) -> None:
        if str(error) != str(self._error):
            log.warning("bridge %s name=%s: %s; %s", condition, self.settings.name, error, error.hint)
        log.debug(
            "bridge tries again name=%s in=%.1fs failures=%d",
            self.settings.name,
            wait,
            self._backoff.failures,
        )
        self._condition, self._error = condition, error

    def _sleep(self, drain: Drain, seconds: float) -> None:
        """Until the time is over, a record comes to an idle drain, or somebody calls."""
        self._refresh(drain)
        idle = self._condition == "idle" and drain.idle and seconds > 0
        readers = drain.readers()[:READERS_MOST] if idle else []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._stopping:
            if self._sleeper.sleep(readers, min(left, STATE_INTERVAL_S)):
                break
            self._refresh(drain)

    def _refresh(self, drain: Drain) -> None:
        """Make state() new, if it is old or says something else by now: it costs a look at every ring."""
        now = time.monotonic()
        news = self._condition != self._shown or drain.drain_seq != self._state.drain_seq
        if news or now - self._state_at >= STATE_INTERVAL_S / 4:
            self._state, self._state_at, self._shown = self._describe(drain), now, self._condition

    def _describe(self, drain: Drain | None) -> BridgeState:
        lags = tuple(drain.lags()) if drain else ()
        error = self._error
        broken = next((lag.error for lag in lags if lag.error), "")
        condition = self._condition
        if condition == "idle" and any(lag.lag_records for lag in lags):
            condition = "draining"
        return BridgeState(
            name=self.settings.name,
            to=self._sink.url,
            condition=condition,
            drain_seq=drain.drain_seq if drain else 0,
            lag_records=sum(lag.lag_records for lag in lags),
            lag_bytes=sum(lag.lag_bytes for lag in lags),
            lag_s=max((lag.lag_s for lag in lags), default=0.0),
            last_ack_age_s=time.monotonic() - drain.last_ack if drain and drain.last_ack else None,
            failures=self._backoff.failures,
            last_error=str(error) if error else broken,
            remedy=error.hint if isinstance(error, BridgeError) else "",
            totals=dataclasses.replace(drain.totals) if drain else Totals(),
            partitions=lags,
        )
