"""An S3 server for tests: moto's, in a process of its own on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.ports import free_port

START_S = 60.0


@contextmanager
def s3_server() -> Iterator[str]:
    """Its URL, as long as the context lives."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while not _answers(url):
                assert process.poll() is None, "moto's server has ended"
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.02)
            yield url
        finally:
            process.kill()


def make_bucket(url: str, bucket: str) -> None:
    """A bucket, empty."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=START_S).close()


def options(url: str) -> dict[str, str]:
    """Of the sink, to go there."""
    return {"endpoint": url, "region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=START_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
