"""The service that `brim doctor` checks, from what systemd shows of it."""

import grp
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge.cli import main
from edge.doctor import service as service_module
from edge.doctor.service import ServiceUnknown, installed_service, parse_properties

SHOWN = """\
Id=brim.service
LoadState=loaded
User=root
ExecStart={ path=/usr/bin/brim ; argv[]=/usr/bin/brim run --config /etc/brim/brim.toml ; pid=289 }
RuntimeDirectory=brim
StateDirectory=brim
"""


def test_a_service_names_its_user_its_configuration_and_its_directories() -> None:
    service = parse_properties(SHOWN)
    assert service is not None
    assert (service.unit, service.user, service.config) == (
        "brim.service",
        "root",
        Path("/etc/brim/brim.toml"),
    )
    assert (service.runtime_dir, service.state_dir) == (Path("/run/brim"), Path("/var/lib/brim"))


@pytest.mark.parametrize("option", ["-c ", "-c", "--config=", "--config "])
@pytest.mark.parametrize("file", ["/etc/brim/press.toml", "/etc/brim/joe's.toml"])
def test_a_service_names_its_configuration_in_each_form_of_the_option(option: str, file: str) -> None:
    service = parse_properties(SHOWN.replace("--config /etc/brim/brim.toml", option + file))
    assert service is not None
    assert service.config == Path(file)


def test_a_user_given_by_number_is_named() -> None:
    service = parse_properties(SHOWN.replace("User=root", "User=0"))
    assert service is not None
    assert service.user == "root"


def test_an_absent_service_and_one_of_another_program_are_none() -> None:
    assert parse_properties("Id=brim.service\nLoadState=not-found\n") is None
    assert parse_properties(SHOWN.replace("argv[]=/usr/bin/brim run", "argv[]=/usr/bin/brim web")) is None
    assert parse_properties(SHOWN.replace("User=root", "User=removed-user")) is None
    assert parse_properties(SHOWN.replace("User=root", "User=4200000000")) is None
    assert parse_properties("") is None
    assert parse_properties(SHOWN + "Group=removed-group\n") is None


def test_a_service_may_have_a_limit_of_memory() -> None:
    for text, limit in (("", sys.maxsize), ("MemoryMax=infinity\n", sys.maxsize), ("MemoryMax=99\n", 99)):
        service = parse_properties(SHOWN + text)
        assert service is not None
        assert service.memory_max_bytes == limit


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_gets_the_groups_of_the_service_and_none_of_its_own() -> None:
    shown = SHOWN.replace("=root", "=nobody") + "Group=daemon\nSupplementaryGroups=mail 54321\n"
    program = (
        "import json, os, sys; from edge.doctor.service import parse_properties as parse\n"
        "print(json.dumps([parse(sys.argv[1]).enter(), os.getresuid(), os.getresgid(), os.getgroups()]))"
    )
    done = subprocess.run([sys.executable, "-c", program, shown], capture_output=True, check=True)
    entered, users, groups, all_groups = json.loads(done.stdout)
    daemon, mail = grp.getgrnam("daemon").gr_gid, grp.getgrnam("mail").gr_gid
    assert entered
    assert set(users) != {0}
    assert set(groups) == {daemon}
    assert {mail, 54_321} <= set(all_groups) <= {mail, 54_321, daemon}


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of systemctl, for a machine that systemd manages; tests write it."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(service_module, "_BOOTED", tmp_path)
    for name in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "CREDENTIALS_DIRECTORY"):
        monkeypatch.setenv(name, "")  # so that their values are restored
    return program


def script(program: Path, lines: str) -> None:
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)


def installed(program: Path, unit: str, config: Path) -> None:
    """Show this one unit, which runs with `config`; all others are not installed."""
    shown = SHOWN.replace("/etc/brim/brim.toml", str(config)).replace("Id=brim.service", f"Id={unit}")
    shown = shown.replace("Directory=brim", f"Directory={unit.removesuffix('.service')}")
    shown = shown.replace("User=root", f"User={os.environ.get('USER', 'root')}")
    other = "echo LoadState=not-found"
    script(program, f"if [ \"$2\" = {unit} ]; then cat << 'END'\n{shown}END\nelse {other}; fi")


def test_check_shows_the_directory_of_the_service_that_runs_with_the_file(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    press, other = tmp_path / "press.toml", tmp_path / "other.toml"
    for file in (press, other):
        file.touch()
    installed(systemctl, "brim@press.service", press)
    assert main(["check", str(press)]) == 0
    out = capsys.readouterr().out
    assert "service   brim@press.service, user " in out
    assert "of memory" in out
    assert " in /run/brim@press\n" in out
    os.environ["RUNTIME_DIRECTORY"] = ""
    assert main(["check", str(other)]) == 0
    out = capsys.readouterr().out
    assert "service" not in out
    assert f" in /dev/shm/brim-{os.geteuid()}\n" in out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the user of the service")
def test_doctor_with_the_file_of_the_service_checks_the_directories_of_the_service(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "brim.toml"
    config.touch()
    installed(systemctl, "brim.service", config)
    main(["doctor", "--json", "--config", str(config)])
    findings = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["service"]["value"] == "brim.service, user root"
    assert findings["runtime_dir"]["value"].startswith("/run/brim")


def test_a_service_that_systemctl_does_not_show_in_time_is_not_taken_for_an_absent_one(
    systemctl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service_module, "_TIMEOUT_S", 0.05)
    script(systemctl, "exec sleep 600")
    with pytest.raises(ServiceUnknown, match="no answer"):
        installed_service("")
    (tmp_path / "brim.toml").touch()
    assert main(["check", str(tmp_path / "brim.toml")]) == 0
    assert "WARNING: systemctl show brim.service failed: no answer" in capsys.readouterr().out
    main(["doctor", "--json", "--config", str(tmp_path / "brim.toml")])
    findings = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["service"]["state"] == "warning"
    assert "no answer" in findings["service"]["value"]


def test_an_error_of_systemctl_is_reported_unless_systemd_does_not_manage_the_machine(
    systemctl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(systemctl, "echo 'Access denied' >&2; exit 4")
    with pytest.raises(ServiceUnknown, match="Access denied"):
        installed_service("press")
    monkeypatch.setattr(service_module, "_BOOTED", tmp_path / "absent")
    assert installed_service("press") is None
