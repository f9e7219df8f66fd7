"""Loader of amqtt's plug-in classes, by their paths, with the context that they need.

The only module that imports amqtt; loaded only when a plug-in is configured. amqtt is the extra `amqtt`:
without it, loading this module raises PluginError with the command that installs it. Owns the plug-ins'
context and sessions. Every coroutine here runs on the plug-ins' loop (edge.auth.amqtt_compat.adapter).

A plug-in gets the objects of amqtt's broker that decisions need. These are its Config made from the options,
a logger, a loop, and a session with the client's identifier, user name, password, address and certificate.
amqtt's broker itself does not exist here: a plug-in that publishes or reads broker state fails when it tries,
which is logged and refuses. The events are those of start and end, and client events
(edge.auth.amqtt_compat.events); there are no events of messages and packets.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Self

from edge.auth.errors import PluginError
from edge.auth.interfaces import ClientInfo
from edge.logging_setup import pairs
from ringbuf.extras import install_extra

try:
    from amqtt.contexts import Action, BaseContext
    from amqtt.events import BrokerEvents
    from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
    from amqtt.session import Session
    from dacite import Config, DaciteError, from_dict
except ModuleNotFoundError as error:
    text = f"plug-ins in [[auth.plugin]] need amqtt, and {error.name} is not installed"
    raise PluginError(text, hint=install_extra("amqtt")) from error

_FILTER_SYNTAX = frozenset("*()\\\0")
EVENTS = tuple(
    f"on_{event}"
    for event in (
        BrokerEvents.CLIENT_CONNECTED,
        BrokerEvents.CLIENT_DISCONNECTED,
        BrokerEvents.CLIENT_SUBSCRIBED,
        BrokerEvents.CLIENT_UNSUBSCRIBED,
    )
)

log = logging.getLogger(__name__)


class PluginSession(Session):  # type: ignore[misc]
    """A client for a plug-in, without the state machine and queues of amqtt's own session."""

    # without super().__init__(), which costs 0.2 ms
    def __init__(self, client: ClientInfo, password: str | None) -> None:
        host, _, port = client.address.rpartition(":")
        self.client_id = client.client_id
        self.username = client.username
        self.password = password
        self.remote_address = host or None
        self.remote_port = int(port) if port.isdigit() else None
        self.ssl_object = None if client.certificate_der is None else PeerCertificate(client.certificate_der)
        self.is_anonymous = client.username is None
        self.attributes: dict[str, Any] = {}
        self.clean_session = None
        self.keep_alive = 0
        self.will_flag = False
        self.will_topic = self.will_message = self.will_qos = self.will_retain = None
        self.parent = 0

    def __repr__(self) -> str:
        return f"PluginSession(client_id={self.client_id!r})"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """Stand-in for an ssl.SSLObject after the handshake: provides only the client's certificate."""

    der: bytes

    def getpeercert(self, binary_form: bool = False) -> bytes:
        """The certificate in DER. It was verified in the handshake."""
        if not binary_form:
            raise NotImplementedError("only getpeercert(binary_form=True) is known here")
        return self.der


@dataclass(frozen=True, slots=True)
class LoadedPlugins:
    """Plug-ins that are ready."""

    plugins: tuple[BasePlugin[Any], ...]
    authenticating: tuple[BaseAuthPlugin, ...]
    filtering: tuple[BaseTopicPlugin, ...]
    listening: tuple[BasePlugin[Any], ...]  # those that handle client events

    @classmethod
    async def load(cls, plugins: Sequence[tuple[str, Mapping[str, Any]]]) -> Self:
        """Load and start all plug-ins. Raises PluginError, which names the one that fails."""
        created = tuple([_create(path, options) for path, options in plugins])
        loaded = cls(
            created,
            tuple(plugin for plugin in created if isinstance(plugin, BaseAuthPlugin)),
            tuple(plugin for plugin in created if isinstance(plugin, BaseTopicPlugin)),
            tuple(plugin for plugin in created if _listens(type(plugin))),
        )
        try:
            await loaded.call_all("on_broker_pre_start")
            await loaded.call_all("on_broker_post_start")
        except BaseException:
            await loaded.close()
            raise
        return loaded

    def session(self, client: ClientInfo, password: str | None) -> PluginSession:
        """Session of a client for plug-ins."""
        return PluginSession(client, password)

    async def authenticate(self, session: PluginSession) -> bool:
        """True if at least one plug-in accepts the client, and no plug-in refuses it."""
        if any(map(_searches, self.authenticating)) and not (
            _is_plain(session.username) and session.password
        ):
            return False
        answers_all = await asyncio.gather(
            *(plugin.authenticate(session=session) for plugin in self.authenticating)
        )
        answers = [answer for answer in answers_all if answer is not None]
        return bool(answers) and all(answers)

    async def filter(self, session: PluginSession, topic: str, action: str) -> bool:
        """True if all plug-ins allow the action."""
        if any(map(_searches, self.filtering)) and not _is_plain(session.username):
            return False
        plugin_action = Action(action)
        answers_all = await asyncio.gather(
            *(
                plugin.topic_filtering(session=session, topic=topic, action=plugin_action)
                for plugin in self.filtering
            )
        )
        return all(answers_all)

    async def call_all(self, event: str) -> None:
        """Call the handlers of `event`; exceptions are logged."""
        for plugin in self.plugins:
            if (listens := getattr(plugin, event, None)) is not None:
                try:
                    await listens()
                except Exception:
                    log.exception("plug-in failed")

    async def deliver_event(self, event: str, details: Mapping[str, Any], timeout_s: float) -> None:
        """Deliver a client event to all plug-ins that listen; each has `timeout_s` for it."""
        await asyncio.gather(*(_deliver(plugin, event, details, timeout_s) for plugin in self.listening))

    async def close(self) -> None:
        """Notify the plug-ins of the end, and close them."""
        await self.call_all("on_broker_pre_shutdown")
        await self.call_all("on_broker_post_shutdown")
        await self.call_all("close")


async def _deliver(plugin: BasePlugin[Any], event: str, details: Mapping[str, Any], timeout_s: float) -> None:
    if (listens := getattr(plugin, event, None)) is None:
        return
    try:
        await asyncio.wait_for(listens(**details), timeout_s)
    except TimeoutError:
        log.warning("plug-in timed out %s", pairs(plugin=type(plugin).__name__, event=event))
    except Exception:
        log.exception("plug-in failed")


def _searches(plugin: BasePlugin[Any]) -> bool:
    """True for amqtt's LDAP plug-ins.

    They put the user name into a search filter without escaping. They also accept an empty password, with
    which many directories grant an anonymous login.
    """
    return any(kind.__module__ == "amqtt.contrib.ldap" for kind in type(plugin).__mro__)


def _is_plain(username: str | None) -> bool:
    """True if a user name has no special characters of a search filter [RFC 4515 section 3]."""
    return bool(username) and not _FILTER_SYNTAX.intersection(username or "")


def _listens(kind: type) -> bool:
    """True if a plug-in class handles a client event, or every event by __getattr__."""
    return hasattr(kind, "__getattr__") or any(hasattr(kind, event) for event in EVENTS)


def configured(path: str, options: Mapping[str, Any]) -> tuple[type[BasePlugin[Any]], Any]:
    """The plug-in class, and its Config made from `options`. Creates no plug-in. Raises PluginError."""
    kind = _class(path)
    try:
        return kind, from_dict(kind.Config, dict(options), Config(strict=True, cast=[Enum, Path]))
    except (DaciteError, TypeError, ValueError) as error:
        raise PluginError(f"plug-in {path}: its options: {error}", hint="see [[auth.plugin]]") from error


def _create(path: str, options: Mapping[str, Any]) -> BasePlugin[Any]:
    context = BaseContext()
    kind, context.config = configured(path, options)
    context.loop = asyncio.get_running_loop()
    context.logger = log.getChild(kind.__name__)
    try:
        return kind(context)
    except Exception as error:
        text = f"plug-in {path} cannot be created: {type(error).__name__}: {error}"
        raise PluginError(text, hint="see its options in [[auth.plugin]]") from error


def _class(path: str) -> type[BasePlugin[Any]]:
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError as error:
        needs = "amqtt[contrib]" if module.startswith("amqtt.contrib.") else "the package that has it"
        hint = f"pip install {needs}; see class in [[auth.plugin]]"
        raise PluginError(f"plug-in {path} cannot be imported: {error}", hint=hint) from error
    except AttributeError:
        raise PluginError(
            f"plug-in {path}: {module} has no {name}", hint="see [[auth.plugin]] class"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, BasePlugin)):
        raise PluginError(f"{path} is not a plug-in class of amqtt", hint="see [[auth.plugin]] class")
    if not (issubclass(kind, BaseAuthPlugin | BaseTopicPlugin) or _listens(kind)):
        raise PluginError(
            f"plug-in {path} implements neither authenticate() nor topic_filtering() nor a known event",
            hint=f"it needs authenticate, topic_filtering or one of {', '.join(EVENTS)}",
        )
    if module == "amqtt.plugins.sys.broker":
        text = f"plug-in {path} looks into amqtt's own broker"
        raise PluginError(text, hint="remove it: $SYS topics are published without it")
    for method in ("authenticate", "topic_filtering", *EVENTS):
        if hasattr(kind, method) and not iscoroutinefunction(getattr(kind, method)):
            raise PluginError(f"plug-in {path}: {method} is not a coroutine", hint="write async def")
    return kind
