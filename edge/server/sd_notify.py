"""Notifications for systemd: sd_notify(3), whose protocol is one datagram."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Report `state`, such as READY=1, to the service manager, if there is one. Never fails."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    ) as sender:
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            return  # a manager that does not listen is not an error of the broker


def watchdog_interval_s() -> float | None:
    """Interval of WATCHDOG=1: half of WatchdogSec=. None: systemd does not expect it."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdigit() and int(microseconds) else None
