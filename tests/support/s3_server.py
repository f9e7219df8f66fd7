"""An S3 server for tests: moto's, in a process of its own on loopback."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
            wait_for(process, url)
            yield url
        finally:
            process.kill()


def make_bucket(url: str, bucket: str) -> None:
    """A bucket, empty."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=START_S).close()


def options(url: str) -> dict[str, str]:
    """Of the sink, to go there."""
    return {"endpoint": url, "region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


class Account:
    """Of a bridge that drains to the server at `url`, which from now on wants to know who asks.

    The server checks each signature, and each action against what its user may do.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._iam = self._as("test", "test")
        root = self._key("root")
        self.allow("*", user="root")
        bridge = self._key("bridge")
        self.options = options(url) | {"access_key_id": bridge[0], "secret_access_key": bridge[1]}
        headers = {"Content-Type": "text/plain"}
        guard = urllib.request.Request(f"{url}/moto-api/reset-auth", data=b"0", headers=headers)
        urllib.request.urlopen(guard, timeout=START_S).close()
        self._iam = self._as(*root)

    def allow(self, *actions: str, user: str = "bridge") -> None:
        """Let that user do these, from now on, and nothing else."""
        said = {"Effect": "Allow", "Action": actions, "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [said]})
        self._iam.put_user_policy(UserName=user, PolicyName="it", PolicyDocument=document)

    def _as(self, key: str, secret: str) -> Any:
        import boto3  # which moto needs, too

        asking = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return boto3.client("iam", "us-east-1", endpoint_url=self._url, **asking)

    def _key(self, user: str) -> tuple[str, str]:
        self._iam.create_user(UserName=user)
        made = self._iam.create_access_key(UserName=user)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]


def wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    """Until that server answers."""
    deadline = time.monotonic() + START_S
    while not _answers(url):
        assert process.poll() is None, f"the server of {url} has ended"
        assert time.monotonic() < deadline, f"{url} does not answer"
        time.sleep(0.02)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=START_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
