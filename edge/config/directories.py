"""Directories of a broker: their defaults, their modes, and their creation.

The only module that reads the environment for them. The runtime directory is memory: rings, cursor files,
sockets. The state directory is a disk: log, bridge checkpoints, epochs. directory_lock.py has their lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import TypeAlias

from edge.errors import EdgeError
from edge.user_names import user_name

StrPath: TypeAlias = str | os.PathLike[str]  # as arguments of library functions

DIRECTORY_MODE = 0o750  # the group may read rings; for others they are invisible
CREDENTIALS = "$CREDENTIALS_DIRECTORY/"
INSTANCE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")  # name of an instance
MOUNT = "mount it for writing, `dmesg` may have the cause, or "  # remedy of a read-only file system
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space, for example, in a list of mounts
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


def is_socket_file(endpoint: str) -> bool:
    """True if an endpoint is a Unix socket with a file, whose permissions guard it."""
    return endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@")


def default_state_dir() -> Path:
    """$STATE_DIRECTORY (set by systemd), otherwise ~/.local/state/brim, with -<instance>."""
    directory = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(directory) if directory else home_dir() / ".local" / "state" / f"brim{_suffix()}"


def home_dir() -> Path:
    """Home directory of this user. Raises EdgeError: it is not known."""
    try:
        return Path.home()
    except RuntimeError as error:
        text = f"user {user_name()} has no home directory, and HOME is not set"
        raise EdgeError(text, hint="set HOME to a directory of this user") from error


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
        owners = {path.lstat().st_uid, path.stat().st_uid} - {os.geteuid(), 0}
        mode = path.stat().st_mode
    except OSError as error:
        hint = f"{MOUNT if error.errno == errno.EROFS else ''}set {key}"
        raise EdgeError(f"{key}: {path} cannot be made: {error.strerror}", hint=hint) from error
    if is_read_only(path):
        raise EdgeError(f"{key}: the file system of {path} is read-only", hint=f"{MOUNT}set {key}")
    if owners:
        raise EdgeError(
            f"{key}: {path} belongs to user {user_name(owners.pop())}, and this is user {user_name()}",
            hint=f"remove the directory, or set {key} to one of your own",
        )
    if mode & stat.S_IWOTH:
        raise EdgeError(f"{key}: everybody may write to {path}", hint=f"chmod o-w {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise EdgeError(f"{key}: {path} is not writable by user {user_name()}", hint=f"set {key}")
    try:
        _sync_name(path)
    except OSError as error:
        raise EdgeError(f"{key}: {path} cannot be synced: {error.strerror}", hint="check the disk") from error


def is_read_only(path: Path) -> bool:
    """True if the file system of `path` takes no changes, also if only an error has made it so."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return True
    return "emergency_ro" in _mount_of(path)[1]  # statvfs() does not show it


def file_system(path: Path) -> str:
    """Type of the file system of an existing path, such as "ext4"; "" if it is not known."""
    return _mount_of(path)[0]


def _mount_of(path: Path) -> tuple[str, list[str]]:
    """Type and options of the file system of an existing path; "" and none if they are not known.

    By the longest mount point: a subvolume of btrfs has a device number that no mount has.
    """
    real, longest, kind, options = os.path.realpath(path), 0, "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            mount, _, described = line.partition(" - ")
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), mount.split(" ")[4])
            if len(point) >= longest and f"{real}/".startswith(f"{point.rstrip('/')}/"):
                longest, (kind, _, options) = len(point), described.split(" ", 2)
    return kind, options.split(",")


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
