"""Identity of an installation: a random id for one state directory, and the numbers of its lives.

Owns the files `installation` and `installation.copy` in the state directory. Owns copies named `installation`
in the directory of the rings and, if it is elsewhere or on another disk, in that of the log: records there
may outlive the state directory.

Each file is an envelope (persistence/durable_file.py) with the magic "BRIMINST", version 1 and crc32c. The
body is

    JSON {"id": 32 hexadecimal digits, "lives": [[first epoch, number], ...]}

Rule for change: keys may be added to the body; any other change raises the version.

An epoch is 32 bits in rings and logs, and unique only within one state directory. In the lake an epoch is

    number << 32 | epoch        the number is that of the last life whose first epoch is not above the epoch

A life begins when a broker creates its first new epoch after a start. Its number is random, of 30 bits below
the highest bit. So no record gets the identity of another one, not even on another machine, on a machine
without its state, on a copy, or with a state directory from a backup. Epochs before the first life have the
number 0, so they are the same in the lake as in the ring. Those are the epochs of Brim before installations
had an id.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bridge.errors import BridgeError
from bridge.format.lake_epoch import EPOCH_BITS, ring_epoch
from persistence.durable_file import Envelope, read_file, replace_file
from persistence.files import FILE_MODE, Files, OsFiles

log = logging.getLogger(__name__)

NAME, COPY_NAME = "installation", "installation.copy"
MAGIC, VERSION = b"BRIMINST", 1
FILE_MAX_BYTES = 1 << 20
LIVES_MAX = 4096  # the log has no records from before so many starts with new rings
NUMBER_BITS = 30
NUMBER_MIN = 1 << NUMBER_BITS  # so that all epochs of the lake have 19 digits, and fit into 63 bits
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_ENVELOPE = Envelope(MAGIC, VERSION)
_ID = re.compile(r"[0-9a-f]{32}")


class Life(NamedTuple):
    """Epochs from `first_epoch` on, up to the next life."""

    first_epoch: int
    number: int


class Identity(Struct, frozen=True):
    """Id, and lives by rising first epoch."""

    id: str
    lives: tuple[Life, ...] = ()

    def lake_epoch(self, epoch: int) -> int:
        """The epoch in the lake of an epoch of a ring."""
        numbers = [life.number for life in self.lives if life.first_epoch <= epoch]
        return (numbers[-1] if numbers else 0) << EPOCH_BITS | epoch

    def with_life(self, life: Life) -> Identity:
        """The identity with one more life. From its first epoch on, all epochs belong to that life."""
        before = [other for other in self.lives if other.first_epoch < life.first_epoch]
        return replace(self, lives=tuple([*before, life][-LIVES_MAX:]))

    def joined(self, other: Identity) -> Identity:
        """The identity with the lives of both. One of the two may be older than the other."""
        return replace(self, lives=tuple(sorted({*self.lives, *other.lives})[-LIVES_MAX:]))


class Holder(Struct, frozen=True):
    """Owner of a lease: an installation during one boot, in one place.

    The place distinguishes two copies of a state directory on one machine.
    """

    installation: str
    boot: str
    place: str
    host: str

    @property
    def key(self) -> str:
        """Unique text of this holder. The host name may change and is not part of it."""
        return f"{self.installation}/{self.boot}/{self.place}"

    def __str__(self) -> str:
        return f"installation {self.installation} (host {self.host}, boot {self.boot[:8]})"


class InstallationMismatch(BridgeError):
    """A directory holds records of another installation than the state directory."""

    def __init__(self, directory: Path, other: str, state_dir: Path, known: str) -> None:
        super().__init__(
            f"{directory} belongs to installation {other}, and state_dir {state_dir} to installation {known}",
            hint="set runtime_dir and log.directory to directories of this installation, or put back the "
            "state_dir of the other one; remove none of them: each may hold records that are nowhere else",
        )


def pack_identity(identity: Identity) -> bytes:
    """The bytes of a file that holds `identity`."""
    return _ENVELOPE.pack(msgspec.json.encode(identity))


def unpack_identity(data: bytes) -> Identity:
    """The identity in the bytes of a file.  Raises ValueError: damage, another version."""
    return _checked(msgspec.json.decode(_ENVELOPE.body(data)))


def _checked(values: Any) -> Identity:
    try:
        lives = tuple(Life(first, number) for first, number in values["lives"])
        identity = Identity(values["id"], lives)
        good = _ID.fullmatch(identity.id) and all(map(_is_life, lives)) and lives == tuple(sorted(lives))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the body is not that of an installation: {error!r}") from error
    if not good:
        raise ValueError(f"id {identity.id!r} with {len(lives)} lives")
    return identity


def _is_life(life: Life) -> bool:
    if not all(type(value) is int for value in life):
        return False
    return 0 < life.first_epoch < 1 << EPOCH_BITS and NUMBER_MIN <= life.number < NUMBER_MIN << 1


class Installation:
    """Identity of a state directory. Created by open(); each process that needs it has its own.

    Only the broker, which has locked the directories, calls begin_life() and copy_to().
    """

    def __init__(self, state_dir: Path, identity: Identity, files: Files) -> None:
        self.identity = identity
        self._state_dir = state_dir
        self._files = files
        self._copies: list[Path] = []
        self._seen = self._stamp()

    @classmethod
    def open(
        cls, state_dir: Path, also: Iterable[Path | None] = (), files: Files | None = None
    ) -> Installation:
        """Open the installation of `state_dir`; create it if it does not exist.

        `also`: directories with a copy, which counts if the state directory has lost its own. Raises OSError.
        """
        files = files or OsFiles()
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        paths = state_dir / NAME, state_dir / COPY_NAME
        own = [copy for path in paths if (copy := _read(files, path)) is not None]
        if not own:
            copies = (_read(files, place / NAME) for place in also if place is not None)
            new = next(filter(None, copies), None) or Identity(os.urandom(16).hex())
            own = [_created(files, paths[0], new)]
        identity = own[0]
        for other in own[1:]:
            identity = identity.joined(other) if other.id == identity.id else identity
        return cls(state_dir, identity, files)

    def copy_to(self, directories: Sequence[Path]) -> None:
        """Keep a copy in each directory from now on. Lives that only a copy has are taken from it.

        Raises InstallationMismatch, OSError.
        """
        self._copies = [directory / NAME for directory in directories]
        for path in self._copies:
            identity = _read(self._files, path)
            if identity is not None and identity.id != self.identity.id:
                raise InstallationMismatch(path.parent, identity.id, self._state_dir, self.identity.id)
            self.identity = self.identity.joined(identity) if identity is not None else self.identity
        self._save()

    @property
    def newest_first_epoch(self) -> int:
        """The first epoch of the newest life; 0: there is no life."""
        return self.identity.lives[-1].first_epoch if self.identity.lives else 0

    def begin_life(self, first_epoch: int) -> None:
        """Give epochs from `first_epoch` on a new number.  On disk when this returns.  Raises OSError."""
        number = NUMBER_MIN | int.from_bytes(os.urandom(4)) & (NUMBER_MIN - 1)
        self.identity = self.identity.with_life(Life(first_epoch, number))
        self._save()

    def lake_epoch(self, epoch: int) -> int:
        """The epoch in the lake of an epoch of a ring, by the lives on the disk."""
        if (stamp := self._stamp()) != self._seen:
            identity = _read(self._files, self._state_dir / NAME)
            if identity is not None and identity.id == self.identity.id:
                self.identity, self._seen = identity, stamp
        return self.identity.lake_epoch(epoch)

    def owns(self, epoch: int) -> bool:
        """True if an epoch of the lake is one that this installation gives."""
        return self.lake_epoch(ring_epoch(epoch)) == epoch

    def holder(self) -> Holder:
        """The holder of a lease that this process takes."""
        try:
            boot = BOOT_ID.read_text().strip()
        except OSError:
            boot = ""
        place = os.stat(self._state_dir)
        return Holder(self.identity.id, boot, f"{place.st_dev:x}.{place.st_ino:x}", socket.gethostname())

    def _save(self) -> None:
        for path in (self._state_dir / NAME, self._state_dir / COPY_NAME, *self._copies):
            if _read(self._files, path, report=False) != self.identity:
                _write(self._files, path, self.identity)
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self._state_dir / NAME)
        except FileNotFoundError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


def identity_of_log(directory: Path) -> Identity | None:
    """The identity next to a log, in its directory or in the one above it; None: not found."""
    identities = (_read(OsFiles(), place / NAME) for place in (directory, directory.absolute().parent))
    return next(filter(None, identities), None)


def _read(files: Files, path: Path, *, report: bool = True) -> Identity | None:
    """The identity in a file; None: the file is missing or damaged. `report`: log damage."""
    try:
        return unpack_identity(read_file(files, str(path), FILE_MAX_BYTES))
    except FileNotFoundError:
        return None
    except ValueError as error:
        if report:
            log.warning("installation file damaged path=%s reason=%s", path, error)
        return None


def _created(files: Files, path: Path, identity: Identity) -> Identity:
    """Write the file if it does not exist or is damaged.

    Returns the identity in it, which another thread or process may have written meanwhile.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # instead of os.link(): some file systems have no hard links
        if (existing := _read(files, path, report=False)) is not None:
            return existing
        _write(files, path, identity)
        return identity
    finally:
        os.close(directory)


def _write(files: Files, path: Path, identity: Identity) -> None:
    parts = [pack_identity(identity)]
    try:
        replace_file(files, str(path), parts, mode=FILE_MODE, shared=True)
    except IsADirectoryError:  # reported as damaged when it was read first
        files.rename(str(path), f"{path}.bad")
        replace_file(files, str(path), parts, mode=FILE_MODE, shared=True)
