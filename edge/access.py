"""Who may connect, and what they may publish and subscribe to: the seams, and the policy that needs no file.

Decides once per CONNECT, once per subscription and once per (client, topic): never per message.  The hot path
remembers each verdict until the rules change (Broker.rules_changed).

Without an Authenticator nobody can be checked: a listener then lets everybody in, or nobody, and a user name
is only a claim (ClientFacts.identity stays None).
"""

from __future__ import annotations

import ipaddress
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

__all__ = [
    "AccessList",
    "Answer",
    "Authenticator",
    "ClientFacts",
    "Conversation",
    "EnhancedAuthenticator",
    "ListenerPolicy",
    "Reach",
    "Step",
    "Surveyable",
    "TransportFacts",
    "Verdict",
    "anonymous_allowed",
]


class ClientFacts(msgspec.Struct, frozen=True):
    """Who asks.  Client identifier and user name are the client's own words: hostile text.

    One is made for every CONNECT: a frozen dataclass takes ten times as long.
    """

    client_id: str
    username: str | None
    address: str  # of the other end, or "" for a transport that has none
    listener: int  # number of the listener it came through
    identity: str | None = None  # the user name, once an Authenticator has vouched for it
    certificate: str | None = None  # the name in a client certificate that was verified
    transport: str = "tcp"  # or tls, ws, wss, unix
    certificate_der: bytes | None = None  # the whole of it, as the client sent it
    vouched: bool = False  # it had to prove who it is, and did; with or without a user name

    def __repr__(self) -> str:
        return f"ClientFacts({self.client_id!r}, {self.username!r}, {self.address!r})"

    @property
    def owner(self) -> tuple[object, ...]:
        """What is the same for all connections that may go on with a session of this client identifier."""
        return self.vouched, self.identity, self.certificate if self.identity is None else None

    def may_replace(self, holder: ClientFacts) -> bool:
        """True if the client gets an identifier that a client of another owner holds: it has proved who it
        is, and the holder has not.
        """
        return self.vouched and not holder.vouched


Answer = bool | Future[bool]  # a Future may be resolved from any thread
Verdict = Answer


class Authenticator(Protocol):
    """Decides about one CONNECT."""

    def authenticate(self, client: ClientFacts, password: bytes | None) -> Verdict:
        """Whether `client` is who it says.  Who gives no user name is asked about where that is not enough
        to get in: it may have a certificate.

        Called on the broker's thread, so whoever needs time (a slow hash, a network) returns a Future; it may
        be resolved from any thread, and the client waits meanwhile, within its connect timeout.
        """

    def still_welcome(self, client: ClientFacts) -> bool:
        """Whether a client that it let in stays, now that the rules have changed."""


class AccessList(Protocol):
    """Decides about topics.  Called on the broker's thread.

    While a Future is awaited the client's connection is held.  One that fails is a refusal.
    """

    def may_publish(self, client: ClientFacts, topic: str) -> Answer:
        """Whether messages of `client` to `topic` are stored."""

    def may_subscribe(self, client: ClientFacts, topic_filter: str) -> Answer:
        """Whether `client` may subscribe to `topic_filter`, wildcards and all; without `$share/group/`."""

    def may_receive(self, client: ClientFacts, topic: str) -> bool:
        """Whether messages of `topic` are for `client`, whatever it has subscribed to.

        Must answer at once.  Asked when routes are made, when retained messages are sent and when the rules
        have changed, once for a client and topic.
        """


class Reach(NamedTuple):
    """What a client may receive of the topics of a filter, said by filters."""

    filters: tuple[str, ...]  # it may receive nothing of the rest; the filter itself: there is no rest
    surely: bool  # it may receive all that they match; else each topic is still to be asked about


@runtime_checkable
class Surveyable(AccessList, Protocol):
    """One that knows more than a topic at a time: a million need not be asked about one by one."""

    def publishes_all(self, client: ClientFacts) -> bool:
        """Whether may_publish() is True of every topic that does not begin with $."""

    def reach(self, client: ClientFacts, topic_filter: str) -> Reach | None:
        """What `client` may receive of `topic_filter`, without `$share/group/`; None: too much to say."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the server says in an exchange of AUTH packets [MQTT-4.12.0-2]."""

    verdict: Literal["continue", "accepted", "refused"]
    data: bytes | None = None  # the Authentication Data of the AUTH or CONNACK that carries it
    identity: str | None = None  # accepted: who it is


class Conversation(Protocol):
    """One exchange with one client, until it is accepted or refused, or the client is gone."""

    def answer(self, data: bytes | None) -> Step | Future[Step]:
        """What to say to the Authentication Data of the client's CONNECT or AUTH."""


class EnhancedAuthenticator(Protocol):
    """Decides about clients that name an Authentication Method.  Called on the broker's thread."""

    @property
    def methods(self) -> frozenset[str]:
        """Those it can be asked for."""

    def begin(self, client: ClientFacts, method: str) -> Conversation:
        """An exchange with `client` by one of `methods`; for CONNECT, or a later AUTH."""


@dataclass(frozen=True, slots=True)
class ListenerPolicy:
    """What a listener asks of those who come through it."""

    name: str  # for logs: "127.0.0.1:1883"
    allow_anonymous: bool
    transport: str = "tcp"  # what ClientFacts says of who was accepted here
    certificate_is_user: bool = (
        False  # the name in the certificate is the user name, and no password is asked
    )
    packet_max_bytes: int | None = None  # after CONNECT; None: the engine's
    redirect_to: str | None = None  # nobody is served here: `host:port` of who does


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """What is known of one connection that was not accepted by the loop itself, but handed to it."""

    transport: str
    certificate: str | None = None  # as in ClientFacts
    certificate_der: bytes | None = field(default=None, repr=False)


def anonymous_allowed(host: str, configured: bool | None) -> bool:
    """Whether a listener on `host`, a numeric address, lets anybody in.  None: on loopback only."""
    if configured is not None:
        return configured
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
