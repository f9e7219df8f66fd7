"""Format of archives: golden bytes, other versions, invalid catalogues and footers."""

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.mqtt.primitives import encode_variable_integer
from persistence.archive import Archive, ArchiveFile
from persistence.archive.layout import (
    CRC_TEXT,
    JSON_TEXT,
    MAGIC,
    NO_CRC,
    TOPICS_TEXT,
    Catalogue,
    footer_length,
    footer_text,
    sealed_footer,
)
from persistence.errors import FormatError, FutureFormat
from tests.support.archives import archive_all, archived_records, path_of
from tests.support.logs import DIRECTORY, recovered, typical
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


@pytest.mark.parametrize("value", [None, "x", [], {}, 1.5, -1, 1 << 64, True, 1e999])
def test_a_catalogue_with_a_value_that_is_no_number_is_refused(value: object) -> None:
    catalogue = json.loads(ArchiveFile.open(golden(), DIRECTORY, 0).catalogue.pack())
    entry = next(iter(catalogue["opening"].values()))
    places = [(catalogue, "end"), (entry, 1), (entry, 2)]
    for numbers in (catalogue["segment"], catalogue["groups"][0]):
        places += [(numbers, name) for name in numbers if name != "ring"]
    for numbers, name in places:
        before, numbers[name] = numbers[name], value
        with pytest.raises(FormatError):
            Catalogue.unpack(json.dumps(catalogue).encode())
        numbers[name] = before
    assert Catalogue.unpack(json.dumps(catalogue).encode()).groups


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"version": 1e999}', b'{"version": 2, "groups": [7]}'])
def test_a_start_leaves_out_an_archive_whose_catalogue_cannot_be(text: bytes) -> None:
    files = golden()
    # Thrift's compact protocol writes lengths as MQTT does
    pairs = ((JSON_TEXT.encode(), text), (TOPICS_TEXT.encode(), b""), (CRC_TEXT.encode(), NO_CRC))
    footer = b"".join(
        b"\x18" + bytes([len(name)]) + name + b"\x18" + encode_variable_integer(len(value)) + value
        for name, value in pairs
    )
    footer += len(footer).to_bytes(4, "little") + MAGIC
    files.names[path_of(0)].cache[:] = MAGIC + sealed_footer(footer)
    log, report = recovered(files)
    assert report.segments == 0
    assert log.epochs("a-0") == []
    assert list(log.reader.archive.unreadable) == [0]


def test_an_archive_with_a_row_group_outside_it_is_refused() -> None:
    files = golden()
    del files.names[path_of(0)].cache[4:5]
    with pytest.raises(FormatError, match="outside an archive"):
        ArchiveFile.open(files, DIRECTORY, 0)


@pytest.mark.parametrize("tail", [b"", b"PAR1", b"\0\0\0\0PAR2", b"\xff\xff\xff\xffPAR1", b"\x10\0\0\0PAR1"])
def test_a_footer_that_cannot_be_is_refused(tail: bytes) -> None:
    with pytest.raises(FormatError):
        footer_length(tail, 20)
    for footer in (tail, b"\x18\x01a\x18\x7f" + tail, b"\x18\x01a\x18"):
        with pytest.raises(FormatError):
            footer_text(footer, "a")
