"""`brim check` as root warns of a file that the group of the configuration, the service, cannot read."""

import os
import subprocess
from pathlib import Path

import pytest
import trustme

from edge.cli import main
from edge.config.named_files import named_files
from edge.config.schema import Bridge, Config

GROUP = 54_321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another group")
def test_a_file_that_only_root_reads_is_warned_of_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "edge.pem")
    issued.private_key_pem.write_to_path(tmp_path / "edge.key")
    config = tmp_path / "brim.toml"
    config.write_text(
        '[auth]\npassword_file = "users"\n'
        '[[listener]]\ntls = { certificate_file = "edge.pem", key_file = "edge.key" }\n'
    )
    (tmp_path / "users").write_text("")
    for name in ("edge.key", "users"):
        (tmp_path / name).chmod(0o600)
    assert warnings(config, capsys) == []  # a configuration of root only: nothing is known of a service
    os.chown(config, 0, GROUP)
    config.chmod(0o640)
    found = warnings(config, capsys)
    assert [line.split(":")[1].strip() for line in found] == [
        "listener[0].tls.key_file",
        "auth.password_file",
    ]
    for line in found:
        subprocess.run(line.rpartition("; ")[2], shell=True, check=True)
    assert warnings(config, capsys) == []


def test_a_missing_file_of_users_of_the_console_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "brim.toml"
    config.write_text('[web]\nlisten = "127.0.0.1:8080"\nusers_file = "web.users"\n')
    assert main(["check", str(config)]) == 2
    assert "makes it" in capsys.readouterr().err


def test_mistakes_of_all_files_are_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "brim.toml"
    config.write_text(
        '[auth]\npassword_file = "users"\nacl_file = "acl"\n[web]\nlisten = "127.0.0.1:0"\n'
        'users_file = "web.users"\n[[listener]]\ntls = { certificate_file = "a.pem", key_file = "a.key" }\n'
    )
    assert main(["check", str(config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [name for name in ("a.pem", "users:", "acl:", "web.users:") if f"/{name}" not in str(lines)] == []
    assert len(lines) == 4


def test_the_payload_schema_of_a_bridge_is_one_of_the_files() -> None:
    options: dict[str, str | bool | int | float] = {
        "format": "parquet",
        "payloads": "/etc/brim/payloads.toml",
    }
    config = Config(bridge=(Bridge(name="lake", to="file:///srv/lake", options=options),))
    assert list(named_files(config)) == [
        ("bridge.lake.options.payloads", Path("/etc/brim/payloads.toml")),
    ]


def warnings(config: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["check", str(config)]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
