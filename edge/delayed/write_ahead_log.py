"""Write-ahead log of the store: transactions that SQLite dropped because frames of the log are wrong.

SQLite ends the log at the first frame with a wrong checksum, without a message. Commits behind that frame
show that it was damaged, or that a power cut lost it: unsynced frames reach the disk in any order. A kill
interrupts only the last transaction; damage in the last frame only looks the same. Not noticed is a log that
was cut off.

Only reads. The format is SQLite's (https://www.sqlite.org/walformat.html):

    NAME-wal   header of 32 bytes, then frames: header of 24 bytes, page. Frames have the salt of the header,
               except those of an earlier use of the file, behind them
    NAME-shm   at byte 16 the number of frames that SQLite found valid
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
MAGIC_BIG_ENDIAN = 0x377F0683  # checksums are of big-endian words

Sum = tuple[int, int]


class Dropped(NamedTuple):
    """Transactions that SQLite dropped."""

    transactions: int = 0
    may_be_kill: bool = False  # a kill may have interrupted the only one


def dropped_transactions(database: Path, index: int, page_bytes: int) -> Dropped:
    """Transactions that SQLite dropped when it opened the database.

    It must have read it, and must not have written since. `index`: descriptor of NAME-shm; -1: the index is
    in memory, and all checksums are computed again. It stays open as long as the database: its close would
    end the locks of SQLite on that file, which are those of the process, and another process that opens the
    database would truncate the file under this one. Raises OSError.
    """
    with open(f"{database}-wal", "rb") as file:
        log = _Log(file, page_bytes)
        valid = log.valid() if index < 0 else int.from_bytes(os.pread(index, 4, 16), sys.byteorder)
        return log.dropped(valid)


class _Log:
    """Frames of a log, numbered from 0."""

    def __init__(self, log: BinaryIO, page_bytes: int) -> None:
        self._log, self._page_bytes = log, page_bytes
        self._header = log.read(HEADER_BYTES)
        is_big = int.from_bytes(self._header[:4], "big") == MAGIC_BIG_ENDIAN
        self._order: Literal["<", ">"] = ">" if is_big else "<"
        is_whole = len(self._header) == HEADER_BYTES
        self._is_header_right = is_whole and _sum(self._header[:24], (0, 0), self._order) == _pair(
            self._header[24:]
        )
        self._heads: list[bytes] = []  # headers of the complete frames
        frame_bytes = FRAME_HEADER_BYTES + page_bytes
        while len(frame := log.read(frame_bytes)) == frame_bytes:
            self._heads.append(frame[:FRAME_HEADER_BYTES])

    def valid(self) -> int:
        """Number of frames that SQLite reads: up to the last commit before the first wrong frame."""
        if not self._is_header_right:
            return 0
        end = 0
        for number, head in enumerate(self._heads):
            if head[8:16] != self._header[16:24] or not self._is_right(number):
                break
            if head[4:8] != bytes(4):
                end = number + 1
        return end

    def dropped(self, valid: int) -> Dropped:
        """Commits behind the first `valid` frames."""
        if not self._heads:
            return Dropped()
        salt = self._header[16:24] if self._is_header_right else self._heads[0][8:16]
        written = [number for number, head in enumerate(self._heads) if head[8:16] == salt]
        commits = [number for number in written[valid:] if self._heads[number][4:8] != bytes(4)]
        is_last = len(commits) == 1 and commits == written[-1:]
        may_be_kill = is_last and self._is_header_right and self._are_right(valid, commits[0])
        return Dropped(len(commits), may_be_kill)

    def _are_right(self, first: int, end: int) -> bool:
        """True if the frames have the checksums that follow from those of the frames before them."""
        return all(map(self._is_right, range(first, end)))

    def _is_right(self, number: int) -> bool:
        self._log.seek(HEADER_BYTES + number * (FRAME_HEADER_BYTES + self._page_bytes))
        data = self._log.read(FRAME_HEADER_BYTES + self._page_bytes)
        before = _pair(self._heads[number - 1][16:] if number else self._header[24:])
        return _sum(data[:8] + data[FRAME_HEADER_BYTES:], before, self._order) == _pair(data[16:24])


def _pair(data: bytes) -> Sum:
    first, second = struct.unpack(">2I", data)
    return first, second


def _sum(data: bytes, before: Sum, order: Literal["<", ">"]) -> Sum:
    """SQLite's checksum of some words, after those with the sum `before`."""
    first, second = before
    for word, following in struct.iter_unpack(f"{order}2I", data):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + following + first) & 0xFFFFFFFF
    return first, second
