"""The line that tests cut: it keeps no request that was open at the cut."""

import asyncio
import gc
import socket
import threading
from contextlib import suppress

from tests.support.cut_line import CutLine
from tests.support.waiting import PATIENCE_S


def test_a_connection_that_is_accepted_as_the_line_is_cut_is_closed() -> None:
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go.wait(PATIENCE_S)

    with CutLine(upstream=1) as line:
        line._loop.call_soon_threadsafe(hold)
        assert held.wait(PATIENCE_S)
        # Both wait for the line's thread now: it accepts, and is cut before it has begun to serve.
        with socket.create_connection(("127.0.0.1", line.port), PATIENCE_S) as device:
            cut = asyncio.run_coroutine_threadsafe(line._cut("refused"), line._loop)
            go.set()
            cut.result(PATIENCE_S)
            with suppress(ConnectionResetError):
                assert device.recv(1) == b""
        gc.collect()  # says so, were it forgotten
