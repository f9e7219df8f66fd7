"""Authorization: applies the authenticator, the access list, the policy of the listener and the tenants.

Owns none of their rules. $-topics belong to the server: clients never publish to them.

Topics, filters and client identifiers are full names here (edge.auth.tenant_names); authenticator and access
list get visible names. A name outside of the name space of a client is denied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from edge.auth.interfaces import (
    AccessList,
    AllowedFilters,
    Answer,
    Authenticator,
    ClientCertificate,
    ClientInfo,
    EnhancedAuthenticator,
    ListenerPolicy,
    Surveyable,
)
from edge.auth.tenant_names import is_of_tenants, prefix_of, tenant_of
from edge.auth.tenants import NO_TENANTS, Tenants
from edge.broker.sessions import Session
from edge.engine.engine import Engine
from edge.mqtt import split_share

NO_PEER = (0, "")


class Authorization:
    """Decisions that the broker requests before it acts for a client."""

    def __init__(
        self,
        engine: Engine,
        authenticator: Authenticator | None,
        enhanced: EnhancedAuthenticator | None,
        access: AccessList | None,
        tenants: Tenants = NO_TENANTS,
    ) -> None:
        self.authenticator = authenticator
        self.tenants = tenants
        self.enhanced = enhanced
        self.access = access
        self.policies: dict[int, ListenerPolicy] = {}  # by listener number
        self.certificate_of: Callable[[int], ClientCertificate | None] = lambda connection: None
        self._engine = engine

    @property
    def access(self) -> AccessList | None:
        """Rights of topics; None: every client may publish and receive everything."""
        return self._access

    @access.setter
    def access(self, access: AccessList | None) -> None:
        self._access, self._survey = access, _survey_of(access)
        # True if every client without an identity may publish and receive every topic
        self.anonymous_may_all = access is None if self._survey is None else self._survey.anonymous_may_all

    def changed_users(self, before: AccessList | None) -> frozenset[str | None] | None:
        """Identities whose rights may differ from those by `before`; None: perhaps all."""
        return None if self._survey is None else self._survey.changed_users(before)

    def client_info_of(self, connection: int, client_id: str, username: str | None) -> ClientInfo:
        """Facts of a client: its own claims, and the facts that its transport knows."""
        listener, address = self._engine.peer(connection) or NO_PEER
        policy = self.policies.get(listener)
        transport = policy.transport if policy is not None else "tcp"
        shown = self.certificate_of(connection) if policy is not None and policy.has_certificates else None
        if policy is not None and policy.certificate_is_user:
            username = None if shown is None else shown.name
        if shown is None:
            return ClientInfo(client_id, username, address, listener, transport=transport)
        return ClientInfo(
            client_id,
            username,
            address,
            listener,
            transport=transport,
            certificate=shown.name,
            certificate_der=shown.der,
        )

    def plain_transport(self, listener: int) -> str | None:
        """Transport of a listener where each client without a user name is accepted without a request, counts
        for its address, has no tenant, and may publish and receive every topic; None if that is not certain.
        """
        policy = self.policies.get(listener)
        if (
            policy is None
            or not policy.allow_anonymous
            or policy.redirect_to is not None
            or policy.tenant
            or policy.certificate_is_user
            or policy.has_certificates
            or policy.transport == "unix"
            or not self.anonymous_may_all
        ):
            return None
        return policy.transport

    def is_verified(self, client_info: ClientInfo) -> bool:
        """True if an accepted client had to prove its identity; otherwise its user name is only a claim."""
        policy = self.policies.get(client_info.listener)
        if policy is not None and policy.certificate_is_user:
            return True
        return self.authenticator is not None and not self._is_anonymous(client_info)

    def may_connect(self, client_info: ClientInfo, password: bytes | None) -> Answer:
        """True if the client is accepted. A user name without a password never suffices.

        A client without a user name is accepted where the listener allows anonymous clients. Elsewhere the
        authenticator decides; it may know the client by its certificate. Without an authenticator all others
        are refused.
        """
        policy = self.policies.get(client_info.listener)
        if policy is not None and policy.certificate_is_user:
            return client_info.certificate is not None
        if self.authenticator is None:
            return policy is not None and policy.allow_anonymous
        return self._is_anonymous(client_info) or self.authenticator.authenticate(client_info, password)

    def _is_anonymous(self, client_info: ClientInfo) -> bool:
        policy = self.policies.get(client_info.listener)
        return client_info.username is None and policy is not None and policy.allow_anonymous

    def is_still_authorized(self, client_info: ClientInfo) -> bool:
        """True if a connected client may stay: an authenticated one must still satisfy the authenticator."""
        if self.authenticator is None or not client_info.verified:
            return True
        return self.authenticator.is_still_authorized(client_info.visible)

    def in_tenant(self, client_info: ClientInfo) -> ClientInfo | None:
        """The accepted client with its full identifier; None: two tenants are named for it."""
        tenant = self._tenant_of(client_info)
        if not tenant:
            return None if tenant is None else client_info
        return replace(client_info, client_id=prefix_of(tenant) + client_info.client_id)

    def is_in_its_tenant(self, client_info: ClientInfo) -> bool:
        """True if an accepted client still belongs to the tenant of its full identifier."""
        tenant = self._tenant_of(client_info)
        return tenant is not None and prefix_of(tenant) == client_info.prefix

    def _tenant_of(self, client_info: ClientInfo) -> str | None:
        policy = self.policies.get(client_info.listener)
        return self.tenants.of(client_info, policy.tenant if policy is not None else "")

    def tenant_number(self, client_info: ClientInfo) -> int:
        """Number of the tenant of an accepted client; 0: no tenant. Raises LookupError: not configured."""
        prefix = client_info.prefix
        number = self.tenants.number(tenant_of(prefix))
        if prefix and not number:
            raise LookupError(f"no tenant of {prefix}")
        return number

    def may_publish(self, client_info: ClientInfo, topic: str) -> Answer:
        """True if messages of the client to `topic` are stored."""
        visible = _visible_name(client_info, topic)
        return visible[:1] not in ("", "$") and (
            self.access is None or self.access.may_publish(client_info.visible, visible)
        )

    def publishes_all(self, client_info: ClientInfo) -> bool:
        """True if every message of the client is allowed without a request to the access list."""
        if self._survey is not None:
            return self._survey.publishes_all(client_info.visible)
        return self._access is None

    def publish_rules(self, client_info: ClientInfo) -> bytes | None:
        """Rules by which the engine decides about messages of the client; None: the access list decides."""
        return None if self._survey is None else self._survey.publish_rules(client_info.visible)

    def may_subscribe(self, client_info: ClientInfo, topic_filter: str) -> Answer:
        """True if the client may have this subscription; for a shared one the inner filter counts.

        $SYS has no part for tenants: their clients have no filters that begin with $.
        """
        visible = _visible_name(client_info, split_share(topic_filter)[1])
        if not visible or (client_info.prefix and visible[0] == "$"):
            return False
        return self.access is None or self.access.may_subscribe(client_info.visible, visible)

    def may_receive(self, session: Session, topic: str) -> bool:
        """True if the client of `session` may receive messages of `topic`."""
        client_info = session.client_info
        visible = _visible_name(client_info, topic)
        return visible != "" and (
            self.access is None or self.access.may_receive(session.visible_client, visible)
        )

    def allowed_filters(self, session: Session, topic_filter: str) -> AllowedFilters | None:
        """Filters of `topic_filter` that `session` may receive; None: only may_receive() can decide."""
        survey, client_info = self._survey, session.client_info
        if survey is None:
            return None
        prefix = client_info.prefix
        if not prefix:
            return survey.allowed_filters(client_info, topic_filter)
        allowed = survey.allowed_filters(session.visible_client, _visible_name(client_info, topic_filter))
        return allowed and AllowedFilters(tuple(prefix + one for one in allowed.filters), allowed.certain)

    def receives_all(self, session: Session) -> bool:
        """True if the client of `session` may receive every topic, except those that begin with $."""
        if self._survey is not None:
            return self._survey.receives_all(session.visible_client)
        return self._access is None

    def receive_rules(self, session: Session) -> tuple[bytes, bytes] | None:
        """Rules, and the prefix of names, by which the engine decides as may_receive(); None: it cannot."""
        rules = None if self._survey is None else self._survey.receive_rules(session.visible_client)
        return None if rules is None else (rules, session.client_info.prefix.encode())

    def peer(self, connection: int) -> str:
        """Peer address for logs and rules: `127.0.0.1:50123`."""
        return (self._engine.peer(connection) or NO_PEER)[1]


def _visible_name(client_info: ClientInfo, full_name: str) -> str:
    """A topic, or a filter without its group, as the client sees it; "": outside of its name space."""
    prefix = client_info.prefix
    if not prefix:
        return "" if is_of_tenants(full_name) else full_name
    return full_name[len(prefix) :] if full_name.startswith(prefix) else ""


def _survey_of(access: AccessList | None) -> Surveyable | None:
    """The access list, if it decides for many topics at once.

    From Python 3.12 on, isinstance() of a protocol would import inspect.
    """
    return cast(Surveyable, access) if hasattr(access, "publish_rules") else None
