"""Server: starts every part of a broker in order, and stops them in the opposite order.

The only module where edge, persistence and bridge meet. Owns the order and nothing else:

    directories locked -> log recovered -> rings opened -> ports bound -> log thread -> bridges -> ZeroMQ
    -> rings of local producers -> MQTT thread -> control socket

Ports are bound first, so that a busy one is an error and not a half-started broker. At the end MQTT stops
before the parts that pass its records on, so that wills still arrive. Then the log is synced; rings are last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from edge.auth.backend import AuthBackend, AuthFiles, scram_secret
from edge.auth.rule_warnings import rule_warnings
from edge.broker.counters import Counters
from edge.broker.dispatcher import Broker, BrokerLimits
from edge.broker.durability import Upstream, reason_code, refusal
from edge.broker.owners import owner_max
from edge.broker.router import TopicLimits
from edge.broker.session_admin import SessionAdmin
from edge.broker.sessions import SessionLimits
from edge.broker.wills import WillLimits
from edge.config.directories import DirectoryLock, make_directory
from edge.config.schema import Config, Durability
from edge.config.schema import Listener as ListenerConfig
from edge.engine.engine import EngineLimits, engine_of, limits_of
from edge.errors import EdgeError
from edge.local.control_server import LocalEndpoint
from edge.local.producers import ProducerRing, Producers
from edge.local.shortened_rings import ShortenedFiles
from edge.local.zmq_publisher import ZmqPublisher
from edge.logging_setup import pairs
from edge.mqtt.primitives import PacketLimits
from edge.observe.status_report import StatusReporter
from edge.recovery.retained_store import retained_in
from edge.recovery.state_files import SESSIONS_RING, StateFiles, forget_state
from edge.server.bridge_settings import bridge_settings, foreign_bridge
from edge.server.producer_feed import ProducerFeed
from edge.server.watchdog import Watchdog
from edge.streams.epochs import Epochs
from edge.streams.ring_sizes import fitted
from edge.streams.streams import Streams
from edge.transport import descriptors
from edge.transport.listener import Listener
from edge.transport.refusals import Refusals
from ringbuf import Ring

if TYPE_CHECKING:
    from bridge.drain.settings import BridgeSettings
    from bridge.format.installation import Installation
    from edge.log.log_set import LogSet
    from edge.observe.directory_watch import Missing
    from edge.server.retention_holds import ConsumerHolds
    from persistence.read.merged_reader import MergedReader

__all__ = ["BrokerServer"]

log = logging.getLogger(__name__)

SHOW_S, SHOW_LOOK_S = 5.0, 0.005


class BrokerServer:
    """A running broker: `async with`. `failed` is called, on any thread, if a defect ends the MQTT thread."""

    def __init__(self, config: Config, version: str, failed: Callable[[], object]) -> None:
        self.config = config
        self.guard: AuthBackend
        self.listener: Listener
        self.watchdog: Watchdog
        self.zmq: ZmqPublisher | None = None
        self._version = version
        self._failed = failed
        self.upstream: Upstream
        self.budget: descriptors.DescriptorBudget  # set when MQTT starts
        self._consumer_holds: ConsumerHolds | None = None  # only with a log
        self.logs: LogSet | None = None  # None: no stream needs a log
        self._state: StateFiles | None = None  # None: sessions end with the broker
        self._installation: Installation
        self._on_log_state: list[Callable[[], object]] = []  # called on the MQTT thread
        self._bridges: list[Callable[[], dict[str, Any]]] = []
        self._refuse_consumers: Callable[[str], object] = lambda _: None
        self._reloading = asyncio.Lock()
        self._down = AsyncExitStack()  # ends each started part

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._down.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._down.aclose()

    async def _start(self) -> None:
        config = self.config
        settings = [bridge_settings(it, config) for it in config.bridge if it.in_broker]
        self._lock_directories()
        self.config = config = fitted(config)
        allowed = descriptors.allow(config)
        descriptors.make_table(config, allowed)
        self._start_guard()
        epochs = Epochs(
            config.state_dir / "epochs",
            found_elsewhere=self._highest_trace,
            in_use=self._highest_in_use,
            begin_life=self._begin_life,
        )
        streams = self._open_streams(epochs)
        self._open_state(epochs)
        stats = self._bind(streams)
        self._start_log(streams)
        await self._wait_for_durable_rings(streams)
        self._restore_retained(streams)
        self._follow_durability(streams)
        for it in settings:
            await self._start_bridge(it)
        self._bridges += [partial(foreign_bridge, it, config) for it in config.bridge if not it.in_broker]
        self._start_upkeep()
        producers = self._open_producers(epochs)
        descriptors.check(config, allowed)
        self._start_zmq(streams, producers)
        self._start_feed(producers)
        self._restore_sessions(streams)
        self.budget = descriptors.budget(config, allowed, descriptors.open_now())
        limits_of(self.listener.broker.engine).connections_max = self.budget.clients
        if self.zmq is not None:
            self.zmq.admit(self.budget.peers)
        self.listener.start()
        self._down.push_async_callback(asyncio.to_thread, self.listener.stop)
        self.watchdog = Watchdog(self.listener.broker.engine, self.listener)
        self.watchdog.start()
        self._down.push_async_callback(asyncio.to_thread, self.watchdog.stop)
        reporter = StatusReporter(config, self._version, streams, producers, self.listener, stats, self.zmq)
        if self.logs:
            reporter.log, reporter.log_totals = self.logs.status, self.logs.totals
        reporter.watchdog = self.watchdog.status
        reporter.bridges = self._bridges
        reporter.upstream = self.upstream.status
        reporter.consumers = self._start_consumers(streams, producers)
        reporter.missing = self._watch_directories(streams)
        reporter.local = await self._start_local(streams, producers, reporter)
        refusals, shortened = Refusals(self.listener.broker.engine), ShortenedFiles(streams, producers)
        for watch in (reporter.sample(), refusals.watch(), shortened.watch()):
            self._down.callback(asyncio.create_task(watch).cancel)
        await self._start_metrics(reporter)

    @property
    def has_files(self) -> bool:
        """True if there are files for reload()."""
        return self.guard.has_files or any(it.tls is not None for it in self.config.listener)

    async def reload(self) -> None:
        """Read passwords, rules and certificates again. Invalid files are logged, and change nothing."""
        async with self._reloading:
            await asyncio.to_thread(self.listener.reload_certificates)
            files = await asyncio.to_thread(self.guard.read) if self.guard.has_files else None
            if files is not None:
                await asyncio.wrap_future(self.listener.ask(lambda: self._apply(files)))

    def _apply(self, files: AuthFiles) -> None:
        self.guard.apply(files, self._authorize_again)
        self._log_rule_warnings()

    def _log_rule_warnings(self) -> None:
        for warning in rule_warnings(self.config, self.guard.files):
            log.warning("%s", warning)

    def _authorize_again(self) -> None:
        self.listener.broker.acl_changed(self.guard.access)

    # ---- one part each ----

    def _lock_directories(self) -> None:
        for key in ("runtime_dir", "state_dir"):
            directory = getattr(self.config, key)
            make_directory(directory, key)
            self._down.callback(DirectoryLock(directory).close)

    def _start_guard(self) -> None:
        auth = self.config.auth
        secret = scram_secret(self.config.state_dir / "scram-secret") if auth.password_file else b""
        self.guard = AuthBackend(auth.password_file, auth.acl_file, secret=secret)
        self._down.callback(self.guard.close)
        self._log_rule_warnings()
        if auth.plugin:
            from edge.auth.amqtt_compat.adapter import PluginAdapter

            plugins = [(plugin.path, plugin.options) for plugin in auth.plugin]
            self.guard.load(PluginAdapter(plugins, lambda: self.listener.call(self._authorize_again)))

    def _asking_names(self, settings: ListenerConfig) -> ListenerConfig:
        """If users can log in, a listener accepts anonymous clients only if its configuration allows it."""
        if settings.allow_anonymous is None and self.guard.authenticator is not None:
            return msgspec.structs.replace(settings, allow_anonymous=False)
        return settings

    def _open_streams(self, epochs: Epochs) -> Streams:
        self._open_logs()
        self._open_installation()
        ends = self.logs.ends() if self.logs else {}
        streams = Streams.open(self.config, epochs, ends, self._past)
        self._down.callback(streams.close)
        return streams

    @property
    def _past(self) -> MergedReader | None:
        """The records that the log has."""
        return self.logs.reader if self.logs else None

    def _open_installation(self) -> None:
        """Keep a copy of the installation's identity next to its records."""
        from bridge.format.installation import Installation, InstallationMismatch

        config = self.config
        apart = [config.log_directory] if self.logs else []
        copies = [it for it in apart if not it.is_relative_to(config.state_dir)] + [config.runtime_dir]
        self._installation = Installation.open(config.state_dir, copies)
        try:
            self._installation.copy_to(copies)
        except InstallationMismatch as error:
            raise EdgeError(str(error), hint=error.hint) from error

    def _begin_life(self, first_epoch: int) -> None:
        self._installation.begin_life(first_epoch)

    def _highest_trace(self) -> int:
        from edge.server.epoch_traces import highest_trace

        found = highest_trace(self.config, self._log_epochs())
        return max(found, self._installation.newest_first_epoch)

    def _highest_in_use(self) -> int:
        from edge.server.epoch_traces import highest_in_use

        found = highest_in_use(self.config, self._log_epochs())
        return max(found, self._installation.newest_first_epoch)

    def _log_epochs(self) -> list[int]:
        ends = self.logs.ends() if self.logs else {}
        return [it.epoch for it in ends.values()]

    def _open_state(self, epochs: Epochs) -> None:
        if not self.config.sessions.keep:
            forget_state(self.config)
            return
        self._state = StateFiles(self.config, epochs, self.logs.ends() if self.logs else {}, self._past)
        self._down.callback(self._state.close)
        self._state.find(self._past)

    def _restore_retained(self, streams: Streams) -> None:
        rings = [partition.ring for partition in streams.all()]
        if self._state is not None:
            kept = self._state.retained.restore(self.listener.broker, rings, self._past)
        else:
            kept = sum(self.listener.broker.retained.restore(retained_in(ring)) for ring in rings)
        self.listener.broker.check_retained()
        if kept:
            log.info("retained messages restored %s", pairs(messages=kept))

    def _restore_sessions(self, streams: Streams) -> None:
        """Restore before any client is served, and after the producer rings: their records may wait."""
        if self._state is not None:
            partitions = {partition.name: partition for partition in streams.all()}
            self._state.restore(self.listener.broker, partitions, self._past)

    def _open_logs(self) -> None:
        rings = logged_rings(self.config)
        if not rings:
            return
        from edge.log.log_set import LogSet, Placing, disk_rules

        settings = self.config.log
        disk, keep_all = disk_rules(settings), 0  # log maintenance removes segments
        placing = Placing(settings.workers, settings.segment_bytes, keep_all, settings.direct, disk)
        self.logs = LogSet(self.config.log_directory, placing)
        self._down.callback(self.logs.close)
        self.logs.open(rings)

    def _bind(self, streams: Streams) -> Counters:
        engine = engine_of(_engine_limits(self.config))
        broker = Broker(
            engine,
            streams.partition_of,
            limits=_broker_limits(self.config),
            version=self._version,
            authenticator=self.guard.authenticator,
            enhanced=self.guard.enhanced,
            access=self.guard.access,
        )
        if (watcher := self.guard.watcher) is not None:
            broker.watchers.append(watcher)
        if self.logs is not None:
            broker.cold.read_at = self.logs.reader.read_at
            broker.sys_topics.log = self.logs.numbers
        self.listener = Listener(engine, broker)
        self.listener.on_failure = self._failed
        self._down.callback(self.listener.stop)  # for a failed start; otherwise it has been stopped already
        for it in self.config.listener:
            try:
                self.listener.add(self._asking_names(it))
            except OSError as error:
                text = f"cannot listen on {it.host} port {it.port}: {error.strerror}"
                raise EdgeError(text, hint="set host and port of that [[listener]]") from error
        return Counters(engine)

    def _start_log(self, streams: Streams) -> None:
        if self.logs is None:
            return
        from edge.log.log_set import log_source

        settings = {stream.name: stream for stream in self.config.stream}
        logged = [(it.ring, settings[it.stream]) for it in streams.all() if it.durability.is_logged]
        sources = [(log_source(ring, stream), stream.isolated) for ring, stream in logged]
        if self._state is not None and self._state.durability.is_logged:
            sources.append((self._state.source(), True))
            self._state.trim(self.logs.log_of(SESSIONS_RING))
        self._down.push_async_callback(asyncio.to_thread, self.logs.stop)
        self.logs.start(sources, self.listener.wake, self.listener.wake_descriptor)

    def _start_upkeep(self) -> None:
        """Must be called after the parts that hold records in the log."""
        if self.logs is None:
            return
        from edge.log.maintenance import LogUpkeep
        from edge.server.retention_holds import BridgeHolds, ConsumerHolds, SessionHolds

        upkeep = LogUpkeep(self.logs, self.config, without=[self.config.log_directory / SESSIONS_RING])
        upkeep.holds.append(BridgeHolds(self.config))
        holds = SessionHolds(self.listener.broker, self.listener.ask, self.logs.reader.read_at)
        upkeep.holds.append(holds)
        if self.config.consumers.enabled:
            self._consumer_holds = ConsumerHolds()
            upkeep.holds.append(self._consumer_holds)
        self.logs.upkeep = upkeep.status
        upkeep.start()
        self._down.push_async_callback(asyncio.to_thread, upkeep.stop)

    async def _wait_for_durable_rings(self, streams: Streams) -> None:
        """Wait until the log has synced the records of the last run, of rings with visible = "durable".

        A failing disk ends the wait. Records that the log lacks become visible when it has them, except
        retained messages, which are restored once.
        """
        rings = [it.ring for it in streams.all() if it.visible == "durable"]
        deadline = time.monotonic() + SHOW_S
        while left := [it.name for it in rings if _lags(it)]:
            if time.monotonic() > deadline or (self.logs and any(map(self.logs.failure_of, left))):
                log.warning("retained messages not restored: not durable %s", pairs(rings=left))
                return
            await asyncio.sleep(SHOW_LOOK_S)

    def _open_producers(self, epochs: Epochs) -> Producers:
        """Open producer rings. They are closed after their last reader, the log."""
        producers = Producers(self.config, epochs, self.logs.ends() if self.logs else {}, self._past)
        self._down.callback(producers.close)
        if self.logs is not None:
            self._down.push_async_callback(asyncio.to_thread, self.logs.stop)
            producers.on_ring.append(self._log_foreign)
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

    def _log_foreign(self, added: ProducerRing) -> None:
        """Log a producer's ring. If its log cannot be opened, that is reported and the producer served."""
        if self.logs is None or not added.stream.durability.is_logged:
            return
        try:
            self.logs.add_foreign(added.ring, added.stream)
        except EdgeError as error:
            log.error("producer ring not logged %s", pairs(ring=added.name, reason=error))

    def _follow_durability(self, streams: Streams) -> None:
        """Pass the state of logs and sinks to the publishers, on the MQTT thread, which serves them."""
        rings = self.listener.broker.router.durability
        epochs = {it.name: it.ring.epoch for it in streams.all()}
        self.upstream = Upstream(self.config, epochs, rings, self.listener.call)
        if (logs := self.logs) is None:
            return

        topics, journal = self.listener.broker.sys_topics, self.listener.broker.journal
        topics.log_state = logs.state
        on_disk = {it.name for it in streams.all() if it.durability is Durability.DISK}
        gates_output = self._state is not None and self._state.durability is Durability.DISK

        def apply_log_state() -> None:
            topics.publish_soon()
            journal.ack_failure = logs.failure_of(SESSIONS_RING) if gates_output else ""
            for name in epochs:
                needed = journal.ack_failure if name in on_disk else ""  # QoS 2 needs the session journal
                rings.refuse(name, reason_code(logs.failure_of(name) or needed))
            for notify in self._on_log_state:
                notify()

        logs.on_change = partial(self.listener.call, apply_log_state)
        self.listener.call(apply_log_state)  # the first rounds of the log may have failed already

    async def _start_bridge(self, settings: BridgeSettings) -> None:
        """Start a bridge. A failure is reported and shown in the status; clients are served nevertheless."""
        from bridge.drain.bridge import Bridge
        from bridge.drain.control_socket import ControlSocket
        from bridge.errors import BridgeError, CheckpointForeign

        moved = partial(self.upstream.report_progress, settings.name)
        bridge = Bridge(settings, cold=self.logs.reader if self.logs else None, moved=moved)
        trouble: dict[str, str] = {}
        try:
            try:
                bridge.start()
            except CheckpointForeign as error:
                facts = pairs(name=settings.name, reason=error, remedy=error.hint)
                log.error("bridge waits for its checkpoint %s", facts)
                bridge.start_when_ours(error)
            self._down.push_async_callback(asyncio.to_thread, bridge.stop)
            control = ControlSocket(bridge)
            self._down.push_async_callback(control.stop)
            await control.start()
        except (BridgeError, EdgeError) as error:
            log.error("bridge not started %s", pairs(name=settings.name, reason=error, remedy=error.hint))
            trouble = {"condition": "failed", "last_error": str(error), "remedy": error.hint}
        self._bridges.append(lambda: {**bridge.state().as_dict(), **trouble})

    def _start_zmq(self, streams: Streams, producers: Producers) -> None:
        zmq = self.config.zmq
        if not zmq.enabled:
            return
        self.zmq = publisher = ZmqPublisher(
            self.config.zmq_endpoint,
            send_high_water=zmq.send_high_water,
            secret_key_file=zmq.secret_key_file,
            client_keys_dir=zmq.client_keys_dir,
        )
        self._down.push_async_callback(asyncio.to_thread, publisher.stop)
        for partition in streams.all():
            publisher.add(partition.ring)
        for producer in producers.all():
            publisher.add(producer.ring, own=False)
        producers.on_ring.append(lambda added: publisher.add(added.ring, own=False))
        publisher.start()

    def _start_consumers(
        self, streams: Streams, producers: Producers
    ) -> Callable[[], list[dict[str, Any]]] | None:
        """Start the consumers' endpoint. It ends before MQTT, because it publishes messages."""
        if not self.config.consumers.enabled:
            return None
        from edge.server.consumers import consumers_endpoint

        endpoint = consumers_endpoint(self.config, streams, producers, self.listener, self.logs)
        self._down.push_async_callback(asyncio.to_thread, endpoint.stop)
        endpoint.start()
        endpoint.admit(self.budget.peers)
        self._refuse_consumers = endpoint.refuse
        if self._consumer_holds is not None:
            self._consumer_holds.groups = endpoint.all_groups
        return endpoint.groups

    def _watch_directories(self, streams: Streams) -> Callable[[], Sequence[Missing]]:
        from edge.server.directory_watching import watch_directories

        rings = [partition.ring.path for partition in streams.all()]
        watch = watch_directories(self.config, rings, self.logs, self._refuse_consumers)
        self._down.push_async_callback(asyncio.to_thread, watch.stop)
        watch.start()
        return lambda: watch.missing

    def _start_feed(self, producers: Producers) -> None:
        feed = ProducerFeed(self.listener)
        self._down.callback(feed.close)
        for producer in producers.all():
            resumed = self._state is not None and self._state.knows(producer.ring)
            feed.add(producer, left_behind=True, resumed=resumed)
        producers.on_ring.append(feed.add)

    async def _start_metrics(self, reporter: StatusReporter) -> None:
        if not self.config.metrics.listen:
            return
        from edge.observe.http_endpoint import MetricsEndpoint
        from edge.observe.prometheus import page

        async def made() -> str:
            return page(await reporter.gathered())

        metrics = MetricsEndpoint(self.config.metrics.listen, made, self.budget.metrics)
        await metrics.start()
        reporter.metrics_url = metrics.url
        self._down.push_async_callback(metrics.stop)

    async def _start_local(
        self, streams: Streams, producers: Producers, reporter: StatusReporter
    ) -> LocalEndpoint:
        async def on_writer_thread(function: Callable[[], Any]) -> Any:
            return await asyncio.wrap_future(self.listener.ask(function))

        local = LocalEndpoint(
            self.config,
            streams,
            producers,
            report=reporter.report,
            on_writer_thread=on_writer_thread,
            moved=self.upstream.report_progress,
            sessions=SessionAdmin(self.listener.broker, reporter.stats),
            connections_max=self.budget.local,
        )
        await local.start()
        self._down.push_async_callback(local.stop)
        return local


def _lags(ring: Ring) -> bool:
    """True if the log lacks some records of the ring."""
    extremes = ring.extremes()
    return extremes.durable_position < extremes.end_position


def logged_rings(config: Config) -> dict[str, bool]:
    """The ring of each partition with a log, and True if it has a separate log."""
    sessions = {SESSIONS_RING: True} if config.sessions.keep and config.sessions_durability.is_logged else {}
    return sessions | {
        f"{stream.name}-{index}": stream.isolated
        for stream in config.stream
        if stream.durability.is_logged
        for index in range(stream.partitions)
    }


def _engine_limits(config: Config) -> EngineLimits:
    limits, packet_max_bytes = config.limits, config.packet_max_bytes
    longest = max(packet_max_bytes, *(it.packet_max_bytes or 0 for it in config.listener), 0)
    return EngineLimits(
        connections_max=limits.connections_max,
        connect_timeout_ms=limits.connect_timeout_s * 1000,
        connect_max_bytes=limits.connect_max_bytes,
        packet_max_bytes=config.packet_max_bytes,
        control_max_bytes=limits.control_packet_max_bytes,
        topics_max=limits.topics_max,
        topics_max_bytes=limits.topics_max_bytes,
        retained_max=limits.retained_max,
        receive_max=limits.receive_max,
        alias_max=limits.topic_alias_max,
        retained_max_bytes=limits.retained_max_bytes,
        queues_max_bytes=limits.queues_max_bytes,
        unfinished_max_bytes=max(limits.unfinished_max_bytes, 2 * longest),
        spill_max_bytes=limits.spill_max_bytes,
        qos_max=limits.qos_max,
        payload_max_bytes=limits.payload_max_bytes or 0,
        in_flight_max_bytes=limits.in_flight_max_bytes,
        sessions_max=limits.sessions_max,
        filters_max_bytes=limits.filters_max_bytes,
        share_percent=config.quota.share_percent,
        owner_max=owner_max(config.quota),
    )


def _broker_limits(config: Config) -> BrokerLimits:
    limits = config.limits
    sessions = SessionLimits(
        queued_records_max=limits.queued_records_max,
        in_flight_max=limits.in_flight_max,
        drop_newest=limits.queued_records_drop == "newest",
        session_expiry_s=limits.session_expiry_s,
    )
    return BrokerLimits(
        client_id_max_bytes=limits.client_id_max_bytes,
        empty_client_ids=limits.allow_empty_client_id,
        subscriptions_max=limits.subscriptions_max,
        subscriptions_max_bytes=limits.subscriptions_max_bytes,
        packets=PacketLimits(limits.user_properties_max, limits.packet_filters_max),
        topic_alias_max=limits.topic_alias_max,
        sys_interval_s=config.sys.interval_s,
        check_retain_source=config.auth.check_retain_source,
        keep_alive_max_s=limits.keep_alive_max_s,
        sessions=sessions,
        wills=WillLimits(limits.will_max_bytes, limits.wills_max_bytes),
        topics=TopicLimits(limits.topic_max_bytes, limits.topic_levels_max, limits.topics_idle_s),
    )
