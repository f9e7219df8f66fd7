"""A sealed segment, read to its last byte: what of it is damaged, and whether its footer says what is there.

A footer is judged by making it anew: one that verifies and is not the same would lead to the wrong records,
or past the right ones.  Changes nothing but in mend(), which writes the footer that should be there.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from persistence import footer
from persistence.errors import FormatError
from persistence.files import Files
from persistence.format import segment_name
from persistence.scan import Damage, read_header

__all__ = ["CheckedSegment", "FooterState", "check_segment", "mend"]

# none: of a damaged segment, and of one that is too large, there is to be no footer
FooterState = Literal["right", "missing", "wrong", "none"]


class CheckedSegment(NamedTuple):
    """What has been found."""

    base: int
    end: int  # place in the file where its log ends
    damage: tuple[Damage, ...]
    footer: FooterState
    made: bytes | None = None  # the footer as it should be
    reason: str = ""  # why nothing in the segment can be told


def check_segment(files: Files, directory: str, base: int, end: int) -> CheckedSegment:
    """Reads the sealed segment at `base`, whose log ends at that place.

    Raises FileNotFoundError, OSError.
    """
    name = segment_name(base)
    handle = files.open(os.path.join(directory, name))
    try:
        try:
            table, made = footer.examine(files, handle, name, end)
            there = footer.found(files, handle, read_header(files, handle), end)
        except FormatError as error:
            damage = Damage(name, 0, files.size(handle), "", 0)
            return CheckedSegment(base, end, (damage,), "none", reason=str(error))
    finally:
        files.close(handle)
    state: FooterState = "none"
    if made is not None:
        state = "right" if there == made else "wrong" if there else "missing"
    return CheckedSegment(base, end, tuple(table.damage), state, made)


def mend(files: Files, directory: str, checked: CheckedSegment) -> bool:
    """Puts the footer there that is missing or wrong; whether there was anything to do.

    Only by who holds the log's lock.  Raises OSError.
    """
    if checked.made is None or checked.footer == "right":
        return False
    footer.put(files, directory, checked.base, checked.end, checked.made)
    return True
