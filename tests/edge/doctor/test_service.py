"""The service that `brim doctor` checks, from what systemd shows of it."""

import grp
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert parse_properties(SHOWN + "Group=removed-group\n") is None


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
