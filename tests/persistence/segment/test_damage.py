"""Bits flip and sectors die: what is damaged is lost, what is not is read, and a start is never refused."""

import struct
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence import LogReader
from persistence.segment import format as segment_format
from persistence.segment import scan
from persistence.segment.clean_shutdown import MARKER_NAME
from persistence.segment.format import EXTENT_HEADER_BYTES, HEADER_PAGE_BYTES, unpack_extent
from tests.support.logs import DIRECTORY, Written, read_all, recovered, typical
from tests.support.simfiles import SECTOR_BYTES, SimFiles

WRITTEN = typical()
OPTIONS = {"segment_bytes": 9216}


def segments(files: SimFiles) -> list[str]:
    return sorted(f"{DIRECTORY}/{name}" for name in files.listdir(DIRECTORY) if name.endswith(".log"))


def extents(files: SimFiles, path: str) -> list[tuple[int, int, int]]:
    """Place, end and ring id of each extent of an undamaged segment."""
    data, found, place = bytes(files.names[path].cache), [], HEADER_PAGE_BYTES
    following = [other for other in segments(files) if other > path]
    end = len(data)
    if following:
        end = int(following[0][-24:-4]) - int(path[-24:-4])
    while place < end:
        header = unpack_extent(data, place)
        found.append((place, place + EXTENT_HEADER_BYTES + header.length, header.ring_id))
        place = found[-1][1]
    return found


def kept(files: SimFiles) -> dict[tuple[str, int], dict[int, bytes]]:
    """All that a start can read."""
    log, _ = recovered(files, **OPTIONS)
    return {key: read_all(log, *key) for key in WRITTEN.records}


def lost(files: SimFiles) -> set[tuple[str, int]]:
    """Ring and offset of each record that can be read no more.  What is read must be what was written."""
    gone = set()
    found = kept(files)
    for (name, epoch), its in WRITTEN.records.items():
        read = found[name, epoch]
        assert set(read) <= set(its)
        for offset, data in its.items():
            if offset in read:
                assert read[offset] == data
            else:
                gone.add((name, offset))
    return gone


def owner_of(path: str, byte: int) -> tuple[str, int] | None:
    """The record that owns a byte of an undamaged segment: its ring and offset; None: no record."""
    data = bytes(WRITTEN.files.names[path].cache)
    for name, its in ((key[0], its) for key, its in WRITTEN.records.items()):
        for offset, record in its.items():
            at = data.find(record, HEADER_PAGE_BYTES)
            if at >= 0 and at <= byte < at + len(record):
                return name, offset
    return None


def unchecked_extent_at(path: str, byte: int) -> set[tuple[str, int]]:
    """The record filled in place in whose extent the byte is: that one's header is all that covers it."""
    for place, end, ring_id in extents(WRITTEN.files, path):
        if place <= byte < end and end - place > 4500 and ring_id:
            owner = owner_of(path, place + EXTENT_HEADER_BYTES)
            return set() if owner is None else {owner}
    return set()


def bytes_that_matter(path: str) -> list[int]:
    """Every byte of headers, catalogues and record headers; some of the rest."""
    size = extents(WRITTEN.files, path)[-1][1]
    sampled = {*range(64), *range(64, HEADER_PAGE_BYTES, 61), *range(2048, 2112)}
    for place, end, ring_id in extents(WRITTEN.files, path):
        sampled |= {*range(place, min(place + 96, end)), *range(place, end, 5 if ring_id else 37)}
    return sorted(byte for byte in sampled if byte < size)


def test_an_undamaged_log_is_read_whole() -> None:
    assert len(segments(WRITTEN.files)) == 3
    assert sum(map(len, WRITTEN.records.values())) > 30
    assert lost(WRITTEN.files.kill()) == set()


EVERY = [pytest.param(segment, 1, id=f"{segment}-all", marks=pytest.mark.campaign) for segment in range(3)]


@pytest.mark.parametrize(("segment", "step"), [(0, 3), (1, 3), (2, 3), *EVERY])
def test_one_flipped_bit_costs_at_most_the_record_it_is_in(segment: int, step: int) -> None:
    random = Random(segment)
    path = segments(WRITTEN.files)[segment]
    flips = 0
    for byte in bytes_that_matter(path)[segment % step :: step]:
        files = WRITTEN.files.kill()
        files.flip(path, byte * 8 + random.randrange(8))
        owner = owner_of(path, byte)
        allowed = ({owner} if owner else set()) | unchecked_extent_at(path, byte)
        assert lost(files) <= allowed, f"bit of byte {byte} of {path}"
        flips += 1
    print(f"{flips} flips in {path}")


@pytest.mark.parametrize("closed", [True, False])
def test_who_follows_a_log_from_outside_reads_on_behind_damage(closed: bool) -> None:
    """Also where it comes about between two looks, and never what is not proven."""
    written = Written.empty()
    reader = LogReader(written.files, DIRECTORY)
    for step in range(6):
        written.add("a-0", 7, [bytes([step]) * 50] * 3)
        written.sync()
        if step == 2:
            reader.refresh()
            seen = reader.ends()["a-0"].end_offset
            assert seen == 6
    if closed:
        written.log.close()
    path = segments(written.files)[0]
    its = written.records["a-0", 7]
    for offset in (1, 10):
        place = bytes(written.files.names[path].cache).index(its[offset])
        written.files.flip(path, 8 * (place + 40))
    fresh = LogReader(written.files, DIRECTORY)
    for it in (fresh, reader):
        it.refresh()
        found = read_all(it, "a-0", 7)
        assert set(found) == set(range(18 if closed else 15)) - {1, 10}
        assert len(it.damaged) == 2


def test_without_the_proof_one_flipped_bit_costs_all_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of every log that cuts at the first bad byte: the test above would see it."""
    path = segments(WRITTEN.files)[-1]
    monkeypatch.setattr(scan, "_end", lambda parts, proven: parts[0].end)
    files = WRITTEN.files.kill()
    files.flip(path, (extents(WRITTEN.files, path)[1][0] + 40) * 8)
    assert len(lost(files)) > 1


def test_without_the_records_own_checksums_a_flipped_bit_costs_the_extent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = segments(WRITTEN.files)[-1]
    places = extents(WRITTEN.files, path)
    place = next(place for place, end, ring_id in places if ring_id and end - place > 200)
    monkeypatch.setattr(scan, "salvage", lambda *_: [])
    files = WRITTEN.files.kill()
    files.flip(path, (place + 40) * 8)
    assert len(lost(files)) > 1


def test_a_dead_sector_costs_what_stood_in_it() -> None:
    for path in segments(WRITTEN.files):
        size = extents(WRITTEN.files, path)[-1][1]
        for at in range(0, size, SECTOR_BYTES):
            files = WRITTEN.files.kill()
            data = files.names[path].cache
            data[at : at + SECTOR_BYTES] = bytes(len(data[at : at + SECTOR_BYTES]))
            hit = {owner_of(path, byte) for byte in range(at, at + SECTOR_BYTES, 8)}
            places = extents(WRITTEN.files, path)
            reached = {end for place, end, _ in places if place < at + SECTOR_BYTES and end > at}
            allowed = {owner_of(path, byte) for end in reached for byte in range(at, end, 8)} | hit
            assert lost(files) <= allowed, f"sector at {at} of {path}"


def test_a_record_in_a_damaged_place_keeps_its_neighbours_and_is_reported() -> None:
    written = Written.empty()
    written.add("a-0", 7, [bytes([i]) * 100 for i in range(10)])
    written.sync()
    written.log.close()
    path = segments(written.files)[0]
    data = bytes(written.files.names[path].cache)
    at = data.find(bytes([4]) * 100)
    written.files.flip(path, at * 8)
    written.files.unlink(f"{DIRECTORY}/{MARKER_NAME}")
    log, report = recovered(written.files)
    assert [(it.offset, it.count) for it in log.read("a-0", 7, 0, 1 << 20)] == [(0, 4), (5, 5)]
    assert [(it.ring_name, it.kept) for it in report.damage] == [("a-0", 9)]
    quarantined = written.files.listdir(f"{DIRECTORY}/quarantine")
    assert len(quarantined) == 2
    again, second = recovered(written.files.kill())
    assert second.damage == report.damage
    assert again.ends() == log.ends()
    assert len(again.files.listdir(f"{DIRECTORY}/quarantine")) == 2


def test_damage_that_comes_later_is_found_when_it_is_read() -> None:
    written = Written.empty()
    found = written.add("a-0", 7, [bytes([i]) * 100 for i in range(10)])
    written.sync()
    path = segments(written.files)[0]
    at = bytes(written.files.names[path].cache).find(bytes([4]) * 100)
    assert written.log.read("a-0", 7, 0, 1 << 20)[0].view == found.view
    written.files.flip(path, at * 8)
    ranges = written.log.read("a-0", 7, 0, 1 << 20)
    assert [(it.offset, it.count) for it in ranges] == [(0, 4), (5, 5)]
    assert len(written.log.reader.damaged) == 1


def test_damage_of_a_record_filled_in_place_is_found_by_its_extent() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.add_in_place("a-0", 7, bytes(range(256)) * 20)
    written.add("a-0", 7, [b"y"])
    written.sync()
    assert sorted(read_all(written.log, "a-0", 7)) == [0, 1, 2]
    path = segments(written.files)[0]
    at = bytes(written.files.names[path].cache).find(bytes(range(256)))
    written.files.flip(path, (at + 3000) * 8)
    assert sorted(read_all(written.log, "a-0", 7)) == [0, 2]


def test_a_payload_that_imitates_records_and_extents_is_never_taken_for_them() -> None:
    """Even when the record around it is damaged: another seed, and offsets that do not fit."""
    forged = Written.empty(1)
    forged.add("a-0", 7, [b"forged"] * 3, first=1)
    forged.sync()
    inner = bytes(forged.files.names[segments(forged.files)[0]].cache)[HEADER_PAGE_BYTES:]
    written = Written.empty(2)
    written.log._salt = lambda: 99
    written.add("a-0", 7, [b"before", inner.ljust(-(-len(inner) // 32) * 32, b"\0"), b"after"])
    written.sync()
    written.log.close()
    path = segments(written.files)[0]
    at = bytes(written.files.names[path].cache).find(inner)
    written.files.flip(path, (at - 40) * 8)
    log, _ = recovered(written.files)
    read = read_all(log, "a-0", 7)
    its = written.records["a-0", 7]
    assert read == {0: its[0], 2: its[2]}


def test_bytes_of_an_earlier_life_of_the_file_do_not_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recycled segment: new header and first run, and right behind them a run of the life before."""

    def with_stale_tail() -> int:
        old = Written.empty()
        old.add("a-0", 7, [b"x" * 50] * 2)
        old.sync()
        old.add("a-0", 7, [b"old"] * 2)
        old.sync()
        new = Written.empty()
        new.log._salt = lambda: 1000
        new.add("a-0", 7, [b"y" * 50] * 2)
        new.sync()
        ends = [end for _, end, _ in extents(old.files, segments(old.files)[0])[:4]]
        stale = old.files.names[segments(old.files)[0]].cache
        new.files.names[segments(new.files)[0]].cache[ends[3] :] = stale[ends[3] :]
        log, _ = recovered(new.files.kill())
        return log.ends()["a-0"].end_offset

    assert with_stale_tail() == 2
    monkeypatch.setattr(segment_format.SegmentHeader, "seed", property(lambda self: 1))
    assert with_stale_tail() == 4


kinds = st.sampled_from(["flip", "zeros", "garbage", "cut", "gone"])
damages = st.lists(st.tuples(kinds, st.integers(0, 2), st.integers(0, 2**32)), min_size=1, max_size=6)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(damages)
def test_whatever_happens_to_the_files_nothing_wrong_is_read_and_the_log_goes_on(
    damage: list[tuple[str, int, int]],
) -> None:
    files = WRITTEN.files.kill()
    for kind, segment, number in damage:
        path = segments(WRITTEN.files)[segment]
        if path not in files.names:
            continue
        random = Random(number)
        data = files.names[path].cache
        at = random.randrange(len(data)) if data else 0
        if kind == "flip" and data:
            data[at] ^= 1 << random.randrange(8)
        elif kind in {"zeros", "garbage"}:
            length = len(data[at : at + 700])
            data[at : at + 700] = bytes(length) if kind == "zeros" else random.randbytes(length)
        elif kind == "cut":
            del data[at:]
        else:
            del files.names[path]
    lost(files)
    log, _ = recovered(files.kill(), **OPTIONS)
    end = log.ends()["a-0"].end_offset if "a-0" in log.ends() else 0
    after = Written(log.files, log)  # type: ignore[arg-type]
    after.add("a-0", 8, [b"later"], first=end)
    after.sync()
    assert read_all(log, "a-0", 8) == after.records["a-0", 8]
    log.close()
    again, _ = recovered(after.files.kill(), **OPTIONS)
    assert read_all(again, "a-0", 8) == after.records["a-0", 8]


def test_a_log_of_garbage_starts_empty_and_takes_records() -> None:
    files = SimFiles(Random(0))
    segments_of_garbage = ["00000000000000000000.log", "00000000000000004096.log"]
    for name in (*segments_of_garbage, "x.log", "prepared.tmp", "growing.tmp"):
        handle = files.open(f"{DIRECTORY}/{name}", create=True)
        files.pwritev(handle, [Random(1).randbytes(5000)], 0)
        files.close(handle)
    log, report = recovered(files)
    assert len(report.damage) == 2
    assert report.rings == {}
    assert report.end_position == 4096 + 5000
    written = Written(files, log)
    written.add("a-0", 1, [b"x"])
    written.sync()
    assert read_all(log, "a-0", 1) == written.records["a-0", 1]
    assert "growing.tmp" not in files.listdir(DIRECTORY)


def test_a_first_extent_with_a_wild_length_is_skipped() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"] * 3)
    written.sync()
    written.add("a-0", 7, [b"y"] * 3)
    written.sync()
    written.log.close()
    path = segments(written.files)[0]
    place = extents(written.files, path)[2][0]
    written.files.names[path].cache[place : place + 4] = struct.pack("<I", 0xFFFFFFE0)
    log, _ = recovered(written.files)
    assert len(read_all(log, "a-0", 7)) == 6


def test_rings_in_step_are_not_confused_when_two_of_their_extents_are_damaged() -> None:
    """Same epoch, same offsets: only the headers say whose the records are, and one of them is gone."""
    written = Written.empty()
    for payload in (b"1" * 40, b"2" * 40):
        written.add("a-0", 7, [payload] * 3)
        written.add("b-0", 7, [payload.replace(b"1", b"3").replace(b"2", b"4")] * 3)
    written.sync()
    written.log.close()
    path = segments(written.files)[0]
    places = [it for it in extents(written.files, path) if it[2]]
    data = written.files.names[path].cache
    data[places[2][0] + 50 : places[3][0] + 40] = bytes(places[3][0] + 40 - places[2][0] - 50)
    log, _ = recovered(written.files)
    for name in ("a-0", "b-0"):
        for offset, record in read_all(log, name, 7).items():
            assert record == written.records[name, 7][offset]


def test_a_wild_length_does_not_reach_for_the_records_of_another_ring() -> None:
    """The damaged extent claims most of the next one, which is damaged as well, and its second record is."""
    written = Written.empty()
    for name in ("a-0", "b-0"):
        written.add(name, 7, [b"0"])
    first = written.add("a-0", 7, [b"1" * 40] * 2)
    written.add("b-0", 7, [b"2" * 40] * 3)
    written.add("b-0", 7, [b"3" * 40])
    written.sync()
    written.log.close()
    path = segments(written.files)[0]
    data = written.files.names[path].cache
    places = [it for it in extents(written.files, path) if it[2]]
    ours, theirs = places[2][0], places[3][0]
    assert theirs == places[2][1]
    struct.pack_into("<I", data, ours, theirs - ours + len(first.view))
    second = ours + EXTENT_HEADER_BYTES + len(first.view) // 2
    data[second : second + 8] = bytes(8)
    data[theirs : theirs + 8] = bytes(8)
    log, _ = recovered(written.files)
    assert list(read_all(log, "a-0", 7)) == [0, 1]
    assert list(read_all(log, "b-0", 7)) == [0, 1, 2, 3, 4]


def in_turns(first: int = 0) -> Written:
    """A log in which two rings of the same epoch take turns, three records at a time; the second ring begins
    with offset `first`, the other one with 0.
    """
    written = Written.empty()
    for number in range(3):
        begin = written.position
        for name in ("a-0", "b-0"):
            written.position = begin  # each ring has positions of its own
            begins = first if name == "b-0" and number == 0 else None
            written.add(name, 7, [f"{name} {number} {at}".encode() for at in range(3)], first=begins)
        written.sync()
    written.log.close()
    return written


def test_a_lost_header_and_record_do_not_cost_the_other_records_of_the_extent() -> None:
    written = in_turns()
    path = segments(written.files)[0]
    place, _, _ = [it for it in extents(written.files, path) if it[2]][2]
    data = written.files.names[path].cache
    data[place : place + EXTENT_HEADER_BYTES + 16] = bytes(EXTENT_HEADER_BYTES + 16)
    written.files.unlink(f"{DIRECTORY}/{MARKER_NAME}")
    log, report = recovered(written.files)
    assert list(read_all(log, "a-0", 7)) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert list(read_all(log, "b-0", 7)) == list(range(9))
    assert [(it.place, it.ring_name, it.kept, it.lost) for it in report.damage] == [
        (place, "a-0", 2, ((3, 4),))
    ]


def test_a_record_behind_a_lost_header_has_its_place_in_the_ring() -> None:
    """Readers request records by position, too: of a lost header, and of a wrong one."""
    whole = in_turns()
    path = segments(whole.files)[0]
    place, _, _ = [it for it in extents(whole.files, path) if it[2]][2]
    record_bytes = 64
    for damaged, value in ((range(EXTENT_HEADER_BYTES + 16), 0), (range(16, 24), 0xEE)):
        written = in_turns()
        data = written.files.names[path].cache
        for at in damaged:
            data[place + at] = value
        data[place + EXTENT_HEADER_BYTES + 8] ^= 1
        log, _ = recovered(written.files)
        found = [it for it in log.read("a-0", 7, 5, 1) if it.offset <= 5]
        assert [it.position + (5 - it.offset) * record_bytes for it in found] == [5 * record_bytes]


def test_damage_across_two_extents_costs_neither_the_records_that_it_did_not_hit() -> None:
    written = in_turns(first=1)
    path = segments(written.files)[0]
    (first, _, _), (second, end, _) = [it for it in extents(written.files, path) if it[2]][2:4]
    data = written.files.names[path].cache
    begin = first + EXTENT_HEADER_BYTES + 64 + 8  # the second record of the first
    data[begin : second + EXTENT_HEADER_BYTES + 8] = bytes(second + EXTENT_HEADER_BYTES + 8 - begin)
    written.files.unlink(f"{DIRECTORY}/{MARKER_NAME}")
    log, report = recovered(written.files)
    assert list(read_all(log, "a-0", 7)) == [0, 1, 2, 3, 6, 7, 8]
    assert list(read_all(log, "b-0", 7)) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert [(it.ring_name, it.kept, it.lost) for it in report.damage] == [
        ("a-0", 1, ((4, 6),)),
        ("b-0", 2, ((4, 5),)),
    ]
    assert sum(it.length for it in report.damage) == end - first
