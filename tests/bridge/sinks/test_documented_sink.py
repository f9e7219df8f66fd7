"""The sink of docs/how-to/write-a-sink.md, run against a server as it stands there."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SinkConflict, SinkUnavailable
from bridge.sinks.interface import Sink
from tests.support.bridges import EPOCH, drain, publish, ring, run_dry, settings
from tests.support.documents import block_of
from tests.support.drained_files import drained_file_of, offsets_drained


class Shelf(BaseHTTPRequestHandler):
    """PUT with If-None-Match, and GET, below a directory."""

    root: Path
    fails = 0

    def do_PUT(self) -> None:
        path = self.root / self.path.lstrip("/")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if type(self).fails > 0:
            type(self).fails -= 1
            self._answer(503)
        elif path.exists() and self.headers["If-None-Match"] == "*":
            self._answer(412)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self._answer(201)

    def do_GET(self) -> None:
        self._answer(200, (self.root / self.path.lstrip("/")).read_bytes())

    def do_OPTIONS(self) -> None:
        self._answer(204)

    def _answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    names: dict[str, Any] = {}
    code = block_of("docs/how-to/write-a-sink.md", "python", "import http.client")
    exec(compile(code, "write-a-sink.md", "exec"), names)
    handler = type("Handler", (Shelf,), {"root": tmp_path / "lake", "fails": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    made = names["HttpSink"]("127.0.0.1", server.server_port)
    made.handler = handler
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_documented_sink_drains_each_record_once(
    sink: Any, runtime_directory: Path, tmp_path: Path
) -> None:
    sink.begin("edge-1")
    with ring(runtime_directory) as made, drain(settings(runtime_directory, tmp_path), sink) as drained:
        for failures in (0, 2, 1):
            sink.handler.fails = failures
            publish(made, 50)
            for _ in range(failures):
                with pytest.raises(SinkUnavailable, match="503"):
                    run_dry(drained)
            run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(150))}


def test_it_takes_what_is_there_already_and_refuses_other_content(sink: Any) -> None:
    for _ in range(2):
        sink.put(drained_file_of(0, 9))
    with pytest.raises(SinkConflict):
        sink.put(drained_file_of(0, 9, payload=lambda offset: b"other"))
