"""CONNECT as the C engine decodes it (ringbuf/c/mqtt/in/connect.c), and its translation to the packet."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, TypeAlias

from edge.mqtt import Connect, Properties, Version, Will
from edge.mqtt.properties import NO_PROPERTIES

__all__ = ["ConnectEngine", "PlainConnect", "connect_of"]

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
        _VERSIONS[version],
        NO_PROPERTIES if properties is None else _properties(properties),
    )


_VERSIONS = {int(version): version for version in Version}


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
