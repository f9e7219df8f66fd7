"""Rules of listeners: combinations of valid values in [[listener]] that are not allowed.

Called by edge/config/setting_rules.py, in the same form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.config.listener import Listener, is_loopback
from edge.config.schema import Config
from edge.config.setting_reader import Problems

if TYPE_CHECKING:
    from edge.config.toml_positions import Path

LISTENERS_MAX = 16
UNIX_PATH_MAX_BYTES = 107  # room in sockaddr_un


def listeners_are_safe(config: Config, problems: Problems) -> None:
    """A listener that other machines reach requires a login, unless it has `allow_anonymous = true`."""
    for index, listener in enumerate(config.listener):
        path: Path = ("listener", index, "host")
        inside = listener.path is not None or is_loopback(listener.host)
        if inside or listener.allow_anonymous or listener.certificate_is_user or problems.blames(path):
            continue
        if config.auth.requires_login:
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
    mistakes = []
    tls = listener.tls
    if listener.path is not None:
        for key in filter(lambda key: getattr(listener, key), ("tls", "proxy_protocol")):
            mistakes += [(key, "a Unix socket has no network to protect or to hide; remove it, or path")]
        if listener.transport == "websocket":
            mistakes.append(("transport", "no browser opens a Unix socket; remove it, or path"))
        if len(str(listener.path).encode()) > UNIX_PATH_MAX_BYTES:
            text = f"{listener.path} is longer than the {UNIX_PATH_MAX_BYTES} bytes that the kernel allows"
            mistakes.append(("path", f"{text}; choose a shorter one"))
    if listener.certificate_is_user and not listener.proxy_protocol:
        if tls is None or tls.client_ca_file is None:
            text = "no client shows a certificate here; add client_ca_file to tls, or proxy_protocol = true"
            mistakes.append(("certificate_is_user", text))
        elif not tls.require_client_certificate:
            text = (
                "a client without a certificate has no user name; remove require_client_certificate = false"
            )
            mistakes.append(("certificate_is_user", text))
    if listener.origins and listener.transport != "websocket":
        mistakes.append(("origins", 'only browsers name one; add transport = "websocket"'))
    if listener.host_names and listener.transport != "websocket":
        mistakes.append(("host_names", 'only browsers are asked for one; add transport = "websocket"'))
    if listener.host_names and listener.origins:
        mistakes.append(("host_names", "origins decides which pages may connect; remove one of the two"))
    if listener.packet_max_bytes is not None and listener.packet_max_bytes > packet_max_bytes:
        text = f"{listener.packet_max_bytes} is above limits.packet_max_bytes, {packet_max_bytes}; raise that"
        mistakes.append(("packet_max_bytes", f"{text}, or lower it here"))
    return mistakes
