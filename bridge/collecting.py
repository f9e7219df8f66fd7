"""What a bridge and a collector say to each other, over ZeroMQ: DEALER here, ROUTER there.

A message is a head in msgpack, a map, and for put and nothing else one frame more: the drained file.

    bridge                                     collector
    {kind: hello, edge, holder, version}       {kind: welcome, credit_bytes}
    {kind: put, edge, holder, name} + file     {kind: stored, name}
    {kind: names, edge, holder, prefix, after} {kind: names, names: [...], more}    NAMES_MOST at a time
    {kind: bye, edge, holder}                  nothing
    any but bye                                {kind: refused, name, text, hint, final}

Credit: a bridge has at most credit_bytes of files under way; one that is larger goes alone.  stored is said
when the file is on the collector's disk (or in its store), under its name, once.  `holder` is the machine
that drains the edge: another one is refused until nothing has been heard for HOLD_S.  `final`: trying again
cannot help.

Rule for change: heads may gain keys, which the other side ignores; any other change raises VERSION.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import msgpack

__all__ = ["CREDIT_BYTES", "HOLD_S", "NAMES_MOST", "VERSION", "is_private", "pack", "unpack"]

VERSION = 1
CREDIT_BYTES = 64 << 20
HOLD_S = 90.0
NAMES_MOST = 10_000
HEAD_MOST_BYTES = 4 << 20


def pack(**head: Any) -> bytes:
    """A head."""
    packed: bytes = msgpack.packb(head)
    return packed


def unpack(data: bytes | memoryview) -> dict[str, Any] | None:
    """The head in `data`; None: it is none."""
    if len(data) > HEAD_MOST_BYTES:
        return None
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("kind"), str) else None


def is_private(endpoint: str) -> bool:
    """Whether what goes over `endpoint` stays on this machine."""
    transport, _, rest = endpoint.partition("://")
    if transport in {"ipc", "inproc"}:
        return True
    try:
        return ipaddress.ip_address(rest.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return rest.rpartition(":")[0] == "localhost"
