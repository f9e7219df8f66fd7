"""Archives: sealed segments, compressed to a tenth, read as if they were still there.

    archive_segment(files, directory, base, ends_at)     # writes, proves; the segment may then go
    archive = Archive(files, directory)
    archive.read("telemetry-0", epoch, offset, 1 << 20)  # the ring's own bytes

Owns the format (layout.py) and what is made of it; decides neither when a segment is archived (upkeep.py) nor
when an archive goes (retention.py).
"""

from persistence.archive.file import ArchiveFile
from persistence.archive.layout import archive_name, base_of_archive
from persistence.archive.store import Archive
from persistence.archive.writing import Archived, Sizes, archive_segment
from persistence.archive.zstd import check_available

__all__ = [
    "Archive",
    "ArchiveFile",
    "Archived",
    "Sizes",
    "archive_name",
    "archive_segment",
    "base_of_archive",
    "check_available",
]
