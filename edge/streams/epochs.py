"""Epochs: numbers of the lives of a ring, never used twice for one ring name.

Owns the files `epochs` and `epochs.copy` in the state directory: the same bytes, each replaced whole and
synced before an epoch is used.

Each file is an envelope (persistence/durable_file.py) with the magic "BRIMEPOC", version 2 and crc32c. The
body is

    JSON {"epochs": {"ring name": last epoch}}

Rule for change: keys may be added to the body; any other change raises the version. Version 1
was one file, of JSON {"ring name": last epoch}, without a checksum. It is read, and rewritten as version 2.

An epoch is at least one more than all that were given before this start, and no clock is read. (It was the
Unix time in seconds up to version 1 of drained files.) With the first epoch after a start a new life of the
installation begins (bridge/format/installation.py), which makes epochs unique in the lake. The first write
after a start has an epoch for each known ring name, used or not: after a reboot all rings are new, and on a
slow disk a write for each of them takes seconds.

A damaged file is renamed to NAME.bad and its copy is used. If both are damaged or missing, the numbers are
rebuilt. Every epoch is then higher than all epochs that rings, logs and checkpoints contain, by a margin for
those that have left no trace.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge.errors import EdgeError
from edge.logging_setup import pairs
from persistence.durable_file import Envelope, read_file, replace_file
from persistence.files import FILE_MODE, Files, OsFiles

log = logging.getLogger(__name__)

EPOCH_MAX = (1 << 32) - 1  # a ring's header has 32 bits for it
# above all epochs found elsewhere, if the files are lost: room for a million lost rings
EPOCH_MARGIN = 1 << 20

MAGIC, VERSION = b"BRIMEPOC", 2

_ENVELOPE = Envelope(MAGIC, VERSION)


class _Body(msgspec.Struct):
    epochs: dict[str, int]


def pack_epochs(epochs: dict[str, int]) -> bytes:
    """Encode `epochs` as the bytes of a file."""
    return _ENVELOPE.pack(msgspec.json.encode(_Body(epochs)))


def unpack_epochs(data: bytes) -> dict[str, int]:
    """Decode a file of version 1 or 2. Raises ValueError: damage, or another version."""
    try:
        if data[:1] == b"{":
            epochs = msgspec.json.decode(data, type=dict[str, int])
        else:
            epochs = msgspec.json.decode(_ENVELOPE.body(data), type=_Body).epochs
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    if wrong := [number for number in epochs.values() if not 0 <= number <= EPOCH_MAX]:
        raise ValueError(f"epoch {wrong[0]} is not between 0 and {EPOCH_MAX}")
    return epochs


class Epochs:
    """The last epoch of each ring name. Damaged files never prevent a start.

    `found_elsewhere` returns the highest epoch found outside of these files, 0 if there is none. `in_use`
    returns the same for rings, logs and checkpoints of bridges. Each is called at most once: by the first
    next() after both files were lost, and by the first next(). `begin_life` gets the epoch from which on all
    are new, before the first one is used.
    """

    def __init__(
        self,
        path: Path,
        found_elsewhere: Callable[[], int] = lambda: 0,
        in_use: Callable[[], int] = lambda: 0,
        begin_life: Callable[[int], object] = lambda _: None,
        files: Files | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._files = files or OsFiles()
        self._paths = (path, path.with_name(f"{path.name}.copy"))
        self._found_elsewhere, self._in_use, self._begin_life = found_elsewhere, in_use, begin_life
        self._begun = False  # True if begin_life was called
        self._reserved: dict[str, int] = {}  # by ring name: epochs that are on the disk and not used yet
        self._least = 1  # the lowest epoch that may be given
        read_files = [self._read(path) for path in self._paths]
        whole = [epochs for epochs in read_files if epochs is not None]
        self._lost = not whole
        names = {name for epochs in whole for name in epochs}
        self._last = {name: max(epochs.get(name, 0) for epochs in whole) for name in sorted(names)}
        if whole and read_files != [self._last, self._last]:
            self._write_again()

    def next(self, name: str, above: int = 0) -> int:
        """A new epoch for `name`, higher than all its earlier ones and than `above`. On disk at return.

        For any thread: local producers and added streams may need one at the same time.
        """
        with self._lock:
            return self._next(name, above)

    def _next(self, name: str, above: int) -> int:
        if self._lost:
            self._rebuild()
        if not self._begun:
            self._least = max(self._least, max(self._last.values(), default=0) + 1, self._in_use() + 1)
        reserved = self._reserved.pop(name, 0)
        if reserved > above:
            return reserved
        epoch = max(self._last.get(name, 0) + 1, above + 1, self._least)
        if epoch > EPOCH_MAX:
            raise EdgeError(
                f"ring {name}: epoch {epoch} exceeds {EPOCH_MAX}",
                hint="give this broker another state_dir and runtime_dir; the old ones stay as they are",
            )
        reserving = {} if self._begun else dict.fromkeys(self._last.keys() - {name}, self._least)
        if not self._begun:
            self._begin_life(self._least)
            self._begun = True
        self._last.update(reserving)
        self._last[name] = epoch
        self._write()
        self._reserved = reserving or self._reserved
        return epoch

    def _rebuild(self) -> None:
        if highest := self._found_elsewhere():
            self._least = highest + EPOCH_MARGIN
            details = pairs(file=self._paths[0], highest=highest, least=self._least)
            log.warning("epochs rebuilt %s", details)
        self._lost = False

    def _read(self, path: Path) -> dict[str, int] | None:
        """Epochs of one file; None: it is missing, damaged, or of version 1 and therefore without a copy."""
        try:
            return unpack_epochs(read_file(self._files, str(path)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            aside = path.with_name(f"{path.name}.bad")
            self._files.rename(str(path), str(aside))
            log.warning("epochs file damaged %s", pairs(file=path, reason=error, kept=aside))
            return None

    def _write_again(self) -> None:
        try:
            self._write()
        except OSError as error:
            log.warning("epochs file not restored %s", pairs(file=self._paths[0], reason=error))

    def _write(self) -> None:
        data = pack_epochs(self._last)
        for path in self._paths:
            replace_file(self._files, str(path), [data], mode=FILE_MODE, sync_name=path == self._paths[-1])
