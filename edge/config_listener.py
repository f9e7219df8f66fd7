"""Settings of one MQTT port, in [[listener]], and the rules between them.

Owns the settings of a listener; edge/config.py has the rest of the configuration, and the defaults of the
limits that a listener does not set itself.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from edge.config import Config
    from edge.config_reader import Problems
    from edge.toml_lines import Path as Key

__all__ = ["LISTENERS_MAX", "Listener", "Tls", "is_loopback", "listeners_are_safe", "listeners_make_sense"]

KIB, MIB = 1 << 10, 1 << 20
LISTENERS_MAX = 16
UNIX_PATH_MAX_BYTES = 107  # room in sockaddr_un


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS of a listener, in [listener.tls]. Files are PEM, and read again on SIGHUP."""

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

    @property
    def scheme(self) -> str:
        """Scheme of its URL and value of ClientFacts.transport: tcp, tls, ws, wss or unix."""
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


def listeners_are_safe(config: Config, problems: Problems) -> None:
    """A listener that other machines reach requires a login, unless it has `allow_anonymous = true`."""
    for index, listener in enumerate(config.listener):
        path: Key = ("listener", index, "host")
        inside = listener.path is not None or is_loopback(listener.host)
        if inside or listener.allow_anonymous or listener.certificate_is_user or problems.blames(path):
            continue
        if config.auth.asks_names:
            continue
        problems.add(
            path,
            f"{listener.host} is reached from other machines, and nobody has to log in; write "
            'host = "127.0.0.1", name a password_file in [auth], or '
            "add the line allow_anonymous = true to this [[listener]]",
        )


def listeners_make_sense(config: Config, problems: Problems) -> None:
    """Settings of a listener do not contradict each other; listeners are at most 16."""
    if len(config.listener) > LISTENERS_MAX:
        text = f"{len(config.listener)} listeners are above the limit, {LISTENERS_MAX}; remove some"
        problems.add(("listener", LISTENERS_MAX), text)
    for index, listener in enumerate(config.listener):
        for key, text in _mistakes(listener, config.packet_max_bytes):
            if not problems.blames(("listener", index, key)):
                problems.add(("listener", index, key), text)


def _mistakes(listener: Listener, packet_max_bytes: int) -> list[tuple[str, str]]:
    """Mistakes as (key, description)."""
    found = []
    tls = listener.tls
    if listener.path is not None:
        for key in filter(lambda key: getattr(listener, key), ("tls", "proxy_protocol")):
            found += [(key, "a Unix socket has no network to protect or to hide; remove it, or path")]
        if listener.transport == "websocket":
            found.append(("transport", "no browser opens a Unix socket; remove it, or path"))
        if len(str(listener.path).encode()) > UNIX_PATH_MAX_BYTES:
            text = f"{listener.path} is longer than the {UNIX_PATH_MAX_BYTES} bytes that the kernel allows"
            found.append(("path", f"{text}; choose a shorter one"))
    if listener.certificate_is_user and not listener.proxy_protocol:
        if tls is None or tls.client_ca_file is None:
            text = "nobody shows a certificate here; add client_ca_file to tls, or proxy_protocol = true"
            found.append(("certificate_is_user", text))
        elif not tls.require_client_certificate:
            text = "who shows no certificate has no name; remove require_client_certificate = false"
            found.append(("certificate_is_user", text))
    if listener.origins and listener.transport != "websocket":
        found.append(("origins", 'only browsers name one; add transport = "websocket"'))
    if listener.host_names and listener.transport != "websocket":
        found.append(("host_names", 'only browsers are asked for one; add transport = "websocket"'))
    if listener.host_names and listener.origins:
        found.append(("host_names", "origins decides which pages may connect; remove one of the two"))
    if listener.packet_max_bytes is not None and listener.packet_max_bytes > packet_max_bytes:
        text = f"{listener.packet_max_bytes} is above limits.packet_max_bytes, {packet_max_bytes}; raise that"
        found.append(("packet_max_bytes", f"{text}, or lower it here"))
    return found
