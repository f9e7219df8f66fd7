"""Directories of a broker, and the lock that admits only one broker.

Owns the default directories (the only module that reads the environment for them), their modes, and the
lock. The runtime directory is memory: rings, cursor files, sockets. The state directory is a disk: log,
bridge checkpoints, epochs.

The lock is an flock on `brim.lock`, which the kernel releases however its holder ends. The file has
the process id for people; no decision depends on it. It is never removed: a lock on a removed file
excludes no other broker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Self, TypeAlias

from edge.errors import DirectoryBusy, EdgeError

StrPath: TypeAlias = str | os.PathLike[str]  # as arguments of library functions

DIRECTORY_MODE = 0o750  # the group may read rings; for others they are invisible
LOCK_NAME = "brim.lock"
RESTORING_NAME = "restore-incomplete"  # in a state directory whose restore has not ended
CREDENTIALS = "$CREDENTIALS_DIRECTORY/"
INSTANCE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")  # name of an instance
SERVICE_DIR = "/run"  # parent of the runtime directory of a system service


def default_runtime_dir() -> Path:
    """$RUNTIME_DIRECTORY (set by systemd), otherwise /dev/shm/brim-<uid>, with -<instance>."""
    directory = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(directory or f"/dev/shm/brim-{os.geteuid()}{_suffix()}")


def runtime_directory(configured: StrPath | None) -> Path:
    """Runtime directory of a broker to connect to: `configured`, or that of the user's broker.

    If this user runs no broker, and a system service is installed: the directory of that service.
    """
    if configured is not None:
        return Path(configured)
    directory = default_runtime_dir()
    service = Path(SERVICE_DIR, f"brim{_suffix()}")
    return service if not control_socket(directory).exists() and service.is_dir() else directory


def default_state_dir() -> Path:
    """$STATE_DIRECTORY (set by systemd), otherwise ~/.local/state/brim, with -<instance>."""
    directory = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(directory) if directory else Path.home() / ".local" / "state" / f"brim{_suffix()}"


def instance() -> str:
    """Name of the instance, from $BRIM_INSTANCE, which --instance sets; "" is the first instance."""
    return os.environ.get("BRIM_INSTANCE", "")


def _suffix() -> str:
    return f"-{instance()}" if instance() else ""


def expanded(path: str) -> Path:
    """`path` with ~ and a leading $CREDENTIALS_DIRECTORY replaced. Raises EdgeError if that is not set."""
    if not path.startswith(CREDENTIALS):
        return Path(path).expanduser()
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise EdgeError(
            f"{path!r}: CREDENTIALS_DIRECTORY is not set",
            hint="start the broker by systemd with LoadCredential=, or set the variable",
        )
    return Path(directory, path.removeprefix(CREDENTIALS))


def control_socket(runtime_dir: StrPath) -> Path:
    """Control socket of a broker with this runtime directory."""
    return Path(runtime_dir) / "control.sock"


def make_directory(path: Path, key: str) -> None:
    """Create `path` (0750) with the directories above it, and check that this user may write there.

    Every user may write to /dev/shm. So a directory, or a link to one, that another user has created there is
    refused, and so is one that every user may write to: others could replace its files. `key` is the
    setting that errors name.
    """
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        _sync_name(path)
        owners = {path.lstat().st_uid, path.stat().st_uid} - {os.geteuid(), 0}
        mode = path.stat().st_mode
    except OSError as error:
        raise EdgeError(f"{key}: {path} cannot be made: {error.strerror}", hint=f"set {key}") from error
    if owners:
        raise EdgeError(
            f"{key}: {path} belongs to user {owners.pop()}, and this is user {os.geteuid()}",
            hint=f"remove the directory, or set {key} to one of your own",
        )
    if mode & stat.S_IWOTH:
        raise EdgeError(f"{key}: everybody may write to {path}", hint=f"chmod o-w {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise EdgeError(f"{key}: {path} is not writable by user {os.geteuid()}", hint=f"set {key}")


def _sync_name(path: Path) -> None:
    """Sync the names of the directory and of those above it, which this process, or
    a killed one, may have created: otherwise a power cut would remove everything synced inside.
    """
    from persistence.files import OsFiles  # clients of a broker import this module, and no log

    device = path.stat().st_dev
    for above in path.absolute().parents:
        if above.stat().st_dev != device:
            return
        with contextlib.suppress(PermissionError):  # then others have created it and its content
            OsFiles().dirsync(str(above))


class DirectoryLock:
    """Lock of a broker on `directory`, or of the verb `holder`, held from construction to close().

    The lock file has the process and the verb of its holder.  Raises DirectoryBusy, with both; EdgeError: a
    restore was interrupted, or the lock is not a regular file.
    """

    def __init__(self, directory: Path, holder: str = "") -> None:
        self.directory = directory
        file = directory / LOCK_NAME
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise EdgeError(f"{file} is not a regular file", hint="remove it, then start the broker again")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = os.pread(self._fd, 32, 0)
            self.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise _busy(directory, found) from error
        with contextlib.suppress(OSError):  # a full disk: then others get no name of this process
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()} {holder}\n".encode(), 0)
        if (directory / RESTORING_NAME).exists():
            self.close()
            hint = f"rm -r {directory} and the log directory, then brim restore again"
            raise EdgeError(f"{directory} is incomplete: its restore was interrupted", hint=hint)

    def close(self) -> None:
        """Release the lock. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _busy(directory: Path, found: bytes) -> DirectoryBusy:
    """The error for the contents of a lock file."""
    words = found.decode("ascii", "replace").split()
    pid = int(words[0]) if words and words[0].isdecimal() else 0
    verb = words[1] if words[1:] in (["backup"], ["restore"]) else ""
    if verb:
        text, hint = f"is in use by brim {verb}", "wait for its end, then try again"
    else:
        text = "is in use by another broker"
        hint = "stop that one, or give this one its own runtime_dir and state_dir"
    return DirectoryBusy(f"{directory} {text} (pid {pid or 'not yet known'})", pid=pid, verb=verb, hint=hint)
