"""Live configuration: applies changes of the configuration and of its files to a running broker.

    read      configuration file, passwords, access rules, certificates, bridges: any mistake ends the reload
    prepare   rings and logs of added streams: an error ends the reload
    apply     streams, bridges, limits, tenants, log level, certificates, passwords and rules
    report    names in effect now, mistakes, and names that need a restart

Owns the order. Nothing is applied before everything was read, checked and created. After that, only a bridge
can fail (its checkpoint is busy, for example): the earlier bridge continues, and the report has the failure.
edge/config/live_settings.py chooses the settings; the others need a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from edge.auth.backend import AuthFiles
from edge.auth.errors import AuthFileError
from edge.auth.tenants import Tenants
from edge.config.live_settings import START_LIMITS, after_reload, setting_changes
from edge.config.schema import Bridge, Config
from edge.errors import ConfigError, EdgeError, with_hint
from edge.local.protocol import Reloaded
from edge.logging_setup import AUDIT, pairs, set_level
from edge.server.added_streams import PreparedStreams, added_to, apply, prepare, refusal
from edge.server.bridge_settings import bridge_settings, new_schema, separate_bridge
from edge.server.configured_limits import broker_limits, engine_limits
from edge.server.memory_budget import fitted_limits, log_budget
from edge.transport import descriptors
from ringbuf.free_memory import memory_limit_bytes

if TYPE_CHECKING:
    from edge.engine.tls_context import TlsContext
    from edge.server.mqtt_startup import MqttServer
    from edge.server.services import Services

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)


class _Read(Struct):
    """Everything that a reload has read. `problems`: mistakes; then nothing is applied."""

    wanted: Config
    live: Config
    streams_refusal: str = ""  # reason why added streams need a restart
    streams: PreparedStreams | None = None  # to add
    certificates: dict[int, TlsContext] = {}
    users: AuthFiles | None = None
    tenants: Tenants | None = None  # None: unchanged
    clients_max: int = 0
    schemas: list[str] = []  # bridges whose payload schema has another content
    schemas_elsewhere: list[str] = []  # settings of such bridges in other processes
    problems: list[str] = []


class LiveConfiguration:
    """Configuration of a running broker. `read_config` reads it again; None: there is no file of it."""

    def __init__(
        self, core: MqttServer, services: Services, given: Config, read_config: Callable[[], Config] | None
    ) -> None:
        """Create it for a broker that runs with `given`, as it was before the start lowered default sizes."""
        self._core = core
        self._services = services
        self._given = given
        self._read_config = read_config
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Read everything again and apply it; a mistake in any part leaves everything as it was."""
        async with self._one_at_a_time:
            read = await asyncio.to_thread(self._read)
            if not read.problems and read.streams is not None:
                try:
                    await apply(self._core, self._services, read.streams)
                except EdgeError as error:
                    read.problems.append(with_hint(error))
            if read.problems:
                for problem in read.problems:
                    audit.error("reload refused, nothing changed; correct it %s", pairs(problem=problem))
                return Reloaded((), tuple(read.problems), self._needs_restart(read.wanted))
            return await self._apply(read)

    def _read(self) -> _Read:
        """On a thread of its own."""
        try:
            wanted = self._read_config() if self._read_config is not None else self._given
            reason = refusal(self._core, self._given, wanted)
            adds = not reason and bool(added_to(self._given, wanted))
            live = after_reload(self._given, wanted, adds_streams=adds)
            read = _Read(wanted, live, reason)
        except ConfigError as error:
            return _Read(self._given, self._given, problems=list(error.problems))
        for check in (self._read_bridges, self._read_descriptors, self._read_tenants):
            try:
                check(read)
            except EdgeError as error:
                read.problems.append(with_hint(error))
        read.certificates, mistakes = self._core.listener.read_certificates()
        read.problems += mistakes
        if self._core.auth_backend.has_files:
            try:
                read.users = self._core.auth_backend.read()
            except AuthFileError as error:
                read.problems += error.problems
        if not read.problems and read.live.stream != self._given.stream:
            self._prepare_streams(read)
        return read

    def _prepare_streams(self, read: _Read) -> None:
        try:
            live = replace(self._core.config, **_live_sections(read.live), stream=read.live.stream)
            read.streams = prepare(self._core, live)
        except ConfigError as error:
            read.problems += error.problems
        except EdgeError as error:
            read.problems.append(with_hint(error))

    def _read_bridges(self, read: _Read) -> None:
        """Check each new or changed bridge, and each payload schema."""
        for bridge in read.live.bridge:
            is_new, has_schema = bridge not in self._given.bridge, bool(bridge.options.get("payloads"))
            if bridge.in_broker and (is_new or has_schema):
                schema = new_schema(bridge_settings(bridge, read.live))
                if not is_new and schema != self._services.bridges.schema_of(bridge.name):
                    read.schemas.append(bridge.name)
            elif has_schema and not is_new:
                self._compare_schema(read, bridge)
            if bridge.in_broker and is_new and bridge.to.startswith("mqtts:") and not _asyncio_has_tls():
                text = f"bridge {bridge.name}: mqtts:// needs TLS, which a start without bridges leaves out"
                raise EdgeError(text, hint="restart the broker")

    def _compare_schema(self, read: _Read, bridge: Bridge) -> None:
        """Note a bridge in another process whose payload schema has changed.

        The broker's user may not be able to read its file. That bridge reports an error itself.
        """
        with suppress(EdgeError):
            schema = new_schema(bridge_settings(bridge, read.live))
            if separate_bridge(bridge, read.live).get("payload_schema", schema) not in {"", schema}:
                read.schemas_elsewhere.append(_schema_setting(bridge.name))

    def _read_tenants(self, read: _Read) -> None:
        if read.live.tenant == self._given.tenant:
            return
        try:
            read.tenants = self._core.listener.broker.tenants.configured.with_settings(read.live.tenant)
        except OverflowError as error:
            raise EdgeError(str(error), hint="restart the broker") from None

    def _read_descriptors(self, read: _Read) -> None:
        allowed = descriptors.allow(read.live)
        added = sum(stream.partitions for stream in added_to(self._given, read.live))
        opened = self._core.descriptors_open + added * descriptors.OF_RING
        read.clients_max = descriptors.budget(self._fitted(read), allowed, opened).clients

    def _fitted(self, read: _Read) -> Config:
        """The configuration that the reload puts in effect, with limits that fit the memory."""
        running = self._core.config
        live = replace(running, **_live_sections(read.live))
        if read.streams is not None:
            live = replace(live, stream=read.streams.config.stream)
        fitted = fitted_limits(live, memory_limit_bytes())
        kept = {name: getattr(running.limits, name) for name in START_LIMITS}
        return replace(fitted, limits=replace(fitted.limits, **kept))

    async def _apply(self, read: _Read) -> Reloaded:
        core, before = self._core, self._given
        live = self._fitted(read)
        log_budget(live, memory_limit_bytes())
        effective, unchanged = await self._services.bridges.replace(live, read.schemas)
        await asyncio.wrap_future(core.listener.submit(lambda: self._apply_on_mqtt_thread(effective, read)))
        self._services.follow(effective)
        given = {**_live_sections(effective), "limits": read.live.limits}
        self._given = replace(self._given, **given, stream=read.live.stream)
        set_level(effective.log_level)
        applied = []
        for name, earlier, now in setting_changes(before, self._given):
            audit.info("setting changed %s", pairs(name=name, before=str(earlier), now=str(now)))
            applied.append(name)
        names = {bridge.name for bridge in unchanged}
        schemas = [_schema_setting(name) for name in read.schemas if name not in names]
        for name in schemas:
            audit.info("payload schema changed %s", pairs(name=name))
        applied += [*schemas, *core.listener.apply_certificates(read.certificates)]
        if read.users is not None:
            auth = core.config.auth
            applied += [str(path) for path in (auth.password_file, auth.acl_file) if path is not None]
        failed = [str(bridge) for bridge in unchanged]
        for reason in failed:
            log.error("bridge not changed %s", pairs(reason=reason))
        if read.streams_refusal:
            audit.warning("streams not added %s", pairs(reason=read.streams_refusal))
            failed.append(read.streams_refusal)
        needs_restart = (*self._needs_restart(read.wanted), *read.schemas_elsewhere)
        audit.info(
            "configuration reloaded %s",
            pairs(applied=len(applied), failed=len(failed), needs_restart=len(needs_restart)),
        )
        return Reloaded(tuple(applied), tuple(failed), needs_restart)

    def _apply_on_mqtt_thread(self, effective: Config, read: _Read) -> None:
        core = self._core
        core.config = effective
        core.apply_limits(engine_limits(effective), broker_limits(effective), read.clients_max)
        core.upstream.apply(effective)
        if read.tenants is not None:
            core.listener.broker.apply_tenants(read.tenants)
        if read.users is not None:
            core.apply(read.users)

    def _needs_restart(self, wanted: Config) -> tuple[str, ...]:
        """Settings of a configuration that are not in effect."""
        return tuple(name for name, _, _ in setting_changes(self._given, wanted))


def _live_sections(config: Config) -> dict[str, object]:
    return {name: getattr(config, name) for name in ("limits", "quota", "tenant", "bridge", "log_level")}


def _schema_setting(bridge: str) -> str:
    return f"bridge.{bridge}.options.payloads"


def _asyncio_has_tls() -> bool:
    """False: the start has imported asyncio without TLS (edge/cli/light_imports.py)."""
    from asyncio import sslproto

    return getattr(sslproto, "ssl", None) is not None
