"""A broker with delayed messages, its command line, and reason codes, for the tests of this folder."""

import json
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.brim_process import BrimProcess
from tests.support.paho_client import Paho
from tests.support.waiting import PATIENCE_S

SETTINGS = '[delayed]\nenabled = true\ndurability = "{}"\n{}'


def broker_of(runtime: Path, directory: Path, durability: str = "interval", more: str = "") -> BrimProcess:
    return BrimProcess(runtime, directory, SETTINGS.format(durability, more), bridge=False)


def brim(broker: BrimProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge", *words, "--runtime-dir", str(broker.runtime_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def listed(broker: BrimProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in brim(broker, "delayed", "--json").stdout.splitlines()]


def reason_of(client: Paho, topic: str, payload: bytes = b"x") -> int:
    """Reason code of the acknowledgement of a publish of an MQTT 5 client."""
    acknowledged: queue.Queue[int] = queue.Queue()
    client.client.on_publish = lambda _c, _u, _mid, reason, _p: acknowledged.put(reason.value)
    client.client.publish(topic, payload, 1)
    return acknowledged.get(timeout=PATIENCE_S)
