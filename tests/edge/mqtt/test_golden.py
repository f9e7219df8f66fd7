"""Bytes written by hand from the specifications, against the codec in both directions."""

import pytest

from edge.mqtt import ConnAck, Connect, Packet, ProtocolError, Version, encode
from edge.mqtt.connection import Connection, Role
from tests.support.frames import packets_of
from tests.support.mqtt_vectors import Vector, vectors

VECTORS = vectors()
GOOD = [vector for vector in VECTORS if vector.packet is not None]
BAD = [vector for vector in VECTORS if vector.packet is None]


def decode(frame: bytes, version: Version) -> Packet:
    [packet] = packets_of(frame, version)
    return packet


@pytest.mark.parametrize("vector", GOOD, ids=str)
def test_bytes_are_read_as_the_packet_they_are(vector: Vector) -> None:
    assert decode(vector.frame, vector.version) == vector.packet


@pytest.mark.parametrize("vector", [v for v in GOOD if not v.one_way], ids=str)
def test_a_packet_is_written_as_its_bytes(vector: Vector) -> None:
    assert vector.packet is not None
    assert encode(vector.packet, vector.version) == vector.frame


@pytest.mark.parametrize("vector", [v for v in GOOD if v.one_way], ids=str)
def test_a_packet_with_several_forms_is_written_in_one_that_reads_back(vector: Vector) -> None:
    assert vector.packet is not None
    written = encode(vector.packet, vector.version)
    assert written != vector.frame
    assert decode(written, vector.version) == vector.packet


@pytest.mark.parametrize("vector", BAD, ids=str)
def test_what_the_specification_forbids_is_refused_by_its_number(vector: Vector) -> None:
    with pytest.raises(ProtocolError) as refused:
        _receive(vector)
    assert refused.value.statement == f"[{vector.statement}]"
    assert str(refused.value).startswith(refused.value.statement)
    assert refused.value.reason_code.failed


def _receive(vector: Vector) -> None:
    """As a connection of that version would: lengths are its matter, the rest is the codec's."""
    connect = Connect("c", version=vector.version)
    to_server = vector.frame[0] >> 4 in {1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 0}
    connection = Connection(Role.SERVER if to_server else Role.CLIENT)
    if vector.frame[0] >> 4 not in {1, 2}:
        _open(connection, connect)
    elif not to_server:
        connection.send(connect)
    connection.receive_data(vector.frame)
    assert connection.next_packet() is None


def _open(connection: Connection, connect: Connect) -> None:
    if connection.role is Role.SERVER:
        connection.receive_data(encode(connect))
        assert connection.next_packet() == connect
        connection.send(ConnAck())
    else:
        connection.send(connect)
        connection.receive_data(encode(ConnAck(), connect.version))
        assert connection.next_packet() == ConnAck()


def test_there_are_vectors_for_every_packet_type_and_most_statements() -> None:
    types = {(vector.version, vector.frame[0] >> 4) for vector in GOOD}
    assert types >= {(Version.V311, number) for number in range(1, 15)}
    assert types >= {(Version.V5, number) for number in range(1, 16)}
    assert sum(vector.version is Version.V311 for vector in VECTORS) >= 150
    assert len({vector.statement for vector in BAD if vector.version is Version.V311}) >= 25
