"""`brim collect`: takes what a bridge drains, and says its key."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

from bridge.sinks.zeromq import ZmqSink
from tests.support.drained_files import unit_of
from tests.support.house import ROOT
from tests.support.waiting import wait_until


def brim(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_what_it_has_acknowledged_is_in_the_lake_and_it_ends_when_told(tmp_path: Path) -> None:
    key, said = tmp_path / "collector.key", tmp_path / "said"
    command = [sys.executable, "-m", "edge", "collect", "--to", (tmp_path / "lake").as_uri()]
    command += ["--listen", "tcp://127.0.0.1:*", "--key", str(key)]
    with said.open("wb") as output, subprocess.Popen(command, cwd=ROOT, stderr=output) as process:
        try:
            wait_until(lambda: process.poll() is not None or "collecting" in said.read_text())
            found = re.search(r"endpoint=\S*?tcp://(\S+?)\"? .*server_key=\"?([^\"\n]{40})", said.read_text())
            assert found is not None, said.read_text()
            sink = ZmqSink.of_url(f"zmq://{found[1]}", {"server_key": found[2]})
            sink.begin("edge-1")
            sink.put(unit_of(0, 9))
            sink.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert (tmp_path / "lake" / unit_of(0, 9).name).is_file()
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600


def test_what_others_could_read_is_not_listened_for(tmp_path: Path) -> None:
    run = brim("collect", "--to", tmp_path.as_uri(), "--listen", "tcp://0.0.0.0:*")
    assert run.returncode == 2
    assert "--key" in run.stderr
