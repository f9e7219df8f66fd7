"""An Azure Blob server for tests: Azurite (npm: azurite@3.35.0), in a process of its own on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.support.ports import free_port
from tests.support.s3_server import START_S, wait_for

AZURITE = shutil.which("azurite-blob")
NEEDS_AZURITE = "" if AZURITE else "needs azurite-blob on PATH: npm install -g azurite@3.35.0"
ACCOUNT = "devstoreaccount1"  # it and its key are published, and the same in each Azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-12-02"


@contextmanager
def azure_server(directory: Path) -> Iterator[str]:
    """Its URL, as long as the context lives."""
    assert AZURITE is not None
    port = free_port()
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)]
    command = [AZURITE, *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(process, url)
            yield url
        finally:
            process.kill()


def make_container(url: str, name: str) -> None:
    """A container, empty."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{VERSION}\n{resource}"
    signature = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    headers = {
        "x-ms-date": now,
        "x-ms-version": VERSION,
        "Content-Length": "0",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
    }
    place = f"{url}/{ACCOUNT}/{name}?restype=container"
    request = urllib.request.Request(place, headers=headers, method="PUT")
    urllib.request.urlopen(request, timeout=START_S).close()


def options(url: str) -> dict[str, str]:
    """Of the sink, to go there."""
    return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": f"{url}/{ACCOUNT}"}
