"""TCP ports for tests."""

import random
import socket
from pathlib import Path

LOWEST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of ports that the kernel gives to clients


def free_port() -> int:
    """A port of 127.0.0.1 without a listener.

    For servers that must come back on the same port after a restart; any other takes port 0 itself and says
    which it got, which leaves no gap for another process.  Here that gap is small: the port is not one of
    those that the kernel gives away, and others who come here pick theirs at random, too.
    """
    lowest_given = int(RANGE.read_text().split()[0])
    while True:
        port = random.randrange(LOWEST, lowest_given) if lowest_given > 2 * LOWEST else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            taken: int = probe.getsockname()[1]
            return taken
