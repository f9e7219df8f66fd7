"""Limits of the MQTT engine, as Python sets them. Owns the defaults, which the configuration has too."""

from __future__ import annotations

from msgspec import Struct

from edge.engine.codes import TABLES

KIB, MIB = 1 << 10, 1 << 20


class EngineLimits(Struct, frozen=True):
    """Bounds of the engine. Fields of the configuration file have the same names and defaults there."""

    connections_max: int = 16_384
    connect_timeout_ms: int = 5_000
    connect_max_bytes: int = 384 * KIB
    packet_max_bytes: int = MIB
    control_max_bytes: int = MIB  # of packets other than PUBLISH, after CONNECT was accepted
    topics_max: int = 1_000_000
    topics_max_bytes: int = 256 * MIB  # of all their names; a level beyond the eighth counts 128 bytes
    retained_max: int = 100_000
    receive_max: int = 1_024  # of one client: unfinished QoS 1 and 2 exchanges, 1..65535
    alias_max: int = 64  # topic aliases that one MQTT 5 client may set, 0..65535
    retained_max_bytes: int = 64 * MIB
    queues_max_bytes: int = 256 * MIB  # positions waiting for clients, of all of them, 15.1 bytes each
    unfinished_max_bytes: int = 256 * MIB  # memory of incomplete packets, of all connections
    spill_max_bytes: int = 64 * MIB  # copies of overwritten records that sessions wait for
    sessions_max: int = 16_384  # sessions that outlast their connection, connected or not
    filters_max_bytes: int = (
        256 * MIB
    )  # of the subscriptions of all sessions, as edge.broker.router counts them
    qos_max: int = 2  # of PUBLISH from clients
    payload_max_bytes: int = 0  # of PUBLISH from clients; 0: only packet_max_bytes bounds it
    in_flight_max_bytes: int = 0  # QoS 1 and 2, to one client; 0: only the in-flight window bounds it
    share_percent: int = 100  # of each table, for an owner that is the only one; 100: no quotas
    # Of one user, of one address: by Table; 0: share_percent decides.
    owner_max: tuple[tuple[int, ...], ...] = ((0,) * TABLES,) * 2
