"""A page in a real browser: headless Chromium with MQTT.js, which says how it went by a POST.

    report = run_page(script, {"url": "ws://127.0.0.1:9001/mqtt"})

`script` is JavaScript that runs with `mqtt` (MQTT.js) and `given` (the second argument), and calls
`done(value)` once; run_page() returns that value.  MQTT.js is not part of this repository: npm fetches it
once into the user's cache, at a version and a checksum.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_S

PACKAGE = "mqtt@5.16.0"
SHA256 = "f3cbeae580d3010048938ee370f2db0c15d16e6f7fc147cb32ae5510e571b387"  # of dist/mqtt.min.js
PAGE = """<!doctype html><meta charset="utf-8"><title>MQTT.js</title><script src="/mqtt.js"></script><script>
const given = %(given)s;
const done = (value) => fetch("/done", {method: "POST", body: JSON.stringify(value)});
window.onerror = (message) => done({error: String(message)});
window.onunhandledrejection = (event) => done({error: String(event.reason)});
%(script)s
</script>"""
NPM_OPTIONS = ("--no-fund", "--no-audit", "--ignore-scripts", "--fetch-retries=0")
FETCH_S = 40
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


def _mqttjs() -> bytes:
    """The library; the test is skipped, with the remedy, where it cannot be had."""
    file = _cache() / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
    if not file.exists() and (reason := _fetched()):
        pytest.skip(reason)
    text = file.read_bytes()
    assert hashlib.sha256(text).hexdigest() == SHA256, f"{file} is not what it should be; delete it"
    return text


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brim" / PACKAGE


@functools.cache
def _fetched() -> str:
    """Why npm cannot bring the library, asked once; "": it has."""
    if shutil.which("npm") is None:
        return "no npm, which fetches MQTT.js: apt-get install npm"
    command = ["npm", "install", "--prefix", str(_cache()), *NPM_OPTIONS, PACKAGE]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        return f"npm did not fetch {PACKAGE} in {FETCH_S} s; try it by hand: {' '.join(command)}"
    if made.returncode:
        return f"npm could not fetch {PACKAGE}, status {made.returncode}; try it by hand: {' '.join(command)}"
    return ""


class _Server(ThreadingHTTPServer):
    """Serves the page and the library, and waits for the page's report."""

    def __init__(self, page: str, library: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files = {"/": ("text/html", page.encode()), "/mqtt.js": ("text/javascript", library)}
        self.reports: Queue[Any] = Queue()


class _Answer(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        kind, body = self.server.files.get(self.path, ("text/plain", b""))
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.reports.put(json.loads(body))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def run_page(script: str, given: object) -> Any:
    """Value that `script` gave to done().  Skips where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser: apt-get install chromium")
    server = _Server(PAGE % {"given": json.dumps(given), "script": script}, _mqttjs())
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        with tempfile.TemporaryDirectory(prefix="brim-browser-") as profile, contextlib.ExitStack() as down:
            url = f"http://127.0.0.1:{server.server_port}/"
            command = [browser, *OPTIONS, f"--user-data-dir={profile}", url]
            process = subprocess.Popen(
                command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            down.callback(_end, process)
            return server.reports.get(timeout=2 * PATIENCE_S)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The browser and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 15)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
