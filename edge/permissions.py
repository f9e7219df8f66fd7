"""Authorization: applies the authenticator, the access list and the policy of the listener.

Owns none of their rules. $-topics belong to the server: clients never publish to them.
"""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_ntop

from edge.access import (
    AccessList,
    Answer,
    Authenticator,
    ClientFacts,
    EnhancedAuthenticator,
    ListenerPolicy,
    Reach,
    Surveyable,
    TransportFacts,
)
from edge.engine import Engine, Peer
from edge.mqtt import split_share
from edge.sessions import Session

__all__ = ["Permissions"]


class Permissions:
    """Decisions that the broker requests before it acts for a client."""

    def __init__(
        self,
        engine: Engine,
        authenticator: Authenticator | None,
        enhanced: EnhancedAuthenticator | None,
        access: AccessList | None,
    ) -> None:
        self.authenticator = authenticator
        self.enhanced = enhanced
        self.access = access
        self.policies: dict[int, ListenerPolicy] = {}  # by listener number
        # by connection; the transport that hands a connection over adds them
        self.transports: dict[int, TransportFacts] = {}
        self._engine = engine

    def facts(self, connection: int, client_id: str, username: str | None) -> ClientFacts:
        """Facts of a client: its own claims, and the facts that its transport knows."""
        peer = self._engine.peer(connection)
        listener = peer[0] if peer is not None else 0
        policy = self.policies.get(listener)
        transport = policy.transport if policy is not None else "tcp"
        address, known = _words(peer), self.transports.get(connection)
        if policy is not None and policy.certificate_is_user:
            username = None if known is None else known.certificate
        if known is None:
            return ClientFacts(client_id, username, address, listener, transport=transport)
        return ClientFacts(
            client_id,
            username,
            address,
            listener,
            transport=known.transport,
            certificate=known.certificate,
            certificate_der=known.certificate_der,
        )

    def vouched(self, facts: ClientFacts) -> bool:
        """True if an accepted client had to prove its identity; otherwise its user name is only a claim."""
        policy = self.policies.get(facts.listener)
        if policy is not None and policy.certificate_is_user:
            return True
        return self.authenticator is not None and not self._may_be_nobody(facts)

    def may_connect(self, facts: ClientFacts, password: bytes | None) -> Answer:
        """True if the client is accepted. A user name without a password never suffices.

        A client without a user name is accepted where the listener allows anonymous clients. Elsewhere the
        authenticator decides; it may know the client by its certificate. Without an authenticator all others
        are refused.
        """
        policy = self.policies.get(facts.listener)
        if policy is not None and policy.certificate_is_user:
            return facts.certificate is not None
        if self.authenticator is None:
            return policy is not None and policy.allow_anonymous
        return self._may_be_nobody(facts) or self.authenticator.authenticate(facts, password)

    def _may_be_nobody(self, facts: ClientFacts) -> bool:
        policy = self.policies.get(facts.listener)
        return facts.username is None and policy is not None and policy.allow_anonymous

    def still_welcome(self, facts: ClientFacts) -> bool:
        """True if a connected client may stay. An authenticated client must still satisfy the
        authenticator.
        """
        if self.authenticator is None or not facts.vouched:
            return True
        return self.authenticator.still_welcome(facts)

    def may_publish(self, facts: ClientFacts, topic: str) -> Answer:
        """True if messages of the client to `topic` are stored."""
        return not topic.startswith("$") and (self.access is None or self.access.may_publish(facts, topic))

    def publishes_all(self, facts: ClientFacts) -> bool:
        """True if every message of the client is allowed without a request to the access list."""
        if isinstance(self.access, Surveyable):
            return self.access.publishes_all(facts)
        return self.access is None

    def may_subscribe(self, facts: ClientFacts, topic_filter: str) -> Answer:
        """True if the client may have this subscription. For a shared subscription the inner
        filter counts.
        """
        return self.access is None or self.access.may_subscribe(facts, split_share(topic_filter)[1])

    def may_receive(self, session: Session, topic: str) -> bool:
        """True if the client of `session` may receive messages of `topic`."""
        return self.access is None or self.access.may_receive(session.facts, topic)

    def reach(self, session: Session, topic_filter: str) -> Reach | None:
        """Filters that the client of `session` may receive of `topic_filter`; None: only may_receive() can
        decide.
        """
        return self.access.reach(session.facts, topic_filter) if isinstance(self.access, Surveyable) else None

    def peer(self, connection: int) -> str:
        """Peer address for logs and rules: `127.0.0.1:50123`."""
        return _words(self._engine.peer(connection))


def _words(peer: Peer | None) -> str:
    if peer is None:
        return ""
    _, family, address, port = peer
    if family == AF_INET:
        return f"{inet_ntop(AF_INET, address[:4])}:{port}"
    return f"[{inet_ntop(AF_INET6, address)}]:{port}" if family == AF_INET6 else ""
