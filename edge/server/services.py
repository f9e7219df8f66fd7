"""Services of a broker process, next to MQTT: all that needs the event loop, or may begin a little later.

    bridges -> log maintenance -> ZeroMQ -> watchdog -> consumers -> control socket -> metrics

Owns these parts. Their modules are imported after clients are served. A failure, except of a bridge, ends the
broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from edge.broker.counters import Counters
from edge.broker.session_admin import SessionAdmin
from edge.errors import EdgeError
from edge.local.control_server import LocalEndpoint
from edge.local.shortened_rings import ShortenedFiles
from edge.logging_setup import pairs
from edge.observe.status_report import StatusReporter
from edge.recovery.state_files import SESSIONS_RING
from edge.server.bridge_settings import separate_bridge
from edge.server.mqtt_startup import BrokerCore
from edge.server.watchdog import Watchdog
from edge.transport.refusals import Refusals
from ringbuf import Ring

if TYPE_CHECKING:
    from bridge.drain.settings import BridgeSettings
    from edge.local.zmq_publisher import ZmqPublisher
    from edge.observe.directory_watch import Missing
    from edge.server.retention_holds import ConsumerHolds

__all__ = ["Services"]

log = logging.getLogger(__name__)


class Services:
    """The parts of a broker that are no part of MQTT; `core.down` ends them."""

    def __init__(self, core: BrokerCore) -> None:
        self.zmq: ZmqPublisher | None = None
        self._core = core
        self._consumer_holds: ConsumerHolds | None = None  # only with a log
        self._bridges: list[Callable[[], dict[str, Any]]] = []
        self._refuse_consumers: Callable[[str], object] = lambda _: None
        self.watchdog = Watchdog(core.listener.broker.engine, core.listener)

    async def start(self, version: str, bridges: Sequence[BridgeSettings]) -> None:
        """Start every part, in order."""
        core = self._core
        for it in bridges:
            await self._start_bridge(it)
        config = core.config
        self._bridges += [partial(separate_bridge, it, config) for it in config.bridge if not it.in_broker]
        self._start_upkeep()
        self._start_zmq()
        core.stop_on_thread(core.listener.stop)  # before the parts that pass its records on
        self.watchdog.start()
        core.stop_on_thread(self.watchdog.stop)
        stats = Counters(core.listener.broker.engine)
        reporter = StatusReporter(
            config, version, core.streams, core.producers, core.listener, stats, self.zmq
        )
        if core.logs:
            reporter.log, reporter.log_totals = core.logs.status, core.logs.totals
        reporter.watchdog = self.watchdog.status
        reporter.bridges = self._bridges
        reporter.upstream = core.upstream.status
        reporter.consumers = self._start_consumers()
        reporter.missing = self._watch_directories()
        reporter.local = await self._start_local(reporter)
        self._start_watches(reporter)
        self._start_task(_populate(core.rings()))
        await self._start_metrics(reporter)

    def _start_upkeep(self) -> None:
        """Must be called after the parts that hold records in the log."""
        core = self._core
        if core.logs is None:
            return
        from edge.log.maintenance import LogUpkeep
        from edge.server.retention_holds import BridgeHolds, ConsumerHolds, SessionHolds

        upkeep = LogUpkeep(core.logs, core.config, without=[core.config.log_directory / SESSIONS_RING])
        upkeep.holds.append(BridgeHolds(core.config))
        holds = SessionHolds(core.listener.broker, core.listener.ask, core.logs.reader.read_at)
        upkeep.holds.append(holds)
        if core.config.consumers.enabled:
            self._consumer_holds = ConsumerHolds()
            upkeep.holds.append(self._consumer_holds)
        core.logs.upkeep = upkeep.status
        upkeep.start()
        core.stop_on_thread(upkeep.stop)

    async def _start_bridge(self, settings: BridgeSettings) -> None:
        """Start a bridge. A failure is reported and shown in the status; clients are served nevertheless."""
        core = self._core
        from bridge.drain.bridge import Bridge
        from bridge.drain.control_socket import ControlSocket
        from bridge.errors import BridgeError, CheckpointMismatch

        moved = partial(core.upstream.report_progress, settings.name)
        bridge = Bridge(settings, cold=core.logs.reader if core.logs else None, moved=moved)
        trouble: dict[str, str] = {}
        try:
            try:
                bridge.start()
            except CheckpointMismatch as error:
                facts = pairs(name=settings.name, reason=error, remedy=error.hint)
                log.error("bridge waits for its checkpoint %s", facts)
                bridge.start_when_matching(error)
            core.stop_on_thread(bridge.stop)
            control = ControlSocket(bridge)
            core.down.push_async_callback(control.stop)
            await control.start()
        except (BridgeError, EdgeError) as error:
            log.error("bridge not started %s", pairs(name=settings.name, reason=error, remedy=error.hint))
            trouble = {"condition": "failed", "last_error": str(error), "remedy": error.hint}
        self._bridges.append(lambda: {**bridge.state().as_dict(), **trouble})

    def _start_zmq(self) -> None:
        core = self._core
        zmq = core.config.zmq
        if not zmq.enabled:
            return
        from edge.local.zmq_publisher import ZmqPublisher

        self.zmq = publisher = ZmqPublisher(
            core.config.zmq_endpoint,
            send_high_water=zmq.send_high_water,
            secret_key_file=zmq.secret_key_file,
            client_keys_dir=zmq.client_keys_dir,
        )
        core.stop_on_thread(publisher.stop)
        for partition in core.streams.all():
            publisher.add(partition.ring)
        for producer in core.producers.all():
            publisher.add(producer.ring, own=False)
        core.producers.on_ring.append(lambda added: publisher.add(added.ring, own=False))
        publisher.start()
        publisher.admit(core.budget.peers)

    def _start_consumers(self) -> Callable[[], list[dict[str, Any]]] | None:
        """Start the consumers' endpoint. It ends before MQTT, because it publishes messages."""
        core = self._core
        if not core.config.consumers.enabled:
            return None
        from edge.server.consumers import consumers_endpoint

        endpoint = consumers_endpoint(core.config, core.streams, core.producers, core.listener, core.logs)
        core.stop_on_thread(endpoint.stop)
        endpoint.start()
        endpoint.admit(core.budget.peers)
        self._refuse_consumers = endpoint.refuse
        if self._consumer_holds is not None:
            self._consumer_holds.groups = endpoint.all_groups
        return endpoint.groups

    def _watch_directories(self) -> Callable[[], Sequence[Missing]]:
        core = self._core
        from edge.server.directory_watch_setup import watch_directories

        rings = [partition.ring.path for partition in core.streams.all()]
        watch = watch_directories(core.config, rings, core.logs, self._refuse_consumers)
        core.stop_on_thread(watch.stop)
        watch.start()
        return lambda: watch.missing

    async def _start_metrics(self, reporter: StatusReporter) -> None:
        core = self._core
        if not core.config.metrics.listen:
            return
        from edge.observe.http_endpoint import MetricsEndpoint
        from edge.observe.prometheus import page

        async def made() -> str:
            return page(await reporter.gathered())

        metrics = MetricsEndpoint(core.config.metrics.listen, made, core.budget.metrics)
        await metrics.start()
        reporter.metrics_url = metrics.url
        core.down.push_async_callback(metrics.stop)

    async def _start_local(self, reporter: StatusReporter) -> LocalEndpoint:
        core = self._core

        async def on_writer_thread(function: Callable[[], Any]) -> Any:
            return await asyncio.wrap_future(core.listener.ask(function))

        local = LocalEndpoint(
            core.config,
            core.streams,
            core.producers,
            report=reporter.report,
            on_writer_thread=on_writer_thread,
            moved=core.upstream.report_progress,
            sessions=SessionAdmin(core.listener.broker, reporter.stats),
            connections_max=core.budget.local,
        )
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
    """Touch the pages of the rings, some at a time: a publisher would wait for each one otherwise."""
    for ring in rings:
        for _ in ring.populate():
            await asyncio.sleep(0)
