"""The service that `brim doctor` checks, from what systemd shows of it."""

from pathlib import Path

from edge.doctor.service import parse_properties

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


def test_an_absent_service_and_one_of_another_program_are_none() -> None:
    assert parse_properties("Id=brim.service\nLoadState=not-found\n") is None
    assert parse_properties(SHOWN.replace("argv[]=/usr/bin/brim run", "argv[]=/usr/bin/brim web")) is None
    assert parse_properties(SHOWN.replace("User=root", "User=removed-user")) is None
    assert parse_properties("") is None
