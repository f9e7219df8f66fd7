"""State files that the disk cannot read: the broker starts from copies or without them, and reports them.

A directory in place of a file stands for a bad block: a read of either is an OSError that no retry mends. A
FIFO in place of a file must not block the start until a writer opens it.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.auth.backend import SECRET_BYTES, scram_secret
from edge.mqtt import (
    ConnAck,
    Connect,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    Subscribe,
    Subscription,
    Version,
)
from persistence.durable_file import UnreadableFile, read_file
from persistence.files import OsFiles
from persistence.segment.format import segment_name
from ringbuf import Ring
from ringbuf.errors import NotARing
from ringbuf.files import epoch_in, ring_file
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import RawClient, SocketClient
from tests.support.waiting import wait_until

SETTINGS = """
[log]
segment_bytes = 1048576
[[stream]]
name = "t"
topics = ["t/#"]
durability = "disk"
ring_bytes = 4194304
"""
SEGMENT_BYTES = 1 << 20
KEPT = Properties(session_expiry_interval_s=600)
FILES = ("epochs", "installation.copy", "retained.state", "consumers/offsets", "log/checkpoint")
REPORTED = ("epochs file damaged", "installation file damaged", "offset journal renamed", "log unreadable")


class BadBlock(OsFiles):
    """A disk that cannot read."""

    def __init__(self, code: int) -> None:
        self.code = code

    def read(self, handle: int, length: int, position: int) -> bytes:
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize(
    ("code", "damaged"), [(errno.EIO, True), (errno.EUCLEAN, True), (errno.EINTR, False)]
)
def test_a_file_that_the_disk_cannot_read_is_damaged(tmp_path: Path, code: int, damaged: bool) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(OSError, match=os.strerror(code)) as error:
        read_file(BadBlock(code), str(file))
    assert isinstance(error.value, UnreadableFile) == damaged
    assert error.value.errno == code


@pytest.mark.timeout(60)
def test_what_is_no_regular_file_is_damaged_and_blocks_no_reader(tmp_path: Path) -> None:
    for name, make in (("fifo", os.mkfifo), ("directory", os.mkdir)):
        make(tmp_path / name)
        with pytest.raises(UnreadableFile, match="not a regular file"):
            read_file(OsFiles(), str(tmp_path / name))
    os.mkfifo(ring_file(tmp_path / "t"))
    assert epoch_in(ring_file(tmp_path / "t")) == 0
    with pytest.raises(NotARing):
        Ring.attach(tmp_path / "t")


def test_an_unreadable_secret_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "scram-secret"
    path.mkdir()
    secret = scram_secret(path)
    assert len(secret) == SECRET_BYTES
    assert scram_secret(path) == secret
    assert (tmp_path / "scram-secret.bad").is_dir()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_a_broker_starts_whatever_state_file_is_unreadable(
    runtime_directory: Path, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as broker:
        with SocketClient(broker.port, "kept", Version.V311, clean_start=False) as client:
            client.send(Subscribe(1, (Subscription("t/#", 1),)))
            client.receive()
        with SocketClient(broker.port, "sender") as client:
            client.send(Publish("t/1", b"kept", 1, True, packet_id=1))
            assert isinstance(client.receive(), PubAck)
            for _ in range(3):  # so that the log has a sealed segment
                client.send(Publish("t/2", bytes(500_000), 1, packet_id=1))
                assert isinstance(client.receive(), PubAck)
        broker.kill()
        sealed, *_, _ = sorted((tmp_path / "state" / "log").glob("*.log"))
        for name in (*FILES, f"log/{sealed.name}"):
            path = tmp_path / "state" / name
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
            if path.is_dir():
                (path / "content").touch()
        broker.start()
        with SocketClient(broker.port, "kept", Version.V311, clean_start=False) as client:
            message = client.receive()
            assert isinstance(message, Publish)
            assert bytes(message.payload) == b"kept"
        log = broker.stop()
    assert [text for text in REPORTED if text not in log] == []
    assert "Traceback" not in log


def test_a_directory_in_place_of_the_next_segment_leaves_no_client_without_an_answer(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Also not the client whose session is the first that does not fit the segment before it."""
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as broker:
        sessions = tmp_path / "state" / "log" / "sessions"

        def code_of(client_id: str) -> ReasonCode:
            client = RawClient(broker.port, Version.V5)
            client.send(Connect(client_id, version=Version.V5, clean_start=False, properties=KEPT))
            answer = client.packet()
            client.close()
            assert isinstance(answer, ConnAck)
            return answer.reason_code

        assert code_of("first") == ReasonCode.SUCCESS
        obstacles = [sessions / segment_name(base) for base in range(512, 2 * SEGMENT_BYTES, 512)]
        for path in obstacles:
            path.mkdir()
        codes = [code_of(f"{number}-{'x' * 2_000}") for number in range(SEGMENT_BYTES // 2_000)]
        assert set(codes) == {ReasonCode.SUCCESS, ReasonCode.SERVER_UNAVAILABLE}
        broker.log_until("clients refused: their sessions cannot be kept clients=1")
        for path in obstacles:
            path.rmdir()
        wait_until(lambda: code_of("last") == ReasonCode.SUCCESS)
