"""Plain CONNECT: accepts the usual client of a fleet in one step, with one call of the engine.

Plain: a new session that ends with its connection, for a client without user name, will and properties, at a
listener for anonymous clients without a tenant, where it may publish and receive everything. ConnectHandler
decides about all other clients, and about a plain one that a limit refuses.

Invariant: the answer and the state of the broker are those that ConnectHandler would give
(tests/edge/broker/test_plain_connect.py compares both).
"""

from __future__ import annotations

from collections.abc import Callable

from edge.auth.interfaces import ClientInfo
from edge.auth.tenant_names import MARK
from edge.broker.authorization import NO_PEER, Authorization
from edge.broker.broker_limits import BrokerLimits
from edge.broker.connections import ConnectedClient, Connections
from edge.broker.retained_authors import author_of
from edge.broker.sessions import Sessions
from edge.engine.connect_calls import VERSIONS, PlainConnect
from edge.engine.engine import Engine
from edge.mqtt import Version

# A longer identifier is measured by ConnectHandler: in bytes, for client_id_max_bytes and the journal.
CLIENT_ID_MAX = 64
UTF8_MAX = 4  # bytes of a character

# version, listener, requested Keep Alive, granted Keep Alive -> CONNACK
Answer = Callable[[Version, int, int, int], bytes]


class PlainConnects:
    """Accepts plain CONNECTs. `answer` returns the CONNACK."""

    def __init__(
        self,
        engine: Engine,
        clients: Connections,
        sessions: Sessions,
        permissions: Authorization,
        answer: Answer,
    ) -> None:
        self._engine = engine
        self._clients = clients
        self._sessions = sessions
        self._permissions = permissions
        self._answer = answer

    def accept(self, connection: int, plain: PlainConnect, limits: BrokerLimits) -> bool:
        """Accept the client. False: nothing has happened, and ConnectHandler decides."""
        client_id, clean_start, wanted_s, username, _, will, level, properties = plain
        if (
            username is not None
            or will is not None
            or properties is not None
            or not clean_start
            or client_id.startswith(MARK)
            or not 0 < len(client_id) <= min(CLIENT_ID_MAX, limits.client_id_max_bytes // UTF8_MAX)
            or self._sessions.get(client_id) is not None
        ):
            return False
        listener, address = self._engine.peer(connection) or NO_PEER
        transport = self._permissions.plain_transport(listener)
        if transport is None:
            return False
        client_info = ClientInfo(client_id, None, address, listener, None, None, transport)
        version, queues = VERSIONS[level], limits.sessions
        keep_alive_s = limits.keep_alive_s(version, wanted_s)
        handle = self._engine.accept_new(
            connection,
            self._answer(version, listener, wanted_s, keep_alive_s),
            author_of(client_info),
            level,
            limits.idle_max_ms(keep_alive_s),
            queues.in_flight_max,
            queues.queued_records_max,
            queues.drop_newest,
        )
        if handle:
            session = self._sessions.opened(client_info, handle)
            client = ConnectedClient(
                connection, client_info, version, session, None, keep_alive_s=keep_alive_s
            )
            self._clients.register(client)
        return handle != 0
