"""Epochs: the life of a ring, as a number that is never used twice under one name.

Owns the file `epochs` in the state directory: JSON, {"ring name": last epoch}, replaced whole and synced
before the epoch is used.  An epoch is the Unix time in seconds or, when the clock stands still or goes back,
one more than the last: epochs rise even on a machine without a clock, and differ even when the file is lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge.errors import EdgeError
from edge.logs import pairs

__all__ = ["Epochs"]

log = logging.getLogger(__name__)

EPOCH_MAX = (1 << 32) - 1  # a ring's header has 32 bits for it; seconds reach that in 2106


class Epochs:
    """The last epoch of each ring name.  A damaged file is put aside, never a refusal to start."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._last = self._read()

    def next(self, name: str, above: int = 0) -> int:
        """A new epoch for `name`, higher than any it had, and than `above`.  On disk when this returns."""
        epoch = max(self._last.get(name, 0) + 1, above + 1, int(self._clock()))
        if epoch > EPOCH_MAX:
            raise EdgeError(
                f"ring {name}: epoch {epoch} exceeds {EPOCH_MAX}",
                hint=f"set the clock right, and remove {self._path}",
            )
        self._last[name] = epoch
        self._write()
        return epoch

    def _read(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            aside = self._path.with_name(f"{self._path.name}.bad")
            self._path.replace(aside)
            log.warning("epochs unreadable, begun anew %s", pairs(error=error, kept=aside))
            return {}

    def _write(self) -> None:
        temporary = self._path.with_name(f"{self._path.name}.new")
        with temporary.open("wb") as file:
            os.fchmod(file.fileno(), 0o640)
            file.write(msgspec.json.encode(self._last))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
