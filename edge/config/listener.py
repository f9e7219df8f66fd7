"""Settings of one MQTT port, in [[listener]].

Owns the settings of a listener; edge/config/schema.py has the rest of the configuration, and the defaults of
the limits that a listener does not set itself.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KIB, MIB = 1 << 10, 1 << 20


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS of a listener, in [listener.tls]. Files are PEM, and read again on SIGHUP. A path may begin with
    $CREDENTIALS_DIRECTORY/, the directory of the credentials that systemd loads.
    """

    certificate_file: Path
    """Certificate of the broker, followed by the certificates of the authorities between it and the root."""
    key_file: Path
    """Private key of the certificate, not encrypted."""
    client_ca_file: Path | None = None
    """Certificates of the authorities that sign the certificates of clients (mutual TLS). Not set: clients
    need no certificate."""
    require_client_certificate: bool = True
    """Refuse clients without a certificate, if client_ca_file is set."""
    version_min: Literal["1.2", "1.3"] = "1.2"
    """Lowest TLS version."""


class Listener(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MQTT port or Unix socket, in [[listener]]."""

    host: Annotated[str, Meta(pattern=r"^\S+\Z", description="an address or a name")] = "127.0.0.1"
    """Address to bind. "::" is every address of the machine, IPv4 included."""
    port: Annotated[int, Meta(ge=0, le=65535, description="0 takes a free one")] = 1883
    """Port to bind."""
    path: Path | None = None
    """Unix socket to bind in place of host and port, mode 0660, for processes of this machine."""
    transport: Literal["mqtt", "websocket"] = "mqtt"
    """MQTT over a plain byte stream or over WebSocket."""
    tls: Tls | None = None
    """TLS. Not set: connections are not encrypted."""
    proxy_protocol: bool = False
    """Expect a PROXY header of version 2 at the start of each connection; it gives the address of the client.
    Let only the proxy reach this port: any other client could forge the header."""
    certificate_is_user: bool = False
    """Use the name in a client's certificate as its user name, without a password, as Mosquitto's
    use_identity_as_username. With proxy_protocol: the name that the PROXY header gives."""
    allow_anonymous: bool | None = None
    """Accept clients without a user name. Not set: accepted on loopback and Unix sockets if no client has to
    log in. A port that other machines reach needs true here, if clients shall connect without a login."""
    redirect_to: Annotated[str, Meta(pattern=r"^\S+\Z", description="host:port")] | None = None
    """Serve no client here: MQTT 5 clients get the reason "use another server" with this address, other
    clients "server unavailable"."""
    origins: tuple[Annotated[str, Meta(pattern=r"^(https?://[^/\s]+|null|\*)\Z")], ...] = ()
    """Web pages that may connect over WebSocket, such as "https://panel.example", or "*". Empty: pages of
    the host that they connect to. Programs, which send no origin, may always connect."""
    host_names: tuple[Annotated[str, Meta(pattern=r"^([A-Za-z0-9._:\[\]-]{1,253}|\*)\Z")], ...] = ()
    """Host names under which web pages reach this listener, in addition to its address and the name of the
    machine, such as the name of a proxy.  "*": any name; then a page can reach the listener by DNS
    rebinding."""
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Connections of this listener. Not set: only limits.connections_max holds."""
    connect_max_bytes: Annotated[int, Meta(ge=256, le=MIB)] | None = None
    """Longest CONNECT packet on this listener. Not set: limits.connect_max_bytes."""
    packet_max_bytes: Annotated[int, Meta(ge=256, le=256 * MIB)] | None = None
    """Longest MQTT packet on this listener. Not set: limits.packet_max_bytes."""
    publish_rate_max: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """PUBLISH packets of one client per second, and in one burst. A faster client is read more slowly. Not
    set: no limit."""
    tenant: str = ""
    """Name of the [[tenant]] of all clients of this listener. Users and certificates of other tenants are
    refused here. Empty: user and certificate decide."""

    @property
    def scheme(self) -> str:
        """Scheme of its URL and value of ClientInfo.transport: tcp, tls, ws, wss or unix."""
        if self.path is not None:
            return "unix"
        if self.transport == "websocket":
            return "ws" if self.tls is None else "wss"
        return "tcp" if self.tls is None else "tls"


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
