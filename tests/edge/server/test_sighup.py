"""SIGHUP: it reads files again, and never ends a broker."""

import os
import signal
from pathlib import Path

from tests.support.children import Child, ModuleChild
from tests.support.waiting import wait_until

RELOADS = "password and ACL files reloaded"


def catches_hangup(pid: int) -> bool:
    """True: the process has a handler for SIGHUP."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGHUP - 1) & 1)
    return False


def arguments(runtime_dir: Path, state_dir: Path, text: str | None = "") -> tuple[object, ...]:
    """`text`: of a configuration file; None: there is none."""
    words = ("run", "--port", 0, "--runtime-dir", runtime_dir, "--state-dir", state_dir)
    if text is None:
        return words
    file = state_dir / "brim.toml"
    file.write_text(text)
    return (*words, "--config", file)


def test_a_hangup_never_ends_a_broker_without_files(runtime_directory: Path, tmp_path: Path) -> None:
    with ModuleChild("edge", *arguments(runtime_directory, tmp_path, None)) as broker:
        broker.lines_until("brim status")
        for count in range(1, 4):
            os.kill(broker.pid, signal.SIGHUP)
            broker.log_until("there are no files to read again", count)
        status, _, log = broker.stop()
    assert status == 0, log


def test_a_hangup_with_a_broken_configuration_changes_nothing(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ModuleChild("edge", *arguments(runtime_directory, tmp_path)) as broker:
        broker.lines_until("brim status")
        (tmp_path / "brim.toml").write_text("broken = = 1\n")
        os.kill(broker.pid, signal.SIGHUP)
        broker.log_until("reload refused, nothing changed")
        (tmp_path / "brim.toml").write_text("")
        os.kill(broker.pid, signal.SIGHUP)
        broker.log_until("configuration reloaded applied=0 failed=0 needs_restart=0")
        status, _, log = broker.stop()
    assert status == 0, log


def test_a_hangup_during_the_start_is_served_after_it(runtime_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic readwrite #\n")
    text = '[auth]\nacl_file = "acl"\n'
    with ModuleChild("edge", *arguments(runtime_directory, tmp_path, text)) as broker:
        wait_until(lambda: catches_hangup(broker.pid))
        for _ in range(100):
            os.kill(broker.pid, signal.SIGHUP)
        broker.lines_until("brim status")
        broker.log_until(RELOADS)
        status, _, log = broker.stop()
    assert status == 0, log
    assert log.count(RELOADS) <= 100


def test_a_broken_file_and_many_hangups_do_not_end_a_broker(runtime_directory: Path, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\n")
    text = '[auth]\nacl_file = "acl"\n'
    with ModuleChild("edge", *arguments(runtime_directory, tmp_path, text)) as broker:
        broker.lines_until("brim status")
        acl.write_text("topik x\n")
        for _ in range(200):
            os.kill(broker.pid, signal.SIGHUP)
        broker.log_until("'topik'")
        acl.unlink()
        os.kill(broker.pid, signal.SIGHUP)
        broker.log_until("No such file")
        acl.write_text("topic readwrite a/#\n")
        os.kill(broker.pid, signal.SIGHUP)
        broker.log_until(RELOADS)
        status, _, log = broker.stop()
    assert status == 0, log
    assert "Traceback" not in log


def test_a_hangup_does_not_start_a_broker_with_a_broken_configuration(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ModuleChild("edge", *arguments(runtime_directory, tmp_path, "broken = = 1\n")) as broker:
        status, _, log = broker.wait()
    assert (status, "not TOML" in log) == (78, True)


SLOW_END = """
import asyncio, sys
from edge.cli import main
from edge.server import server

end = server.BrokerServer.__aexit__

async def slow(self, *error):
    print("ending", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await end(self, *error)

server.BrokerServer.__aexit__ = slow
sys.exit(main(sys.argv[1:]))
"""


def test_a_hangup_while_a_broker_ends_does_not_cut_its_end_short(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with Child(SLOW_END, *arguments(runtime_directory, tmp_path)) as broker:
        broker.lines_until("brim status")
        os.kill(broker.pid, signal.SIGTERM)
        broker.lines_until("ending")
        for _ in range(20):
            os.kill(broker.pid, signal.SIGHUP)
        broker.say("end")
        status, _, log = broker.wait()
    assert status == 0, log
