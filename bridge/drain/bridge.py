"""Bridge: a running drain, as a thread of the broker or as a process of its own.

Owns the thread, its waits, and the state that people see. Never decides what is drained.

While no record waits, the thread sleeps until a record arrives (ringbuf.reader_wakeup), so an idle bridge
uses no processor time. A failed step is tried again after a pause (retries.py). After an error of no known
class, sink, checkpoint and drain are opened again (restarts.py).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from bridge.backoff import Backoff
from bridge.drain.checkpoint import Checkpoint
from bridge.drain.commands import DrainCommand, backfill, skip
from bridge.drain.drain import Drain, ProgressReport, Totals
from bridge.drain.lag import LagMeter, error_of
from bridge.drain.loss_report import losses_in, losses_of
from bridge.drain.merger import Merger, MergeTotals
from bridge.drain.restarts import Restarts, remedy_of, words_of
from bridge.drain.retries import Retries
from bridge.drain.sender import check, schema_of
from bridge.drain.settings import BridgeSettings
from bridge.drain.status import BridgeState, Condition
from bridge.errors import (
    BridgeError,
    CheckpointError,
    CheckpointMismatch,
    InvalidCommand,
    SinkBlocked,
    SinkUnavailable,
    SourceError,
)
from bridge.sinks.interface import Omitting, Sink
from bridge.sinks.merging import merging_store
from bridge.sinks.registry import open_sink
from bridge.source.broker_log import BrokerLog
from bridge.source.partition_source import RecordLog
from persistence.stats import MILLISECOND_NS, LatencyHistogram
from ringbuf.reader_wakeup import Sleeper

log = logging.getLogger(__name__)

# Publishers have priority. A drain that competes for the last processor with the thread that serves devices
# costs them nine of ten messages, with a window of 100.
NICE = 19
STATE_INTERVAL_S = 1.0  # maximum age of the result of state()
STOP_TIMEOUT_S = 35.0  # a put in flight ends within 30 s


class _PendingCommand(NamedTuple):
    """A command to the bridge with its Future."""

    command: DrainCommand
    answer: Future[list[str]]


class Bridge:
    """Bridge that drains until it is stopped.

    start() and stop() run it in a thread; run() in the calling one. The other methods may be called from any
    thread. `sink` and `record_log` replace those of the settings; the caller closes them. `on_progress` is
    called on the bridge's thread (see Drain), and must not block.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        sink: Sink | None = None,
        record_log: RecordLog | None = None,
        on_progress: ProgressReport | None = None,
    ) -> None:
        self.settings = settings
        self._own_sink = sink is None
        self._sink = sink or open_sink(settings.to, settings.options)
        check(settings, self._sink)
        self._record_log = record_log or (BrokerLog(settings.log_dir) if settings.log_dir else None)
        self._on_progress = on_progress
        pauses_s = settings.backoff_min_ms / 1000, settings.backoff_max_ms / 1000
        self._retries = Retries(settings.name, Backoff(*pauses_s))
        self._restarts = Restarts(settings.name, Backoff(*pauses_s))
        self._totals, self._times = Totals(), LatencyHistogram(MILLISECOND_NS)  # of all its drains
        self._sleeper = Sleeper()
        self._stopping = False
        self._blocked = False
        self._pausing = False  # before the next try: then only the time counts
        self._turn_requested = False  # a turn was requested
        self._commands: deque[_PendingCommand] = deque()
        self._calm_at = time.monotonic()  # time when a record was drained last, or none waited
        self._stall_logged = False
        self._meter: LagMeter | None = None
        self._merger: Merger | None = None
        self._flush: threading.Event | None = None
        self._condition: Condition = "starting"
        self._error: BaseException | None = None
        self._state = self._describe(None)
        self._state_at = 0.0
        self._shown: Condition = "starting"
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Run in a new thread. Raises CheckpointBusy, ...Mismatch, ...Newer, CheckpointError."""
        assert self._thread is None
        checkpoint = self._open_checkpoint()
        name = f"brim-bridge-{self.settings.name}"
        self._thread = threading.Thread(target=self._run, args=(checkpoint,), name=name, daemon=True)
        self._thread.start()

    def start_when_matching(self, error: CheckpointMismatch) -> None:
        """Start later, after start() has raised `error`: when the checkpoint is of this edge.

        Until then the state is "blocked", and the records that wait are reported.
        """
        assert self._thread is None
        self._condition, self._error = "blocked", error
        self._state = dataclasses.replace(
            self._state, condition="blocked", last_error=str(error), remedy=error.hint
        )
        name = f"brim-bridge-{self.settings.name}"
        self._thread = threading.Thread(target=self._wait_for_checkpoint, name=name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Run in this thread until another one calls stop().

        A signal handler of this thread must not call stop(): it might interrupt the code that stop() needs.
        Raises as start().
        """
        self._run(self._open_checkpoint())

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Complete the files in flight and begin no others; records that wait stay in ring and log.

        Returns True if it ended in time.
        """
        self._stopping = True
        self._sleeper.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def pause(self) -> Future[list[str]]:
        """Begin no more files until resume(). The next process of this bridge is paused, too."""
        return self._submit(partial(self._set_paused, paused=True))

    def resume(self) -> Future[list[str]]:
        """Continue now, also after a failure or when blocked."""
        return self._submit(partial(self._set_paused, paused=False))

    def skip(self, stream: str | None = None, partition: int | None = None) -> Future[list[str]]:
        """Pass over the records that wait now, of all partitions or of these; files declare them skipped.

        The result is one sentence per partition. The Future fails with BridgeError.
        """
        return self._submit(partial(skip, stream=stream, partition=partition))

    def preview_skip(self, stream: str | None = None, partition: int | None = None) -> Future[list[str]]:
        """The sentences of skip(), which passes over nothing."""
        return self._submit(partial(skip, stream=stream, partition=partition, preview=True))

    def backfill(self, stream: str, partition: int, first_offset: int) -> Future[list[str]]:
        """Drain again from `first_offset` of the present epoch on, in parallel with live records.

        Records that were drained before are then in a second file, and readers take them once.
        """
        return self._submit(partial(backfill, stream=stream, partition=partition, first_offset=first_offset))

    def _submit(self, command: DrainCommand) -> Future[list[str]]:
        answer: Future[list[str]] = Future()
        self._commands.append(_PendingCommand(command, answer))
        self._turn_requested = True
        self._sleeper.ring()
        if self._ended.is_set():
            self._refuse()
        return answer

    def flush(self, timeout_s: float) -> bool:
        """Drain the records in the rings now, whatever the linger time. True if the sink has all in time."""
        done = self._flush = threading.Event()
        self._sleeper.ring()
        try:
            return done.wait(timeout_s) and not self._ended.is_set()
        finally:
            self._flush = None

    def state(self) -> BridgeState:
        """State at this moment."""
        silent_s = time.monotonic() - self._calm_at
        stalled = silent_s > self.settings.stall_s and self._state.condition not in {"paused", "stopped"}
        return dataclasses.replace(self._state, stalled_s=silent_s) if stalled else self._state

    # ---- the thread ----

    def _open_checkpoint(self) -> Checkpoint:
        settings = self.settings
        checkpoint = Checkpoint.open(settings.checkpoint_path, settings.edge_id, self._sink.url)
        self._state = dataclasses.replace(self._state, losses=tuple(losses_in(checkpoint)))
        return checkpoint

    def _wait_for_checkpoint(self) -> None:
        """Report the records that wait by the checkpoint of the other edge; drain nothing."""
        settings = self.settings
        while not self._stopping:
            saved = Checkpoint.peek(settings.checkpoint_path)
            if saved is None or saved.edge == settings.edge_id:
                with suppress(CheckpointError):
                    checkpoint = self._open_checkpoint()
                    self._condition, self._error = "starting", None
                    self._run(checkpoint)
                    return
            else:
                try:
                    self._restarts.begin()  # the former look is not a drain that ran since then
                    self._state = self._waiting(saved)
                except BridgeError:
                    pass
                except Exception as error:  # noqa: BLE001  logged; the thread must not end
                    self._restarts.failed(error)
            self._refuse("the checkpoint is of another edge", self._state.remedy)
            self._sleeper.sleep([], STATE_INTERVAL_S)
        self._condition = "stopped"
        if self._own_sink:
            self._sink.close()
        self._ended.set()
        self._refuse()

    def _waiting(self, checkpoint: Checkpoint) -> BridgeState:
        drain = Drain(self.settings, self._sink, checkpoint, self._record_log)
        try:
            drain.intake_paused = True
            drain.scan_if_due()
            self._meter = LagMeter(drain)
            return self._describe(drain)
        finally:
            drain.close()

    def _run(self, checkpoint: Checkpoint) -> None:
        """Run one drain after the other until stop(); each begins from the checkpoint."""
        with suppress(OSError):  # of one thread, on Linux; threads that it starts inherit it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        ending: Condition = "failed"
        opened: Checkpoint | None = checkpoint
        try:
            while True:
                try:
                    # a command that comes during this attempt ends the pause after it
                    self._turn_requested = False
                    self._restarts.begin()
                    self._run_drain(opened or self._reopen())
                except BaseException as error:  # libraries in Rust raise no Exception
                    if self._thread is None and isinstance(error, KeyboardInterrupt | SystemExit):
                        raise  # of a signal, in run()
                    self._await_restart(error)
                opened = None
                if self._stopping:
                    break
            ending = "stopped"
        finally:
            self._condition = ending
            self._state = dataclasses.replace(self._state, condition=ending)
            if self._own_sink:
                self._sink.close()
            self._ended.set()
            self._refuse()
            seq = self._state.drain_seq
            log.info("bridge ended name=%s condition=%s drain_seq=%d", self.settings.name, ending, seq)

    def _reopen(self) -> Checkpoint:
        """Open sink and checkpoint again, as at the start of a process."""
        if self._own_sink:
            earlier, self._sink = self._sink, open_sink(self.settings.to, self.settings.options)
            earlier.close()
        return self._open_checkpoint()

    def _run_drain(self, checkpoint: Checkpoint) -> None:
        """Drain until stop(), and complete the files in flight. After an error nothing is saved."""
        with ExitStack() as stack:
            stack.callback(checkpoint.close)
            drain = Drain(
                self.settings,
                self._sink,
                checkpoint,
                self._record_log,
                self._on_progress,
                on_answer=self._sleeper.ring,
            )
            stack.callback(drain.close)
            drain.count_in(self._totals, self._times)
            self._meter = LagMeter(drain)
            self._begin_merging(drain)
            stack.callback(self._end_merging)
            log.info(
                "bridge started name=%s to=%s drain_seq=%d",
                self.settings.name,
                self._sink.url,
                drain.drain_seq,
            )
            while not self._stopping:
                self._sleep(drain, self._turn(drain))
            if self._merger is not None:
                self._merger.stop(0)
            with suppress(BridgeError):
                drain.finish()
            self._end_merging()
            self._condition = "stopped"
            self._state = self._describe(drain)

    def _await_restart(self, error: BaseException) -> None:
        """Report the error, and wait until the next drain is due or a command arrives."""
        wait_s = self._restarts.failed(error)
        self._totals.restarts = self._restarts.count
        self._error, self._condition = error, "retrying"
        self._state = dataclasses.replace(
            self._state,
            condition="retrying",
            failures=self._restarts.failures,
            in_flight=0,
            last_error=words_of(error),
            remedy=remedy_of(error, self.settings.name),
            totals=dataclasses.replace(self._totals),
        )
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0 and not (self._stopping or self._turn_requested):
            self._sleeper.sleep([], left)

    def _begin_merging(self, drain: Drain) -> None:
        store = merging_store(self._sink)
        if self.settings.merge_after_s and store is not None:
            merged = self._merger.totals if self._merger is not None else MergeTotals()
            self._merger = Merger(
                self.settings, store, lambda: 0 if drain.checkpoint.paused else drain.checkpoint.settled_to
            )
            self._merger.totals = merged
            self._merger.start()

    def _end_merging(self) -> None:
        if self._merger is not None:
            self._merger.stop(STOP_TIMEOUT_S)

    def _refuse(self, why: str = "the bridge has ended", hint: str = "start it again") -> None:
        """Refuse the commands that wait; on the thread of the bridge, or of a caller that came too late."""
        with suppress(IndexError):
            while True:
                answer = self._commands.popleft().answer
                answer.set_exception(InvalidCommand(why, hint=hint))

    def _turn(self, drain: Drain) -> float:
        """One step of the drain, or the reason for none. Returns the seconds to sleep."""
        self._turn_requested = False
        self._run_commands(drain)
        if drain.checkpoint.paused or self._blocked:
            self._condition = "paused" if drain.checkpoint.paused else "blocked"
            drain.intake_paused = True
            drain.scan_if_due()
            with suppress(BridgeError):  # files in flight may have arrived nevertheless
                drain.collect()
            return STATE_INTERVAL_S
        flush, self._pausing = self._flush, False
        drain.partitions.flushing = flush is not None
        try:
            wait = drain.step()
            if wait > 0 and flush is not None and drain.drained():
                self._condition, self._error = "idle", None
                self._state = self._describe(drain)
                flush.set()
        except (SinkUnavailable, CheckpointError, SourceError) as error:
            wait, self._pausing = self._retries.failed(error), True
            self._condition, self._error = "retrying", error
        except SinkBlocked as error:
            self._retries.blocked(error)
            wait, self._blocked = 0.0, True
            self._condition, self._error = "blocked", error
        else:
            if drain.failing:  # a file is sent again: only its answer shows that the sink is back
                self._condition = "retrying"
                return wait
            self._retries.succeeded()
            self._error = None
            self._condition = "idle" if wait > 0 else "draining"
        return wait

    def _run_commands(self, drain: Drain) -> None:
        """Run the commands that wait."""
        drain.intake_paused = False
        while self._commands:
            command, answer = self._commands[0]
            try:
                lines = command(drain)
            except BridgeError as error:
                answer.set_exception(error)
            except Exception as error:
                log.exception("bridge command failed name=%s", self.settings.name)
                text = f"the command failed: {error!r}"
                answer.set_exception(InvalidCommand(text, hint="the log of the bridge has the place"))
            else:
                answer.set_result(lines)
            self._commands.popleft()

    def _set_paused(self, drain: Drain, *, paused: bool) -> list[str]:
        if not paused:
            self._blocked = False
            self._retries.resumed()
        if drain.checkpoint.paused != paused:
            drain.checkpoint.paused = paused
            drain.checkpoint.save()
        return [f"bridge {self.settings.name} {'paused' if paused else 'resumed'}"]

    def _sleep(self, drain: Drain, seconds: float) -> None:
        """Sleep until the time is over, a record arrives at an idle drain, or a command arrives."""
        self._refresh(drain)
        idle = self._condition == "idle" and drain.idle and seconds > 0
        readers = drain.partitions.readers() if idle else []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not (self._stopping or self._turn_requested):
            woken = self._sleeper.sleep(readers, min(left, STATE_INTERVAL_S))
            if woken and not self._pausing:  # other bridges may have succeeded
                break
            self._refresh(drain)

    def _refresh(self, drain: Drain) -> None:
        """Refresh state() if it is old or has changed; this needs a look at every ring."""
        now = time.monotonic()
        news = self._condition != self._shown or drain.drain_seq != self._state.drain_seq
        if news or now - self._state_at >= STATE_INTERVAL_S / 4:
            self._state, self._state_at, self._shown = self._describe(drain), now, self._condition
            self._watch(drain, now)

    def _watch(self, drain: Drain, now: float) -> None:
        """Watchdog: detects records that wait while none is drained."""
        self._calm_at = max(self._calm_at, drain.last_ack or 0.0)
        if not self._state.lag_records or drain.checkpoint.paused:
            self._calm_at = now
        stalls = now - self._calm_at > self.settings.stall_s
        if stalls and not self._stall_logged:
            log.error(
                "bridge stalled name=%s waiting_records=%d stalled_s=%.0f last_error=%s",
                self.settings.name,
                self._state.lag_records,
                now - self._calm_at,
                self._state.last_error or "none",
            )
        self._stall_logged = stalls

    def _describe(self, drain: Drain | None) -> BridgeState:
        settings, condition = self.settings, self._condition
        if drain is None or self._meter is None:
            return BridgeState(
                settings.name, self._sink.url, condition, payload_schema=schema_of(self._sink)[0]
            )
        lags = tuple(self._meter.lags())
        error = self._error
        lag_records = sum(lag.lag_records for lag in lags)
        broken = error_of(lags)
        if condition == "idle" and (lag_records or drain.in_flight):
            condition = "draining"
        if broken and condition in {"idle", "draining"}:
            condition = "blocked"
        left = [lag.buffer_left_s for lag in lags if lag.buffer_left_s is not None]
        return BridgeState(
            name=settings.name,
            to=self._sink.url,
            condition=condition,
            drain_seq=drain.drain_seq,
            lag_records=lag_records,
            lag_bytes=sum(lag.lag_bytes for lag in lags),
            lag_s=max((lag.lag_s for lag in lags), default=0.0),
            backlog_records=sum(lag.backlog_records for lag in lags),
            last_ack_age_s=time.monotonic() - drain.last_ack if drain.last_ack else None,
            buffer_left_s=min(left, default=None),
            in_flight=drain.in_flight,
            bytes_s=drain.next_files.scheduler.bytes_s,
            blocked_partitions=sum(bool(lag.error) for lag in lags),
            failures=self._retries.failures,
            last_error=words_of(error) if error else broken,
            remedy=remedy_of(error, settings.name) if error else "",
            payload_schema=schema_of(self._sink)[0],
            omitted=self._sink.omitted if isinstance(self._sink, Omitting) else {},
            merging=dataclasses.replace(self._merger.totals) if self._merger is not None else MergeTotals(),
            totals=dataclasses.replace(drain.totals),
            drain=drain.times.as_dict(),
            partitions=lags,
            losses=tuple(losses_of(drain, self._meter.gone)),
        )
