"""A broker whose user may start few threads: it starts and stays, or the error names the remedy."""

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from edge.cli import main
from edge.mqtt import PubAck, Publish
from tests.support.children import Child
from tests.support.mqtt_socket import SocketClient
from tests.support.other_user import GROUP, USER, as_other_user, other_user_or_skip
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.waiting import wait_until

BROKER = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NPROC, (int(sys.argv[1]), ENOUGH))
sys.argv = ["brim", *sys.argv[2:]]
runpy.run_module("edge", run_name="__main__")
"""
LIMIT = """
import resource, sys
resource.prlimit(int(sys.argv[1]), resource.RLIMIT_NPROC, (int(sys.argv[2]), ENOUGH))
"""
ENOUGH = 4000
SETTINGS = """
[[stream]]
name = "all"
topics = ["#"]
ring_bytes = 1048576
durability = "disk"
"""


@pytest.fixture
def home(runtime_directory: Path) -> Path:
    """Directory of the other user, whose only threads are those of a broker."""
    other_user_or_skip()
    python = Path(sys.base_prefix)
    for path in (ROOT, *ROOT.parents, python, *python.parents):
        if not path.stat().st_mode & 0o001:
            pytest.skip(f"the checkout or Python is closed to other users: {path}")
    (runtime_directory / "brim.toml").write_text(SETTINGS)
    os.chown(runtime_directory, USER, GROUP)
    return runtime_directory


def broker(home: Path, threads_max: int, port: int = 0) -> Child:
    """The broker as a process of the other user. `threads_max`: its first one included."""
    directories = ("--runtime-dir", home / "run", "--state-dir", home / "state")
    code = as_other_user(BROKER.replace("ENOUGH", str(ENOUGH)))
    return Child(code, threads_max, "run", "--config", home / "brim.toml", "--port", port, *directories)


def limit(process: Child, threads_max: int) -> None:
    """Change the limit while the process runs."""
    with Child(as_other_user(LIMIT.replace("ENOUGH", str(ENOUGH))), process.pid, threads_max) as child:
        assert child.wait()[0] == 0


@pytest.mark.parametrize("threads_max", [1, 4, 6, 7, 8, 9, 10, 11, 12, 14])
def test_a_start_with_too_few_threads_ends_with_the_remedy(home: Path, threads_max: int) -> None:
    with broker(home, threads_max) as process:
        status, _, log = process.wait()
    assert status == 2, log
    assert "brim run: no thread could be started" in log
    assert "ulimit -u" in log


def test_a_broker_that_may_start_no_thread_obeys_and_stops(home: Path) -> None:
    with broker(home, ENOUGH) as process:
        process.lines_until("ready")
        limit(process, 1)
        assert main(["reload", "--runtime-dir", str(home / "run")]) == 0
        assert process.stop()[0] == 0


def test_zeromq_peers_end_no_broker_that_may_start_no_thread(home: Path) -> None:
    """libzmq ends the process that it cannot start its threads in."""
    port = free_port()
    with broker(home, ENOUGH, port) as process, ExitStack() as down:
        process.lines_until("ready")
        client = down.enter_context(SocketClient(port, "honest"))
        limit(process, 1)
        names = ("zmq.sock", "consumers.sock")
        for name in names:
            down.enter_context(socket.socket(socket.AF_UNIX)).connect(str(home / "run" / name))
        process.log_until("ZeroMQ needs ", len(names))
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert isinstance(client.receive(), PubAck)
        limit(process, ENOUGH)
        threads = Path(f"/proc/{process.pid}/task")
        wait_until(lambda: [it.read_text() for it in threads.glob("*/comm")].count("ZMQbg/IO/0\n") == 2)
        down.close()
        assert process.stop()[0] == 0
