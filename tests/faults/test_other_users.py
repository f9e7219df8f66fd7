"""A broker and processes of another user, who shorten and overwrite whatever they can reach.

The broker runs as root here, and they as a user of the runtime directory's group: what README calls local
processes.  The broker serves everybody else meanwhile.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim import producer
from brim import subscribe as subscribe_shm
from edge.config.schema import Producer as ProducerSettings
from edge.errors import Refused
from edge.local.producers import Producers
from edge.local.shortened_rings import ShortenedFiles
from edge.mqtt import Publish, Subscribe, Subscription
from edge.streams.epochs import Epochs
from edge.streams.streams import Streams
from ringbuf.constants import CURSORS_BYTES
from ringbuf.errors import Corrupt
from tests.support.brim_process import BrimProcess
from tests.support.children import Child
from tests.support.local_broker import small_config
from tests.support.mqtt_socket import SocketClient
from tests.support.other_user import GROUP, USER, as_other_user, other_user_or_skip
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

SETTINGS = f"""
[local]
blocking_reader_uids = [{USER}]
[[stream]]
name = "t"
topics = ["#"]
ring_bytes = 65536
when_full = "block"
queue_timeout_ms = 100
[[producer]]
name = "cam"
stream = "t"
uids = [{USER}]
ring_bytes = 65536
"""

# Does to a file what each line of its input says.
VANDAL = """
import os, sys
for line in sys.stdin:
    path, length, junk = line.split()
    try:
        if junk == "junk":
            with open(path, "r+b") as file:
                file.write(os.urandom(int(length)))
        else:
            os.truncate(path, int(length))
        print("done", flush=True)
    except PermissionError:
        print("refused", flush=True)
"""


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    other_user_or_skip()
    os.chown(runtime_directory, -1, GROUP)
    runtime_directory.chmod(0o2750)  # Files in it have its group, as where the broker's own user has it.
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as running:
        yield running


def served(broker: BrimProcess, payload: bytes) -> None:
    """A message goes from an MQTT client to another and to a local subscriber; `brim status` answers."""
    with (
        SocketClient(broker.port, "reads") as reads,
        SocketClient(broker.port, "writes") as writes,
        subscribe_shm("#", runtime_dir=broker.runtime_dir, start="latest") as local,
    ):
        reads.send(Subscribe(1, (Subscription("served", 1),)))
        reads.receive()
        writes.send(Publish("served", payload, qos=1, packet_id=1))
        writes.receive()
        answer = reads.receive()
        assert isinstance(answer, Publish)
        assert bytes(answer.payload) == payload
        found: list[bytes] = []
        while payload not in found:
            found += [record.bytes() for record in next(local)]
    wait_until(lambda: report(broker)["uptime_s"] > 0)


def report(broker: BrimProcess) -> dict[str, Any]:
    """Report of `brim status`."""
    return report_of(broker.runtime_dir)


@pytest.fixture
def vandal(broker: BrimProcess) -> Iterator[Child]:
    with Child(as_other_user(VANDAL)) as child:
        yield child


def does(vandal: Child, path: Path, length: int, junk: bool = False) -> bool:
    """True if the other user could change the file."""
    vandal.say(f"{path} {length} {'junk' if junk else 'cut'}")
    return vandal.line() == "done"


def test_a_user_of_the_group_cannot_stop_the_broker_by_its_files(broker: BrimProcess, vandal: Child) -> None:
    """Every file in the runtime directory, cut and overwritten; the cursor file again and again."""
    served(broker, b"before")
    files = sorted(path for path in broker.runtime_dir.iterdir() if path.is_file())
    reached = {path.name for path in files if does(vandal, path, 0)}
    assert reached == {"t-0.cursors", "default-0.cursors"}  # the journal of sessions is the broker's only
    served(broker, b"after a cut")
    for length in (8, 4096, CURSORS_BYTES):
        does(vandal, broker.runtime_dir / "t-0.cursors", length, junk=True)
        served(broker, b"after junk of %d bytes" % length)
    for round_ in range(5):
        for path in files:
            does(vandal, path, 4096, junk=True)
            does(vandal, path, CURSORS_BYTES - 1)
        served(broker, b"%d" % round_)
        assert (broker.runtime_dir / "t-0.cursors").stat().st_size == CURSORS_BYTES
    assert report(broker)["rings"][0]["shortened"] > 5


def test_a_shortened_file_is_repaired_and_logged_now_and_then(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(
        runtime_directory, tmp_path, producer=(ProducerSettings(name="cam", stream="default", uids=(USER,)),)
    )
    epochs = Epochs(tmp_path / "epochs")
    streams, producers = Streams.open(config, epochs), Producers(config, epochs)
    ring = producers.open("cam", "default", 0).ring
    files = ShortenedFiles(streams, producers)
    try:
        files.repair()
        assert caplog.text == ""
        for _ in range(20):
            os.truncate(runtime_directory / "some-0.cursors", CURSORS_BYTES - 1)
            files.repair()
            assert (runtime_directory / "some-0.cursors").stat().st_size == CURSORS_BYTES
        assert caplog.text.count("cursor file restored: another process had shortened it") == 1
        assert "name=some-0 times=1" in caplog.text
        files = ShortenedFiles(streams, producers)
        os.truncate(runtime_directory / "default@cam.ring", 0)
        with pytest.raises(Corrupt):
            ring.extremes()
        files.repair()
        with pytest.raises(Refused, match="was shortened by a process that may write it"):
            producers.open("cam", "default", 0)
    finally:
        producers.close()
        streams.close()


PRODUCES = """
import os, sys
from brim import producer
from pathlib import Path
with producer("cam", "t", runtime_dir=Path(sys.argv[1])) as writer:
    for i in range(100):
        assert writer.publish(b"%d" % i, key="frames") == i
    print("published", flush=True)
    sys.stdin.readline()
    os.truncate(sys.argv[1] + "/t@cam.ring", int(sys.argv[2]))
    print([writer.publish(b"", key="frames") for _ in range(100)][-1], flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("length", [0, 20_000])
def test_a_producer_that_shortens_its_ring_harms_itself_alone(broker: BrimProcess, length: int) -> None:
    with Child(as_other_user(PRODUCES), broker.runtime_dir, length) as cam:
        with SocketClient(broker.port, "reads") as reads:
            reads.send(Subscribe(1, (Subscription("frames"),)))
            reads.receive()
            cam.line()
            assert isinstance(reads.receive(), Publish)
        served(broker, b"before")
        cam.say("cut")
        cam.line()
        served(broker, b"after")
        with producer("bell", "t", runtime_dir=broker.runtime_dir) as bell:
            assert bell.publish(b"x", key="bell") == 0
        cam.say("end")
        cam.wait()

    def is_refused() -> bool:
        try:
            with producer("cam", "t", runtime_dir=broker.runtime_dir):
                return False
        except Refused as refused:
            assert "was shortened by a process that may write it" in str(refused)
            return True

    wait_until(is_refused)
    served(broker, b"later")
    broker.stop()
    broker.start()
    with producer("cam", "t", runtime_dir=broker.runtime_dir) as again:
        assert again.publish(b"x", key="frames") is not None
    served(broker, b"at last")
