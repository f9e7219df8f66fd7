"""Frames of MQTT: control packets in bytes that a socket or the engine gave."""

from edge.mqtt import Packet, Version, decode_packet
from edge.mqtt.primitives import decode_variable_integer


def first_frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """First byte and body of the first packet, and the bytes after it; None if it is not whole."""
    length = decode_variable_integer(data, 1, len(data)) if data else None
    if length is None or len(data) < 1 + sum(length):
        return None
    head, end = 1 + length[1], 1 + sum(length)
    return data[0], data[head:end], data[end:]


def first_packet(data: bytes, version: Version = Version.V311) -> tuple[Packet, bytes] | None:
    """The first packet, and the bytes after it; None if it is not whole."""
    frame = first_frame(data)
    return frame and (decode_packet(frame[0], frame[1], version), frame[2])


def packets_of(data: bytes, version: Version = Version.V311) -> list[Packet]:
    """Every packet in `data`, which must end with one."""
    found = []
    while data:
        first = first_packet(data, version)
        assert first is not None, f"half a packet: {data!r}"
        packet, data = first
        found.append(packet)
    return found
