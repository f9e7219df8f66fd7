"""TCP ports for tests."""

import socket


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on.

    For servers that must come back on the same port after a restart; any other takes port 0 itself and says
    which it got, which leaves no gap for another process to step into.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
