"""A power cut during a start loses no session and no message that was saved before."""

import shutil
import signal
from pathlib import Path

from edge.mqtt import PubAck, Publish, Subscribe, Subscription, Version
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import SocketClient

STREAM = """
[[stream]]
name = "plant"
topics = ["#"]
durability = "disk"
ring_bytes = "1 MiB"
"""


def away(port: int) -> SocketClient:
    """The client whose session is kept."""
    return SocketClient(port, "away", Version.V311, clean_start=False)


def cut_power(broker: BrimProcess) -> None:
    """Kill the broker and remove its shared memory."""
    if broker.running:
        broker.kill()
    shutil.rmtree(broker.runtime_dir)


def test_a_power_cut_before_the_first_snapshot_of_a_start_loses_no_session(tmp_path: Path) -> None:
    broker = BrimProcess(tmp_path / "run", tmp_path, STREAM, bridge=False)
    broker.start()
    with away(broker.port) as client:
        client.send(Subscribe(1, (Subscription("plant/#", 1),)))
        client.receive()
    with SocketClient(broker.port, "device") as device:
        device.send(Publish("plant/1", b"kept", qos=1, packet_id=1))
        assert isinstance(device.receive(), PubAck)
    cut_power(broker)

    start = ModuleChild("tests.support.cut_at_snapshot_broker", "run", "--config", broker.config)
    with start:
        status, _, log = start.wait()
    assert status == -signal.SIGKILL, log
    cut_power(broker)

    with broker, away(broker.port) as client:
        assert client.session_present
        message = client.receive()
        assert isinstance(message, Publish)
        assert bytes(message.payload) == b"kept"
