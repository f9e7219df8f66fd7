"""A broker that may open few files: it starts, or it says why it does not, and the next one goes on."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from edge.cli.run import _lacks_files
from edge.errors import EdgeError
from edge.mqtt import PubAck, Publish, ReasonCode, SubAck, Subscribe, Subscription
from tests.support.brim_process import BrimProcess
from tests.support.house import ROOT
from tests.support.mqtt_socket import SocketClient

FEW = 72
SETTINGS = """
[limits]
packet_max_bytes = 8192
topic_max_bytes = 1024
[[stream]]
name = "t"
topics = ["t/#"]
durability = "disk"
partitions = 32
ring_bytes = 65536
sync_bytes = 16384
"""


def test_too_few_files_are_said_and_what_was_acknowledged_before_is_there_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as broker:
        with SocketClient(broker.port, "c") as client:
            client.send(Publish("t/1", b"kept", 1, True, packet_id=1))
            assert client.receive() == PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        broker.kill()
        command = f"ulimit -n {FEW} && exec {sys.executable} -m edge run --config {tmp_path / 'brim.toml'}"
        refused = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert refused.returncode == 2, refused.stderr
        assert f"brim run: {FEW} files may be open, too few to start" in refused.stderr
        assert "ulimit -Hn" in refused.stderr
        assert "Traceback" not in refused.stderr
        broker.start()
        with SocketClient(broker.port, "c") as client:
            client.send(Subscribe(1, (Subscription("t/#", 1),)))
            assert isinstance(client.receive(), SubAck)
            message = client.receive()
            assert isinstance(message, Publish)
            assert bytes(message.payload) == b"kept"


def _caused(by: BaseException) -> BaseException:
    try:
        try:
            raise by
        except BaseException as error:
            raise EdgeError("cannot bind there") from error
    except EdgeError as error:
        return error


@pytest.mark.parametrize(
    ("number", "lacks"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EIO, False)]
)
def test_what_led_to_an_error_is_looked_at(number: int, lacks: bool) -> None:
    assert _lacks_files(OSError(number, "")) is lacks
    assert _lacks_files(_caused(OSError(number, ""))) is lacks
    assert _lacks_files(_caused(ImportError())) is False
