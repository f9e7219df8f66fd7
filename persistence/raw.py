"""Extents as they stand in the file, to a socket: for who copies a ring on, and verifies what arrives.

The bytes never come to this process, so nothing is verified here: an extent's checksum begins at the seed of
its segment, which is told, and a record's at the epoch of its ring.  Only what is an extent as it was written
is sent; what was saved of a damaged one is for read().
"""

from __future__ import annotations

import select
import socket
from typing import NamedTuple

from persistence.format import EXTENT_HEADER_BYTES
from persistence.shelf import Shelf, Shelved

__all__ = ["RawRun", "raw_run", "send_run"]

SEND_MOST_BYTES = 4 << 20  # with one call


class RawRun(NamedTuple):
    """Extents of one ring and epoch that lie together in one segment."""

    base: int  # of the segment
    seed: int
    place: int  # of the first one's header, in the file
    length: int  # headers and bodies
    first_offset: int
    end_offset: int


def raw_run(
    shelf: Shelf, shelved: Shelved, ring_name: str, epoch: int, offset: int, limit_bytes: int
) -> RawRun | None:
    """The extents from the one on that holds `offset`, or from the next behind, about `limit_bytes`; None:
    the segment has none.
    """
    rows, table = shelf.rows(shelved, ring_name, epoch), shelf.table(shelved)
    if rows is None or table is None:
        return None
    with shelf.lock:
        index = rows.find(offset)
        while index < len(rows) and not rows[index].whole:
            index += 1
        if index == len(rows):
            return None
        row = rows[index]
        begin, first = row.place - EXTENT_HEADER_BYTES, row.first_offset
        while True:
            end, end_offset = row.place + row.length, row.first_offset + row.count
            index += 1
            if end - begin >= limit_bytes or index == len(rows):
                break
            following = rows[index]
            if not following.whole or following.place - EXTENT_HEADER_BYTES != end:
                break
            row = following
    return RawRun(shelved.base, table.seed, begin, end - begin, first, end_offset)


def send_run(shelf: Shelf, shelved: Shelved, run: RawRun, to: socket.socket) -> int:
    """Sends a run; how many bytes went: all, or fewer if the file has become shorter.

    Waits for the socket as long as its timeout says.  Raises TimeoutError, FileNotFoundError (retention has
    taken the segment), OSError.
    """
    sent = 0
    with shelf.opened(shelved) as handle:
        shelf.files.advise(handle, run.length, run.place, "soon")
        while sent < run.length:
            wanted = min(run.length - sent, SEND_MOST_BYTES)
            try:
                went = shelf.files.send(handle, wanted, run.place + sent, to.fileno())
            except BlockingIOError:
                if not select.select([], [to], [], to.gettimeout())[1]:
                    raise TimeoutError(f"the peer took {sent} of {run.length} bytes") from None
                continue
            if went == 0:
                break
            sent += went
    return sent
