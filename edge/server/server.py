"""Server: starts the parts of a broker in order, and stops them in the opposite order.

    mqtt_startup.py  clients are served
    services.py      bridges, log maintenance, ZeroMQ, consumers, control socket, metrics

The modules of this folder are the only ones where edge, persistence and bridge meet. Owns the order and
nothing else. Clients are served before services.py is imported, and asyncio with it: that takes longer than
all that MQTT needs. At the end MQTT stops before the parts that pass its records on, so that wills still
arrive. Then the log is synced; rings are last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Self

from edge.config.schema import Config
from edge.server.bridge_settings import bridge_settings
from edge.server.mqtt_startup import MqttServer
from edge.transport.listener import Listener

if TYPE_CHECKING:
    from edge.local.protocol import Reloaded
    from edge.log.log_set import LogSet
    from edge.server.live_configuration import LiveConfiguration
    from edge.server.services import Services
    from edge.server.watchdog import Watchdog


class BrokerServer:
    """A running broker: `async with`. `failed` is called, on any thread, if a defect ends the MQTT thread."""

    def __init__(
        self,
        config: Config,
        version: str,
        failed: Callable[[], object],
        read_config: Callable[[], Config] | None = None,
    ) -> None:
        """Create the parts. `read_config` reads the configuration again, for reload(); None: no file."""
        self.version = version
        self._given, self._read_config = config, read_config
        if config.web.listen:
            from edge.server.web_process import check_available

            check_available()
        self._core = MqttServer(config, version, failed)
        self._bridges = [
            bridge_settings(settings, config) for settings in config.bridge if settings.in_broker
        ]
        self._serves = False
        self._services: Services

    def serve_clients(self) -> None:
        """Start MQTT, without an event loop. `async with`, which must follow, starts the rest."""
        try:
            self._serve_clients()
        except BaseException:
            self._core.abort()
            raise

    async def __aenter__(self) -> Self:
        try:
            if not self._serves:
                self._serve_clients()
            from edge.server.services import Services

            self._services = Services(self._core, self.reload)
            await self._services.start(self.version, self._bridges)
        except BaseException:
            await self._core.down.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._core.down.aclose()

    def _serve_clients(self) -> None:
        self._serves = True
        self._core.start()

    @property
    def config(self) -> Config:
        """The configuration in effect: sizes of rings may be smaller than those that were given."""
        return self._core.config

    @property
    def listener(self) -> Listener:
        """The MQTT ports."""
        return self._core.listener

    @property
    def logs(self) -> LogSet | None:
        """The logs; None: no stream needs one."""
        return self._core.logs

    @property
    def zmq_endpoint(self) -> str:
        """The bound endpoint of the ZeroMQ publisher; "": it is not enabled."""
        listener = self._core.zmq_listener
        return listener.endpoint if listener is not None else ""

    @property
    def metrics_url(self) -> str:
        """URL of the metrics; "": they are not enabled."""
        return self._services.metrics_url

    @property
    def watchdog(self) -> Watchdog:
        """The watchdog of the MQTT thread."""
        return self._services.watchdog

    @property
    def has_files(self) -> bool:
        """True if there are files for reload()."""
        core = self._core
        return (
            self._read_config is not None
            or core.auth_backend.has_files
            or any(listener.tls is not None for listener in core.config.listener)
        )

    @cached_property
    def _live(self) -> LiveConfiguration:
        """The configuration that reload() changes; most brokers never do."""
        from edge.server.live_configuration import LiveConfiguration

        return LiveConfiguration(self._core, self._services, self._given, self._read_config)

    async def reload(self) -> Reloaded:
        """Read the configuration and its files again. A mistake is logged, and changes nothing."""
        return await self._live.reload()
