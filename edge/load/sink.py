"""Sink of a calibration: a minimal server in a thread of this process.

It acknowledges everything and sends everything to all subscribers (ringbuf/c/load/load_sink.c), so a
measurement against it shows the generator's own limit.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Self

from edge.load.errors import LoadError
from ringbuf.native import ffi, lib

SLICE_MS = 50


class Sink:
    """The sink, as a context manager; `port` is on 127.0.0.1."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._sink = lib.ld_sink_open(self._listener.fileno())
        if self._sink == ffi.NULL:
            self._listener.close()
            raise LoadError(f"the sink cannot be made: {os.strerror(ffi.errno)}")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="load sink")

    def _serve(self) -> None:
        while not self._stopping.is_set() and lib.ld_sink_poll(self._sink, SLICE_MS) == 0:
            pass

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        lib.ld_sink_close(self._sink)
        self._listener.close()
