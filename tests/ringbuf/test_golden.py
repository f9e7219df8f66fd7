"""Record, ring and cursor file against bytes that never change: C writes and Python reads, and back.

What Python says here it says from c/base/record.h and c/ring/layout.h by hand, with struct, so that a change
of the C structures cannot hide.
"""

import random
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from ringbuf import (
    FLAG_EXPIRY,
    FLAG_PROPERTIES,
    FLAG_RETAIN,
    FLAG_UNCHECKED,
    Ring,
    crc32,
    crc32c,
    scan_records,
)
from ringbuf.errors import Corrupt, WrongVersion
from ringbuf.record import decode, encode
from ringbuf.ring import cursor_file, ring_file
from tests.support.c_programs import compiled
from tests.support.project import ROOT
from tests.support.rings import records_of

GOLDEN = ROOT / "tests" / "golden" / "ringbuf"
FUNCTIONAL = ROOT / "tests" / "c" / "functional.c"
EPOCH, FIRST, MADE_NS, CAPACITY, CHUNK = 0x01020304, 1000, 1_700_000_000_000_000_000, 65536, 4096
HEADER, CURSORS, INDEX_AT, INDEX_ENTRIES = 16384, 12288, 4096, 256
IDENTITY, IDENTITY_AT = 0x5EED1E55, 0x78
NOWHERE = (1 << 64) - 1

GEOMETRY = struct.Struct(
    "<QIIIIQQQQ64sI"
)  # magic, version, ABI word, header bytes, epoch, capacity, chunk, ...
END = struct.Struct("<QQQQQ")  # count, two pairs of position and offset
INDEX = struct.Struct("<QQQQ")  # position, offset, timestamp_ns, unused

RING = (GOLDEN / "ring-v2.bin").read_bytes().ljust(HEADER + CAPACITY, b"\0")
CURSOR_BYTES = (GOLDEN / "cursors-v2.bin").read_bytes().ljust(CURSORS, b"\0")
RING_V1 = (GOLDEN / "ring-v1.bin").read_bytes().ljust(HEADER + CAPACITY, b"\0")
CURSOR_BYTES_V1 = (GOLDEN / "cursors-v1.bin").read_bytes().ljust(CURSORS, b"\0")

# (key, properties, payload, flags) of each record of the golden ring
RECORDS = [
    (b"", b"", b"", 0),
    (b"plant/1/temp", b"", b"21.5", FLAG_RETAIN | 1),
    (b"plant/2/temp", b"\x05\x02\x00\x00\x00\x3c", b"22.5", FLAG_EXPIRY | FLAG_PROPERTIES | 2),
    (b"12345678", b"", b"a payload that begins right behind its key", 0),
    (b"in/place", b"", bytes(range(33)), 0),
    (b"in/place", b"", bytes(i & 0xFF for i in range(4500)), FLAG_UNCHECKED),
    (b"last", b"", b"end", 0),
]


def encoded() -> list[bytes]:
    """The records as Python says them."""
    return [
        encode(
            FIRST + i,
            payload,
            epoch=EPOCH,
            key=key,
            timestamp_ns=MADE_NS + FIRST + i,
            flags=flags,
            properties=properties,
        )
        for i, (key, properties, payload, flags) in enumerate(RECORDS)
    ]


def geometry() -> bytes:
    """The first line of the header as Python says it."""
    made = (HEADER, EPOCH, CAPACITY, CHUNK, MADE_NS, FIRST, b"golden-0", IDENTITY)
    fields = (b"BRIMRING", 2, 0x08802001, *made)
    whole = struct.pack("<8sIIIIQQQQ64sI", *fields)
    return whole + struct.pack("<I", crc32c(whole))


def header(count: int, stale: tuple[int, int], reserve: int) -> bytes:
    """The whole header, with the three things that depend on how the writer got there."""
    records = encoded()
    positions = [sum(map(len, records[:i])) for i in range(len(records))]
    pairs = [stale, stale]
    pairs[count & 1] = (sum(map(len, records)), FIRST + len(records))
    index = [INDEX.pack(NOWHERE, 0, 0, 0)] * INDEX_ENTRIES
    for i in reversed(range(len(records))):
        index[positions[i] // CHUNK] = INDEX.pack(positions[i], FIRST + i, MADE_NS + FIRST + i, 0)
    watermark = struct.pack("<Q", reserve)
    parts = geometry(), END.pack(count, *pairs[0], *pairs[1]), watermark, b"", b"", watermark
    lines = b"".join(part.ljust(128, b"\0") for part in parts)
    return (lines.ljust(INDEX_AT, b"\0") + b"".join(index)).ljust(HEADER, b"\0")


@pytest.fixture(scope="module")
def functional(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("functional"), FUNCTIONAL, "-O2")


def test_c_writes_the_golden_bytes(functional: Path, tmp_path: Path) -> None:
    subprocess.run([functional, "dump", tmp_path / "dump"], check=True)
    dump = (tmp_path / "dump").read_bytes()
    assert dump[:HEADER] == RING[:HEADER]
    assert dump[HEADER : HEADER + CAPACITY] == RING[HEADER:]
    assert dump[HEADER + CAPACITY :] == CURSOR_BYTES


def test_python_writes_the_golden_records() -> None:
    records = b"".join(encoded())
    assert RING[HEADER : HEADER + len(records)] == records
    assert RING[HEADER + len(records) :][:4] == b"\0" * 4, "the word that ends the chain"


def test_python_writes_the_golden_header() -> None:
    count, *pairs = END.unpack_from(RING, 128)
    (reserve,), (granted,) = struct.unpack_from("<Q", RING, 256), struct.unpack_from("<Q", RING, 640)
    stale = (pairs[2], pairs[3]) if count % 2 == 0 else (pairs[0], pairs[1])
    assert header(count, stale, reserve) == RING[:HEADER]
    assert granted == reserve


def test_python_writes_the_golden_cursor_file() -> None:
    head = struct.pack("<8sIIQI", b"BRIMURCS", 2, 0x08802001, MADE_NS, IDENTITY)
    assert head.ljust(CURSORS, b"\0") == CURSOR_BYTES


def test_c_reads_what_python_writes(functional: Path, tmp_path: Path) -> None:
    made = header(2, (0, 0), 2 * CHUNK) + b"".join(encoded()).ljust(CAPACITY, b"\0") + CURSOR_BYTES
    (tmp_path / "made").write_bytes(made)
    subprocess.run([functional, "scan", tmp_path / "made"], check=True)
    (tmp_path / "made").write_bytes(made.replace(b"21.5", b"21.6"))
    assert (
        subprocess.run([functional, "scan", tmp_path / "made"], check=False, capture_output=True).returncode
        == 1
    )


def test_python_reads_the_golden_header() -> None:
    magic, version, abi, header_bytes, epoch, capacity, chunk, made, first, name, _ = GEOMETRY.unpack_from(
        RING
    )
    assert (magic, version, abi) == (0x474E49524D495242, 2, 0x08802001)
    assert struct.unpack_from("<I", RING, IDENTITY_AT) == (IDENTITY,)
    assert (header_bytes, epoch, capacity, chunk, made, first) == (
        HEADER,
        EPOCH,
        CAPACITY,
        CHUNK,
        MADE_NS,
        FIRST,
    )
    assert name.rstrip(b"\0") == b"golden-0"


def test_python_reads_the_golden_records() -> None:
    rest = RING[HEADER:]
    for i, (key, properties, payload, flags) in enumerate(RECORDS):
        record, taken = decode(rest, EPOCH)
        assert record == (FIRST + i, MADE_NS + FIRST + i, key, flags, properties, payload)
        rest = rest[taken:]


def test_a_golden_ring_can_be_attached_and_taken_over(runtime_directory: Path) -> None:
    path = runtime_directory / "golden-0"
    ring_file(path).write_bytes(RING)
    cursor_file(path).write_bytes(CURSOR_BYTES)
    with Ring.attach(path) as ring:
        assert (ring.name, ring.epoch, ring.first_offset, ring.created_ns) == (
            "golden-0",
            EPOCH,
            FIRST,
            MADE_NS,
        )
        batch = ring.reader(start="oldest", verify=True).read_many()
        found = [(record.key, record.properties, record.bytes(), record.flags) for record in batch]
        assert found == RECORDS
        del batch
    with Ring.reattach(path) as again:
        assert again.writer().publish(b"next") == FIRST + len(RECORDS)


def test_a_ring_of_version_1_is_taken_over_with_its_records(runtime_directory: Path) -> None:
    """By its writer, after an update of Brim; its cursor file has no identity, and is made again."""
    path = runtime_directory / "golden-0"
    ring_file(path).write_bytes(RING_V1)
    cursor_file(path).write_bytes(CURSOR_BYTES_V1)
    with pytest.raises(WrongVersion, match="ring format version 1, this build reads 2"):
        Ring.attach(path)
    with Ring.reattach(path) as again:
        assert again.writer().publish(b"next") == FIRST + len(RECORDS)
    with Ring.attach(path) as ring:
        found = [
            (it.key, it.properties, it.bytes(), it.flags) for it in ring.reader(start="oldest").read_many()
        ]
    assert found == [*RECORDS, (b"", b"", b"next", 0)]
    made = ring_file(path).read_bytes()
    assert made[0x3000 : 0x3000 + 128] == made[:128], "the copy of the geometry"
    assert made[IDENTITY_AT : IDENTITY_AT + 4] != bytes(4)
    assert cursor_file(path).read_bytes()[24:28] == made[IDENTITY_AT : IDENTITY_AT + 4]


# ---- both codecs agree on everything, not only on what is golden ----


@pytest.mark.parametrize("seed", range(20))
def test_python_reads_what_the_writer_writes(ring: Ring, seed: int) -> None:
    dice = random.Random(seed)
    writer, reader = ring.writer(), ring.reader()
    for offset in range(50):
        key, payload = dice.randbytes(dice.randrange(50)), dice.randbytes(dice.randrange(400))
        about = dice.randbytes(dice.randrange(1, 100))
        properties = bytes([len(about)]) + about if offset % 2 else b""
        writer.publish(payload, key=key, flags=offset & 7 & ~FLAG_PROPERTIES, properties=properties)
        record = reader.poll()
        assert record is not None
        expected = encode(
            offset,
            payload,
            epoch=ring.epoch,
            key=key,
            timestamp_ns=record.timestamp_ns,
            flags=offset & 7 & ~FLAG_PROPERTIES,
            properties=properties,
        )
        assert records_of(ring.path)[record.position : record.position + len(expected)] == expected


@pytest.mark.parametrize("seed", range(20))
def test_c_scans_what_python_encodes(seed: int) -> None:
    dice = random.Random(seed)
    run = b""
    for offset in range(30):
        payload, key = dice.randbytes(dice.choice([0, 1, 100, 5000])), dice.randbytes(dice.randrange(60))
        run += encode(
            offset, payload, epoch=seed, key=key, timestamp_ns=offset, flags=dice.choice([0, FLAG_UNCHECKED])
        )
    scan = scan_records(run, seed)
    assert (scan.count, scan.good_bytes, scan.first_offset, scan.last_offset) == (30, len(run), 0, 29)
    assert scan_records(run, seed + 1).count == 0, "another epoch never verifies"


def test_a_changed_bit_is_seen_wherever_it_is() -> None:
    """In both languages; but for the padding behind a record, and the length that says where that begins."""
    record = encode(5, b"payload" * 5, epoch=9, key=b"key", timestamp_ns=7)
    length = struct.unpack_from("<I", record)[0]
    for bit in range(length * 8):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        assert scan_records(changed, 9).count == 0
        with pytest.raises(Corrupt):
            decode(bytes(changed), 9)


@pytest.mark.parametrize("cut", range(0, 96, 5))
def test_a_cut_record_is_not_there(cut: int) -> None:
    record = encode(5, b"x" * 60, epoch=9)
    assert len(record) == 96
    scan = scan_records(record + record[:cut], 9)
    assert (scan.count, scan.good_bytes) == (1, 96)


def test_crc32c_is_that_of_rfc_3720() -> None:
    """Appendix B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF])
def test_crc32_is_that_of_zlib(seed: int) -> None:
    """Whatever the length and wherever it begins in memory."""
    data = random.Random(5).randbytes(5000)
    for begin in (0, 1, 7):
        for end in (*range(begin, 600), 1023, 1024, 1025, 4096, 5000):
            assert crc32(memoryview(data)[begin:end], seed) == zlib.crc32(data[begin:end], seed)
