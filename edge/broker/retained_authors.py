"""Authors of retained messages: the facts of a publisher by which rules decide.

Owns the format: msgpack, an array of the fields below. Rule for change: a further field goes to the end, with
a default. The engine stores these bytes with a retained message (ringbuf/c/mqtt/quotas.h), and never reads
them.

Texts of clients are cut to TEXT_MAX, so an author is bounded. A rule for a longer client identifier or user
name matches no author.
"""

from __future__ import annotations

import msgspec

from edge.auth.interfaces import ClientInfo

NO_AUTHOR = b""
UNKNOWN_AUTHOR = msgspec.msgpack.encode(None)  # of a tenant, which the message counts for
TEXT_MAX = 256  # characters


class _Author(msgspec.Struct, frozen=True, array_like=True):
    """The information about a client by which rules decide, and its address."""

    client_id: str
    username: str | None
    identity: str | None
    certificate: str | None
    vouched: bool
    address: str
    listener: int
    transport: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Author).decode


def author_of(client_info: ClientInfo) -> bytes:
    """Encode the author of a client's messages."""
    return _encode(  # the fields of _Author, which is an array
        (
            client_info.client_id[:TEXT_MAX],
            client_info.username and client_info.username[:TEXT_MAX],
            client_info.identity and client_info.identity[:TEXT_MAX],
            client_info.certificate and client_info.certificate[:TEXT_MAX],
            client_info.verified,
            client_info.address,
            client_info.listener,
            client_info.transport,
        )
    )


def client_info_of_author(author: bytes) -> ClientInfo | None:
    """The client information of an author; None if the bytes are invalid."""
    try:
        decoded = _decode(author)
    except msgspec.DecodeError:
        return None
    return ClientInfo(
        decoded.client_id,
        decoded.username,
        decoded.address,
        decoded.listener,
        identity=decoded.identity,
        certificate=decoded.certificate,
        transport=decoded.transport,
        verified=decoded.vouched,
    )
