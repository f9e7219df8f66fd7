"""CONNECT as the C engine decodes it (ringbuf/c/mqtt/in/connect.c), and its translation to the packet."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, TypeAlias

from edge.mqtt import Connect, Properties, Version, Will
from edge.mqtt.properties import NO_PROPERTIES

PROPERTIES_KEPT = 64  # most clients of a fleet have the same ones

# topic, payload, QoS, RETAIN
_PlainWill: TypeAlias = tuple[str, bytes, int, bool]
# Session Expiry Interval, Receive Maximum, Maximum Packet Size, Topic Alias Maximum, Request Response
# Information, Request Problem Information
_PlainProperties: TypeAlias = tuple[int | None, int | None, int | None, int | None, int | None, int | None]
# client identifier, clean start, Keep Alive, user name, password, will, version, properties
PlainConnect: TypeAlias = tuple[
    str, bool, int, str | None, bytes | None, _PlainWill | None, int, _PlainProperties | None
]


class ConnectEngine(Protocol):
    """The part of edge.engine.engine.Engine that decodes CONNECT."""

    def plain_connect(self, packet: bytes, /) -> PlainConnect | None:
        """Decode a whole CONNECT packet of MQTT 3.1.1 or 5. None if it is invalid, or not plain: its
        properties are numbers, and its will has none.
        """

    def accept(
        self,
        connection: int,
        session: int,
        answer: bytes,
        after_journal: bool,
        version: int,
        idle_max_ms: int,
        publishes_all: bool,
        receives_all: bool,
        window: int,
        packet_max_bytes: int,
        alias_max: int,
        tenant: int,
        /,
    ) -> bool:
        """Send CONNACK, the `answer`, and deliver the records of a session to this connection from now on.
        False: the connection has ended, or the session has another one.

        `after_journal`: as Engine.send_after_journal(). `publishes_all`, `receives_all`: the client has the
        right to every topic. `window`: QoS 1 and 2 messages in flight, at least 1. `packet_max_bytes`:
        Maximum Packet Size, 0: none. `alias_max`: topic aliases that the broker may use. `tenant`: number of
        the client's tenant; 0: none.
        """

    def drop_unconfirmed(self, connection: int, /) -> bool:
        """Drop the output of a client whose CONNACK still waits for the journal's log.
        False: the client has its CONNACK, or the connection has ended.
        """

    def accept_new(
        self,
        connection: int,
        answer: bytes,
        author: bytes,
        version: int,
        idle_max_ms: int,
        window: int,
        queue_max: int,
        drop_newest: bool,
        /,
    ) -> int:
        """As Engine.session_open() and accept(), for a client that counts for its address, has the right to
        every topic, no tenant, and a session that ends with the connection. Returns the session. 0: the
        connection has ended, or the address may have no further one; then nothing has happened, and nothing
        is counted.
        """


def connect_of(plain: PlainConnect) -> Connect:
    """The packet with these fields."""
    client_id, clean_start, keep_alive_s, username, password, will, version, properties = plain
    return Connect(
        client_id,
        clean_start,
        keep_alive_s,
        username,
        password,
        None if will is None else Will(*will),
        VERSIONS[version],
        NO_PROPERTIES if properties is None else _properties(properties),
    )


VERSIONS = {int(version): version for version in Version}


@lru_cache(PROPERTIES_KEPT)
def _properties(values: _PlainProperties) -> Properties:
    expiry_s, receive_max, packet_max_bytes, alias_max, response, problem = values
    return Properties(
        session_expiry_interval_s=expiry_s,
        receive_maximum=receive_max,
        maximum_packet_size_bytes=packet_max_bytes,
        topic_alias_maximum=alias_max,
        request_response_information=response,
        request_problem_information=problem,
    )
