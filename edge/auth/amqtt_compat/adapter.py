"""amqtt's plug-ins behind the protocols of edge.auth.interfaces, unchanged, on a separate event loop.

Owns the loop, its thread, the requests to plug-ins and their answers. Loads amqtt only if there is a plug-in
(edge.auth.amqtt_compat.loader).

    authenticate    every plug-in that authenticates is called. None abstains. At least one must accept, and
                    one refusal refuses: as in amqtt
    topics          every plug-in that filters topics must accept, as in amqtt's code: there None refuses

A plug-in that fails, or takes longer than ANSWER_S, refuses.

Publishing and subscribing wait for the answer: the client is held meanwhile. Receiving cannot wait, because
it is decided while routes are made. A plug-in that only computes answers within PATIENCE_S, which is waited
for. After a slower answer the broker no longer waits, until the plug-in is fast again. Meanwhile the topic is
not delivered to that client. Once the plug-in has accepted, on_news() is called, so that the routes are made
again. So no message is delivered without permission, but the first messages of a topic may be missing. For
filters without wildcards the answer is requested with the subscription, which waits for it too.

A plug-in may refuse an unknown user sooner than a wrong password. That does not show: a refused login is
answered after REFUSAL_S, or a multiple of it.

Answers about receiving are kept for the client's login: RECEIVE_MAX of all clients, the oldest replaced
first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edge.auth.amqtt_compat.events import PluginEvents
from edge.auth.fair_executor import origin
from edge.auth.interfaces import AccessList, Answer, Authenticator, ClientInfo
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.mqtt.topic_filters import split_share

if TYPE_CHECKING:
    from edge.auth.amqtt_compat.loader import LoadedPlugins, PluginSession

log = logging.getLogger(__name__)

ANSWER_S = 5.0
PATIENCE_S = 0.02
START_S = 30.0  # to load a plug-in, which may connect to a server
REQUESTS_MAX = 1_000  # requests at once; more are refused
REQUESTS_BY_ADDRESS_MAX = REQUESTS_MAX // 4  # of these, logins from one address
REFUSAL_S = 0.25  # longer than the check of a password takes
NEWS_S = 0.1  # on_news() is called once for all answers of that time
LOGINS_MAX = 100_000
RECEIVE_MAX = 200_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Login:
    """A client for plug-ins, from its authentication on."""

    number: int
    session: PluginSession


class PluginAdapter:
    """The plug-ins of one broker: an Authenticator and an AccessList.

    All methods on the broker's thread, except close().
    """

    def __init__(
        self,
        plugins: Sequence[tuple[str, Mapping[str, Any]]],
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        """Load `plugins`, pairs of class path and options. Raises PluginError.

        `on_news` is called on the plug-ins' thread when a client may receive more than before.
        """
        self.on_news = on_news
        self.refused_busy = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brim-plug-ins")
        self._requests_running = 0  # changed on the loop's thread
        self._logins: dict[tuple[str, str | None, bool], Login] = {}
        self._count = 0
        self._received: dict[tuple[int, str], bool] = {}
        self._lock = threading.Lock()  # of _logins, _received and _asking
        self._has_news = False
        self._asking: set[tuple[int, str]] = set()
        self._patient = True
        self._loaded: LoadedPlugins | None = None
        self._events = PluginEvents(self._loop, self._session_of, self._happened)
        self._logging_in: Counter[str] = Counter()  # by address; on the loop's thread
        self._may_log = LogThrottle()
        self._thread.start()
        try:
            self._loaded = self._run(_load(plugins)).result(START_S)
        except BaseException:
            self.close()
            raise

    @property
    def authenticator(self) -> Authenticator | None:
        """Authenticator by the plug-ins that authenticate; None if there are none."""
        return self if self._loaded and self._loaded.authenticating else None

    @property
    def access(self) -> AccessList | None:
        """Access list by the plug-ins that filter topics; None if there are none."""
        return self if self._loaded and self._loaded.filtering else None

    @property
    def watcher(self) -> PluginEvents | None:
        """Receiver of client events for the plug-ins that listen; None if there are none."""
        return self._events if self._loaded and self._loaded.listening else None

    def close(self) -> None:
        """Notify the plug-ins of the end, and stop their loop. May be called twice."""
        if not self._thread.is_alive():
            return
        try:
            self._run(self._end()).result(ANSWER_S)
        except TooLate:
            log.warning("plug-ins did not end")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        if self._loaded is not None:
            await self._events.finish(ANSWER_S / 2)
            await self._loaded.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # ---- requests ----

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        """Request a decision of all plug-ins that authenticate, and remember an accepted login."""
        loaded = self._loaded
        assert loaded is not None
        try:
            session = loaded.session(client, None if password is None else password.decode())
        except UnicodeDecodeError:
            return False  # amqtt's passwords are text

        async def decide() -> bool:
            allowed = await loaded.authenticate(session)
            if allowed:
                self._remember((client.client_id, client.username, True), session)
            return allowed

        return self._run(self._delay_refusal(self._bounded(decide, origin(client.address))))

    def delay_refusal(self, answer: Answer) -> Answer:
        """The same answer; a refusal takes as long as that of a plug-in."""
        if answer is True:
            return True

        async def decided() -> bool:
            return await asyncio.wrap_future(answer) if isinstance(answer, Future) else answer

        return self._run(self._delay_refusal(decided()))

    async def _delay_refusal(self, decision: Coroutine[Any, Any, bool]) -> bool:
        """The answer; a refusal only at multiples of REFUSAL_S, so that its time reveals nothing."""
        began_s = self._loop.time()
        allowed = await decision
        if not allowed:
            await asyncio.sleep(REFUSAL_S - (self._loop.time() - began_s) % REFUSAL_S)
        return allowed

    def is_still_authorized(self, client: ClientInfo) -> bool:
        """True: plug-ins decide at CONNECT only."""
        return True

    def may_publish(self, client: ClientInfo, topic: str) -> Answer:
        """Request a decision of all plug-ins that filter topics."""
        return self._topic(client, topic, "publish")

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> Answer:
        """Request a decision of all plug-ins that filter topics; without wildcards also about receiving."""
        _, inner = split_share(topic_filter)
        exact = not ("+" in inner or "#" in inner)
        return self._topic(client, inner, "subscribe", *(["receive"] if exact else []))

    def _topic(self, client: ClientInfo, topic: str, *actions: str) -> Answer:
        login = self.login(client)

        async def decide() -> bool:
            for action in actions:
                allowed = await self._filter(login, topic, action)
                if not allowed:
                    return False
            return True

        return self._run(self._bounded(decide))

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        """The known answer, or one that arrives within PATIENCE_S; False otherwise."""
        login = self.login(client)
        key = (login.number, topic)
        with self._lock:
            known = self._received.get(key)
            if known is not None or key in self._asking:
                return bool(known)
            self._asking.add(key)

        patient = self._patient

        async def decide() -> bool:
            return await self._filter(login, topic, "receive")

        answer = self._run(self._bounded(decide))
        allowed: bool | None = None
        try:
            if patient:
                allowed = answer.result(PATIENCE_S)
        except TooLate:
            self._patient = False
        answer.add_done_callback(lambda done: self._received_late(key, done, news=allowed is None))
        return bool(allowed)

    def _received_late(self, key: tuple[int, str], done: Future[bool], *, news: bool) -> None:
        with self._lock:
            self._asking.discard(key)
        if news and not done.cancelled() and done.result() and not self._has_news:
            self._has_news = True
            self._loop.call_soon_threadsafe(self._loop.call_later, NEWS_S, self._notify_changes)

    def _notify_changes(self) -> None:
        self._has_news = False
        self.on_news()

    async def _filter(self, login: Login, topic: str, action: str) -> bool:
        assert self._loaded is not None
        started_s = self._loop.time()
        allowed = await self._loaded.filter(login.session, topic, action)
        if action == "receive":
            self._patient = self._loop.time() - started_s < PATIENCE_S / 2
            with self._lock:
                while len(self._received) >= RECEIVE_MAX:
                    del self._received[next(iter(self._received))]
                self._received[login.number, topic] = allowed
        return allowed

    async def _bounded(self, ask: Callable[[], Coroutine[Any, Any, bool]], source: str | None = None) -> bool:
        """The answer; False if it is too late, fails, or if too many requests wait.

        The limits are REQUESTS_MAX altogether, and REQUESTS_BY_ADDRESS_MAX logins from `source`.
        """
        of_source = self._logging_in[source] if source is not None else 0
        if self._requests_running >= REQUESTS_MAX or of_source >= REQUESTS_BY_ADDRESS_MAX:
            self._refuse_busy(source)
            return False
        self._requests_running += 1
        if source is not None:
            self._logging_in[source] += 1
        try:
            return await asyncio.wait_for(ask(), ANSWER_S)
        except TimeoutError:
            log.warning("plug-in timed out, request refused")
        except Exception:
            log.exception("plug-in failed, request refused")
        finally:
            self._requests_running -= 1
            if source is not None:
                self._logging_in[source] -= 1
                self._logging_in += Counter()  # removes addresses with a count of 0
        return False

    def _refuse_busy(self, source: str | None) -> None:
        self.refused_busy += 1
        if self._may_log():
            words = "plug-in request limit reached, clients refused %s"
            log.warning(words, pairs(refused=self.refused_busy, address=source))

    # ---- events ----

    def _session_of(self, client: ClientInfo) -> PluginSession:
        return self.login(client).session

    async def _happened(self, event: str, details: Mapping[str, Any]) -> None:
        assert self._loaded is not None
        await self._loaded.deliver_event(event, details, ANSWER_S)

    # ---- logins ----

    def _remember(self, key: tuple[str, str | None, bool], session: PluginSession) -> Login:
        """Store a login, in place of an earlier one of the same key."""
        with self._lock:
            self._logins.pop(key, None)
            while len(self._logins) >= LOGINS_MAX:
                del self._logins[next(iter(self._logins))]
            self._count += 1
            login = self._logins[key] = Login(self._count, session)
        return login

    def login(self, client: ClientInfo) -> Login:
        """The login of a client; a new one without a password if there is none.

        A client without verification never gets the login of a verified one.
        """
        key = (client.client_id, client.identity, client.verified)
        known = self._logins.get(key)
        if known is not None:
            return known
        assert self._loaded is not None
        session = self._loaded.session(client, None)
        session.username = client.identity  # the verified name, not the claimed one
        return self._remember(key, session)


async def _load(plugins: Sequence[tuple[str, Mapping[str, Any]]]) -> LoadedPlugins:
    """Load the plug-ins on the loop: some need a running one in their constructor."""
    from edge.auth.amqtt_compat.loader import LoadedPlugins

    return await LoadedPlugins.load(plugins)
