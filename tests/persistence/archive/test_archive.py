"""Archives: every record comes back bit by bit, whatever crashes; and what is damaged costs only itself."""

import errno
import json
import re
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.archive import Archive, ArchiveFile, archive_segment, base_of_archive, library
from persistence.archive.cache import Cache
from persistence.archive.records import Run
from persistence.errors import ArchiveUnavailable, FormatError, NotArchived
from persistence.maintenance.scrub import scrub_archive
from persistence.segment.format import segment_name
from ringbuf import FLAG_UNCHECKED, crc32c, scan_records
from ringbuf.extras import install_extra
from ringbuf.record import RecordHeader, encode
from tests.support import archive_crashes
from tests.support.archive_crashes import crash_at_each_step, steps_of
from tests.support.archives import SMALL, archive_all, archived_records, ends_of, path_of
from tests.support.log_simulation import run_of
from tests.support.logs import DIRECTORY, Written, typical
from tests.support.simfiles import SimFiles


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
    return record[: RecordHeader.of(record).length]


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


def test_row_groups_of_many_long_topics_come_back() -> None:
    """Parquet keeps no dictionary of more than a megabyte: the topics of the rows behind are plain."""
    written = Written.empty(segment_bytes=16 << 20)
    keys = [f"{number:05}".encode() * 30 for number in range(12_000)]
    for begin in range(0, len(keys), 2000):
        records = [encode(it, b"", epoch=7, key=keys[it]) for it in range(begin, begin + 2000)]
        add(written, "a-0", 7, records, begin)
        written.sync()
    written.log.close()
    archive_all(written, 4 << 20)
    archive = Archive(written.files, DIRECTORY)
    assert len(archive.all()[0].catalogue.groups) == 1
    assert archived_records(archive, "a-0", 7, limit_bytes=1 << 20) == written.records["a-0", 7]
    for number in (0, 5000, 11_999):
        (found,) = archive.read_topic("a-0", keys[number], 7, 0, 1000)
        assert (found.offset, found.count) == (number, 1)


def test_a_topic_in_the_statistics_cannot_pass_for_the_catalogue() -> None:
    """Statistics stand in the footer, too, with whatever topics devices use."""
    topic = "\x18\x0cbrim.archive\x18\x02{}\x18\x0bbrim.crc32c\x18\x0800000000"
    written = Written.empty()
    add(written, "a-0", 7, [encode(0, b"x", epoch=7, key=topic.encode(), timestamp_ns=5)], 0)
    written.sync()
    written.log.close()
    archive_all(written)
    assert archived_records(Archive(written.files, DIRECTORY), "a-0", 7) == written.records["a-0", 7]


class Counting(SimFiles):
    """A disk that counts what is read."""

    read_bytes = 0

    def read(self, handle: int, length: int, position: int) -> bytes:
        self.read_bytes += length
        return super().read(handle, length, position)


def test_row_groups_without_a_topic_are_not_read_for_it() -> None:
    """By the filter of topics in the footer."""
    written, keys = devices(2000, 100)
    files = Counting(Random(1), written.files.names)
    ((base, end),) = ends_of(files).items()
    archive_segment(files, DIRECTORY, base, end, group_bytes=SMALL)
    archive = ArchiveFile.open(files, DIRECTORY, base)
    groups = archive.groups("a-0", 7)
    assert len(groups) > 20
    files.read_bytes = 0
    with archive.opened() as handle:
        assert archive.read(handle, Cache(0), "a-0", 7, 0, 1 << 20, b"zzz") == []
        assert files.read_bytes <= archive.size - groups[-1].place - groups[-1].length  # the footer
        files.read_bytes = 0
        decoded = Cache(1 << 30)
        found = archive.read(handle, decoded, "a-0", 7, 0, 1 << 20, keys[0])
        assert sum(it.count for it in found) == keys.count(keys[0])
        assert files.read_bytes < archive.size // 2
        having = {offset for offset, key in enumerate(keys) if key == keys[0]}
        for index, group in enumerate(groups):
            has = bool(having & set(range(group.first_offset, group.end_offset)))
            assert (decoded.get((base, index, keys[0])) is not None) == has


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
    archive_all(written, data.draw(st.sampled_from([SMALL, 200, 1 << 20])))
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
    length = RecordHeader.of(odd).length
    odd[length:] = bytes(range(1, len(odd) - length + 1))  # behind the record
    odd[4:8] = crc32c(bytes(odd[8:length]), 7).to_bytes(4, "little")
    plain = encode(1, b"payload", epoch=7, key=b"odd")
    written = Written.empty()
    add(written, "a@cam", 7, [bytes(odd), plain], 0)
    written.sync()
    written.log.close()
    archive_all(written)
    archive = Archive(written.files, DIRECTORY)
    for found in (archive.read("a@cam", 7, 0, 1 << 20), archive.read_topic("a@cam", b"odd", 7, 0, 1 << 20)):
        assert b"".join(it.view for it in found) == bytes(odd) + plain
    assert archive.read_topic("a@cam", b"???", 7, 0, 1 << 20) == []
    (group,) = archive.all()[0].groups("a@cam", 7)
    assert group.verbatim == 1


def test_decoded_row_groups_stay_within_the_memory_they_may_take() -> None:
    written, _ = devices(600, 30)
    archive_all(written)
    archive = Archive(written.files, DIRECTORY, cache_bytes=20_000)
    assert archived_records(archive, "a-0", 7) == written.records["a-0", 7]
    (file,) = archive.all()
    decoded = [archive._cache.get((file.base, index, None)) for index in range(len(file.groups("a-0", 7)))]
    kept = [it for it in decoded if it is not None]
    assert 0 < sum(it.memory_bytes for it in kept) <= 20_000
    assert kept == decoded[-len(kept) :]
    archive.forget()
    assert archive._cache.get((file.base, len(decoded) - 1, None)) is None


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
    (made,) = archive_all(written, 8 << 20)
    print(f"{made.segment_bytes / made.archive_bytes:.1f} times smaller")
    assert made.segment_bytes > 10 * made.archive_bytes


# ---- crashes ----


def test_a_crash_at_any_step_leaves_the_segment_or_a_whole_archive() -> None:
    """`./dev simulate archives` has more of them."""
    assert sum(map(crash_at_each_step, range(9))) > 180


def test_an_archive_that_is_not_synced_before_its_segment_is_removed_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sync_nothing(files: SimFiles, *arguments: Any, **named: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "fdatasync", lambda handle: None)
            archive_segment(files, *arguments, **named)

    monkeypatch.setattr(archive_crashes, "archive_segment", sync_nothing)
    with pytest.raises((AssertionError, FormatError)):
        sum(map(crash_at_each_step, range(4)))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_leaves_the_segment_and_no_half_archive(error: int) -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    for step in range(steps_of(written.files.kill(), base, end)):
        files = written.files.kill()
        left = step

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(error, "no")

        files.hook = hook
        try:
            archive_segment(files, DIRECTORY, base, end, group_bytes=SMALL)
        except OSError as raised:
            assert raised.errno == error
            assert segment_name(base) in files.listdir(DIRECTORY)
        files.hook = None
        assert not any(name.endswith(".tmp") for name in files.listdir(DIRECTORY))
        archive_segment(files, DIRECTORY, base, end, group_bytes=SMALL)
        assert ArchiveFile.open(files, DIRECTORY, base).base == base


def test_a_wrong_archive_that_is_there_is_made_again() -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    archive_segment(written.files, DIRECTORY, base, end, group_bytes=SMALL)
    right = bytes(written.files.names[path_of(base)].cache)
    for bit in range(4 * 8 + 1, len(right) * 8, 1999):
        written.files.flip(path_of(base), bit)
        archive_segment(written.files, DIRECTORY, base, end, group_bytes=SMALL)
        assert bytes(written.files.names[path_of(base)].cache) == right


def test_what_reads_differently_is_not_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that changes a byte before it computes checksums is found out before the segment goes."""
    from persistence.archive import columns

    plain = columns.table_of

    def wrong(records: memoryview, runs: list[Run], ring: str, epoch: int) -> Any:
        made = plain(records, runs, ring, epoch)
        flags = made.table.column("flags").to_pylist()
        flags[len(flags) // 2] ^= 1
        changed = made.table.set_column(5, columns.SCHEMA.field("flags"), [pa.array(flags, pa.int32())])
        return made._replace(table=changed)

    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    monkeypatch.setattr("persistence.archive.parquet.table_of", wrong)
    with pytest.raises((NotArchived, FormatError), match="come back"):
        archive_segment(written.files, DIRECTORY, base, end, group_bytes=SMALL)
    assert [name for name in written.files.listdir(DIRECTORY) if base_of_archive(name) is not None] == []


# ---- damage ----


def test_a_damaged_segment_is_kept_as_it_is() -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    written.files.flip(f"{DIRECTORY}/{segment_name(base)}", 5000 * 8)
    with pytest.raises(NotArchived, match="damaged in 1 places"):
        archive_segment(written.files, DIRECTORY, base, end, group_bytes=SMALL)
    assert path_of(base) not in written.files.names


def test_every_flipped_bit_is_found_and_costs_one_row_group() -> None:
    written, _ = devices(600, 30)
    ((base, end),) = ends_of(written.files).items()
    archive_segment(written.files, DIRECTORY, base, end, group_bytes=16 << 10)
    size = len(written.files.names[path_of(base)].cache)
    groups = ArchiveFile.open(written.files, DIRECTORY, base).groups("a-0", 7)
    footer = groups[-1].place + groups[-1].length
    assert len(groups) > 3
    assert [it.place for it in groups[1:]] == [it.place + it.length for it in groups[:-1]]
    its = written.records["a-0", 7]
    for bit in (*range(0, 4 * 8, 5), *range(4 * 8, footer * 8, 1601), *range(footer * 8, size * 8, 97)):
        files = written.files.kill()
        files.flip(path_of(base), bit)
        archive = Archive(files, DIRECTORY)
        found = archived_records(archive, "a-0", 7)
        if bit < 4 * 8:
            assert found == its
            assert scrub_archive(files, DIRECTORY, base).parts.keys() == {"magic"}
            continue
        if bit >= footer * 8:
            assert found == {}
            assert list(archive.unreadable) == [base]
            continue
        hit = next(it for it in groups if bit // 8 < it.place + it.length)
        lost = range(hit.first_offset, hit.end_offset)
        assert found == {offset: data for offset, data in its.items() if offset not in lost}
        (part,) = archive.all()[0].damage
        assert part.endswith(f"(ring a-0, epoch 7, offsets {lost[0]} to {lost[-1]})")
        assert archive.info(base).reason.startswith("row group ")  # type: ignore[union-attr]


def test_damage_costs_no_more_where_positions_times_and_topics_are_looked_for() -> None:
    written, keys = devices(600, 30)
    ((base, end),) = ends_of(written.files).items()
    archive_segment(written.files, DIRECTORY, base, end, group_bytes=16 << 10)
    groups = ArchiveFile.open(written.files, DIRECTORY, base).groups("a-0", 7)
    its = written.records["a-0", 7]
    for number, group in enumerate(groups):
        files = written.files.kill()
        files.flip(path_of(base), 8 * (group.place + group.length // 2))
        archive = Archive(files, DIRECTORY)
        found = archive.read_at("a-0", 7, group.position, 1)
        later = archive.seek_time("a-0", 7, group.first_timestamp_ns)
        if number + 1 < len(groups):
            after = groups[number + 1]
            assert (found[0].offset, found[0].position) == (after.first_offset, after.position)
            assert later == after.first_offset
        else:
            assert (found, later) == ([], None)
        kept = {
            offset: its[offset]
            for offset, key in enumerate(keys)
            if key == keys[0] and not group.first_offset <= offset < group.end_offset
        }
        assert archived_records(archive, "a-0", 7, topic=keys[0]) == kept
        assert len(archive.all()[0].damage) == 1


def test_a_truncated_archive_is_unreadable_and_says_so() -> None:
    written = typical()
    archive_all(written)
    path = path_of(0)
    data = bytes(written.files.names[path].cache)
    for length in (0, 3, 7, 8, 95, len(data) // 2, len(data) - 1):
        written.files.names[path].truncate(length)
        archive = Archive(written.files, DIRECTORY)
        assert archive.first_offset("a-0", 7, 0) != 0
        assert list(archive.unreadable) == [0]
        written.files.names[path].write(data, 0)


def test_an_archive_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    written = typical()
    (base, end), *_ = ends_of(written.files).items()
    monkeypatch.setattr(library, "is_installed", lambda: False)
    library.load.cache_clear()
    with pytest.raises(ArchiveUnavailable, match=re.escape(install_extra("archive"))):
        archive_segment(written.files, DIRECTORY, base, end)
    assert path_of(base) not in written.files.names
