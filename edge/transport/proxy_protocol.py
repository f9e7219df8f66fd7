"""PROXY protocol version 2, without I/O: the address of the client behind a proxy.

    signature 12 | version and command 1 | family 1 | length 2 | addresses | TLV (type 1, length 2, value) ...

All big-endian. The C loop reads a header to its last byte (ringbuf/c/mqtt/transport/proxy_layer.c).

A client that reaches such a listener directly may claim any address: use it behind a proxy only.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

from edge.transport.errors import HandshakeError
from ringbuf import crc32c

FIXED_BYTES = 16
LOCAL, PROXY = 0, 1
UNSPECIFIED, STREAM = 0, 1
AF_UNSPEC, AF_INET, AF_INET6, AF_UNIX = 0, 1, 2, 3
ADDRESS_BYTES = {AF_UNSPEC: 0, AF_INET: 12, AF_INET6: 36, AF_UNIX: 216}
TLV_CRC32C, TLV_SSL, TLV_SSL_CN = 0x03, 0x20, 0x22
CRC_BYTES = 4
MAPPED = bytes(10) + b"\xff\xff"  # of an IPv6 address: an IPv4 address follows
SSL_CLIENT_CERTIFICATE = 0x02 | 0x04  # shown on this connection, or on an earlier one of its session
SSL_HEAD = struct.Struct(">BI")


class ProxiedAddress(Struct, frozen=True):
    """The client that connected to the proxy. `family` 0: the proxy itself (a health check)."""

    family: int = 0  # socket.AF_*
    address: bytes = b""
    port: int = 0
    certificate: str | None = None  # common name of a client certificate that the proxy has verified


def source_in(header: bytes) -> ProxiedAddress:
    """Source in a complete header, of which the C loop has checked signature and length.

    Raises HandshakeError.
    """
    version, command = header[12] >> 4, header[12] & 15
    family, kind = header[13] >> 4, header[13] & 15
    if version != 2 or command not in {LOCAL, PROXY}:
        raise HandshakeError(f"PROXY header of version {version}, command {command}")
    if command == LOCAL:
        return ProxiedAddress()
    start = FIXED_BYTES + ADDRESS_BYTES.get(family, 0)
    if family not in ADDRESS_BYTES or kind not in {UNSPECIFIED, STREAM} or start > len(header):
        length = len(header) - FIXED_BYTES
        raise HandshakeError(f"PROXY header for family {family}, protocol {kind} with {length} bytes")
    at = header[FIXED_BYTES:start]
    _require_checksum(header, start)
    certificate = _certificate(header[start:])
    if kind != STREAM or family == AF_UNSPEC:
        return ProxiedAddress(certificate=certificate)
    if family == AF_INET:
        return ProxiedAddress(socket.AF_INET, at[:4], int.from_bytes(at[8:10]), certificate)
    if family == AF_INET6 and at.startswith(MAPPED):  # as a proxy for both families may write it
        return ProxiedAddress(socket.AF_INET, at[12:16], int.from_bytes(at[32:34]), certificate)
    if family == AF_INET6:
        return ProxiedAddress(socket.AF_INET6, at[:16], int.from_bytes(at[32:34]), certificate)
    return ProxiedAddress(socket.AF_UNIX, certificate=certificate)


def _require_checksum(header: bytes, start: int) -> None:
    """Verify the checksum of the whole header, if the proxy sent one. `start`: of the TLVs."""
    at = start
    for kind, value in _values(header[start:]):
        end = at + 3 + len(value)
        if kind == TLV_CRC32C:
            blank = header[: end - len(value)] + bytes(len(value)) + header[end:]
            if len(value) != CRC_BYTES or int.from_bytes(value) != crc32c(blank):
                raise HandshakeError("PROXY header with a wrong checksum")
        at = end


def _certificate(data: bytes) -> str | None:
    """Common name in the TLS value, if there was a client certificate and it was verified."""
    common_name = None
    for kind, value in _values(data):
        if kind != TLV_SSL:
            continue
        if len(value) < SSL_HEAD.size:
            raise HandshakeError(f"PROXY header whose TLS part has {len(value)} bytes")
        client, verify = SSL_HEAD.unpack_from(value)
        names = [name for inner, name in _values(value[SSL_HEAD.size :]) if inner == TLV_SSL_CN]
        if client & SSL_CLIENT_CERTIFICATE and verify == 0 and names:
            try:
                common_name = names[0].decode()
            except UnicodeDecodeError:
                raise HandshakeError("PROXY header with a common name that is no UTF-8") from None
    return common_name or None


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3])
        if at + 3 > len(data) or end > len(data):
            raise HandshakeError("PROXY header with a part that is longer than the header")
        yield data[at], data[at + 3 : end]
        at = end
