"""Sinks and their clients: for each sink a lane, with the same bytes through the same library in a bare loop.

A lane has a sink for the drain, and a function that pushes a list of files, as many at once as the drain has
in flight. Both begin with an empty place. A lane that this machine cannot run raises NotThere with the
reason.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bridge.format.file_builder import DrainedFile
from bridge.sinks.interface import Sink
from bridge.sinks.registry import open_sink

WINDOW = 4
T = TypeVar("T")


class NotThere(Exception):
    """A library or server that is missing."""


@dataclass
class Lane:
    """Lane.

    `clear` empties the place, `open` returns a sink for the drain, `push` is the bare loop, `prepare`
    converts the files beforehand for `push`.
    """

    clear: Callable[[], None]
    open: Callable[[], Sink]
    push: Callable[[Sequence[DrainedFile]], None]
    prepare: Callable[[Sequence[DrainedFile]], None] = lambda _: None
    mib_most: int = 1 << 20  # of records: a slow lane gets fewer
    warm_files: int = 2 * WINDOW  # as many as a drain has memory for


def at_once(push: Callable[[T], object], files: Sequence[T]) -> None:
    """Push as many files at once as a drain has in flight."""
    with ThreadPoolExecutor(WINDOW) as threads:
        list(threads.map(push, files))


# ---- a directory ----


@contextmanager
def directory(place: Path) -> Iterator[Lane]:
    """Lane with files, each synced under another name, renamed, and its directory synced."""
    root = place / "lake"
    yield Lane(
        lambda: shutil.rmtree(root, ignore_errors=True),
        lambda: open_sink(root.as_uri()),
        lambda files: at_once(lambda file: write(root / file.name, file.parts), files),
    )


def write(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file as the directory sink does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    with open(partial, "wb", buffering=0) as file:
        os.writev(file.fileno(), parts)
        os.fdatasync(file.fileno())
    partial.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


# ---- an object store ----


def free_port() -> int:
    """A free port of loopback."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def s3(_: Path) -> Iterator[Lane]:
    """An S3 server (moto, in a process of its own), by obstore."""
    try:
        import moto.server  # noqa: F401
        import obstore
        from obstore.store import S3Store
    except ImportError as error:
        raise NotThere(f"{error.name} is not installed") from error
    host, port = "127.0.0.1", free_port()
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = {
        "endpoint": f"http://{host}:{port}",
        "access_key_id": "x",
        "secret_access_key": "x",
        "region": "us-east-1",
    }
    store = S3Store("lake", client_options={"allow_http": True}, **options)  # type: ignore[arg-type]

    def clear() -> None:
        with suppress(Exception):
            obstore.delete(store, [it["path"] for chunk in obstore.list(store) for it in chunk])

    def push(file: DrainedFile) -> None:
        obstore.put(store, file.name, list(file.parts), mode="create", use_multipart=False)

    try:
        _make_bucket(host, port)
        yield Lane(clear, lambda: open_sink("s3://lake", options), lambda files: at_once(push, files))
    finally:
        server.kill()
        server.wait()


def _make_bucket(host: str, port: int) -> None:
    """Create the bucket as soon as the server answers."""
    deadline = time.monotonic() + 30
    while True:
        with closing(http.client.HTTPConnection(host, port)) as asking:
            try:
                asking.request("PUT", "/lake")
                asking.getresponse().read()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.1)


LANES = {"directory": directory, "s3": s3}
