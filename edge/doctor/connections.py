"""Checks of connections: ports, targets of bridges, and the state of a running broker."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from edge.config.address_rules import split_address
from edge.config.schema import Bridge, Config
from edge.doctor.findings import Finding, error, nearest, ok, warning
from edge.observe.health import troubles
from edge.server.port_owner import port_owner

PORTS = {"mqtt": 1883, "mqtts": 8883, "kafka": 9092, "http": 80, "https": 443}
CONNECT_S = 2.0


def check_broker(status: Mapping[str, Any], version: str) -> Iterator[Finding]:
    """State of the broker that runs."""
    value = f"brim {status['version']}, process {status['pid']}"
    if status["version"] != version:
        yield warning(
            "broker", value, f"brim {version}, as this command", "restart the broker after the update"
        )
    else:
        yield ok("broker", value)
    for trouble in troubles(status):
        kind = error if trouble.blocks else warning
        yield kind(trouble.part, trouble.why, "ready", "`brim status` has details")


def check_ports(config: Config) -> Iterator[Finding]:
    """Ports that another program has; only without a running broker."""
    places = [
        (f"listener[{n}]", listener.host, listener.port)
        for n, listener in enumerate(config.listener)
        if listener.path is None
    ]
    for key, address in (("metrics.listen", config.metrics.listen), ("web.listen", config.web.listen)):
        if address:
            places.append((key, *split_address(address)))
    for key, host, port in places:
        if (reason := _bind_error(host, port)) and reason[0] != 0:
            owner = port_owner(port) or "another program"
            fix = f"stop {owner}, or set another port for {key}"
            yield error(f"port of {key}", f"{host}:{port}: {reason[1]} ({owner})", "free", fix)
        else:
            yield ok(f"port of {key}", f"{host}:{port}", "free")


def _bind_error(host: str, port: int) -> tuple[int, str] | None:
    try:
        family, *_, address = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        is_every = family == socket.AF_INET6 and address[0] == "::"  # IPv4 included, as the broker listens
        socket.create_server(address[:2], family=family, dualstack_ipv6=is_every).close()
    except OSError as problem:
        number = problem.errno or -1
        return number, os.strerror(number) if number > 0 else problem.strerror or str(problem)
    return None


def check_targets(config: Config) -> Iterator[Finding]:
    """Targets of bridges: a connection to each, without a log-in."""
    for bridge in config.bridge:
        yield _target(bridge)


def _target(bridge: Bridge) -> Finding:
    check = f"bridge {bridge.name}"
    parts = urlsplit(str(bridge.options.get("endpoint") or bridge.to))
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        above = nearest(path)
        if not os.access(above, os.W_OK | os.X_OK):
            return error(
                check, f"{path} is not writable", "writable", f"let the broker's user write to {above}"
            )
        return ok(check, f"{path} is writable")
    try:
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or not port:
        return ok(check, f"{parts.scheme}: not checked")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as problem:
        fix = f"start the service at {host}:{port}, or correct `to` of the bridge; see firewalls and DNS"
        return warning(check, f"{host}:{port}: {problem.strerror or problem}", "reachable", fix)
    return ok(check, f"{host}:{port} answers")
