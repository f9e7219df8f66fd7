"""Install Brim as a service of systemd.

    brim service install                        this user's broker, started with the session
    brim service install --config brim.toml     with a configuration
    sudo brim service install                   a broker of the machine: user brim, sandbox
    brim service install --print                show the units and change nothing
    brim service status
    brim service uninstall                      stop it, remove its units; data stays

Root installs a service of the system, another user a service of its own; --user and --system choose. With
--socket systemd opens the ports of the configuration: clients wait during a restart and are not refused.

Exit status: 0 done, 2 not done; of `status` that of systemctl, 0: it runs.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge.cli.argument_types import instance
from edge.cli.service_unit import Unit, socket_unit
from edge.errors import EdgeError

_TIMEOUT_S = 10.0
USER = "brim"
SYSTEM_CONFIG = Path("/etc/brim/brim.toml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim service`."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="install | uninstall | status")
    installing = verbs.add_parser("install", help="write the units, start the service now and at each boot")
    installing.add_argument("-c", "--config", type=Path, metavar="FILE", help="configuration file")
    installing.add_argument("--socket", action="store_true", help="let systemd open the ports")
    installing.add_argument("--print", action="store_true", help="print the units only")
    installing.add_argument("--no-start", action="store_true", help="write the units only")
    for verb in (
        installing,
        verbs.add_parser("uninstall", help="stop the service and remove its units"),
        verbs.add_parser("status", help="show its state and the end of its log"),
    ):
        scope = verb.add_mutually_exclusive_group()
        scope.add_argument(
            "--user", action="store_true", help="a service of this user (default, except for root)"
        )
        scope.add_argument("--system", action="store_true", help="a service of the machine (root)")
        verb.add_argument("--instance", type=instance, metavar="NAME", help="one of several brokers")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    is_system = arguments.system or (os.geteuid() == 0 and not arguments.user)
    unit = Unit(is_system, arguments.instance or "")
    if arguments.what == "install":
        return _install(replace(unit, systemd=_systemd_version()), arguments)
    if arguments.what == "uninstall":
        return _uninstall(unit)
    return _systemctl(unit, "status", "--no-pager", f"{unit.name}.service")


# ---- install ----


def _install(unit: Unit, arguments: argparse.Namespace) -> int:
    config = arguments.config
    if config is None and unit.is_system and SYSTEM_CONFIG.exists():
        config = SYSTEM_CONFIG
    texts = {f"{unit.name}.service": unit.text(_command(unit, config))}
    if arguments.socket:
        from edge.config import loader

        listeners = (loader.load(config) if config else loader.parse("")).listener
        texts[f"{unit.name}.socket"] = socket_unit(unit, listeners)
    if arguments.print:
        for name, text in texts.items():
            print(f"# {_directory(unit) / name}\n{text}")
        return 0
    if unit.is_system:
        _check_readable([Path(_program()[0]), *([config.absolute()] if config else [])])
        _make_user()
    for name, text in texts.items():
        _write(_directory(unit) / name, text)
    if not arguments.no_start:
        _start(unit, list(texts))
    _print_next_steps(unit, config)
    return 0


def _command(unit: Unit, config: Path | None) -> str:
    words = [*_program(), "run", "--quiet", "--log-format", "json"]
    if unit.instance:
        words += ["--instance", unit.instance]
    if config is not None:
        words += ["--config", str(config.absolute())]
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """A word of ExecStart=, without the meaning that systemd gives to % and $."""
    word = word.replace("%", "%%").replace("$", "$$")
    return f'"{word}"' if " " in word else word


def _program() -> list[str]:
    """The command `brim`, with absolute paths."""
    program = shutil.which(sys.argv[0])
    if program is None or program.endswith(".py"):
        return [sys.executable, "-m", "brim"]
    return [str(Path(program).absolute())]


def _check_readable(paths: Sequence[Path]) -> None:
    """Refuse files in directories that the user of the service cannot enter, such as /root and /home."""
    for path in paths:
        for above in path.parents:
            if str(above) in {"/root", "/home"} or not above.stat().st_mode & stat.S_IXOTH:
                raise EdgeError(
                    f"{path}: the service cannot enter {above}",
                    hint="install Brim in /opt/brim, its configuration in /etc/brim; or use --user",
                )


def _make_user() -> None:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        _run(["useradd", "--system", "--user-group", "--shell", "/usr/sbin/nologin", USER])
        print(f"made the user {USER}")


def _directory(unit: Unit) -> Path:
    if unit.is_system:
        return Path("/etc/systemd/system")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "systemd", "user")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise EdgeError(
            f"{path} cannot be written: {error.strerror}", hint="run it as root, or with --user"
        ) from error
    print(f"wrote {path}")


def _start(unit: Unit, names: Sequence[str]) -> None:
    _checked(unit, "daemon-reload")
    for name in reversed(names):  # the socket first: the service gets it
        _checked(unit, "enable", name)
        _checked(unit, "restart", name)
        print(f"started {name}")


def _print_next_steps(unit: Unit, config: Path | None) -> None:
    flag = "" if unit.is_system else " --user"
    instance_flag = f" --instance {unit.instance}" if unit.instance else ""
    steps = [
        f"brim status{instance_flag}",
        f"journalctl{flag} -u {unit.name} -f",
        f"systemctl{flag} reload {unit.name}".ljust(35) + "# after a change of certificates, users or rules",
    ]
    if config is None:
        steps.append("brim service install --config FILE".ljust(35) + "# with your own configuration")
    if not unit.is_system:
        steps.append("loginctl enable-linger".ljust(35) + "# it then also runs while you are logged out")
    print("try", *steps, sep="\n  ")


# ---- uninstall ----


def _uninstall(unit: Unit) -> int:
    paths = [_directory(unit) / f"{unit.name}.{kind}" for kind in ("socket", "service")]
    present = [path for path in paths if path.exists()]
    if not present:
        raise EdgeError(f"{paths[-1]} does not exist", hint="`brim service install` makes it")
    _checked(unit, "disable", "--now", *(path.name for path in present))
    for path in present:
        path.unlink()
        print(f"removed {path}")
    _checked(unit, "daemon-reload")
    state = Path("/var/lib") if unit.is_system else Path.home() / ".local" / "state"
    print(f"log, sessions and checkpoints stay in {state / unit.name}")
    return 0


# ---- systemctl ----


def _systemctl(unit: Unit, *words: str) -> int:
    return _run(["systemctl", *([] if unit.is_system else ["--user"]), *words], check=False)


def _systemd_version() -> int:
    """Version of systemd on this machine; 0: unknown."""
    try:
        command = ["systemctl", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.match(r"systemd (\d+)", done.stdout)
    return int(version[1]) if version else 0


def _checked(unit: Unit, *words: str) -> None:
    if _systemctl(unit, *words):
        raise EdgeError(
            f"systemctl {words[0]} failed", hint="see its message above; without systemd, run `brim run`"
        )


def _run(command: Sequence[str], *, check: bool = True) -> int:
    """Run a program; its output goes to the terminal."""
    sys.stdout.flush()
    try:
        status = subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        text = f"there is no {command[0]} on this machine"
        raise EdgeError(text, hint="use --print, and run `brim run` under your service manager") from None
    if check and status:
        raise EdgeError(f"{shlex.join(command)} failed with status {status}", hint="run it as root")
    return status
