"""Services of a broker process, next to MQTT: all that needs the event loop, or may begin a little later.

    bridges -> log maintenance -> ZeroMQ -> watchdog -> consumers -> control socket -> metrics
    -> web console

Owns these parts. Their modules are imported after clients are served. A failure, except of a bridge, ends the
broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from edge.broker.counters import Counters
from edge.broker.retained_admin import RetainedAdmin
from edge.broker.session_admin import SessionAdmin
from edge.broker.synced_changes import SyncedChanges
from edge.config.schema import Config, Stream
from edge.errors import EdgeError
from edge.local.control_server import LocalEndpoint
from edge.local.producers import skipping_damaged
from edge.local.protocol import Reloaded
from edge.local.shortened_rings import ShortenedFiles
from edge.local.zmq_stats import ZmqStats
from edge.observe.status_report import StatusReporter
from edge.recovery.state_files import SESSIONS_RING
from edge.server.mqtt_startup import MqttServer
from edge.server.on_demand import OnDemand
from edge.server.running_bridges import RunningBridges
from edge.server.state_saver import StateSaver
from edge.server.watchdog import Watchdog
from edge.streams.streams import Partition
from edge.transport.refusals import Refusals
from persistence.files import OsFiles
from ringbuf import Ring
from ringbuf.ring import ring_file

if TYPE_CHECKING:
    from bridge.drain.settings import BridgeSettings
    from edge.consumers.server import ConsumersEndpoint
    from edge.delayed.delivery import DelayedMessages
    from edge.local.zmq_publisher import ZmqPublisher
    from edge.observe.directory_watch import DirectoryWatch, Missing
    from edge.server.retention_holds import ConsumerHolds

log = logging.getLogger(__name__)

POPULATE_REST_S = 0.002  # a ring of 64 MiB takes about a second
POPULATE_BUSY_REST_S = 0.05  # while clients keep the process busy


class Services:
    """The parts of a broker that are no part of MQTT; `core.down` ends them.

    `reload` is BrokerServer.reload().
    """

    def __init__(self, core: MqttServer, reload: Callable[[], Awaitable[Reloaded]]) -> None:
        self._core = core
        self._reload = reload
        self._consumer_holds: ConsumerHolds | None = None  # only with a log
        self.bridges = RunningBridges(core)
        self._on_change: list[Callable[[Config], object]] = []  # parts that follow the configuration
        self._consumers_refusal = ""  # reason why acknowledgements are refused, "" if they are not
        self._zmq: OnDemand[ZmqPublisher] | None = None
        self._consumers: OnDemand[ConsumersEndpoint] | None = None
        # Streams whose rings programs get. core.streams changes earlier, on the MQTT thread.
        self._served = list(core.streams.groups())
        self._watch: DirectoryWatch
        self._local: LocalEndpoint
        self._delayed: DelayedMessages | None = None  # None: not enabled
        self.metrics_url = ""  # "": not enabled
        self.watchdog = Watchdog(core.listener.broker.engine, core.listener)

    async def start(self, version: str, bridges: Sequence[BridgeSettings]) -> None:
        """Start every part, in order."""
        core = self._core
        config = core.config
        core.down.push_async_callback(self.bridges.stop)
        await self.bridges.start(bridges)
        self._start_maintenance()
        self._serve_zmq()
        core.stop_on_thread(core.listener.stop)  # before the parts that pass its records on
        self._start_delayed()
        self.watchdog.start()
        core.stop_on_thread(self.watchdog.stop)
        stats = Counters(core.listener.broker.engine)
        reporter = StatusReporter(
            config, version, core.streams, core.producers, core.listener, stats, self._zmq_status
        )
        if core.logs:
            reporter.log, reporter.log_totals = core.logs.status, core.logs.totals
        reporter.watchdog = self.watchdog.status
        reporter.bridges = self.bridges.states
        self._on_change.append(partial(setattr, reporter, "config"))
        reporter.upstream = core.upstream.status
        if self._delayed is not None:
            reporter.delayed = self._delayed.status
        self._serve_consumers()
        reporter.consumers = self._groups
        reporter.missing = self._watch_directories()
        reporter.local = await self._start_local(reporter)
        self._start_watches(reporter)
        self._start_task(_populate(core.rings()))
        await self._start_metrics(reporter)
        self._start_console()

    def follow(self, config: Config) -> None:
        """Use another configuration from now on, in the parts that read more than their own section of it."""
        for apply in self._on_change:
            apply(config)

    def add_streams(self, groups: Sequence[tuple[Stream, list[Partition]]]) -> None:
        """Serve the rings of streams that a reload has added."""
        core = self._core
        self._served += groups
        core.producers.add_streams(stream for stream, _ in groups)
        rings = [partition.ring for _, partitions in groups for partition in partitions]
        if (publisher := self._zmq.service if self._zmq is not None else None) is not None:
            for ring in rings:
                publisher.add(ring, start="oldest")
        if (endpoint := self._endpoint) is not None:
            from edge.server.consumers import add_streams, ended_rings

            add_streams(endpoint, groups, core.logs)
            added = [stream for stream, _ in groups]
            for entry in ended_rings(added, core.config.runtime_dir, core.logs):
                endpoint.add(entry, None)
        for ring in rings:
            self._watch.watch("ring", ring_file(ring.path))
        self._local.add_streams(groups)
        self._start_task(_populate(rings))

    def _start_maintenance(self) -> None:
        """Must be called after the parts that hold records in the log."""
        core = self._core
        if core.logs is None:
            return
        from edge.log.maintenance import LogMaintenance
        from edge.server.retention_holds import BridgeHolds, ConsumerHolds, SessionHolds

        maintenance = LogMaintenance(
            core.logs,
            core.config,
            without=[core.config.log_directory / SESSIONS_RING],
            rings=lambda: chain(
                (partition.ring for partition in core.streams.all()),
                (producer.ring for producer in core.producers.all()),
            ),
        )
        bridge_holds = BridgeHolds(core.config)
        self._on_change.append(bridge_holds.apply)
        maintenance.holds.append(bridge_holds)
        self._on_change.append(maintenance.apply)
        holds = SessionHolds(core.listener.broker, core.listener.submit, core.logs.reader.read_at)
        maintenance.holds.append(holds)
        if core.config.consumers.enabled:
            self._consumer_holds = ConsumerHolds()
            maintenance.holds.append(self._consumer_holds)
        core.logs.maintenance = maintenance.status
        maintenance.start()
        core.stop_on_thread(maintenance.stop)

    def _start_delayed(self) -> None:
        """Must be called after the stop of MQTT is registered: delivery stops first, because it uses MQTT."""
        core = self._core
        if core.delayed is None:
            return
        from edge.server.delayed import delayed_messages

        self._delayed = delayed_messages(core.config, core.delayed, core.streams, core.listener)
        core.stop_on_thread(self._delayed.stop)
        self._delayed.start()

    def _serve_zmq(self) -> None:
        core = self._core
        if core.zmq_listener is None:
            return
        self._zmq = OnDemand(core.zmq_listener, "edge.local.zmq_publisher", self._start_zmq)
        core.down.push_async_callback(self._zmq.stop)
        if core.config.zmq.secret_key_file is not None:
            self._zmq.start_now()  # so that an unreadable key is an error of the start
        else:
            self._zmq.watch()

    def _start_zmq(self) -> ZmqPublisher:
        core, zmq = self._core, self._core.config.zmq
        assert core.zmq_listener is not None
        from edge.local.zmq_publisher import ZmqPublisher

        publisher = ZmqPublisher(
            core.zmq_listener,
            send_high_water=zmq.send_high_water,
            secret_key_file=zmq.secret_key_file,
            client_keys_dir=zmq.client_keys_dir,
        )
        try:
            for partition in chain.from_iterable(partitions for _, partitions in self._served):
                publisher.add(partition.ring)
            for producer in core.producers.all():
                with skipping_damaged(producer.name):
                    publisher.add(producer.ring, own=False)
            publisher.admit(core.budget.peers)
            publisher.start()
        except BaseException:
            publisher.close()
            raise
        core.producers.on_ring.append(lambda added: publisher.add(added.ring, own=False))
        return publisher

    def _zmq_status(self) -> dict[str, Any] | None:
        if self._zmq is None:
            return None
        publisher = self._zmq.service
        stats = publisher.stats if publisher is not None else ZmqStats()
        peers = publisher.peers() if publisher is not None else {}
        needs_keys = self._core.config.zmq.secret_key_file is not None
        endpoint = self._zmq.listener.endpoint
        return {"endpoint": endpoint, "needs_keys": needs_keys, **asdict(stats), "peers": peers}

    def _serve_consumers(self) -> None:
        """Serve consumers: at once if there are groups, whose holds and lags are needed.

        The endpoint ends before MQTT, because it publishes messages.
        """
        core, config = self._core, self._core.config
        if core.consumers_listener is None:
            return
        self._consumers = OnDemand(core.consumers_listener, "edge.server.consumers", self._start_consumers)
        core.down.push_async_callback(self._consumers.stop)
        has_groups = _has_groups(config)  # creates the directory that the start needs
        if has_groups or config.consumers_need_keys:  # an unreadable key is an error of the start
            self._consumers.start_now()
        else:
            self._consumers.watch()
        if self._consumer_holds is not None:
            self._consumer_holds.groups = self._all_groups

    def _start_consumers(self) -> ConsumersEndpoint:
        core = self._core
        assert core.consumers_listener is not None
        from edge.server.consumers import add_streams, consumers_endpoint, ended_rings

        ended = list(ended_rings(core.config.stream, core.config.runtime_dir, core.logs))
        endpoint = consumers_endpoint(
            core.config, core.streams, core.producers, core.listener, core.logs, core.consumers_listener
        )
        add_streams(endpoint, self._served, core.logs)
        for entry in ended:
            endpoint.add(entry, None)
        endpoint.admit(core.budget.peers)
        endpoint.start()
        endpoint.refuse(self._consumers_refusal)
        return endpoint

    def _refuse_consumers(self, reason: str) -> None:
        self._consumers_refusal = reason
        if self._endpoint is not None:
            self._endpoint.refuse(reason)

    @property
    def _endpoint(self) -> ConsumersEndpoint | None:
        return self._consumers.service if self._consumers is not None else None

    def _groups(self) -> list[dict[str, Any]]:
        return self._endpoint.groups() if self._endpoint is not None else []

    def _all_groups(self) -> list[dict[str, Any]]:
        return self._endpoint.all_groups() if self._endpoint is not None else []

    def _watch_directories(self) -> Callable[[], Sequence[Missing]]:
        core = self._core
        from edge.server.directory_watch_setup import watch_directories

        rings = [partition.ring.path for partition in core.streams.all()]
        self._watch = watch = watch_directories(core.config, rings, core.logs, self._refuse_consumers)
        for listener in (core.zmq_listener, core.consumers_listener):
            if listener is not None and listener.path is not None:
                watch.watch(listener.table, listener.path)
        core.stop_on_thread(watch.stop)
        watch.start()
        return lambda: watch.missing

    async def _start_metrics(self, reporter: StatusReporter) -> None:
        core = self._core
        if core.metrics_listener is None:
            return
        from edge.observe.http_endpoint import HttpEndpoint
        from edge.observe.http_pages import pages

        token, tls = core.metrics_access
        endpoint_pages = pages(
            partial(reporter.gathered, clients=False),
            reporter.essentials,
            lambda: {"watchdog": self.watchdog.status()},
        )
        metrics = HttpEndpoint(
            core.metrics_listener, endpoint_pages, core.budget.metrics, token=token, tls=tls
        )
        await metrics.start()
        self.metrics_url = reporter.metrics_url = metrics.url
        core.down.push_async_callback(metrics.stop)

    def _start_console(self) -> None:
        core = self._core
        if not core.config.web.listen:
            return
        from edge.server.web_process import WebProcess

        console = WebProcess(core.config)
        console.start()
        core.down.push_async_callback(console.stop)

    async def _start_local(self, reporter: StatusReporter) -> LocalEndpoint:
        core = self._core

        async def on_writer_thread(function: Callable[[], Any]) -> Any:
            return await asyncio.wrap_future(core.listener.submit(function))

        self._local = local = LocalEndpoint(
            core.config,
            core.streams,
            core.producers,
            report=reporter.report,
            overview=partial(reporter.report, clients=False),
            on_writer_thread=on_writer_thread,
            on_progress=core.upstream.report_progress,
            sessions=SessionAdmin(core.listener.broker, reporter.stats),
            retained=RetainedAdmin(core.listener.broker),
            reload=self._reload,
            delayed=self._delayed,
            changes=SyncedChanges(
                core.listener.broker.journal,
                core.streams.all,
                core.logs.failure_of if core.logs is not None else lambda name: "",
            ),
            save=StateSaver(core.listener.broker, core.retained).save,
            connections_max=core.budget.local,
        )
        self._on_change.append(local.apply)
        await local.start()
        core.down.push_async_callback(local.stop)
        return local

    def _start_watches(self, reporter: StatusReporter) -> None:
        core = self._core
        refusals = Refusals(core.listener.broker.engine)
        shortened = ShortenedFiles(core.streams, core.producers)
        for watch in (reporter.sample(), refusals.watch(), shortened.watch()):
            self._start_task(watch)

    def _start_task(self, task: Coroutine[None, None, None]) -> None:
        """Run `task` until the end of the broker."""
        self._core.down.callback(asyncio.create_task(task).cancel)


async def _populate(rings: Iterable[Ring]) -> None:
    """Touch the pages of the rings, some at a time: a publisher would wait for each one otherwise.

    Clients connect at the same time: while they keep the process busy, nearly all of the processor is left to
    them.
    """
    for ring in rings:
        for _ in ring.populate():
            used_s = time.process_time()
            await asyncio.sleep(POPULATE_REST_S)
            if time.process_time() - used_s > POPULATE_REST_S / 2:
                await asyncio.sleep(POPULATE_BUSY_REST_S)


def _has_groups(config: Config) -> bool:
    """True if an earlier broker had groups of consumers. Creates their directory, which is watched."""
    directory = config.state_dir / "consumers"
    try:
        OsFiles().makedirs(str(directory))
        if not (directory / "offsets").exists():
            return False
        from edge.consumers.offset_journal import needs_recovery

        return needs_recovery(directory / "offsets")
    except OSError as error:
        text = f"committed offsets of consumers in {directory}: {error.strerror}"
        raise EdgeError(text, hint="repair the directory, or write enabled = false in [consumers]") from error
