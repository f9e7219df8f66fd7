"""Copy the state and the log of a broker into a directory.

    brim backup /srv/backup/monday            of a running or a stopped broker
    brim backup /srv/backup/monday --verify   read a backup, and compare it with its checksums

A running broker continues to serve its clients. The backup has sessions, retained messages, offsets of
consumer groups, checkpoints of bridges, and the log; sealed segments are hard links on the same file system.
Records that are only in memory are not part of it; they are listed. The configuration file and its users,
keys and certificates are not part of it either.

Exit status: 0 done, 1 done and something is not in the backup, or the verification failed, 2 not done.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from edge.backup.creation import make_backup, total_bytes
from edge.backup.layout import BrokerFiles
from edge.backup.manifest import Manifest, read_manifest
from edge.backup.restore import verify_backup
from edge.cli.argument_types import directory
from edge.cli.config_options import add_config_arguments, configured
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, counted
from edge.cli.progress import progress
from edge.config.directory_lock import DirectoryLock
from edge.errors import AccessDenied, BrokerUnreachable, DirectoryBusy, EdgeError
from edge.local.protocol import Connection, Save, Saved, SettingList, Settings
from edge.terminal_escape import escaped

SAVE_S, SAVE_LOOK_S = 60.0, 0.05
BROKER_WAIT_S, BROKER_LOOK_S = 10.0, 0.1  # a broker that starts or ends


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim backup`."""
    parser.add_argument(
        "directory", type=directory, metavar="DIR", help="directory of the backup, new or empty"
    )
    parser.add_argument("--verify", action="store_true", help="verify the backup in DIR instead of making it")
    parser.add_argument("--copy", action="store_true", help="copy every byte; no hard links")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    if arguments.verify:
        return _verify(arguments.directory, json=arguments.json)
    with _broker(arguments) as (files, connection):
        save = None if connection is None else lambda: _save(connection)
        with progress("copying", total_bytes(files)) as advance:
            from edge.cli import VERSION  # this module is loaded by edge.cli

            manifest = make_backup(
                files, arguments.directory, brim=VERSION, save=save, links=not arguments.copy, advance=advance
            )
    if arguments.json:
        print(msgspec.json.encode({"directory": str(arguments.directory), **_facts(manifest)}).decode())
    else:
        state = "a running" if manifest.is_live else "a stopped"
        print(f"backup of {state} broker {escaped(manifest.edge_id)} in {escaped(str(arguments.directory))}")
        _print_lines(content(manifest), manifest.missing)
        print(f"try\n  brim backup {escaped(str(arguments.directory))} --verify")
    return Exit.INCOMPLETE if manifest.missing else 0


@contextmanager
def _broker(arguments: argparse.Namespace) -> Iterator[tuple[BrokerFiles, Connection | None]]:
    """Files of the broker, and a connection to it; None: it does not run, and its directory is locked.

    Waits for a broker that starts or ends meanwhile.
    """
    wanted = configured(arguments)
    named = arguments.runtime_dir or (wanted.runtime_dir if arguments.config else None)
    until = time.monotonic() + BROKER_WAIT_S
    while True:
        if (running := _running(named)) is not None:
            with running[1]:
                if arguments.state_dir in (None, running[0].state_dir):
                    yield running
                    return
        if not wanted.state_dir.is_dir():
            hint = "name the broker by --config, --state-dir, --runtime-dir or --instance"
            raise EdgeError(f"no broker runs, and {wanted.state_dir} does not exist", hint=hint)
        try:
            lock = DirectoryLock(wanted.state_dir, "backup")
        except DirectoryBusy as busy:
            if busy.verb or time.monotonic() > until:
                raise
            time.sleep(BROKER_LOOK_S)
            continue
        with lock:
            yield BrokerFiles.of_config(wanted), None
        return


def _running(runtime_dir: Path | None) -> tuple[BrokerFiles, Connection] | None:
    """Files of the broker, and a connection to it; None if it does not run, or ends meanwhile."""
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(Connection(runtime_dir))
            files = BrokerFiles.of_settings(connection.request(Settings(), SettingList).settings)
            stack.pop_all()
            return files, connection
    except AccessDenied:
        raise
    except BrokerUnreachable:
        return None


def _save(connection: Connection) -> None:
    """Let the broker write its session snapshot and its retained messages. Raises EdgeError."""
    saved = connection.request(Save(), Saved)
    deadline = time.monotonic() + SAVE_S
    while not saved.done:
        if time.monotonic() > deadline:
            raise EdgeError(f"the broker has not saved its sessions in {SAVE_S:.0f} s", hint="see its log")
        time.sleep(SAVE_LOOK_S)
        saved = connection.request(Save(saved.ticket), Saved)


def _verify(directory: Path, *, json: bool) -> int:
    manifest = read_manifest(directory)
    with progress("verifying", sum(file.bytes for file in manifest.files)) as advance:
        problems = verify_backup(directory, manifest, advance)
    if json:
        print(msgspec.json.encode({**_facts(manifest), "problems": problems}).decode())
    else:
        _print_lines(content(manifest), manifest.missing)
        print("\n".join(map(escaped, [f"WARNING  {problem}" for problem in problems] or ["no damage"])))
    return Exit.INCOMPLETE if problems else 0


def _facts(manifest: Manifest) -> dict[str, object]:
    facts = msgspec.to_builtins(manifest)
    return {**facts, "files": len(manifest.files), "bytes": sum(file.bytes for file in manifest.files)}


def content(manifest: Manifest) -> list[str]:
    """Lines about the files of a backup."""
    lines = []
    for top in ("state", "log"):
        files = [file for file in manifest.files if file.path.startswith(f"{top}/")]
        size = bytes_in_words(sum(file.bytes for file in files))
        lines.append(f"{top:<6} {counted(len(files), 'file')}, {size}")
    return lines


def _print_lines(lines: list[str], missing: tuple[str, ...]) -> None:
    print("\n".join(map(escaped, [*lines, *(f"not in the backup  {text}" for text in missing)])))
