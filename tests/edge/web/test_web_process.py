"""The console that the broker starts: with its settings, again after its end, and with the broker's end."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from edge.cli import main
from edge.config.loader import parse
from edge.errors import EdgeError
from edge.server import web_process
from edge.server.server import BrokerServer
from edge.server.web_process import WebProcess
from ringbuf.extras import install_extra
from tests.edge.web.test_access import signed_in
from tests.support.brim_process import BrimProcess
from tests.support.ports import free_port
from tests.support.waiting import until, wait_until
from tests.support.web_console import Visitor, write_users


def consoles(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "web" in child.cmdline()]


def serves(port: int) -> bool:
    try:
        return Visitor(f"http://127.0.0.1:{port}").send("GET", "/").status == 200
    except OSError:
        return False


def test_the_broker_starts_the_console_again_and_takes_it_along(
    runtime_directory: Path, tmp_path: Path
) -> None:
    port = free_port()
    write_users(tmp_path / "web.users")
    settings = f'[web]\nlisten = "127.0.0.1:{port}"\nusers_file = "web.users"\nadmins = ["ann"]\n'
    broker = BrimProcess(runtime_directory, tmp_path, settings, bridge=False)
    broker.start()
    wait_until(lambda: serves(port))
    assert signed_in(f"http://127.0.0.1:{port}", "ann").post("reload").status == 200
    (first,) = consoles(broker.pid)
    first.kill()
    wait_until(lambda: serves(port) and consoles(broker.pid) and consoles(broker.pid)[0].pid != first.pid)
    (second,) = consoles(broker.pid)
    broker.kill()
    second.wait(30)  # by itself
    broker.start()
    wait_until(lambda: serves(port))
    (third,) = consoles(broker.pid)
    log = broker.stop()
    assert not third.is_running()
    assert "brim.audit: console action" not in log  # of the first console
    assert "web console" in log


def test_the_console_logs_in_the_form_of_the_broker(runtime_directory: Path, tmp_path: Path) -> None:
    port = free_port()
    settings = f'[web]\nlisten = "127.0.0.1:{port}"\n'
    broker = BrimProcess(runtime_directory, tmp_path, settings, bridge=False, log_format="json")
    with broker:
        wait_until(lambda: serves(port))
        log = broker.stop()
    rows = [json.loads(line) for line in log.splitlines()]
    assert {"web console"} <= {row["message"].partition(" at=")[0] for row in rows}


def test_a_port_in_use_ends_the_console_and_not_the_broker(runtime_directory: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = f'[web]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n'
        with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
            assert "web.listen" in broker.log_until("web console ended")


def test_a_console_without_its_libraries_is_an_error_of_the_start_and_of_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(web_process, "find_spec", lambda _: None)
    """Before a client is served."""
    with pytest.raises(EdgeError, match="not installed") as raised:
        BrokerServer(parse('[web]\nlisten = "127.0.0.1:0"'), "0", failed=lambda: None)
    assert install_extra("web") in raised.value.hint
    file = tmp_path / "brim.toml"
    file.write_text('[web]\nlisten = "127.0.0.1:0"\n')
    assert main(["check", str(file)]) == 2
    assert install_extra("web") in capsys.readouterr().err


def test_a_console_that_gets_no_processor_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(web_process, "STOP_S", 0.2)
    port = free_port()
    settings = f'runtime_dir = "{tmp_path}"\n[web]\nlisten = "127.0.0.1:{port}"\n'

    async def lives_after_stop() -> bool:
        console = WebProcess(parse(settings))
        console.start()
        await until(lambda: serves(port))
        (process,) = consoles(os.getpid())
        process.send_signal(signal.SIGSTOP)
        await console.stop()
        return bool(process.is_running())  # before the event loop ends, which kills it, too

    assert not asyncio.run(lives_after_stop())
