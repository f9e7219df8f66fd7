"""Restore of a backup into empty directories, and the verification of a backup.

Nothing is overwritten: the state directory and the log directory must be empty, and the runtime directory
must not have rings, which would continue another state. The caller has locked the directories.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from edge.backup.file_copy import Advance, checksum, copy_file
from edge.backup.layout import INSTALLATION, LOG, STATE, BrokerFiles
from edge.backup.manifest import MANIFEST_NAME, BackupFile, Manifest
from edge.config.directory_lock import LOCK_NAME, RESTORING_NAME
from edge.errors import EdgeError
from persistence.files import OsFiles
from ringbuf.ring import cursor_file


def verify_backup(directory: Path, manifest: Manifest, advance: Advance = lambda _: None) -> list[str]:
    """Read every file of the backup. Return the problems: missing, changed and unknown files."""
    problems = [f"{name}: {reason}" for name, reason in damaged_files(directory, manifest, advance).items()]
    known = {file.path for file in manifest.files} | {MANIFEST_NAME}
    present = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    names = sorted(path.relative_to(directory).as_posix() for path in present)
    return problems + [f"{name}: not in the manifest" for name in names if name not in known]


def damaged_files(directory: Path, manifest: Manifest, advance: Advance = lambda _: None) -> dict[str, str]:
    """Read every file of the manifest. Return the reason for each that is missing or changed."""
    reasons = ((file.path, _damage(directory, file, advance)) for file in manifest.files)
    return {name: reason for name, reason in reasons if reason}


def _damage(directory: Path, file: BackupFile, advance: Advance) -> str:
    path = directory / file.path
    if any(
        part.is_symlink()
        for part in (path, *path.parents)
        if part != directory and part.is_relative_to(directory)
    ):
        return "a symbolic link, to bytes that are not in the backup"
    try:
        size, digest = checksum(path, advance)
    except OSError as error:
        return str(error.strerror)
    if size != file.bytes:
        return f"{size} bytes, the manifest has {file.bytes}"
    return "" if digest == file.sha256 else "checksum differs from the manifest"


def check_empty(files: BrokerFiles) -> None:
    """Raise EdgeError unless a backup can be restored into these directories."""
    for key, directory in (("state_dir", files.state_dir), ("log.directory", files.log_directory)):
        if present := next(_content(directory), None):
            hint = f"move {directory} away, or set {key} to an empty directory"
            raise EdgeError(f"{directory} is not empty: {present.name}", hint=hint)
    if ring := next(iter(sorted(files.runtime_dir.glob("*.ring"))), None):
        hint = f"these rings continue another state: move them away, or rm -r {files.runtime_dir}"
        raise EdgeError(f"{files.runtime_dir} has rings: {ring.name}", hint=hint)


def leave_earlier_installation(files: BrokerFiles) -> None:
    """Remove the installation's id from a runtime directory without records: it would refuse the start."""
    if not any(map(_may_have_records, files.runtime_dir.glob("*"))):
        (files.runtime_dir / INSTALLATION).unlink(missing_ok=True)


def _may_have_records(path: Path) -> bool:
    """False for files that a broker leaves there, also if it is killed and its rings are moved away."""
    is_known = path.name in {INSTALLATION, LOCK_NAME} or path == cursor_file(path.with_suffix(""))
    return not is_known and path.lstat().st_size > 0  # sockets have no bytes


def _content(directory: Path) -> Iterator[Path]:
    """Files of a directory, without the lock of the caller and without empty directories."""
    return (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != LOCK_NAME)


def restore_backup(
    directory: Path,
    manifest: Manifest,
    files: BrokerFiles,
    advance: Advance = lambda _: None,
    skipped: Collection[str] = (),
) -> None:
    """Copy the backup, without `skipped` files, into the directories of a broker, and verify each file.

    A file in the state directory marks it as incomplete meanwhile: no broker starts there, and no backup or
    restore begins, after an interrupted restore. Raises EdgeError.
    """
    places = {STATE: files.state_dir, LOG: files.log_directory}
    owner = _owner_of(manifest)
    mark = files.state_dir / RESTORING_NAME
    try:
        mark.touch(exist_ok=False)
        OsFiles().dirsync(str(files.state_dir))
        for file in (file for file in manifest.files if file.path not in skipped):
            top, _, name = file.path.partition("/")
            if top not in places:
                raise EdgeError(f"{file.path} has no place in a state directory", hint="use a later version")
            copied = copy_file(directory / file.path, places[top], name, advance)
            if (copied.bytes, copied.sha256) != (file.bytes, file.sha256):
                hint = (
                    f"{_removal(files)}, then use another backup, or restore the others with --skip-damaged"
                )
                raise EdgeError(f"{directory / file.path} is damaged", hint=hint)
        for place in places.values():
            _finish(place, owner)
        mark.unlink()
        OsFiles().dirsync(str(files.state_dir))
    except OSError as error:
        hint = f"{_removal(files)}, then restore again; --skip-damaged leaves out files that cannot be read"
        raise EdgeError(f"restore failed: {error.filename}: {error.strerror}", hint=hint) from error


def _removal(files: BrokerFiles) -> str:
    """The command that removes the files of an interrupted restore."""
    places = [files.state_dir]
    if not files.log_directory.is_relative_to(files.state_dir):
        places.append(files.log_directory)
    return f"remove what is restored: rm -r {' '.join(map(str, places))}"


def _owner_of(manifest: Manifest) -> tuple[int, int] | None:
    """User and group for restored files; None: those of this process."""
    if os.geteuid() == 0:
        if manifest.user.isdecimal():  # a user without a name
            return int(manifest.user), -1
        with suppress(KeyError):
            entry = pwd.getpwnam(manifest.user)
            return entry.pw_uid, entry.pw_gid
    return None


def _finish(place: Path, owner: tuple[int, int] | None) -> None:
    """Sync the names, and give the files to the user of the broker."""
    if not place.exists():
        return
    for path in (place, *place.rglob("*")):
        if owner is not None:
            os.chown(path, *owner)
        if path.is_dir():
            path.chmod(0o750)
            OsFiles().dirsync(str(path))
