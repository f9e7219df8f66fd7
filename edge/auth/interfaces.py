"""Authorization interfaces: authentication of clients, rights of topics, and the policy of a listener.

Owns the protocols that edge.auth implements. An implementation is called once per CONNECT, once per
subscription and once per (client, topic), never per message. The engine remembers each answer until the rules
change (Broker.acl_changed).

Without an Authenticator no client can be verified: a listener then accepts every client or none, and a user
name is only a claim (ClientInfo.identity stays None).
"""

from __future__ import annotations

import ipaddress
from concurrent.futures import Future
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from edge.auth.tenant_names import prefix_in


class ClientInfo(msgspec.Struct, frozen=True, gc=False):
    """Facts of a client. Client identifier and user name are texts of the client: do not rely on them.

    A msgspec structure, because one is made for every CONNECT: a frozen dataclass takes ten times as long.
    """

    client_id: str  # with the prefix of its tenant, once the client is accepted
    username: str | None
    address: str  # of the peer, or "" for a transport without addresses
    listener: int  # number of the listener that accepted the client
    identity: str | None = None  # the user name, if an Authenticator has verified it
    certificate: str | None = None  # the name in a verified client certificate
    transport: str = "tcp"  # or tls, ws, wss, unix
    certificate_der: bytes | None = None  # the whole certificate in DER
    # True if the client had to prove its identity, and did; with or without a user name
    verified: bool = msgspec.field(default=False, name="vouched")  # the journal has the earlier name

    def __repr__(self) -> str:
        return f"ClientInfo({self.client_id!r}, {self.username!r}, {self.address!r})"

    @property
    def prefix(self) -> str:
        """Prefix of the full names of the client's tenant, which its identifier has, too; "": no tenant."""
        return prefix_in(self.client_id)

    @property
    def visible(self) -> ClientInfo:
        """The client as it sees itself: with the identifier of its CONNECT."""
        prefix = self.prefix
        return replace(self, client_id=self.client_id[len(prefix) :]) if prefix else self

    @property
    def owner(self) -> tuple[object, ...]:
        """The facts that must be equal for a connection to continue a session of this client identifier."""
        return self.verified, self.identity, self.certificate if self.identity is None else None

    def may_replace(self, holder: ClientInfo) -> bool:
        """True if the client gets an identifier that a client of another owner holds.

        That requires that this client is authenticated and the holder is not.
        """
        return self.verified and not holder.verified


Answer = bool | Future[bool]  # a Future may be resolved from any thread


class Authenticator(Protocol):
    """Authentication of CONNECT packets."""

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        """True if the client's claims are verified.

        Called on the broker's thread. A slow implementation (password hash, network) returns a Future, which
        may be resolved on any thread. The client waits meanwhile, within its connect timeout; the broker
        cancels the Future if the connection ends. Also called
        without a user name where the listener requires one: the client may have a certificate.
        """

    def is_still_authorized(self, client: ClientInfo) -> bool:
        """True if an accepted client may stay after a change of the rules."""


class AccessList(Protocol):
    """Rights of topics. Called on the broker's thread.

    While a Future is awaited the client's connection is held. A Future that fails is a refusal.
    """

    def may_publish(self, client: ClientInfo, topic: str) -> Answer:
        """True if messages of `client` to `topic` are stored."""

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> Answer:
        """True if `client` may subscribe to `topic_filter`: without `$share/group/`, maybe with wildcards."""

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        """True if `client` may receive messages of `topic`, whatever its subscriptions are.

        Must answer at once. Called once for a client and topic when routes are made, when retained messages
        are sent and when the rules have changed.
        """


class AllowedFilters(NamedTuple):
    """The part of a filter that a client may receive, as filters."""

    # the client may receive nothing of the rest; the filter itself: there is no rest
    filters: tuple[str, ...]
    certain: bool  # True if it may receive all that they match; otherwise each topic must be checked


class Surveyable(AccessList, Protocol):
    """An access list that decides for many topics at once, so that a million need no separate call."""

    @property
    def anonymous_may_all(self) -> bool:
        """True if publishes_all() and receives_all() are True for every client without an identity."""

    def publishes_all(self, client: ClientInfo) -> bool:
        """True if may_publish() is True for every topic that does not begin with $."""

    def receives_all(self, client: ClientInfo) -> bool:
        """True if may_receive() is True for every topic that does not begin with $."""

    def publish_rules(self, client: ClientInfo) -> bytes | None:
        """Rules that decide as may_publish(), for the engine (edge.auth.packed_rules); None: too many."""

    def receive_rules(self, client: ClientInfo) -> bytes | None:
        """Rules that decide as may_receive(), likewise."""

    def allowed_filters(self, client: ClientInfo, topic_filter: str) -> AllowedFilters | None:
        """The part of `topic_filter` that `client` may receive, without `$share/group/`;
        None: too complex.
        """

    def changed_users(self, before: object) -> frozenset[str | None] | None:
        """Identities for which the earlier list `before` may decide otherwise; None: perhaps all."""


class AuthStep(Struct, frozen=True):
    """One step of the server in an exchange of AUTH packets [MQTT-4.12.0-2]."""

    verdict: Literal["continue", "accepted", "refused"]
    data: bytes | None = None  # Authentication Data for AUTH or CONNACK
    identity: str | None = None  # verified user name, if accepted


class Conversation(Protocol):
    """One exchange with one client, until it is accepted or refused, or disconnects."""

    def answer(self, data: bytes | None) -> AuthStep | Future[AuthStep]:
        """Next step, from the Authentication Data of the client's CONNECT or AUTH."""


class EnhancedAuthenticator(Protocol):
    """Authentication of clients with an Authentication Method. Called on the broker's thread."""

    @property
    def methods(self) -> frozenset[str]:
        """Supported Authentication Methods."""

    def begin(self, client: ClientInfo, method: str) -> Conversation:
        """Begin an exchange with `client` by one of `methods`; for CONNECT, or a later AUTH."""


class ListenerPolicy(Struct, frozen=True):
    """Requirements and limits of a listener for its clients."""

    allow_anonymous: bool
    transport: str = "tcp"  # value of ClientInfo.transport for its clients
    certificate_is_user: bool = (
        False  # the name in the certificate is the user name, and no password is required
    )
    packet_max_bytes: int | None = None  # after CONNECT; None: the limit of the engine
    # `host:port` of the server that clients are redirected to; None: clients are served here
    redirect_to: str | None = None
    has_certificates: bool = False  # clients may show a certificate, here or to a proxy
    tenant: str = ""  # of all clients of the listener; "": user and certificate decide


class ClientCertificate(Struct, frozen=True):
    """Verified certificate of a client."""

    name: str | None  # as ClientInfo.certificate
    der: bytes | None = None  # None: only a proxy has it

    def __repr__(self) -> str:
        """Without the bytes."""
        return f"ClientCertificate(name={self.name!r})"


def anonymous_allowed(host: str, configured: bool | None) -> bool:
    """True if a listener on `host`, a numeric address, accepts anonymous clients. None: on loopback only."""
    if configured is not None:
        return configured
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Watcher(Protocol):
    """Receiver of client events. Called on the broker's thread after the event; exceptions are logged."""

    def connected(self, client: ClientInfo) -> None:
        """The CONNECT of a client was accepted."""

    def disconnected(self, client: ClientInfo) -> None:
        """The connection of a client has ended; its session may continue."""

    def subscribed(self, client: ClientInfo, topic_filter: str, qos: int) -> None:
        """A subscription was granted, or replaced."""

    def unsubscribed(self, client: ClientInfo, topic_filter: str) -> None:
        """A subscription was ended by UNSUBSCRIBE."""


class PlugIns(Protocol):
    """Plug-ins of another project, loaded and running. Each property is None if no plug-in does that."""

    @property
    def authenticator(self) -> Authenticator | None:
        """Authenticator by the plug-ins."""

    @property
    def access(self) -> AccessList | None:
        """Access list by the plug-ins."""

    @property
    def watcher(self) -> Watcher | None:
        """Receiver of client events for the plug-ins."""

    def delay_refusal(self, answer: Answer) -> Answer:
        """The same answer; a refusal takes as long as that of a plug-in."""

    def close(self) -> None:
        """End the plug-ins. May be called twice, from any thread."""
