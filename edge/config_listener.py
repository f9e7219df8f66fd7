"""Settings of one MQTT port, in [[listener]], and how they hang together.

Owns what a listener may be told; edge/config.py has the rest of the configuration, and the defaults of the
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
UNIX_PATH_MAX_BYTES = 107  # what sockaddr_un has room for


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS of a listener, in [listener.tls].  Files are PEM, and read again on SIGHUP."""

    certificate_file: Path  # ours, and behind it those of the authorities between it and the root
    key_file: Path  # its private key, not encrypted: nobody is there to type a password
    client_ca_file: Path | None = None  # authorities that sign our clients' certificates: mutual TLS
    require_client_certificate: bool = True  # where there is a client_ca_file
    version_min: Literal["1.2", "1.3"] = "1.2"  # older ones are broken


class Listener(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bound MQTT port, or Unix socket, in [[listener]]."""

    # "::" is every address, IPv4 as well.
    host: Annotated[str, Meta(pattern=r"^\S+\Z", description="an address or a name")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="0 takes a free one")] = 1883  # MQTT's
    # Instead of host and port: a Unix socket, mode 0660, for this machine's processes.
    path: Path | None = None
    transport: Literal["mqtt", "websocket"] = "mqtt"
    tls: Tls | None = None
    # Each connection begins with a PROXY header of version 2, which says who it is.  Whoever reaches this
    # port can say anything there, so let only the proxy reach it.
    proxy_protocol: bool = False
    # The name in a client's certificate is its user name, and no password is asked: Mosquitto's
    # use_identity_as_username.  With proxy_protocol, what the proxy says of it.
    certificate_is_user: bool = False
    allow_anonymous: bool | None = None  # off loopback it has to be written: nobody logs in there by accident
    # Serve nobody here: MQTT 5 clients are told to use this server instead, others that we are unavailable.
    redirect_to: Annotated[str, Meta(pattern=r"^\S+\Z", description="host:port")] | None = None
    # Web pages that may connect, such as "https://panel.example", or "*"; none: those of the host that they
    # connect to.  Programs may, always.
    origins: tuple[Annotated[str, Meta(pattern=r"^(https?://[^/\s]+|null|\*)\Z")], ...] = ()
    # Names, besides its own address and the machine's name, under which such pages reach this listener, such
    # as that of a proxy in front of it; "*" any, which lets in pages that resolve their own name to it.
    host_names: tuple[Annotated[str, Meta(pattern=r"^([A-Za-z0-9._:\[\]-]{1,253}|\*)\Z")], ...] = ()
    # Of this listener alone; without them what [limits] says.
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    connect_max_bytes: Annotated[int, Meta(ge=256, le=MIB)] | None = None
    packet_max_bytes: Annotated[int, Meta(ge=256, le=256 * MIB)] | None = None
    # PUBLISH packets of one client a second, and at once; who sends more is read more slowly.
    publish_rate_max: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None

    @property
    def scheme(self) -> str:
        """As in its URL, and what ClientFacts.transport says: tcp, tls, ws, wss or unix."""
        if self.path is not None:
            return "unix"
        if self.transport == "websocket":
            return "ws" if self.tls is None else "wss"
        return "tcp" if self.tls is None else "tls"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def listeners_are_safe(config: Config, problems: Problems) -> None:
    """Nobody gets in from other machines unless it is written that they may."""
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
    """Settings that exclude or need each other."""
    if len(config.listener) > LISTENERS_MAX:
        text = f"{len(config.listener)} listeners are above the limit, {LISTENERS_MAX}; remove some"
        problems.add(("listener", LISTENERS_MAX), text)
    for index, listener in enumerate(config.listener):
        for key, text in _mistakes(listener, config.packet_max_bytes):
            if not problems.blames(("listener", index, key)):
                problems.add(("listener", index, key), text)


def _mistakes(listener: Listener, packet_max_bytes: int) -> list[tuple[str, str]]:
    """(key, what is wrong with it)."""
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
