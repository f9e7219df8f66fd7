"""Archives: every record comes back bit by bit, whatever crashes; and what is damaged costs only itself."""

import errno
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.archive import Archive, ArchiveFile, Sizes, archive_segment, base_of_archive, zstd
from persistence.archive.file import Cache
from persistence.archive.layout import Footer, Frame, pack_header, unpack_header
from persistence.errors import ArchiveUnavailable, FormatError, NotArchived
from persistence.format import SegmentHeader, segment_name
from ringbuf import FLAG_UNCHECKED, crc32c, scan_records
from ringbuf.record import HEADER, encode
from tests.support.archives import SMALL, archive_all, archived_records, ends_of, path_of
from tests.support.log_simulation import run_of
from tests.support.logs import DIRECTORY, Written, recovered, typical
from tests.support.simfiles import PowerCut, SimFiles

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "persistence" / "archive-v1.archive"


def add(written: Written, name: str, epoch: int, records: list[bytes], first: int) -> None:
    """Queues records that are made already, as one run."""
    data = b"".join(records)
    if first == 0:
        written.log.join(name, epoch, 0)
    written.log.append(written.log._ids[name], [run_of(data, epoch, position=written.position)])
    written.position += len(data)
    written.records.setdefault((name, epoch), {}).update(
        {first + i: data for i, data in enumerate(_unpadded(it) for it in records)}
    )


def _unpadded(record: bytes) -> bytes:
    return record[: HEADER.unpack_from(record)[0]]


def devices(
    count: int = 400, topics: int = 20, seed: int = 3, segment_bytes: int = 1 << 20
) -> tuple[Written, list[bytes]]:
    """A closed log of telemetry of that many topics, and the topic of each record."""
    random = Random(seed)
    written = Written.empty(segment_bytes=segment_bytes)
    keys = [f"plant/{random.randrange(topics):03}/temp".encode() for _ in range(count)]
    for begin in range(0, count, 10):
        records = [
            encode(
                offset,
                json.dumps({"t": 20 + random.randrange(50) / 10, "ok": True}).encode(),
                epoch=7,
                key=keys[offset],
                timestamp_ns=10**18 + offset * 10**6 + random.randrange(1000),
                flags=offset % 3,
            )
            for offset in range(begin, min(begin + 10, count))
        ]
        add(written, "a-0", 7, records, begin)
        written.sync()
    written.log.close()
    return written, keys


# ---- what comes back ----


def test_every_record_comes_back_bit_by_bit() -> None:
    written = typical()
    made = archive_all(written)
    assert len(made) == 3
    archive = Archive(written.files, DIRECTORY)
    for (name, epoch), its in written.records.items():
        assert archived_records(archive, name, epoch) == its
    assert sum(it.records for it in made) == sum(map(len, written.records.values()))


def test_each_record_that_comes_back_verifies_and_says_where_it_was() -> None:
    written, _ = devices()
    before = written.log.read("a-0", 7, 0, 1 << 30)
    archive_all(written)
    found = Archive(written.files, DIRECTORY).read("a-0", 7, 0, 1 << 30)
    assert b"".join(it.view for it in found) == b"".join(it.view for it in before)
    for it in found:
        scan = scan_records(it.view, 7)
        assert (scan.count, scan.good_bytes) == (it.count, len(it.view))
        assert (scan.first_timestamp_ns, scan.last_timestamp_ns) == (
            it.first_timestamp_ns,
            it.last_timestamp_ns,
        )
        assert it.position == before[0].position + b"".join(b.view for b in before).index(bytes(it.view))


@pytest.mark.parametrize("limit_bytes", [1, 300, 5000, 1 << 20])
def test_reading_begins_at_the_record_that_was_asked_for(limit_bytes: int) -> None:
    written, _ = devices()
    archive_all(written)
    archive = Archive(written.files, DIRECTORY)
    its = written.records["a-0", 7]
    for offset in range(0, len(its), 7):
        found = archive.read("a-0", 7, offset, limit_bytes)
        assert found[0].offset == offset
        assert bytes(found[0].view).startswith(its[offset])
        assert sum(len(it.view) for it in found) <= limit_bytes + 160
    assert archive.read("a-0", 7, len(its), limit_bytes) == []
    assert archive.read("a-0", 8, 0, limit_bytes) == []
    assert archive.read("b-0", 7, 0, limit_bytes) == []


def test_reading_by_ring_position_begins_at_the_record_that_holds_it() -> None:
    written, _ = devices()
    whole = written.log.read("a-0", 7, 0, 1 << 30)
    archive_all(written)
    archive = Archive(written.files, DIRECTORY)
    for run in whole:
        for position in (run.position, run.position + 1, run.position + len(run.view) - 1):
            found = archive.read_at("a-0", 7, position, 100)
            assert found[0].position <= position < found[0].position + len(found[0].view)
    assert archive.read_at("a-0", 7, whole[-1].position + len(whole[-1].view), 100) == []


def test_one_topic_is_read_without_the_others() -> None:
    written, keys = devices()
    archive_all(written)
    archive = Archive(written.files, DIRECTORY)
    its = written.records["a-0", 7]
    for topic in sorted(set(keys)):
        wanted = {offset: its[offset] for offset, key in enumerate(keys) if key == topic}
        assert archived_records(archive, "a-0", 7, topic=topic, limit_bytes=200) == wanted
    assert archive.read_topic("a-0", b"plant/000", 7, 0, 1000) == []
    assert archive.read_topic("a-0", b"zzz", 7, 0, 1000) == []
    assert archive.read_topic("a-0", b"", 7, 0, 1000) == []


class Counting(SimFiles):
    """A disk that counts what is read."""

    read_bytes = 0

    def read(self, handle: int, length: int, position: int) -> bytes:
        self.read_bytes += length
        return super().read(handle, length, position)


def test_reading_a_topic_decompresses_only_what_it_needs() -> None:
    written, keys = devices(2000, 100)
    files = Counting(Random(1), written.files.names)
    ((base, end),) = ends_of(files).items()
    archive_segment(files, DIRECTORY, base, end, sizes=Sizes(1 << 20, 2048))
    archive = ArchiveFile.open(files, path_of(base))
    (window,) = archive.footer.windows
    assert len(window.blocks) > 20
    files.read_bytes = 0
    with archive.opened() as handle:
        found = archive.read_topic(handle, Cache(0), ("a-0", 7, keys[0]), 0, 1 << 20)
    assert sum(it.count for it in found) == keys.count(keys[0])
    needed = files.read_bytes - window.head.length - sum(page.frame.length for page in archive.footer.pages)
    assert 0 < needed <= 2 * max(block.length for block in window.blocks) * 2


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_records_come_back(data: st.DataObject) -> None:
    keys = st.sampled_from([b"", b"a", b"a/b", b"\xff\x00", b"plant/1/temp" * 9])
    one = st.tuples(
        keys,
        st.binary(max_size=90),
        st.integers(0, 7) | st.just(FLAG_UNCHECKED),
        st.sampled_from([b"", b"\x00", b"\x03\x01\x01\x00"]),
        st.integers(0, 2**64 - 1),
    )
    written = Written.empty(segment_bytes=data.draw(st.sampled_from([9000, 1 << 20])))
    for name, epoch in (("a-0", 7), ("b@cam", 2**32 - 1)):
        offset = 0
        for run in data.draw(st.lists(st.lists(one, min_size=1, max_size=8), max_size=8)):
            for alone in _extents(run):
                records = [
                    encode(
                        offset + i, payload, epoch=epoch, key=key, flags=flags, properties=properties,
                        timestamp_ns=stamp,
                    )
                    for i, (key, payload, flags, properties, stamp) in enumerate(alone)
                ]  # fmt: skip
                add(written, name, epoch, records, offset)
                offset += len(records)
        written.sync()
    written.log.close()
    sizes = data.draw(st.sampled_from([SMALL, Sizes(200, 64), Sizes()]))
    archive_all(written, sizes)
    archive = Archive(written.files, DIRECTORY)
    for (name, epoch), its in written.records.items():
        limit_bytes = data.draw(st.sampled_from([1, 500, 1 << 20]))
        assert archived_records(archive, name, epoch, limit_bytes=limit_bytes) == its


def _extents(run: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """A record that its own checksum does not cover is an extent of its own."""
    extents: list[list[tuple[Any, ...]]] = []
    for it in run:
        if it[2] & FLAG_UNCHECKED or not extents or extents[-1][-1][2] & FLAG_UNCHECKED:
            extents.append([])
        extents[-1].append(it)
    return extents


def test_a_record_that_no_writer_of_ours_made_comes_back_as_it_stood() -> None:
    """A local producer may fill what does not matter with anything, as long as the checksum holds."""
    odd = bytearray(encode(0, b"payload", epoch=7, key=b"odd"))
    odd[24:28] = b"HASH"  # not that of the key
    odd[35:40] = b"\x01\x02\x03\x04\x05"  # between key and payload
    length = HEADER.unpack_from(odd)[0]
    odd[length:] = bytes(range(1, len(odd) - length + 1))  # behind the record
    odd[4:8] = crc32c(bytes(odd[8:length]), 7).to_bytes(4, "little")
    plain = encode(1, b"payload", epoch=7, key=b"odd")
    written = Written.empty()
    add(written, "a@cam", 7, [bytes(odd), plain], 0)
    written.sync()
    written.log.close()
    archive_all(written)
    found = Archive(written.files, DIRECTORY).read("a@cam", 7, 0, 1 << 20)
    assert b"".join(it.view for it in found) == bytes(odd) + plain


def test_telemetry_takes_a_tenth() -> None:
    random = Random(1)
    temperature = [random.uniform(15, 30) for _ in range(1000)]
    written = Written.empty(segment_bytes=64 << 20)
    now = 10**18
    for begin in range(0, 20_000, 500):
        records = []
        for offset in range(begin, begin + 500):
            number = random.randrange(1000)
            temperature[number] += random.gauss(0, 0.05)
            now += int(random.expovariate(1e-6))
            payload = {
                "device": f"device{number:04}",
                "ts": now // 10**6,
                "temperature": round(temperature[number], 2),
                "humidity": round(50 + temperature[number], 1),
                "status": "ok",
                "firmware": "1.4.2",
            }
            key = f"plant/line{number % 10}/device{number:04}/telemetry".encode()
            records.append(
                encode(offset, json.dumps(payload).encode(), epoch=7, key=key, timestamp_ns=now, flags=1)
            )
        add(written, "a-0", 7, records, begin)
        written.sync()
    written.log.close()
    (made,) = archive_all(written, Sizes())
    print(f"{made.segment_bytes / made.archive_bytes:.1f} times smaller")
    assert made.segment_bytes > 10 * made.archive_bytes


# ---- crashes ----


def test_a_crash_at_any_step_leaves_the_segment_or_a_whole_archive() -> None:
    states = 0
    for seed in range(20):
        written = typical(seed)
        base, end = list(ends_of(written.files).items())[seed % 3]
        steps = _steps(written.files.kill(), base, end)
        for step in range(steps):
            files = written.files.kill()
            files.random = Random(seed * 1000 + step)
            files.short_writes = True
            with pytest.raises(PowerCut):
                _archive_until(files, base, end, step)
            for disk in (files.crash(), files.kill()):
                _judge(disk, written, base, end)
                states += 1
    print(f"{states} crash states")
    assert states > 400


def _archive(files: SimFiles, base: int, end: int) -> None:
    """What upkeep does: the segment goes when its archive is there."""
    archive_segment(files, DIRECTORY, base, end, sizes=SMALL)
    files.unlink(f"{DIRECTORY}/{segment_name(base)}")
    files.dirsync(DIRECTORY)


def _steps(files: SimFiles, base: int, end: int) -> int:
    before = files.operations
    _archive(files, base, end)
    return files.operations - before


def _archive_until(files: SimFiles, base: int, end: int, step: int) -> None:
    left = step

    def hook(operation: str, path: str) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1

    files.hook = hook
    try:
        _archive(files, base, end)
    except PowerCut:
        raise
    raise PowerCut  # short writes made it longer than it was


def _judge(files: SimFiles, written: Written, base: int, end: int) -> None:
    """After recovery each record is there, in the segment or in an archive that is right."""
    names = files.listdir(DIRECTORY)
    log, report = recovered(files)
    assert report.damage == ()
    log.close()
    assert not any(name.endswith(".tmp") for name in files.listdir(DIRECTORY))
    if segment_name(base) in names:
        _archive(files, base, end)  # and what was left undone can be done
    archive = ArchiveFile.open(files, path_of(base))
    with archive.opened() as handle:
        for index in range(len(archive.footer.windows)):
            archive.check(handle, index)
    assert archive.damage == {}
    here = Archive(files, DIRECTORY)
    for name, epoch in archive.rings():
        its = written.records[name, epoch]
        found = archived_records(here, name, epoch)
        assert found.items() <= its.items()
        assert len(found) == sum(run.end_offset - run.first_offset for run in archive.runs(name, epoch))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_leaves_the_segment_and_no_half_archive(error: int) -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    for step in range(_steps(written.files.kill(), base, end)):
        files = written.files.kill()
        left = step

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(error, "no")

        files.hook = hook
        try:
            archive_segment(files, DIRECTORY, base, end, sizes=SMALL)
        except OSError as raised:
            assert raised.errno == error
            assert segment_name(base) in files.listdir(DIRECTORY)
        files.hook = None
        assert not any(name.endswith(".tmp") for name in files.listdir(DIRECTORY))
        archive_segment(files, DIRECTORY, base, end, sizes=SMALL)
        assert ArchiveFile.open(files, path_of(base)).base == base


def test_a_wrong_archive_that_is_there_is_made_again() -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    archive_segment(written.files, DIRECTORY, base, end, sizes=SMALL)
    right = bytes(written.files.names[path_of(base)].cache)
    for bit in range(100 * 8 + 1, len(right) * 8, 997):
        written.files.flip(path_of(base), bit)
        archive_segment(written.files, DIRECTORY, base, end, sizes=SMALL)
        assert bytes(written.files.names[path_of(base)].cache) == right


def test_what_reads_differently_is_not_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressor that loses a bit is found out before the segment goes."""
    plain = zstd.compress

    def wrong(data, level=1):
        changed = bytearray(data)
        changed[len(changed) // 2] ^= 1
        return plain(bytes(changed), level)

    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    monkeypatch.setattr("persistence.archive.writing.compress", wrong)
    with pytest.raises((NotArchived, FormatError)):
        archive_segment(written.files, DIRECTORY, base, end, sizes=SMALL)
    assert [name for name in written.files.listdir(DIRECTORY) if base_of_archive(name) is not None] == []


# ---- damage ----


def test_a_damaged_segment_is_kept_as_it_is() -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    written.files.flip(f"{DIRECTORY}/{segment_name(base)}", 5000 * 8)
    with pytest.raises(NotArchived, match="damaged in 1 places"):
        archive_segment(written.files, DIRECTORY, base, end, sizes=SMALL)
    assert path_of(base) not in written.files.names


def test_a_flipped_bit_costs_what_its_frame_holds_and_nothing_else() -> None:
    written, _ = devices(600, 30)
    ((base, end),) = ends_of(written.files).items()
    archive_segment(written.files, DIRECTORY, base, end, sizes=Sizes(32 << 10, 2048))
    size = len(written.files.names[path_of(base)].cache)
    whole = ArchiveFile.open(written.files, path_of(base))
    index_at = whole.footer.pages[0].frame.place
    its = written.records["a-0", 7]
    lost: dict[str, int] = {}
    for bit in range(64 * 8, index_at * 8, 509):
        files = written.files.kill()
        files.flip(path_of(base), bit)
        archive = Archive(files, DIRECTORY)
        found = archived_records(archive, "a-0", 7)
        assert found.items() <= its.items()
        (part,) = archive.all()[0].damage
        lost[part.split()[-2]] = max(lost.get(part.split()[-2], 0), len(its) - len(found))
    print(f"records lost by a bit, at most: {lost} of {len(its)}")
    assert 0 < lost["block"] < 100
    assert lost["block"] < lost["window"] < 400
    for bit in (*range(0, 64 * 8, 37), *range((size - 32) * 8, size * 8, 11)):
        files = written.files.kill()
        files.flip(path_of(base), bit)
        archive = Archive(files, DIRECTORY)
        assert archived_records(archive, "a-0", 7) in ({}, its)
        assert archive.unreadable or archived_records(archive, "a-0", 7) == its


def test_damage_costs_no_more_where_positions_and_topics_are_looked_for() -> None:
    written, _ = devices(600, 30)
    ((base, end),) = ends_of(written.files).items()
    archive_segment(written.files, DIRECTORY, base, end, sizes=Sizes(16 << 10, 2048))
    whole = ArchiveFile.open(written.files, path_of(base))
    heads, pages = [it.head for it in whole.footer.windows], [it.frame for it in whole.footer.pages]
    assert len(heads) > 2
    runs = whole.runs("a-0", 7)
    for number, head in enumerate(heads[:-1]):
        archive = _flipped(written.files, base, head)
        (found, *_) = archive.read_at("a-0", 7, runs[number].position, 1)
        assert (found.offset, found.position) == (runs[number + 1].first_offset, runs[number + 1].position)
        assert list(archive.all()[0].damage) == [f"window {number}"]
    archive = _flipped(written.files, base, heads[-1])
    assert archive.read_at("a-0", 7, runs[-1].position, 1) == []
    for number, page in enumerate(pages):
        archive = _flipped(written.files, base, page)
        assert archive.read_topic("a-0", whole.footer.pages[number].first_name, 7, 0, 1) == []
        assert list(archive.all()[0].damage) == [f"page {number}"]


def _flipped(files: SimFiles, base: int, frame: Frame) -> Archive:
    """The archive with a bit of that frame turned over."""
    damaged = files.kill()
    damaged.flip(path_of(base), 8 * (frame.place + frame.length // 2))
    return Archive(damaged, DIRECTORY)


def test_a_truncated_archive_is_unreadable_and_says_so() -> None:
    written = typical()
    archive_all(written)
    path = path_of(0)
    data = bytes(written.files.names[path].cache)
    for length in (0, 10, 95, 96, len(data) // 2, len(data) - 1):
        written.files.names[path].truncate(length)
        archive = Archive(written.files, DIRECTORY)
        assert archive.first_offset("a-0", 7, 0) != 0
        assert list(archive.unreadable) == [0]
        written.files.names[path].write(data, 0)


# ---- format ----


def test_an_archive_that_always_was_can_be_read() -> None:
    files = SimFiles(Random(0))
    handle = files.open(path_of(0), create=True)
    files.pwritev(handle, [GOLDEN.read_bytes()], 0)
    archive = Archive(files, DIRECTORY)
    its = typical().records
    for name, epoch in (("a-0", 7), ("b-0", 7)):
        found = archived_records(archive, name, epoch)
        assert len(found) > 5
        assert found.items() <= its[name, epoch].items()


def test_an_archive_is_written_as_it_always_was() -> None:
    """Frame by frame, decompressed: what zstd makes of it may change with its version."""
    written = typical()
    archive_all(written)
    files = SimFiles(Random(0))
    handle = files.open(path_of(0), create=True)
    files.pwritev(handle, [GOLDEN.read_bytes()], 0)
    new, golden = ArchiveFile.open(written.files, path_of(0)), ArchiveFile.open(files, path_of(0))
    assert new.header == golden.header
    assert _contents(new) == _contents(golden)


def _contents(archive: ArchiveFile) -> list[object]:
    """Everything in it but where it is, and what it takes."""
    footer = archive.footer
    found: list[object] = [footer.end, footer.opening, footer.closing, footer.rings]
    with archive.opened() as handle:
        for window in footer.windows:
            found += [window[2:], [_plain(archive, handle, it) for it in (window.head, *window.blocks)]]
        found += [(page[1:], _plain(archive, handle, page.frame)) for page in footer.pages]
    return found


def _plain(archive: ArchiveFile, handle: int, frame: Frame) -> bytes:
    return frame.open(archive._read(handle, frame), archive.seed)


def test_the_header_is_the_segment_s_under_another_magic() -> None:
    header = SegmentHeader(3, 8192, 5, 0x5A17, 1_700_000_000 * 10**9)
    packed = pack_header(header)
    assert len(packed) == 64
    assert packed[:8] == b"BRIMARCH"
    assert packed[8:60] == header.pack()[8:60]
    assert unpack_header(packed) == header._replace(magic=b"BRIMARCH")


def test_a_footer_that_cannot_be_is_refused() -> None:
    for fields in (b"", b"\x93", b"\x80", b"\x81\xa3end\x01"):
        with pytest.raises(FormatError):
            Footer.unpack(fields)


def test_a_frame_that_holds_more_than_it_may_is_refused() -> None:
    data = zstd.compress(bytes(1 << 20))
    assert zstd.decompress(data, 1 << 20) == bytes(1 << 20)
    for length in (0, 1000, (1 << 20) - 1, (1 << 20) + 1):
        with pytest.raises(FormatError):
            zstd.decompress(data, length)
    with pytest.raises(FormatError, match="cannot read"):
        zstd.decompress(b"\0" * 20, 20)


def test_without_the_compressor_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(zstd, "_zstd", zstd._zstd.__wrapped__)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ArchiveUnavailable, match=r"pip install 'brim\[archive\]'"):
        archive_segment(written.files, DIRECTORY, base, end)
