"""Host names: the values of an HTTP Host header that an address of this machine may have.

A web page can resolve its own name to this machine (DNS rebinding). The browser then treats the page and the
broker as one host, and only the Host header shows that the name is not the broker's.

    bound to loopback          localhost, 127.0.0.0/8, ::1
    bound to another address   that address, and the machine's host name
    bound to all addresses     any address literal, localhost, and the machine's host name

In addition, each accepts the name that it is bound to, and the configured names; "*" is any name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit


def host_of(header: str) -> str:
    """The name or address of a Host header, without the port; "" if it has none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").removesuffix(".")
    except ValueError:  # not an address
        return ""


class HostNames:
    """The names for a listener that is bound to `bound`, an address or a name; `names` are configured."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        self._bound = _address(bound)
        self._every = "*" in names
        self._names = {name.lower().removesuffix(".") for name in (bound, *names)}
        local = bound == "localhost" or (self._bound is not None and self._bound.is_loopback)
        self._local = local or (self._bound is not None and self._bound.is_unspecified)
        if not local:
            machine = socket.gethostname().lower()
            short = machine.partition(".")[0]
            self._names |= {machine, short, f"{short}.local"}  # .local: multicast DNS

    def accept(self, host: str) -> bool:
        """True if `host`, of host_of(), may stand for the listener."""
        address = _address(host)
        if self._every or host in self._names:
            return bool(host)
        if address is None:
            return host == "localhost" and self._local
        if self._bound is not None and self._bound.is_unspecified:
            return True
        return address == self._bound or (self._local and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
