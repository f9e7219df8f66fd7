"""Service of systemd that runs the broker: checks use its directories and the rights of its user.

Owns the reading of `systemctl show`. Changes only the environment and the user of this process.
"""

from __future__ import annotations

import argparse
import grp
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge.config.directories import INSTANCE, instance
from edge.errors import EdgeError

_PROPERTIES = (
    "Id,LoadState,User,Group,SupplementaryGroups,ExecStart,RuntimeDirectory,StateDirectory,MemoryMax"
)
_TIMEOUT_S = 10.0
_BOOTED = Path("/run/systemd/system")  # exists if systemd manages this machine: sd_booted(3)


class ServiceUnknown(EdgeError):
    """systemd does not answer: the service may be installed, or not."""


@dataclass(frozen=True, slots=True)
class SystemdService:
    """A service of the system that starts `brim run`."""

    unit: str
    user: str
    config: Path | None
    runtime_dir: Path
    state_dir: Path
    group: str = ""  # "": that of the user
    more_groups: tuple[str, ...] = ()
    memory_max_bytes: int = sys.maxsize  # MemoryMax=

    def enter(self) -> bool:
        """Set the directories of the service; as root, become its user, with its groups.

        Returns False if this process is neither root nor that user.
        """
        self.set_directories()
        entry = pwd.getpwnam(self.user)
        if os.geteuid() == 0:
            group = _group_ids([self.group])[0] if self.group else entry.pw_gid
            os.initgroups(self.user, group)
            os.setgroups([*os.getgroups(), *_group_ids(self.more_groups)])
            os.setgid(group)
            os.setuid(entry.pw_uid)
        return os.geteuid() == entry.pw_uid

    def set_directories(self) -> None:
        """Set the variables that systemd sets. The directory of credentials exists while the service runs."""
        os.environ["RUNTIME_DIRECTORY"] = str(self.runtime_dir)
        os.environ["STATE_DIRECTORY"] = str(self.state_dir)
        os.environ["CREDENTIALS_DIRECTORY"] = f"/run/credentials/{self.unit}"


def installed_service(name: str) -> SystemdService | None:
    """The service of the system for this instance; None if it is not installed, or not of Brim.

    Raises ServiceUnknown.
    """
    if not _BOOTED.is_dir():
        return None
    for unit in (f"brim@{name}", f"brim-{name}") if name else ("brim",):
        if (service := parse_properties(_shown(f"{unit}.service"))) is not None:
            return service
    return None


def service_of(config: Path) -> SystemdService | None:
    """The service of the system that runs with this configuration file, or None. Raises ServiceUnknown.

    It has the name of the instance that is selected, or of the file: brim@press has /etc/brim/press.toml.
    """
    names = [instance(), "" if config.stem == "brim" else config.stem]
    for name in dict.fromkeys(name for name in names if not name or INSTANCE.fullmatch(name)):
        service = installed_service(name)
        file = None if service is None else service.config
        if file is not None and os.path.realpath(file) == os.path.realpath(config):
            return service
    return None


def _shown(unit: str) -> str:
    """Properties of a unit. Raises ServiceUnknown."""
    command = ["systemctl", "show", unit, f"--property={_PROPERTIES}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_TIMEOUT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip() or f"status {error.returncode}"
    except OSError as error:
        reason = error.strerror or str(error)
    hint = "run it again; `systemctl status` shows the state of systemd"
    raise ServiceUnknown(f"systemctl show {unit} failed: {reason}", hint=hint)


def parse_properties(text: str) -> SystemdService | None:
    """The service in the output of `systemctl show`.

    None: it is not installed, does not run Brim, or has a user or group that does not exist.
    """
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    words = _words(values.get("ExecStart", "").partition("argv[]=")[2].partition(" ; ")[0])
    if values.get("LoadState") != "loaded" or "run" not in words or not values.get("RuntimeDirectory"):
        return None
    user = values.get("User") or "root"
    directory = values["RuntimeDirectory"].split()[0]
    state = (values.get("StateDirectory") or directory).split()[0]
    with suppress(KeyError):
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        group, more = values.get("Group", ""), tuple(values.get("SupplementaryGroups", "").split())
        _group_ids([*([group] if group else []), *more])
        places = Path("/run", directory), Path("/var/lib", state)
        memory = values.get("MemoryMax", "")
        memory_bytes = int(memory) if memory.isdecimal() else sys.maxsize  # "infinity"
        names = values["Id"], entry.pw_name
        return SystemdService(*names, _config_in(words), *places, group, more, memory_bytes)
    return None


def _words(command: str) -> list[str]:
    """Words of a command line. systemd does not quote what it shows, so a quote may have no partner."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _config_in(words: Sequence[str]) -> Path | None:
    """The configuration file that a command line names, in each form that `brim run` accepts."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-c", "--config", type=Path)
    with suppress(argparse.ArgumentError):
        config: Path | None = parser.parse_known_args(words)[0].config
        return config
    return None


def _group_ids(groups: Sequence[str]) -> list[int]:
    """The ids of groups, given by name or number. Raises KeyError if a group does not exist."""
    return [int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid for group in groups]
