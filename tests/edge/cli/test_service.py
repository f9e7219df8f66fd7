"""`brim service`: units that systemd accepts, written, started and removed by systemctl."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.cli.service_unit import Unit, socket_unit
from edge.config.listener import Listener
from tests.support.children import ModuleChild

EXPOSURE_MAX = 2.0
RECORDER = """\
#!/bin/sh
[ "$1" = --version ] && echo "systemd {version} ({version}.1)" && exit
echo "$@" >> "{calls}"
exit {status}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the arguments of each call of a systemctl that succeeds."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return systemctl(tmp_path, 0)


def systemctl(directory: Path, status: int, version: int = 252) -> Path:
    (directory / "bin").mkdir(exist_ok=True)
    calls = directory / "calls"
    program = directory / "bin" / "systemctl"
    program.write_text(RECORDER.format(calls=calls, status=status, version=version))
    program.chmod(0o755)
    return calls


def units(directory: Path) -> dict[str, str]:
    folder = directory / "config" / "systemd" / "user"
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def test_a_service_is_written_started_and_removed(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "install", "--user"]) == 0
    assert " run --quiet --log-format json\n" in units(tmp_path)["brim.service"]
    expected = ["daemon-reload", "enable brim.service", "restart brim.service"]
    assert calls.read_text().splitlines() == [f"--user {words}" for words in expected]
    printed = capsys.readouterr().out
    assert "wrote " in printed
    assert "  brim status\n" in printed
    calls.unlink()
    assert main(["service", "uninstall", "--user"]) == 0
    assert units(tmp_path) == {}
    expected = ["disable --now brim.service", "daemon-reload"]
    assert calls.read_text().splitlines() == [f"--user {words}" for words in expected]
    assert main(["service", "uninstall", "--user"]) == Exit.USAGE
    assert "`brim service install` makes it" in capsys.readouterr().err


def test_a_socket_unit_has_the_ports_of_the_configuration(calls: Path, tmp_path: Path) -> None:
    config = tmp_path / "two words.toml"
    config.write_text(f'[[listener]]\nport = 1999\n[[listener]]\npath = "{tmp_path}/mqtt.sock"\n')
    words = ["service", "install", "--user", "--instance", "b", "--socket", "--config", str(config)]
    assert main(words) == 0
    written = units(tmp_path)
    assert f"ListenStream=127.0.0.1:1999\nListenStream={tmp_path}/mqtt.sock\n" in written["brim-b.socket"]
    assert f'--instance b --config "{config}"\n' in written["brim-b.service"]
    assert "--user restart brim-b.socket\n--user enable brim-b.service\n" in calls.read_text()


def test_an_ipv6_address_is_in_brackets() -> None:
    text = socket_unit(Unit(is_system=True), [Listener(host="::", port=8883, allow_anonymous=True)])
    assert "ListenStream=[::]:8883\n" in text


def test_a_start_on_a_slow_disk_is_not_ended_after_90_s(calls: Path, tmp_path: Path) -> None:
    """The default of systemd. With 2 s for each operation of the disk, a start takes 108 s."""
    assert main(["service", "install", "--user"]) == 0
    assert "Type=notify\n" in (text := units(tmp_path)["brim.service"])
    assert "\nTimeoutStartSec=15min\n" in text


def test_print_changes_nothing(calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "install", "--user", "--print"]) == 0
    assert "[Service]\n" in capsys.readouterr().out
    assert (calls.exists(), units(tmp_path)) == (False, {})


def test_a_failed_systemctl_is_reported(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl(tmp_path, 1)
    assert main(["service", "install", "--user"]) == Exit.USAGE
    assert "systemctl daemon-reload failed" in capsys.readouterr().err
    assert main(["service", "status", "--user"]) == 1


def test_a_machine_without_systemd_gets_the_remedy(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["service", "install", "--user"]) == Exit.USAGE
    assert "under your service manager" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "has_backoff"), [(252, False), (254, True), (257, True)])
def test_a_systemd_that_knows_the_settings_restarts_the_broker_with_longer_pauses(
    calls: Path, tmp_path: Path, version: int, has_backoff: bool
) -> None:
    systemctl(tmp_path, 0, version)
    assert main(["service", "install", "--user"]) == 0
    text = units(tmp_path)["brim.service"]
    assert ("RestartSteps=5\nRestartMaxDelaySec=10\n" in text) == has_backoff
    assert text.count("\nRestart") == 3 + 2 * has_backoff


def status_of_run(directory: Path, config: str) -> tuple[int, str]:
    """Exit status and errors of a broker that cannot start with this configuration."""
    file = directory / "brim.toml"
    file.write_text(config)
    places = ("--state-dir", directory / "state", "--runtime-dir", directory / "runtime")
    with ModuleChild("edge", "run", "--port", "0", "--config", file, *places) as child:
        status, _, error = child.wait()
    return status, error


def test_a_wrong_configuration_ends_the_broker_with_the_status_that_no_unit_restarts(tmp_path: Path) -> None:
    status, error = status_of_run(tmp_path, "edge_idd = 1\n")
    assert status == Exit.CONFIGURATION
    assert f"{tmp_path}/brim.toml:1: edge_idd" in error
    (tmp_path / "rules").write_text("user ann\ntopic reads plant/#\n")
    status, error = status_of_run(tmp_path, f'[auth]\nacl_file = "{tmp_path}/rules"\n')
    assert status == Exit.CONFIGURATION
    assert f"{tmp_path}/rules:2: " in error
    for unit in (Unit(is_system=True), Unit(is_system=False)):
        assert f"\nRestartPreventExitStatus={Exit.CONFIGURATION:d}\n" in unit.text("brim run")


def test_a_file_that_may_come_late_ends_the_broker_with_a_status_that_units_restart(tmp_path: Path) -> None:
    status, error = status_of_run(tmp_path, f'[auth]\npassword_file = "{tmp_path}/users"\n')
    assert status == Exit.USAGE
    assert "cannot be read" in error
    with ModuleChild("edge", "run", "--config", tmp_path / "absent.toml") as child:
        assert child.wait()[0] == Exit.USAGE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs a service of the system")
def test_a_service_of_the_system_refuses_what_its_user_cannot_read(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "brim.toml").touch()
    assert main(["service", "install", "--system", "--config", str(tmp_path / "brim.toml")]) == Exit.USAGE
    assert "the service cannot enter" in capsys.readouterr().err
    assert not calls.exists()


# ---- systemd's own view ----

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)


@pytest.fixture(params=["system", "user"])
def unit_files(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    unit = Unit(request.param == "system")
    files = {"brim.service": unit.text("/bin/true"), "brim.socket": socket_unit(unit, [Listener()])}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in files]


@needs_systemd
def test_systemd_verifies_the_units(unit_files: list[Path]) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *unit_files], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "brim" in line]
    assert (done.returncode, ours) == (0, [])


@needs_systemd
def test_the_sandbox_leaves_little_exposed(unit_files: list[Path]) -> None:
    if "User=brim" not in unit_files[0].read_text():
        pytest.skip("the manager of a user has no privilege for a sandbox")
    words = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}"]
    done = subprocess.run([*words, unit_files[0]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
