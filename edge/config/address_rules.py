"""Rules of addresses: two parts of a broker share none, and other machines reach none without protection.

Called by edge/config/setting_rules.py, in the same form. Rules within a [[listener]]: listener_rules.py.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from edge.config.listener import Listener, is_loopback
from edge.config.listener_rules import UNIX_PATH_MAX_BYTES
from edge.config.schema import Config
from edge.config.setting_reader import Problems, shown

if TYPE_CHECKING:
    from edge.config.toml_positions import Path

PORT_MAX = 65535
IPV4_ANY = ipaddress.IPv4Address(0)  # 0.0.0.0


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT", "[HOST]:PORT".  Raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ValueError(listen)
    return host.removeprefix("[").removesuffix("]"), int(port)


def listeners_are_apart(config: Config, problems: Problems) -> None:
    """Listeners have different addresses."""
    for index, listener in enumerate(config.listener):
        place = _place(listener)
        owner = next((one for one in range(index) if _share(place, _place(config.listener[one]))), None)
        if owner is not None:
            own = "port" if listener.path is None else "path"
            text = f"{_written(listener)} is taken by listener[{owner}]; give each its own {own}"
            problems.add(("listener", index), text)


def addresses_are_different(config: Config, problems: Problems) -> None:
    """Metrics, console and ZeroMQ have other addresses than the listeners, and than each other.

    localhost counts as 127.0.0.1. An address that stands for all others takes its port on each of them.
    """
    taken = [(_place(listener), f"listener[{index}]") for index, listener in enumerate(config.listener)]
    for section, key, address in (
        ("metrics", "listen", config.metrics.listen),
        ("web", "listen", config.web.listen),
        ("zmq", "endpoint", config.zmq.endpoint if config.zmq.enabled else ""),
        ("consumers", "endpoint", config.consumers.endpoint if config.consumers.enabled else ""),
    ):
        place = _bound_place(address)
        if place is None or problems.blames((section, key)):
            continue
        owner = next((owner for other, owner in taken if _share(place, other)), None)
        if owner is not None:
            text = f"{address.removeprefix('tcp://')} is taken by {owner}; give each its own address"
            problems.add((section, key), text)
        taken.append((place, f"{section}.{key}"))


def zmq_is_safe(config: Config, problems: Problems) -> None:
    """Endpoints that other machines reach need secret_key_file and client_keys_dir of [zmq], both."""
    zmq = config.zmq
    if zmq.enabled:
        _endpoint_is_safe("zmq", zmq.endpoint, config.zmq_endpoint, config, problems)
    if config.consumers.enabled:
        own = config.consumers.endpoint
        _endpoint_is_safe("consumers", own, config.consumers_endpoint, config, problems)
    if (zmq.secret_key_file is None) != (zmq.client_keys_dir is None):
        text = "secret_key_file and client_keys_dir belong together; add the other, or remove this one"
        problems.add(("zmq",), text)


def metrics_are_safe(config: Config, problems: Problems) -> None:
    """`metrics.listen` has a port, and other machines reach it only with a token or client certificates."""
    path: Path = ("metrics", "listen")
    listen = config.metrics.listen
    if not listen or problems.blames(path):
        return
    try:
        host, _ = split_address(listen)
    except ValueError:
        problems.add(path, f"{shown(listen)} is not an address; write 127.0.0.1:9464")
        return
    tls = config.metrics.tls
    is_mutual = tls is not None and tls.client_ca_file is not None and tls.require_client_certificate
    if not is_loopback(host) and config.metrics.token_file is None and not is_mutual:
        problems.add(
            path,
            f"{listen} is reached from other machines, by anybody; write 127.0.0.1:9464, or add token_file, "
            "or [metrics.tls] with client_ca_file",
        )


def console_is_safe(config: Config, problems: Problems) -> None:
    """`web.listen` has a port; other machines reach it only with users_file and [web.tls].

    With [auth], or with `web.host_names`, the console needs users_file, too: its pages show messages.
    """
    web, path = config.web, ("web", "listen")
    if not web.listen or problems.blames(path):
        return
    try:
        host, _ = split_address(web.listen)
    except ValueError:
        problems.add(path, f"{shown(web.listen)} is not an address; write 127.0.0.1:8080")
        return
    if not is_loopback(host) and (web.users_file is None or web.tls is None):
        problems.add(
            path,
            f"{web.listen} is reached from other machines; write 127.0.0.1:8080, or add users_file and "
            "[web.tls]",
        )
    elif web.users_file is None:
        if config.auth.requires_login or config.auth.acl_file is not None:
            problems.add(path, "the pages show messages, which [auth] protects; add users_file")
        for name in ("admins", "operators", "host_names"):
            if getattr(web, name):
                problems.add(("web", name), f"web.{name} needs users; add users_file")


def _endpoint_is_safe(section: str, written: str, endpoint: str, config: Config, problems: Problems) -> None:
    path: Path = (section, "endpoint")
    scheme, separator, place = endpoint.partition("://")
    if problems.blames(path):
        return
    if (
        not separator
        or scheme not in {"ipc", "tcp"}
        or not place
        or (scheme == "tcp" and not _has_port(place))
    ):
        problems.add(path, f"{shown(written)} is not an endpoint; write ipc:///PATH or tcp://127.0.0.1:PORT")
    elif scheme == "ipc" and written and len(place.encode()) > UNIX_PATH_MAX_BYTES:
        text = f"{place} is longer than the {UNIX_PATH_MAX_BYTES} bytes that the kernel allows"
        problems.add(path, f"{text}; choose a shorter one")
    elif scheme == "tcp" and not (is_loopback(place.rpartition(":")[0]) or config.zmq.secret_key_file):
        problems.add(
            path,
            f"{written} is reached from other machines, unencrypted and by anybody; write "
            "tcp://127.0.0.1:PORT, or add secret_key_file and client_keys_dir to [zmq]",
        )


def _has_port(place: str) -> bool:
    """True if a port, or * for a free one, ends an address of ZeroMQ."""
    try:
        split_address(re.sub(r":\*$", ":0", place))
    except ValueError:
        return False
    return True


def _written(listener: Listener) -> str:
    """Address or path of a listener, as the file has it."""
    return str(listener.path or f"{listener.host}:{listener.port}")


def _place(listener: Listener) -> tuple[str, int] | None:
    """Host and port of a listener, in one form, or path and 0; None: a free port.

    "*" is every address: of the hosts "::" only that of a listener takes IPv4, too.
    """
    if listener.path is not None:
        return str(listener.path), 0
    host = _one_form(listener.host)
    return ("*" if host == "::" else host, listener.port) if listener.port else None


def _bound_place(address: str) -> tuple[str, int] | None:
    """As _place(), of an address or an endpoint of ZeroMQ; None: it is empty, or a free port."""
    try:
        host, port = split_address(re.sub(r":\*$", ":0", address.removeprefix("tcp://")))
    except ValueError:
        path = address.removeprefix("ipc://")
        return (path, 0) if path else None
    return (_one_form(host), port) if port else None


def _one_form(host: str) -> str:
    """An address in its usual form; localhost as 127.0.0.1, and * of ZeroMQ as 0.0.0.0."""
    host = {"localhost": "127.0.0.1", "*": str(IPV4_ANY)}.get(host.lower(), host.strip("[]"))
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def _share(place: tuple[str, int] | None, other: tuple[str, int] | None) -> bool:
    """True if only one of two places can be bound: one may be every address of the machine."""
    if place is None or other is None or place[1] != other[1]:
        return False
    return _covers(place[0], other[0]) or _covers(other[0], place[0])


def _covers(host: str, other: str) -> bool:
    if host in {other, "*"}:
        return True
    try:
        address, every = ipaddress.ip_address(other), ipaddress.ip_address(host)
    except ValueError:  # a name or a path
        return False
    return every.is_unspecified and every.version == address.version
