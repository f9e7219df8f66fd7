"""Archives: sealed segments as Parquet files, a tenth of their size, read as if they were still there.

    archive_segment(files, directory, base, ends_at)     # writes and proves; the segment may then be removed
    archive = Archive(files, directory)
    archive.read("telemetry-0", epoch, offset, 1 << 20)  # the bytes of the ring

Owns the format (layout.py, with the schema of the columns in columns.py), writing (archive_writer.py) and
reading (archive_file.py, archive_reader.py).  Decides neither when a segment is archived
(maintenance/maintenance.py) nor when an archive is removed (retention_rules.py).  pyarrow is loaded when a
record is written or read (library.py).
"""

from persistence.archive.archive_file import ArchiveFile
from persistence.archive.archive_reader import Archive
from persistence.archive.archive_writer import Archived, archive_segment, temporary_name
from persistence.archive.layout import ARCHIVE_SUFFIX, archive_name, base_of_archive
from persistence.archive.library import check_available, load

__all__ = [
    "ARCHIVE_SUFFIX",
    "Archive",
    "ArchiveFile",
    "Archived",
    "archive_name",
    "archive_segment",
    "base_of_archive",
    "check_available",
    "load",
    "temporary_name",
]
