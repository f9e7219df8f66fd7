"""Workers whose socket Spark closes: the daemon over a real socket, without Java."""

import os
import re
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from tests.support.documents import block_of
from tests.support.drained_files import drained_file_of, store
from tests.support.project import ROOT

TASKS = """
import bridge.spark.quiet_workers

def main(infile, outfile):
    idle = infile.read(1)
    bridge.spark.quiet_workers.quiet_this_worker()
    outfile.write(b"x" if idle else b"the error, for Spark")
"""
FAILING = """
def main(infile, outfile):
    infile.read(1)
    raise ValueError("a mistake in a worker")
"""


def daemon(module: str, worker: str, place: Path) -> subprocess.Popen[bytes]:
    """As Spark starts it; its socket is in `place`, whose path is short (the kernel allows 107 bytes)."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{place}",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(place),
        "SPARK_REUSE_WORKER": "1",
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module, worker]
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def after_tasks(module: str, worker: str, place: Path, tasks: int = 0) -> str:
    """Standard error of a worker of which the socket is closed after these tasks."""
    with daemon(module, worker, place) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        (length,) = struct.unpack(">i", running.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(running.stdout.read(length).decode())
            (pid,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            worker_end = os.pidfd_open(pid)
            for _ in range(tasks):
                connection.sendall(b"t")
                assert connection.recv(1) == b"x"
        await_end(worker_end)
        _, said = running.communicate()
    return said.decode()


def await_end(process: int) -> None:
    """Until the process has ended; it is the child of another one."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    assert poll.poll(60_000)
    os.close(process)


def test_a_worker_whose_socket_spark_closes_prints_no_traceback(runtime_directory: Path) -> None:
    assert "BrokenPipeError" in after_tasks("pyspark.daemon", "pyspark.worker", runtime_directory)
    assert after_tasks("bridge.spark.quiet_workers", "pyspark.worker", runtime_directory) == ""


def test_a_planning_worker_prints_no_traceback_when_the_session_stops(runtime_directory: Path) -> None:
    for name, text in (
        ("plain", TASKS.replace("bridge.spark.quiet_workers.quiet_this_worker()", "")),
        ("quiet", TASKS),
    ):
        (runtime_directory / f"pyspark_{name}.py").write_text(text)
    assert "BrokenPipeError" in after_tasks("pyspark.daemon", "pyspark_plain", runtime_directory, tasks=2)
    assert after_tasks("pyspark.daemon", "pyspark_quiet", runtime_directory, tasks=2) == ""


def test_an_error_of_a_worker_is_printed(runtime_directory: Path) -> None:
    (runtime_directory / "pyspark_failing.py").write_text(FAILING)
    said = after_tasks("bridge.spark.quiet_workers", "pyspark_failing", runtime_directory)
    assert re.search(r"^ValueError: a mistake in a worker$", said, re.MULTILINE)


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_notebook_of_the_tutorial_prints_no_traceback(tmp_path: Path) -> None:
    """The block of Python as it stands there, in a process of its own; short queries leave workers early."""
    block = block_of("docs/tutorials/data-engineer.md", "python")
    lake = tmp_path / "sample-lake"
    store(lake, drained_file_of(0, 19_999, payload=lambda offset: b'{"temp": %d.5, "rpm": 7}' % offset))
    fields = 'fields = { temp = "double", rpm = "long" }'
    (lake / "payloads.toml").write_text(f'[[payload]]\ntopic = "#"\nformat = "json"\n{fields}\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "only showing top 5 rows" in done.stdout
    assert [line for line in done.stderr.splitlines() if "WARNING: Using incubator" not in line] == []
