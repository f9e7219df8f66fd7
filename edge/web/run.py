"""Process of the web console: binds, serves, and ends by a signal or with its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge.config.schema import Web
from edge.logging_setup import pairs
from edge.transport.listen_sockets import bind_http
from edge.transport.tls import server_context
from edge.web.app import application
from edge.web.console import Console
from edge.web.http_server import HttpServer

log = logging.getLogger(__name__)

NICENESS = 5  # the broker comes first


def run(
    settings: Web, runtime_dir: Path | None, ready: Callable[[str], object], *, with_parent: bool = False
) -> int:
    """Serve until a signal; `with_parent`: or until standard input ends. Raises EdgeError: cannot start."""
    console = Console(settings, runtime_dir)
    tls = server_context(settings.tls) if settings.tls is not None else None
    listener = bind_http(settings.listen, "web.listen")
    with suppress(OSError):
        os.nice(NICENESS)
    app = application(console, listener.getsockname()[0])
    return asyncio.run(_serve(HttpServer(app, listener, tls), ready, with_parent))


async def _serve(server: HttpServer, ready: Callable[[str], object], with_parent: bool) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if with_parent:
        loop.add_reader(sys.stdin, stopping.set)  # nothing is ever written to it: readable at its end
    await server.start()
    log.info("web console %s", pairs(at=server.url))
    ready(server.url)
    await stopping.wait()
    await server.stop()
    return 0
