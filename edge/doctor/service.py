"""Service of systemd that runs the broker: checks use its directories and the rights of its user.

Owns the reading of `systemctl show`. Changes only the environment and the user of this process.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["SystemdService", "installed_service", "parse_properties"]

_PROPERTIES = "Id,LoadState,User,Group,SupplementaryGroups,ExecStart,RuntimeDirectory,StateDirectory"
_TIMEOUT_S = 10.0


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

    def enter(self) -> bool:
        """Set the directories of the service; as root, become its user, with its groups.

        Returns False if this process is neither root nor that user.
        """
        for key, value in self._environment().items():
            os.environ[key] = value
        entry = pwd.getpwnam(self.user)
        if os.geteuid() == 0:
            group = _group_ids([self.group])[0] if self.group else entry.pw_gid
            os.initgroups(self.user, group)
            os.setgroups([*os.getgroups(), *_group_ids(self.more_groups)])
            os.setgid(group)
            os.setuid(entry.pw_uid)
        return os.geteuid() == entry.pw_uid

    def _environment(self) -> dict[str, str]:
        """Variables that systemd sets. The directory of credentials exists only while the service runs."""
        return {
            "RUNTIME_DIRECTORY": str(self.runtime_dir),
            "STATE_DIRECTORY": str(self.state_dir),
            "CREDENTIALS_DIRECTORY": f"/run/credentials/{self.unit}",
        }


def installed_service(instance: str) -> SystemdService | None:
    """The service of the system for this instance; None if it is not installed, or not of Brim."""
    for unit in (f"brim@{instance}", f"brim-{instance}") if instance else ("brim",):
        command = ["systemctl", "show", f"{unit}.service", f"--property={_PROPERTIES}"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
            if (service := parse_properties(done.stdout)) is not None:
                return service
    return None


def parse_properties(text: str) -> SystemdService | None:
    """The service in the output of `systemctl show`.

    None: it is not installed, does not run Brim, or has a user or group that does not exist.
    """
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    words = shlex.split(values.get("ExecStart", "").partition("argv[]=")[2].partition(" ; ")[0])
    if values.get("LoadState") != "loaded" or "run" not in words or not values.get("RuntimeDirectory"):
        return None
    user = values.get("User") or "root"
    directory = values["RuntimeDirectory"].split()[0]
    state = (values.get("StateDirectory") or directory).split()[0]
    configs = [Path(word) for flag, word in pairwise(words) if flag in {"-c", "--config"}]
    with suppress(KeyError):
        pwd.getpwnam(user)
        config = configs[-1] if configs else None
        group, more = values.get("Group", ""), tuple(values.get("SupplementaryGroups", "").split())
        _group_ids([*([group] if group else []), *more])
        places = Path("/run", directory), Path("/var/lib", state)
        return SystemdService(values["Id"], user, config, *places, group, more)
    return None


def _group_ids(groups: Sequence[str]) -> list[int]:
    """The ids of groups, given by name or number. Raises KeyError if a group does not exist."""
    return [int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid for group in groups]
