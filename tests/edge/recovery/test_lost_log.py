"""A session whose journal is ahead of the log continues with existing records, and the loss is reported."""

import shutil
from pathlib import Path

import pytest

from tests.support.brim_process import BrimProcess
from tests.support.paho_client import Paho

LOGGED = """
[[stream]]
name = "plant"
topics = ["plant/#"]
durability = "disk"
ring_bytes = 1048576
"""


@pytest.mark.parametrize(("older_log", "existing"), [(True, [b"a"]), (False, [])])
def test_sessions_continue_if_the_journal_is_ahead_of_the_log(
    older_log: bool, existing: list[bytes], tmp_path: Path, runtime_directory: Path
) -> None:
    broker = BrimProcess(runtime_directory, tmp_path, LOGGED, bridge=False)
    broker.start()
    Paho(broker.port, "away", clean=False, topic="plant/#").stop()
    _publish(broker, b"a")
    broker.stop()
    shutil.copytree(tmp_path / "state/log", tmp_path / "earlier", ignore=shutil.ignore_patterns("sessions"))
    broker.start()
    _publish(broker, b"b", b"c")
    broker.kill()
    _remove_records(tmp_path / "state/log", runtime_directory)
    if older_log:
        shutil.copytree(tmp_path / "earlier", tmp_path / "state/log", dirs_exist_ok=True)

    broker.start()
    _publish(broker, b"d")
    client = Paho(broker.port, "away", clean=False)
    assert client.session_present
    received = [bytes(client.message().payload) for _ in (*existing, b"d")]
    _publish(broker, b"e")
    received.append(bytes(client.message().payload))
    client.stop()
    log = broker.stop()
    assert received == [*existing, b"d", b"e"]
    assert "log ends before the session journal" in log
    assert f"records={3 - len(existing)}" in log
    assert "Traceback" not in log


def test_a_log_that_still_has_the_records_of_an_ended_ring_is_complete(
    tmp_path: Path, runtime_directory: Path
) -> None:
    broker = BrimProcess(runtime_directory, tmp_path, LOGGED, bridge=False)
    broker.start()
    Paho(broker.port, "away", clean=False, topic="plant/#").stop()
    _publish(broker, b"a", b"b")
    broker.kill()
    for file in runtime_directory.iterdir():
        file.unlink()
    for _ in range(
        2
    ):  # the first start routes the records of the ended ring, the second one finds that noted
        broker.start()
        log = broker.stop()
        assert "log ends before the session journal" not in log
    broker.start()
    client = Paho(broker.port, "away", clean=False)
    assert [bytes(client.message().payload) for _ in range(2)] == [b"a", b"b"]
    client.stop()
    broker.stop()


def _publish(broker: BrimProcess, *payloads: bytes) -> None:
    client = Paho(broker.port, "publisher")
    for payload in payloads:
        client.publish("plant/1", payload)
    client.stop()


def _remove_records(log: Path, runtime_dir: Path) -> None:
    """Remove the log of the stream, and the memory of all rings; the session journal stays."""
    for file in log.iterdir():
        if file.is_file():
            file.unlink()
    for file in runtime_dir.iterdir():
        file.unlink()
