"""`brim doctor` names each planted mistake with its fix, with and without a running broker."""

import datetime as dt
import errno
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from edge.cli import main
from edge.doctor import machine
from edge.doctor.findings import Severity
from tests.support.brim_process import BrimProcess
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S


class Place:
    """A directory with a configuration, and its examination."""

    def __init__(self, directory: Path, runtime_dir: Path, out: pytest.CaptureFixture[str]) -> None:
        self.directory, self.runtime_dir, self._out = directory, runtime_dir, out
        self.port = free_port()
        self.settings = ""
        self.listener = ""
        self.top = ""

    def write(self) -> Path:
        file = self.directory / "brim.toml"
        file.write_text(
            f'runtime_dir = "{self.runtime_dir}"\nstate_dir = "{self.directory / "state"}"\n{self.top}\n'
            f"[[listener]]\nport = {self.port}\n{self.listener}\n{self.settings}\n"
        )
        return file

    def examined(self) -> tuple[int, dict[str, dict[str, str]]]:
        """Exit status, and findings by check."""
        status = main(["doctor", "--json", "--config", str(self.write())])
        found = json.loads(self._out.readouterr().out)
        assert found["state"] == Severity(status).name.lower()
        return status, {it["check"]: it for it in found["findings"]}

    def certificate(self, **fields: Any) -> tuple[Path, Path]:
        issued = trustme.CA().issue_cert("localhost", **fields)
        cert, key = self.directory / "cert.pem", self.directory / "key.pem"
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        key.chmod(0o600)
        self.listener = f'[listener.tls]\ncertificate_file = "{cert}"\nkey_file = "{key}"'
        return cert, key


@pytest.fixture
def place(
    tmp_path: Path,
    runtime_directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    monkeypatch.setattr(machine, "_clock_state", lambda: 0)  # that of this machine is not of this test
    return Place(tmp_path, runtime_directory, capsys)


def days(count: int) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=count)


def expired(place: Place, _: pytest.MonkeyPatch) -> None:
    place.certificate(not_before=days(-20), not_after=days(-10))


def ends_soon(place: Place, _: pytest.MonkeyPatch) -> None:
    place.certificate(not_after=days(10))


def other_key(place: Place, _: pytest.MonkeyPatch) -> None:
    key = place.certificate()[1]
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(key)


def garbage(place: Place, _: pytest.MonkeyPatch) -> None:
    place.certificate()[0].write_bytes(b"\xff\x00 \x1b[2J garbage" * 1000)


def open_key(place: Place, _: pytest.MonkeyPatch) -> None:
    place.certificate()[1].chmod(0o644)


def open_directory(place: Place, _: pytest.MonkeyPatch) -> None:
    (place.directory / "state").mkdir()
    (place.directory / "state").chmod(0o777)


def a_file(place: Place, _: pytest.MonkeyPatch) -> None:
    (place.directory / "state").write_text("")


def others(place: Place, patch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a directory to another user")
    (place.directory / "state").mkdir()
    os.chown(place.directory / "state", 54_321, 54_321)
    patch.setattr("os.geteuid", lambda: 12_345)


def hidden(_: Place, patch: pytest.MonkeyPatch) -> None:
    """As for a user who may not look into the directory above: root, who runs tests, may."""
    stat = os.stat

    def denied(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("/state"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return stat(path, **options)

    patch.setattr("os.stat", denied)


def on_disk(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("edge.doctor.files.file_system", lambda path: "ext4")


def in_memory(place: Place, patch: pytest.MonkeyPatch) -> None:
    (place.directory / "state").mkdir()
    patch.setattr("edge.doctor.files.file_system", lambda path: "tmpfs")


def leftover(place: Place, _: pytest.MonkeyPatch) -> None:
    (place.runtime_dir / ".default-0.999999999.new").write_text("")


def full_disk(place: Place, patch: pytest.MonkeyPatch) -> None:
    place.settings = '[[stream]]\nname = "a"\ntopics = ["a"]\ndurability = "disk"\n'
    place.settings += "[log]\ndisk_warn_percent = 1\ndisk_delete_percent = 1\ndisk_read_only_percent = 1\n"
    patch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 5, "total": 100})())


def rings_too_large(place: Place, _: pytest.MonkeyPatch) -> None:
    place.settings = '[[stream]]\nname = "a"\ntopics = ["a"]\npartitions = 64\nring_bytes = "4 GiB"\n'


def no_clock(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "_clock_state", lambda: machine.CLOCK_ERROR)


def old_kernel(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("platform.release", lambda: "5.10.0-28-amd64")


def old_package(place: Place, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "version", lambda name: "0.1" if name == "msgspec" else "99")


def few_files(place: Place, patch: pytest.MonkeyPatch) -> None:
    limit = resource.getrlimit
    patch.setattr("resource.getrlimit", lambda it: (256, 256) if it == resource.RLIMIT_NOFILE else limit(it))


def no_sink(place: Place, _: pytest.MonkeyPatch) -> None:
    place.settings = f'[[bridge]]\nname = "lake"\nto = "mqtt://127.0.0.1:{free_port()}/"\n'


def bad_setting(place: Place, _: pytest.MonkeyPatch) -> None:
    place.top = "edge_idd = 1"


def no_users(place: Place, _: pytest.MonkeyPatch) -> None:
    place.settings = '[auth]\npassword_file = "users"\n'


def bad_rules(place: Place, _: pytest.MonkeyPatch) -> None:
    (place.directory / "acl").write_text("topic raed plant/#\n")
    place.settings = '[auth]\nacl_file = "acl"\n'


MISTAKES: dict[Callable[[Place, pytest.MonkeyPatch], None], tuple[str, str, str, str]] = {
    expired: ("certificate of listener[0]", "error", "expired", "new certificate"),
    ends_soon: ("certificate of listener[0]", "warning", "valid for 9 days", "renew"),
    other_key: ("certificate of listener[0]", "error", "another certificate", "key must be that"),
    garbage: ("certificate of listener[0]", "error", "cert.pem", "PEM"),
    open_key: ("key of listener[0]", "error", "mode 644", "chmod o="),
    open_directory: ("state_dir", "error", "mode 777", "chmod o-w"),
    a_file: ("state_dir", "error", "is not a directory", "remove it"),
    others: ("state_dir", "error", "user 54321", "chown 12345"),
    hidden: ("state_dir", "error", "hidden from user", "run as the broker's user"),
    on_disk: ("runtime_dir", "warning", "ext4", "/dev/shm"),
    in_memory: ("state_dir", "warning", "tmpfs", "a directory on a disk"),
    leftover: ("leftovers", "warning", ".default-0.999999999.new", "next start"),
    full_disk: ("disk space", "error", "95 %", "free space"),
    rings_too_large: ("shared memory", "error", "MiB free", "remount,size="),
    no_clock: ("clock", "warning", "not synchronized", "set-ntp"),
    old_kernel: ("kernel", "warning", "5.10", "5.16"),
    old_package: ("package msgspec", "error", "0.1", "pip install 'msgspec"),
    few_files: ("open files", "warning", "256", "LimitNOFILE"),
    no_sink: ("bridge lake", "warning", "refused", "start the service"),
    no_users: ("auth.password_file", "error", "No such file", "correct"),
    bad_rules: ("auth.acl_file", "error", "acl:1", "correct"),
    bad_setting: ("configuration", "error", "edge_idd", "brim check"),
}


def test_a_sound_place_has_no_error(place: Place) -> None:
    place.certificate(not_after=days(300))
    status, found = place.examined()
    assert status in {Severity.OK, Severity.WARNING}  # the file system of tests may be in memory
    assert {"kernel", "open files", "shared memory", "port of listener[0]", "packages"} <= set(found)
    assert not [it for it in found.values() if it["state"] == "error"]
    assert all(it["fix"] for it in found.values() if it["state"] != "ok")


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_named_with_its_fix(
    plant: Callable[[Place, pytest.MonkeyPatch], None], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(place, monkeypatch)
    check, state, value, fix = MISTAKES[plant]
    status, found = place.examined()
    assert check in found, found
    assert (found[check]["state"], status) >= (state, Severity[state.upper()])
    assert value in found[check]["value"]
    assert fix in found[check]["fix"]


def test_a_taken_port_is_named_with_its_owner(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)):
        status, found = place.examined()
    finding = found["port of listener[0]"]
    assert (status, finding["state"]) == (Severity.ERROR, "error")
    assert "(pid " in finding["fix"]


def test_a_port_of_every_address_is_taken_by_a_program_that_has_it_for_ipv4(place: Place) -> None:
    place.listener = 'host = "::"\nallow_anonymous = true'
    with socket.create_server(("0.0.0.0", place.port)):
        _, found = place.examined()
    assert found["port of listener[0]"]["state"] == "error"
    assert "Address already in use (" in found["port of listener[0]"]["value"]


def test_a_running_broker_has_its_ports_and_its_troubles_are_findings(
    tmp_path: Path, runtime_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        assert main(["doctor", "--json", "--config", str(tmp_path / "brim.toml")]) < Severity.ERROR
        found = {it["check"]: it for it in json.loads(capsys.readouterr().out)["findings"]}
        assert str(broker.pid) in found["broker"]["value"]
        assert not any(check.startswith("port of") for check in found)


def test_names_cannot_act_on_a_terminal(place: Place) -> None:
    place.settings = '[[bridge]]\nname = "lake"\nto = "file:///nowhere/%1b%5b2J"\n'
    command = [sys.executable, "-m", "edge", "doctor", "--config", str(place.write()), "--color", "never"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, timeout=PATIENCE_S)
    assert b"\x1b" not in done.stdout
    assert done.returncode in set(Severity)
