"""Who may do what: asks the authenticator, the access list and the policy of the listener.

Owns none of their rules.  $-topics are the server's: clients never publish there.
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
    """What the broker asks before it does something for a client."""

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
        self.transports: dict[int, TransportFacts] = {}  # by connection; who hands it over puts it here
        self._engine = engine

    def facts(self, connection: int, client_id: str, username: str | None) -> ClientFacts:
        """Who a connection is, by its own words and by what its transport knows."""
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
        """Whether a client that was let in had to prove who it is; else its user name is only a claim."""
        policy = self.policies.get(facts.listener)
        if policy is not None and policy.certificate_is_user:
            return True
        return self.authenticator is not None and not self._may_be_nobody(facts)

    def may_connect(self, facts: ClientFacts, password: bytes | None) -> Answer:
        """Whether the client is let in; never by a user name alone.

        Who gives no user name is let in where the listener lets in anybody.  Elsewhere the authenticator is
        asked, which may know it by its certificate; without one nobody is let in there.
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
        """Whether a client stays: nobody whom an authenticator has let in stays against its word."""
        if self.authenticator is None or not facts.vouched:
            return True
        return self.authenticator.still_welcome(facts)

    def may_publish(self, facts: ClientFacts, topic: str) -> Answer:
        """Whether messages of the client to `topic` are stored."""
        return not topic.startswith("$") and (self.access is None or self.access.may_publish(facts, topic))

    def publishes_all(self, facts: ClientFacts) -> bool:
        """Whether there is nothing to ask about what the client publishes."""
        if isinstance(self.access, Surveyable):
            return self.access.publishes_all(facts)
        return self.access is None

    def may_subscribe(self, facts: ClientFacts, topic_filter: str) -> Answer:
        """Whether the client may have this subscription; of a shared one the filter counts."""
        return self.access is None or self.access.may_subscribe(facts, split_share(topic_filter)[1])

    def may_receive(self, session: Session, topic: str) -> bool:
        """Whether messages of `topic` are for the client of `session`."""
        return self.access is None or self.access.may_receive(session.facts, topic)

    def reach(self, session: Session, topic_filter: str) -> Reach | None:
        """What the client of `session` may receive of `topic_filter`; None: only may_receive() can tell."""
        return self.access.reach(session.facts, topic_filter) if isinstance(self.access, Surveyable) else None

    def peer(self, connection: int) -> str:
        """`127.0.0.1:50123`, for logs and rules."""
        return _words(self._engine.peer(connection))


def _words(peer: Peer | None) -> str:
    if peer is None:
        return ""
    _, family, address, port = peer
    if family == AF_INET:
        return f"{inet_ntop(AF_INET, address[:4])}:{port}"
    return f"[{inet_ntop(AF_INET6, address)}]:{port}" if family == AF_INET6 else ""
