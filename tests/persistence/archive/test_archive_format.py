"""Format of archives: golden bytes, other versions, invalid catalogues and footers."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persistence.archive import Archive, ArchiveFile
from persistence.archive.layout import Catalogue, footer_length, footer_text
from persistence.errors import FormatError, FutureFormat
from tests.support.archives import archive_all, archived_records, path_of
from tests.support.logs import DIRECTORY, typical
from tests.support.simfiles import SimFiles

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "persistence" / "archive-v2.parquet"


def golden() -> SimFiles:
    """A disk with the golden archive."""
    files = SimFiles(Random(0))
    handle = files.open(path_of(0), create=True)
    files.pwritev(handle, [GOLDEN.read_bytes()], 0)
    files.close(handle)
    return files


def test_an_archive_that_always_was_can_be_read() -> None:
    archive = Archive(golden(), DIRECTORY)
    its = typical().records
    for name, epoch in (("a-0", 7), ("b-0", 7)):
        found = archived_records(archive, name, epoch)
        assert len(found) > 5
        assert found.items() <= its[name, epoch].items()


def test_the_catalogue_and_the_rows_are_written_as_they_always_were() -> None:
    """Bytes may differ with the library: places, lengths and checksums in the file follow from them."""
    written = typical()
    archive_all(written)
    new, old = ArchiveFile.open(written.files, DIRECTORY, 0), ArchiveFile.open(golden(), DIRECTORY, 0)
    for archive in (new, old):
        catalogue = archive.catalogue
        catalogue.groups = [group._replace(place=0, length=0, file_crc32c=0) for group in catalogue.groups]
    assert new.catalogue == old.catalogue
    tables = [
        pq.read_table(pa.BufferReader(data))
        for data in (bytes(written.files.names[path_of(0)].cache), GOLDEN.read_bytes())
    ]
    assert tables[0].schema == tables[1].schema
    assert tables[0] == tables[1]


def test_an_archive_of_a_later_version_is_refused() -> None:
    with pytest.raises(FutureFormat, match="archive version 3 is later than 2"):
        Catalogue.unpack(b'{"version": 3}')


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 2, "segment": {}}', b"\xff"]
)
def test_a_catalogue_that_cannot_be_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        Catalogue.unpack(text)


@pytest.mark.parametrize("tail", [b"", b"PAR1", b"\0\0\0\0PAR2", b"\xff\xff\xff\xffPAR1", b"\x10\0\0\0PAR1"])
def test_a_footer_that_cannot_be_is_refused(tail: bytes) -> None:
    with pytest.raises(FormatError):
        footer_length(tail, 20)
    for footer in (tail, b"\x18\x01a\x18\x7f" + tail, b"\x18\x01a\x18"):
        with pytest.raises(FormatError):
            footer_text(footer, "a")
