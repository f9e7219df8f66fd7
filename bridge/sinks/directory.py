"""Directory sink: a local disk, a mounted share, the landing zone of a small installation.

Standard library only, so that a broker drains to a directory without any extra. obstore can write to
directories, and ObjectSink can use it. It is not used for them, because its local store never syncs, and
shows a file before its bytes are on the disk (strace, obstore 0.12). After a power cut a name that must mean
a whole file could then hold zeros, and create-once would keep it so.

Here a file is written under another name, synced, linked to its own name, and the directory is synced:

    edge=ID/.partial-NAME  written, fdatasync; after a kill the next drain of this edge removes it
    link NAME              create-once: fails if the name exists, and then the content is compared
    fsync directory        only then put() returns

A merged file is published by a second link, and its staged name is removed later (bridge/drain/merger.py).

Long files bypass the page cache if the file system supports it (O_DIRECT). They are synced at once and not
read again by the bridge. A copy in memory would cost most of the processor time of a put. The kernel's
writers, which have a higher priority than a bridge, would take the rest from the broker.

Invariant: a file with its final name is whole and on the disk.

Two bridges that drain one edge to one place would give the same numbers to different files. So a drain first
takes an flock on edge=ID/.lock; the kernel releases it with its process. The file names the holder, for the
error of a bridge that is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import glob
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bridge.errors import BadName, DrainedFileError, SinkConflict, SinkUnavailable
from bridge.format.file_builder import DrainedFile
from bridge.format.file_name import STAGED_DIRECTORY
from bridge.format.installation import Holder
from bridge.sinks.interface import StoredEntry, Turn
from bridge.sinks.lease_holder import holder_as_dict, holder_in, next_turn, refusal
from persistence.durable_file import is_unreadable, lacks_inodes, remedy_of
from persistence.files import OsFiles

PARTIAL = ".partial-"  # Spark ignores names with a leading dot
LOCK = ".lock"
HOLDER_MAX_BYTES = 4096
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
IOV_MAX = 1024  # buffers in one writev: UIO_MAXIOV of Linux
DIRECT_MIN_BYTES = 256 << 10  # shorter files cost little either way
BLOCK_BYTES = 4096  # a direct write begins and ends at whole blocks of any usual disk

REMEDIES = {
    errno.EACCES: "give the user that runs the bridge write permission",
    errno.EPERM: "give the user that runs the bridge write permission",
    errno.EROFS: "remount the file system for writing",
    errno.ENOSPC: "free space on this disk",
    errno.EDQUOT: "raise the quota of the user that runs the bridge",
    errno.ENOENT: "mount or make the directory above it",
    errno.ENOTDIR: "remove the file that is in the place of a directory",
    errno.EEXIST: "remove the file that is in the place of a directory",
    errno.EIO: "look at the disk: `dmesg`",
}


class DirectorySink:
    """Drained files below `root`, which is created with the first file. The directory above `root` must
    exist.

    A share that is not mounted leaves an empty mount point. With root below the share, nothing is drained to
    the wrong disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._synced: set[Path] = set()  # directories whose names are on the disk
        self._locks: dict[Path, int] = {}  # by directory of the edge
        self._turns: dict[Path, Turn] = {}  # of each lock
        self._making = threading.Lock()  # for those above; files are written in parallel
        self._holder: Holder | None = None

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> DirectorySink:
        """The sink of file:///absolute/path. Raises BadName."""
        parts = urlsplit(url)
        path = Path(unquote(parts.path))
        if parts.netloc not in {"", "localhost"} or not path.is_absolute():
            raise BadName(f"{url!r} is no directory of this machine", hint="write file:///absolute/path")
        if options:
            raise BadName(f"{url!r} takes no options, not {', '.join(sorted(options))}")
        return cls(path)

    @property
    def url(self) -> str:
        """See Sink."""
        return self.root.as_uri()

    def hold_as(self, holder: Holder) -> None:
        """See Leasing."""
        self._holder = holder

    def begin(self, edge: str) -> Turn:
        """See Sink."""
        directory = self.root / f"edge={edge}"
        try:
            with self._making:
                self._make_directory(directory)
                self._lock(directory)
                if not os.access(directory, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        except OSError as error:
            self._synced.clear()
            raise _unavailable(directory, error) from error
        return self._turns[directory]

    def put(self, file: DrainedFile) -> None:
        """See Sink."""
        path = self.root / file.name
        try:
            with self._making:
                self._make_directory(path.parent)
                self._lock(self.root / f"edge={file.footer.edge}")
            self._write(path, file)
        except OSError as error:
            self._synced.clear()  # the directories may have been removed
            raise _unavailable(path, error) from error

    def _write(self, path: Path, drained_file: DrainedFile) -> None:
        partial = self.root / f"edge={drained_file.footer.edge}" / (PARTIAL + path.name)
        if not path.exists():
            try:
                with open(partial, "wb", buffering=0, opener=_opener) as file:
                    _write_all(file.fileno(), drained_file.parts)
                    os.fdatasync(file.fileno())
            except OSError:  # on a full disk other files need its room
                partial.unlink(missing_ok=True)
                raise
            _link(partial, path)
        _compare(path, drained_file)
        partial.unlink(missing_ok=True)
        OsFiles().dirsync(str(path.parent))

    def _lock(self, directory: Path) -> None:
        """Lock the directory of an edge, so that no other process drains that edge here."""
        if _has_name(self._locks.get(directory)):
            return
        self._unlock(directory)
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, fd)  # after an error, such as a full disk, the next begin() locks again
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(fd, HOLDER_MAX_BYTES, 0)
                raise refusal(str(directory), holder_in(holder), self._holder) from error
            turn = _begin_turn(fd, self._holder)
            undo.pop_all()
        self._locks[directory], self._turns[directory] = fd, turn
        _sweep(directory)

    def _unlock(self, directory: Path) -> None:
        if (descriptor := self._locks.pop(directory, None)) is not None:
            with contextlib.suppress(OSError):  # of a file system that is no longer there
                os.close(descriptor)

    def _make_directory(self, directory: Path) -> None:
        """Create `directory` and sync its name to the disk."""
        if directory in self._synced and directory.is_dir():
            return
        if directory != self.root:
            self._make_directory(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        OsFiles().dirsync(str(directory.parent))
        self._synced = {*self._synced, directory} if len(self._synced) < 64 else {directory}

    def days(self, edge: str) -> list[str]:
        """See MergingStore."""
        directory = self.root / f"edge={edge}"
        with _errors_of(directory):
            return [name.removeprefix("dt=") for name in os.listdir(directory) if name.startswith("dt=")]

    def entries(self, prefix: str, after: str = "") -> Iterator[StoredEntry]:
        """See MergingStore. A change of the names of a file changes its ctime."""
        for name in (name for name in self.names(prefix) if name > after):
            with _errors_of(self.root / name), contextlib.suppress(FileNotFoundError):
                status = os.stat(self.root / name)
                yield StoredEntry(name, status.st_size, status.st_ctime)

    def read(self, path: str, last: int | None = None) -> bytes:
        """See MergingStore."""
        with _errors_of(self.root / path):
            try:
                with open(self.root / path, "rb") as file:
                    if last is not None:
                        file.seek(max(os.fstat(file.fileno()).st_size - last, 0))
                    return file.read()
            except OSError as error:
                if is_unreadable(error):
                    raise DrainedFileError(f"cannot be read: {error.strerror}", name=path) from error
                raise

    def probe(self, edge: str) -> float:
        """See MergingStore."""
        path = self.root / f"edge={edge}" / f"{PARTIAL}probe"
        with _errors_of(path):
            self._lock_edge_of(f"edge={edge}/")
            path.write_bytes(b"")
            now_s = path.stat().st_ctime
            path.unlink()
        return now_s

    def publish(self, staged: str, path: str) -> None:
        """See MergingStore."""
        with _errors_of(self.root / path):
            self._lock_edge_of(path)
            _link(self.root / staged, self.root / path)
            OsFiles().dirsync(str((self.root / path).parent))

    def remove(self, paths: Sequence[str]) -> None:
        """See MergingStore."""
        for name in paths:
            path = self.root / name
            with _errors_of(path):
                self._lock_edge_of(name)
                path.unlink(missing_ok=True)
                if path.parent.name == STAGED_DIRECTORY:
                    with contextlib.suppress(OSError):  # there are others, or it was removed before
                        path.parent.rmdir()

    def _lock_edge_of(self, path: str) -> None:
        with self._making:
            self._lock(self.root / path.partition("/")[0])

    def names(self, prefix: str) -> Iterator[str]:
        """See Sink."""
        directory, _, begin = prefix.rpartition("/")
        with _errors_of(self.root / prefix), contextlib.suppress(FileNotFoundError):
            if begin:
                there = os.listdir(self.root / directory)
                yield from (f"{directory}/{name}" for name in fnmatch.filter(there, f"{glob.escape(begin)}*"))
                return
            for place, _, files in os.walk(self.root / directory, onerror=_raise):
                for name in files:
                    if not name.startswith("."):
                        yield os.path.relpath(os.path.join(place, name), self.root)

    def close(self) -> None:
        """See Sink."""
        for directory in list(self._locks):
            self._unlock(directory)


def _begin_turn(fd: int, holder: Holder | None) -> Turn:
    """Write the holder and its new turn into the lock file. Raises OSError."""
    turn = next_turn(os.pread(fd, HOLDER_MAX_BYTES, 0))
    os.ftruncate(fd, 0)
    values = {**(holder_as_dict(holder) if holder else {}), "turn": turn.own}
    os.pwrite(fd, json.dumps(values).encode(), 0)
    return turn


def _has_name(descriptor: int | None) -> bool:
    """False if the file was removed, or its file system was mounted again: that descriptor fails for ever."""
    with contextlib.suppress(OSError):
        return descriptor is not None and os.fstat(descriptor).st_nlink > 0
    return False


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def _sweep(directory: Path) -> None:
    """Remove half-written files of a killed drain: they may be given up, and then are never put again."""
    for left in directory.glob(f"{PARTIAL}*"):
        left.unlink(missing_ok=True)


def _write_all(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all parts in one gather; in several if there are many parts, or the disk takes less at once."""
    first = memoryview(parts[0])
    written = os.lseek(fd, _write_direct(fd, first), os.SEEK_SET)
    waiting = [first[written:], *(memoryview(part) for part in parts[1:])]
    while waiting:
        written = os.writev(fd, waiting[:IOV_MAX])
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.pop(0))
        if waiting and written:
            waiting[0] = waiting[0][written:]


def _write_direct(fd: int, part: memoryview) -> int:
    """Write whole blocks from the begin of `part`, bypassing the page cache. Returns the number of bytes.

    Returns 0 if the part is short, or if the file system or this memory does not support it.
    """
    whole = len(part) // BLOCK_BYTES * BLOCK_BYTES
    if whole < DIRECT_MIN_BYTES:
        return 0
    flags, written = fcntl.fcntl(fd, fcntl.F_GETFL), 0
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        while written < whole and written % BLOCK_BYTES == 0:
            written += os.pwrite(fd, part[written:whole], written)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return written


def _link(path: Path, name: Path) -> None:
    """Give a file another name, unless that exists. Raises SinkUnavailable, OSError."""
    try:
        os.link(path, name)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise
        raise SinkUnavailable(
            f"{name}: a file cannot get a second name here: {error.strerror}",
            hint="drain to a file system with hard links; FAT, exFAT and some network file systems have none",
        ) from error


def _compare(path: Path, drained_file: DrainedFile) -> None:
    """Return if `path` holds this file, by its footer, which has a checksum of the rest. Otherwise raise."""
    with open(path, "rb", buffering=0) as file:
        fd = file.fileno()
        length = os.fstat(fd).st_size
        same = drained_file.is_held_by(length, lambda begin, end: os.pread(fd, end - begin, begin))
    if not same:
        raise conflict(str(path), length, drained_file.length)


def conflict(where: str, found_length: int, length: int) -> SinkConflict:
    """The error for a name that is taken by other content."""
    how = (
        f"{found_length} bytes, not {length}" if found_length != length else "the same length, another footer"
    )
    return SinkConflict(
        f"{where}: is there already, with other content ({how})",
        hint="another bridge of this edge id writes there: give each edge its own edge_id, or each bridge "
        "its own root",
    )


def _raise(error: OSError) -> None:
    raise error


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(path, error) from error


def _unavailable(path: Path, error: OSError) -> SinkUnavailable:
    where = error.filename or path
    is_out_of_inodes = error.errno == errno.ENOSPC and lacks_inodes(path)
    hint = remedy_of(error) if is_out_of_inodes else REMEDIES.get(error.errno or 0, "")
    return SinkUnavailable(f"{where}: {error.strerror}", hint=hint)
