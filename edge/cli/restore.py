"""Copy a backup back into the empty directories of a broker.

    brim restore /srv/backup/monday
    brim restore /srv/backup/monday --config brim.toml
    brim restore /srv/backup/monday --skip-damaged   restore the files of a damaged backup that are intact

Verifies each file, and overwrites nothing: state and log directory must be empty, and no broker may run. The
next start begins new epochs, and continues sessions, logs, consumer groups and bridges of the backup.

Exit status: 0 done, 1 done and something was not in the backup or is damaged, 2 not done.
"""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack

import msgspec

from edge.backup.layout import BrokerFiles
from edge.backup.manifest import read_manifest
from edge.backup.restore import (
    check_empty,
    damaged_files,
    leave_earlier_installation,
    restore_backup,
)
from edge.cli.argument_types import directory
from edge.cli.backup import content
from edge.cli.config_options import add_config_arguments, configured
from edge.cli.exit_status import Exit
from edge.cli.progress import progress
from edge.config.directories import make_directory
from edge.config.directory_lock import LOCK_NAME, DirectoryLock
from edge.terminal_escape import escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim restore`."""
    parser.add_argument("directory", type=directory, metavar="DIR", help="directory of the backup")
    parser.add_argument(
        "--skip-damaged", action="store_true", help="restore without damaged files, and list these"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    manifest = read_manifest(arguments.directory)
    config = configured(arguments)
    files = BrokerFiles.of_config(config)
    with ExitStack() as locks:
        make_directory(files.state_dir, "state_dir")
        locks.enter_context(DirectoryLock(files.state_dir, "restore"))
        if (files.runtime_dir / LOCK_NAME).exists():  # a new one would belong to this user
            locks.enter_context(DirectoryLock(files.runtime_dir, "restore"))
        check_empty(files)
        damaged: dict[str, str] = {}
        if arguments.skip_damaged:
            with progress("verifying", sum(file.bytes for file in manifest.files)) as advance:
                damaged = damaged_files(arguments.directory, manifest, advance)
        restored = [file for file in manifest.files if file.path not in damaged]
        missing = [*manifest.missing, *(f"{name}: {reason}" for name, reason in damaged.items())]
        size = sum(file.bytes for file in restored)
        with progress("restoring", size) as advance:
            restore_backup(arguments.directory, manifest, files, advance, damaged)
        leave_earlier_installation(files)
    next_command = _next_command(arguments)
    if arguments.json:
        facts: dict[str, object] = {
            "state_dir": str(files.state_dir),
            "log_directory": str(files.log_directory),
        }
        facts |= {"edge_id": manifest.edge_id, "files": len(restored), "bytes": size}
        print(msgspec.json.encode({**facts, "missing": missing, "next": next_command}).decode())
    else:
        lines = [f"restored edge {manifest.edge_id} into {files.state_dir}", *content(manifest)]
        lines += [f"not restored  {text}" for text in missing]
        if manifest.edge_id != config.edge_id:
            lines.append(
                f"WARNING  the configuration has edge_id {config.edge_id}, the backup {manifest.edge_id}"
            )
        print("\n".join(map(escaped, [*lines, "try", f"  {next_command}"])))
    return Exit.INCOMPLETE if missing else 0


def _next_command(arguments: argparse.Namespace) -> str:
    """The command that starts the restored broker."""
    words = ["brim", "run"]
    for option in ("config", "state_dir", "runtime_dir", "instance"):
        if (value := getattr(arguments, option)) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    return shlex.join(words)
