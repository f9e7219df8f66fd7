"""Core of a broker process: the parts that MQTT clients need, started without an event loop.

    directories locked -> log recovered -> rings opened -> ports bound -> log thread
    -> rings of local producers -> sessions restored -> MQTT thread

Owns these parts and the stack that ends them, `down`, to which the services (services.py) add theirs. Ports
are bound first, so that a busy one is an error and not a half-started broker.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import msgspec

from edge.auth.backend import AuthBackend, AuthFiles, scram_secret
from edge.auth.rule_warnings import rule_warnings
from edge.auth.tenants import Tenants
from edge.broker.dispatcher import Broker
from edge.broker.durability import Upstream, reason_code, refusal
from edge.config.directories import is_read_only, make_directory
from edge.config.directory_lock import DirectoryLock
from edge.config.listener import Listener as ListenerConfig
from edge.config.schema import AckGate, Config, Durability, Metrics
from edge.engine.engine import engine_of, limits_of, set_limits
from edge.errors import DirectoryBusy, EdgeError
from edge.local.producers import ProducerRing, Producers
from edge.local.zmq_listener import ZmqListener
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.recovery.retained_store import RetainedStore, in_order, last_of_each_topic, retained_in
from edge.recovery.state_files import SESSIONS_RING, StateFiles, forget_state
from edge.server.configured_limits import broker_limits, engine_limits, logged_rings
from edge.server.disk_reserve import keep_reserve, use_reserve
from edge.server.leftovers import remove_leftovers
from edge.server.memory_budget import fitted_limits, log_budget
from edge.server.producer_feed import ProducerFeed
from edge.streams.absent_rings import absent_rings, is_ring_of_stream
from edge.streams.epochs import Epochs
from edge.streams.ring_sizes import fitted
from edge.streams.streams import Streams
from edge.transport import descriptors
from edge.transport.listen_sockets import bind_http
from edge.transport.listener import Listener
from persistence.errors import is_thread_limit
from ringbuf import Ring
from ringbuf.free_memory import memory_limit_bytes

if TYPE_CHECKING:
    import ssl

    from bridge.format.installation import Installation
    from edge.broker.broker_limits import BrokerLimits
    from edge.broker.engine_rings import PartitionLike
    from edge.broker.retained_delivery import RetainedRecord
    from edge.delayed.ring import DelayedPartition
    from edge.engine.engine_limits import EngineLimits
    from edge.log.log_set import LogSet
    from edge.log.surviving_log import SurvivingLog
    from edge.observe.http_token import TokenFile

log = logging.getLogger(__name__)

BACKUP_WAIT_MAX_S = 10.0  # a signal to stop waits so long, too
BACKUP_POLL_S = 0.1


class MqttServer:
    """The parts for MQTT clients. `failed` is called, on any thread, if a defect ends the MQTT thread."""

    def __init__(self, config: Config, version: str, failed: Callable[[], object]) -> None:
        self.config = config
        self.auth_backend: AuthBackend
        self.listener: Listener
        self.streams: Streams
        self.producers: Producers
        self.upstream: Upstream
        self.budget: descriptors.DescriptorBudget
        self.descriptors_open: int  # before the first client, and for streams that were added later
        self.epochs: Epochs
        self.zmq_listener: ZmqListener | None = None  # None: not enabled
        self.consumers_listener: ZmqListener | None = None  # None: not enabled
        self.metrics_listener: socket | None = None  # None: not enabled
        self.metrics_access: tuple[TokenFile | None, ssl.SSLContext | None] = (None, None)
        self.delayed: DelayedPartition | None = None  # None: not enabled
        self.logs: LogSet | None = None  # None: no stream needs a log
        self.down = AsyncExitStack()  # ends each started part
        self._has_loop = True
        self._version = version
        self._failed = failed
        self._state: StateFiles | None = None  # None: sessions end with the broker
        self._installation: Installation
        self._on_log_state: list[Callable[[], object]] = []  # called on the MQTT thread
        self._may_log = LogThrottle()

    def start(self) -> None:
        """Start every part; the last one serves clients. After an error the caller closes `down`."""
        self._lock_directories()
        remove_leftovers(self.config)
        use_reserve(self.config.state_dir)
        self.down.callback(keep_reserve, self.config.state_dir)
        memory_bytes = memory_limit_bytes()
        self.config = config = fitted_limits(fitted(self.config, memory_bytes), memory_bytes)
        log_budget(config, memory_bytes)
        allowed = descriptors.allow(config)
        self._start_auth()
        self.epochs = epochs = Epochs(
            config.state_dir / "epochs",
            found_elsewhere=self._highest_trace,
            in_use=self._highest_in_use,
            begin_life=self._begin_life,
        )
        self.streams = streams = self._open_streams(epochs)
        self._open_state(epochs)
        self.delayed = self._open_delayed(epochs)
        self._bind(streams)
        self._bind_local()
        self._start_log(streams)
        self._wait_for_visible(streams)
        self._restore_retained(streams)
        self._follow_durability(streams)
        self.producers = self._open_producers(epochs)
        self._start_feed(self.producers)
        self._restore_sessions(streams)
        self.descriptors_open = descriptors.open_now()
        self.budget = descriptors.budget(config, allowed, self.descriptors_open)
        limits_of(self.listener.broker.engine).connections_max = self.budget.clients
        self.producers.joins_max = self.budget.producers
        self.listener.start()
        self.stop_on_thread(self.listener.stop)
        keep_reserve(config.state_dir)

    @property
    def retained(self) -> RetainedStore | None:
        """The file of retained messages; None: nothing is kept."""
        return self._state.retained if self._state is not None else None

    def rings(self) -> list[Ring]:
        """Every ring that this process writes."""
        journal = [self._state.ring] if self._state is not None else []
        return [partition.ring for partition in self.streams.all()] + journal

    def stop_on_thread(self, stop: Callable[[], object]) -> None:
        """At the end, call `stop`, which waits, on a thread: the event loop continues meanwhile."""

        async def stopped() -> None:
            if not self._has_loop:
                stop()
                return
            from asyncio import to_thread  # takes longer to import than all that this module needs

            try:
                await to_thread(stop)
            except RuntimeError as error:
                if not is_thread_limit(error):
                    raise
                stop()

        self.down.push_async_callback(stopped)

    def abort(self) -> None:
        """End the parts of a start that failed before there was an event loop, which takes descriptors."""
        self._has_loop = False
        with suppress(StopIteration):
            self.down.aclose().send(None)  # runs to its end: nothing in it waits for a loop

    def apply(self, files: AuthFiles) -> None:
        """Put passwords and rules that were read again in force. On the MQTT thread."""
        self.auth_backend.apply(files, self._authorize_again)
        self._log_rule_warnings()

    def apply_limits(self, engine: EngineLimits, broker: BrokerLimits, clients_max: int) -> None:
        """Put other limits in force. `clients_max`: of the open files of the process. On the MQTT thread."""
        set_limits(self.listener.broker.engine, msgspec.structs.replace(engine, connections_max=clients_max))
        self.listener.broker.apply_limits(broker)

    def add_streams(self, added: Streams, config: Config) -> None:
        """Use the streams of `config`: the present ones and those of `added`, which is empty afterwards.

        On the MQTT thread. Raises OverflowError, MemoryError: nothing has changed.
        """
        epochs = {entry.name: entry.ring.epoch for entry in added.all()}
        rules = {stream.name: partitions for stream, partitions in (*self.streams.groups(), *added.groups())}
        self.listener.broker.router.rings.add_streams(
            [(stream.topics, rules[stream.name]) for stream in config.stream]
        )
        self.streams.take(added, [stream.name for stream in config.stream])
        self.upstream.add(epochs)
        self._apply_log_state()

    def _lock_directories(self) -> None:
        for key in ("runtime_dir", "state_dir"):
            directory = getattr(self.config, key)
            make_directory(directory, key)
            self.down.callback(_locked_after_backup(directory).close)

    def _start_auth(self) -> None:
        auth = self.config.auth
        secret = scram_secret(self.config.state_dir / "scram-secret") if auth.password_file else b""
        self.auth_backend = AuthBackend(auth.password_file, auth.acl_file, secret=secret)
        self.down.callback(self.auth_backend.close)
        self._log_rule_warnings()
        if auth.plugin:
            from edge.auth.amqtt_compat.adapter import PluginAdapter

            plugins = [(plugin.path, plugin.options) for plugin in auth.plugin]
            self.auth_backend.load(PluginAdapter(plugins, lambda: self.listener.call(self._authorize_again)))

    def _log_rule_warnings(self) -> None:
        for warning in rule_warnings(self.config, self.auth_backend.files):
            log.warning("%s", warning)

    def _with_login_required(self, settings: ListenerConfig) -> ListenerConfig:
        """If users can log in, a listener accepts anonymous clients only if its configuration allows it."""
        if settings.allow_anonymous is None and self.auth_backend.authenticator is not None:
            return msgspec.structs.replace(settings, allow_anonymous=False)
        return settings

    def _open_streams(self, epochs: Epochs) -> Streams:
        self._open_logs()
        self._open_installation()
        streams = Streams.open(self.config, epochs, self.log_ends, self.past)
        self.down.callback(streams.close)
        return streams

    @property
    def past(self) -> SurvivingLog | None:
        """The records that the log has."""
        return self.logs.at_start if self.logs else None

    @property
    def log_ends(self) -> Mapping[str, tuple[int, int]]:
        """Epoch and next offset of each ring that the log has."""
        return self.logs.ends() if self.logs else {}

    def _open_installation(self) -> None:
        """Keep a copy of the installation's identity next to its records."""
        from bridge.format.installation import Installation, InstallationMismatch

        config = self.config
        takes_copy = self.logs is not None and _is_apart(config) and _takes_changes(config.log_directory)
        apart = [config.log_directory] if takes_copy else []
        copies = [*apart, config.runtime_dir]
        self._installation = Installation.open(config.state_dir, copies)
        try:
            self._installation.copy_to(copies)
        except InstallationMismatch as error:
            raise EdgeError(str(error), hint=error.hint) from error

    def _begin_life(self, first_epoch: int) -> None:
        self._installation.begin_life(first_epoch)

    def _highest_trace(self) -> int:
        from edge.server.epoch_traces import highest_trace

        epoch = highest_trace(self.config, self._log_epochs())
        return max(epoch, self._installation.newest_first_epoch)

    def _highest_in_use(self) -> int:
        from edge.server.epoch_traces import highest_in_use

        epoch = highest_in_use(self.config, self._log_epochs())
        return max(epoch, self._installation.newest_first_epoch)

    def _log_epochs(self) -> list[int]:
        return [epoch for epoch, _ in self.log_ends.values()]

    def _open_state(self, epochs: Epochs) -> None:
        if not self.config.sessions.keep:
            forget_state(self.config)
            return
        self._state = StateFiles(self.config, epochs, self.log_ends, self.past)
        self.down.callback(self._state.close)
        self._state.find(self.past)

    def _restore_retained(self, streams: Streams) -> None:
        rings = [partition.ring for partition in streams.all()]
        absent = absent_rings(self.config.runtime_dir, {ring.name for ring in rings}, self.past)
        if self._state is not None:
            logged = {name: epoch for name, (epoch, _) in self.log_ends.items() if is_ring_of_stream(name)}
            restored = self._state.retained.restore(self.listener.broker, rings, self.past, logged, absent)
        else:
            published: list[Iterable[RetainedRecord]] = [retained_in(ring) for ring in rings]
            published += [last_of_each_topic(retained_in(ring)) for ring in absent]
            restored = self.listener.broker.retained.restore(in_order(published))
        self.listener.broker.check_retained()
        if restored:
            log.info("retained messages restored %s", pairs(messages=restored))

    def _restore_sessions(self, streams: Streams) -> None:
        """Restore before any client is served, and after the producer rings: their records may wait."""
        if self._state is not None:
            partitions: dict[str, PartitionLike] = {entry.name: entry for entry in streams.all()}
            if self.delayed is not None:
                partitions[self.delayed.name] = self.delayed
            self.listener.broker.journal.records_synced = self._records_synced
            self._state.restore(self.listener.broker, partitions, self.past)

    def _open_delayed(self, epochs: Epochs) -> DelayedPartition | None:
        if not self.config.delayed.enabled:
            return None
        from edge.delayed.ring import open_partition

        partition = open_partition(self.config, epochs)
        self.down.callback(partition.close)
        return partition

    def _open_logs(self) -> None:
        """Open the logs of this configuration, and those that an earlier one has left: sessions need both."""
        rings = logged_rings(self.config)
        if not rings and not self.config.log_directory.is_dir():
            return
        from edge.log.log_set import LogSet, Placing, disk_rules, has_segments

        if not rings and not has_segments(self.config.log_directory):
            return
        settings = self.config.log
        disk, keep_all = disk_rules(settings), 0  # log maintenance removes segments
        placing = Placing(settings.workers, settings.segment_bytes, keep_all, settings.direct, disk)
        self.logs = LogSet(self.config.log_directory, placing)
        self.down.callback(self.logs.close)
        self.logs.open(rings)

    def _bind(self, streams: Streams) -> None:
        engine = engine_of(engine_limits(self.config))
        partition_of = streams.partition_of
        broker = Broker(
            engine,
            partition_of if self.delayed is None else self.delayed.with_delayed(partition_of),
            streams=streams.rules(),
            limits=broker_limits(self.config),
            version=self._version,
            authenticator=self.auth_backend.authenticator,
            enhanced=self.auth_backend.enhanced,
            access=self.auth_backend.access,
            tenants=Tenants(self.config.tenant),
        )
        if self.delayed is not None:
            broker.router.delay_max_s = self.config.delayed.delay_max_s
        if (watcher := self.auth_backend.watcher) is not None:
            broker.watchers.append(watcher)
        if self.logs is not None:
            broker.backfill.read_from(self.logs.for_clients.read_at)
            broker.sys_topics.log = self.logs.numbers
        self.listener = Listener(engine, broker)
        self.listener.on_failure = self._failed
        self.down.callback(self.listener.stop)  # for a failed start; otherwise it has been stopped already
        for settings in self.config.listener:
            try:
                self.listener.add(self._with_login_required(settings))
            except OSError as error:
                text = f"cannot listen on {settings.host} port {settings.port}: {error.strerror}"
                raise EdgeError(text, hint="set host and port of that [[listener]]") from error

    def _bind_local(self) -> None:
        """Bind the ports of ZeroMQ and metrics, which services.py serves."""
        config = self.config
        if config.zmq.enabled:
            self.zmq_listener = ZmqListener("zmq", config.zmq_endpoint)
            self.down.callback(self.zmq_listener.close)
        if config.consumers.enabled:
            self.consumers_listener = ZmqListener("consumers", config.consumers_endpoint)
            self.down.callback(self.consumers_listener.close)
        if config.metrics.listen:
            self.metrics_access = _metrics_access(config.metrics)
            self.metrics_listener = bind_http(config.metrics.listen, "metrics.listen")
            self.down.callback(self.metrics_listener.close)

    def _start_log(self, streams: Streams) -> None:
        if self.logs is None:
            return
        from edge.log.log_set import logged_ring

        settings = {stream.name: stream for stream in self.config.stream}
        logged = [
            (entry.ring, settings[entry.stream]) for entry in streams.all() if entry.durability.is_logged
        ]
        rings = [(logged_ring(ring, stream), stream.isolated) for ring, stream in logged]
        journal = None
        if self._state is not None and self._state.durability.is_logged:
            journal = self._state.logged_ring()
            self._state.trim(self.logs.log_of(SESSIONS_RING))
        self.stop_on_thread(self.logs.stop)
        self.logs.start(rings, self.listener.wake, self.listener.wake_descriptor, journal)

    def _wait_for_visible(self, streams: Streams) -> None:
        """Wait until the log has the records of the last run, of rings with visible = "durable".

        Records that the log lacks become visible when it has them, except retained messages, which are
        restored once.
        """
        self._wait_for_logs(_ends_of(entry.ring for entry in streams.all() if entry.visible == "durable"))

    def _records_synced(self) -> Callable[..., None]:
        """Note the records of rings whose acknowledgements wait. The result waits for their logs.

        Those of `upstream`, too: otherwise a power cut could leave the identifier of a message of QoS 2 in a
        snapshot, and the message neither in the log nor in a sink.
        """
        rings = (entry.ring for entry in self.streams.all() if entry.durability.ack_gate is not AckGate.NONE)
        return partial(self._wait_for_logs, _ends_of(rings))

    def _wait_for_logs(self, ends: Mapping[Ring, int], look: Callable[[], object] = lambda: None) -> None:
        """Wait until the logs have the records below these positions; see LogSet.wait()."""
        lacking = self.logs.wait(ends, look) if self.logs is not None else ""
        if lacking and self._may_log():
            text = "records not synced, a power cut now may lose messages; check the disk %s"
            log.warning(text, pairs(lacking=lacking))

    def _open_producers(self, epochs: Epochs) -> Producers:
        """Open producer rings. They are closed after their last reader, the log."""
        producers = Producers(self.config, epochs, self.log_ends, self.past)
        self.down.callback(producers.close)
        if self.logs is not None:
            self.stop_on_thread(self.logs.stop)
            producers.on_ring.append(self._log_producer_ring)
        producers.attach_left_behind()
        self._refuse_producers(producers)
        return producers

    def _refuse_producers(self, producers: Producers) -> None:
        """Refuse producers while their stream's log accepts no records, as publishers of MQTT."""
        failure_of = self.logs.failure_of if self.logs is not None else lambda _: ""

        def refuse() -> None:
            producers.refuse(lambda name: refusal(failure_of(name)))

        self._on_log_state.append(refuse)
        producers.on_ring.append(lambda _: self.listener.call(refuse))
        self.listener.call(refuse)

    def _log_producer_ring(self, added: ProducerRing) -> None:
        """Log a producer's ring. If its log cannot be opened, that is reported and the producer served."""
        if self.logs is None or not added.stream.durability.is_logged:
            return
        try:
            self.logs.add_producer_ring(added.ring, added.stream)
        except EdgeError as error:
            log.error("producer ring not logged %s", pairs(ring=added.name, reason=error))

    def _follow_durability(self, streams: Streams) -> None:
        """Pass the state of logs and sinks to the publishers, on the MQTT thread, which serves them."""
        rings = self.listener.broker.router.durability
        epochs = {entry.name: entry.ring.epoch for entry in streams.all()}
        self.upstream = Upstream(self.config, epochs, rings, self.listener.call)
        if self.logs is None:
            return
        self.listener.broker.sys_topics.log_state = self.logs.state
        self.logs.on_change = partial(self.listener.call, self._apply_log_state)
        self.listener.call(self._apply_log_state)  # the first rounds of the log may have failed already

    def _apply_log_state(self) -> None:
        """Refuse publishers of each ring whose log accepts no records. On the MQTT thread."""
        if (logs := self.logs) is None:
            return
        broker = self.listener.broker
        output_waits = self._state is not None and self._state.durability is Durability.DISK
        broker.sys_topics.publish_soon()
        broker.journal_failed(logs.failure_of(SESSIONS_RING) if output_waits else "")
        for entry in self.streams.all():
            # QoS 2 needs the session journal
            needed = broker.journal.ack_failure if entry.durability is Durability.DISK else ""
            broker.router.durability.refuse(entry.name, reason_code(logs.failure_of(entry.name) or needed))
        for notify in self._on_log_state:
            notify()

    def _start_feed(self, producers: Producers) -> None:
        feed = ProducerFeed(self.listener)
        self.down.callback(feed.close)
        for producer in producers.all():
            resumed = self._state is not None and self._state.knows(producer.ring)
            feed.add(producer, left_behind=True, resumed=resumed)
        producers.on_ring.append(feed.add)

    def _authorize_again(self, rules_changed: bool = True) -> None:
        if rules_changed:
            self.listener.broker.acl_changed(self.auth_backend.access)
        else:
            self.listener.broker.users_changed()


def _is_apart(config: Config) -> bool:
    """True if the log is not in the state directory, or on a disk that may get into another machine."""
    log_dir, state_dir = config.log_directory, config.state_dir
    return not log_dir.is_relative_to(state_dir) or log_dir.stat().st_dev != state_dir.stat().st_dev


def _takes_changes(directory: Path) -> bool:
    """False for a log that is only read; see edge/log/log_set.py."""
    return os.access(directory, os.W_OK) and not is_read_only(directory)


def _locked_after_backup(directory: Path) -> DirectoryLock:
    """Lock a directory, after the end of a `brim backup` of the stopped broker. Raises DirectoryBusy."""
    until = time.monotonic() + BACKUP_WAIT_MAX_S
    may_warn = True
    while True:
        try:
            return DirectoryLock(directory)
        except DirectoryBusy as busy:
            if busy.verb != "backup" or time.monotonic() > until:
                raise
            if may_warn:
                log.warning("start waits for the end of brim backup %s", pairs(pid=busy.pid))
            may_warn = False
        time.sleep(BACKUP_POLL_S)


def _ends_of(rings: Iterable[Ring]) -> dict[Ring, int]:
    return {ring: ring.extremes().end_position for ring in rings}


def _metrics_access(settings: Metrics) -> tuple[TokenFile | None, ssl.SSLContext | None]:
    """Token and TLS of the metrics. Raises EdgeError, which names the file."""
    if settings.token_file is None and settings.tls is None:
        return None, None
    from edge.observe.http_token import TokenFile
    from edge.transport.tls import server_context

    token = TokenFile(settings.token_file) if settings.token_file is not None else None
    return token, server_context(settings.tls) if settings.tls is not None else None
