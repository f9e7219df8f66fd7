"""Verification of a sealed segment to its last byte: damage, and correctness of its footer.

The footer is built again and compared.  A footer with a valid checksum but other content would lead to wrong
records.  Only mend() changes the segment: it writes the correct footer.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from persistence.errors import FormatError
from persistence.files import Files
from persistence.segment import footer
from persistence.segment.format import segment_name
from persistence.segment.salvaging_files import SalvagingFiles
from persistence.segment.scan import DamagedRange, read_header

# none: a damaged or too large segment must not have a footer
FooterState = Literal["right", "missing", "wrong", "none"]


class CheckedSegment(NamedTuple):
    """Result of the verification."""

    base: int
    end: int  # position in the file at which its log ends
    damage: tuple[DamagedRange, ...]
    footer: FooterState
    made: bytes | None = None  # the correct footer
    reason: str = ""  # cause for which no content of the segment is readable


def check_segment(files: Files, directory: str, base: int, end: int) -> CheckedSegment:
    """Verify the sealed segment at `base`, whose log ends at position `end` of the file.

    Raises FileNotFoundError, OSError.
    """
    name = segment_name(base)
    files = SalvagingFiles(files)
    handle = files.open(os.path.join(directory, name))
    try:
        try:
            table, errors_found = footer.examine(files, handle, name, end)
            there = footer.found(files, handle, read_header(files, handle), end)
        except FormatError as error:
            damage = DamagedRange(name, 0, files.size(handle), "", 0)
            return CheckedSegment(base, end, (damage,), "none", reason=str(error))
    finally:
        files.close(handle)
    state: FooterState = "none"
    if errors_found is not None:
        state = "right" if there == errors_found else "wrong" if there else "missing"
    return CheckedSegment(base, end, tuple(table.damage), state, errors_found)


def mend(files: Files, directory: str, checked: CheckedSegment) -> bool:
    """Write the footer if it is missing or wrong.  True if it was written.

    Only for the holder of the log's lock.  Raises OSError.
    """
    if checked.made is None or checked.footer == "right":
        return False
    footer.put(files, directory, checked.base, checked.end, checked.made)
    return True
