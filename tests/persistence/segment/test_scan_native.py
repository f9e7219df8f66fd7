"""The walk in C against its twin in Python: on whole segments, on damaged ones, and on bytes from nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.files import Files
from persistence.segment import scan_native
from persistence.segment.extent_table import ExtentRows, Row
from persistence.segment.format import HEADER_PAGE_BYTES, SegmentHeader
from persistence.segment.scan import walk_table
from persistence.segment.scan_native import BAD, END, LOOK, FileBytes, Walk
from ringbuf import crc32c
from ringbuf.record import encode
from tests.support.log_simulation import run_of
from tests.support.logs import DIRECTORY, Written, typical
from tests.support.simfiles import SimFiles
from tests.support.walk_twin import WalkTwin

NAMES = sorted(name for name in typical().files.listdir(DIRECTORY) if name.endswith(".log"))
PATHS = [f"{DIRECTORY}/{name}" for name in NAMES]
SEGMENTS = [bytes(typical().files.names[path].cache) for path in PATHS]


@contextmanager
def in_python(*, checks: bool = True) -> Iterator[None]:
    """The twin walks in here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_native, "lib", WalkTwin(checks=checks))
        yield


def table_of(data: bytes, *, ends_at: int | None = None) -> tuple[object, ...]:
    """All that a scan of a file of these bytes says."""
    files = SimFiles(Random(0))
    handle = files.open("/x", create=True)
    files.pwritev(handle, [data], 0)
    table, walked = walk_table(files, handle, "x", ends_at=ends_at, topics=True)
    rings = {
        key: ([rows[i] for i in range(len(rows))], rows.marks(), rows.records, rows.first_timestamp_ns)
        for key, rows in table.rings.items()
    }
    topics = []
    if not table.damage:
        order, groups = walked.groups(0, len(walked))
        counts = [sum(walked[order[it.first + n]].count for n in range(it.length)) for it in groups]
        topics = [walked.by_topic(order, it, count) for it, count in zip(groups, counts, strict=True)]
    return rings, table.opening, table.catalogue, table.damage, table.end, table.proven, topics


def damaged(data: bytes, damage: list[tuple[str, int]]) -> bytes:
    found = bytearray(data)
    for kind, number in damage:
        random = Random(number)
        at = random.randrange(HEADER_PAGE_BYTES, len(found)) if len(found) > HEADER_PAGE_BYTES else 0
        if kind == "flip" and at:
            found[at] ^= 1 << random.randrange(8)
        elif kind == "zeros":
            found[at : at + 700] = bytes(len(found[at : at + 700]))
        elif kind == "garbage":
            found[at : at + 300] = random.randbytes(len(found[at : at + 300]))
        elif kind == "length" and at:
            length = random.choice((0, 31, 32, 2**31, 2**32 - 32))
            found[at - at % 32 : at - at % 32 + 4] = length.to_bytes(4, "little")
        elif kind == "twice" and at:
            found[at - at % 32 : at - at % 32] = found[at - at % 32 : at - at % 32 + 320]
        elif kind == "cut" and at:
            del found[at:]
    return bytes(found)


kinds = st.sampled_from(["flip", "zeros", "garbage", "length", "twice", "cut"])
damages = st.lists(st.tuples(kinds, st.integers(0, 2**32)), max_size=5)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(SEGMENTS), damages, st.booleans())
def test_c_and_python_read_the_same_table_out_of_any_damage(
    data: bytes, damage: list[tuple[str, int]], proven: bool
) -> None:
    data = damaged(data, damage)
    ends_at = len(data) if proven else None
    found = table_of(data, ends_at=ends_at)
    with in_python():
        assert table_of(data, ends_at=ends_at) == found


def test_the_twin_is_really_used() -> None:
    data = bytearray(SEGMENTS[0])
    data[HEADER_PAGE_BYTES + 17] ^= 1  # Only the checksum of that extent covers it.
    with in_python(checks=False):
        assert table_of(bytes(data)) == table_of(SEGMENTS[0])
    assert table_of(bytes(data)) != table_of(SEGMENTS[0])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_rows_are_the_same_however_many_rings_are_mixed(its: list[tuple[int, int, int]]) -> None:
    """Against rows that are entered one by one."""
    written = Written.empty()
    expected: dict[tuple[str, int], ExtentRows] = {}
    for ring, records, size in its:
        name = f"r-{ring}"
        if records:
            run = written.add(name, 7, [bytes(size)] * records)
            rows = expected.setdefault((name, 7), ExtentRows())
            times = run.first_timestamp_ns, run.last_timestamp_ns
            rows.append(Row(run.offset, run.count, 0, len(run.view), run.position, whole=True), *times)
    written.sync()
    if not expected:
        return
    files = written.files
    handle = files.open(PATHS[0])
    table, _ = walk_table(files, handle, "x")
    names = {ring_id: it.name for ring_id, it in table.catalogue.items()}
    assert {(names[ring_id], epoch) for ring_id, epoch in table.rings} == set(expected)
    for (ring_id, epoch), rows in table.rings.items():
        wanted = expected[names[ring_id], epoch]
        for i in range(len(wanted)):
            there, here = wanted[i], rows[i]
            assert (here.first_offset, here.count, here.length, here.ring_position) == (
                there.first_offset,
                there.count,
                there.length,
                there.ring_position,
            )
        assert (rows.records, rows.first_timestamp_ns, rows.last_timestamp_ns) == (
            wanted.records,
            wanted.first_timestamp_ns,
            wanted.last_timestamp_ns,
        )


def test_more_extents_and_records_than_there_is_room_for_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written.empty()
    for n in range(50):
        written.add(f"r-{n % 20}", 7, [b"x"] * 5)
    written.sync()
    data = bytes(written.files.names[PATHS[0]].cache)
    found = table_of(data)
    for name in ("EXTENTS_FIRST", "RECORDS_FIRST", "GROUPS_FIRST", "READ_AHEAD_BYTES"):
        monkeypatch.setattr(scan_native, name, 3)
    assert table_of(data) == found
    assert len(found[0]) == 20  # type: ignore[arg-type]


def test_extents_that_go_back_are_not_entered_twice() -> None:
    """A run that repeats offsets is a mistake of its writer: the first one counts."""
    written = Written.empty()
    written.add("a-0", 7, [b"one"] * 3)
    written.sync()
    ring_id = written.log._ids["a-0"]
    made = b"".join(encode(n, b"two", epoch=7) for n in (1, 2))
    written.log.append(ring_id, [run_of(made, 7)])
    written.log.write()
    rings, _, _, damage, *_ = table_of(bytes(written.files.names[PATHS[0]].cache))
    assert [row.first_offset for row in rings[ring_id, 7][0]] == [0]  # type: ignore[index]
    assert len(damage) == 1  # type: ignore[arg-type]


class Shrinks(SimFiles):
    """A file that gives less than its size."""

    def read(self, handle: int, length: int, position: int) -> bytes:
        return super().read(handle, length, position)[: max(0, 5000 - position)]


def test_a_file_that_shrinks_while_it_is_read_ends_there() -> None:
    files = Shrinks(Random(0))
    handle = files.open("/x", create=True)
    files.pwritev(handle, [SEGMENTS[0]], 0)
    header = SegmentHeader.unpack(SEGMENTS[0])
    walked = Walk(FileBytes(files, handle, len(SEGMENTS[0])), header.seed, HEADER_PAGE_BYTES)
    while (stop := walked.run()) == LOOK:
        pass
    assert stop in {BAD, END}
    assert walked.search(header.base_position) is False


def test_topics_are_sorted_by_hash_and_place() -> None:
    written = Written.empty()
    keys = [f"t/{n % 7}".encode() for n in range(60)]
    made = b"".join(encode(n, bytes(n), epoch=7, key=key) for n, key in enumerate(keys))
    ring_id = written.log.join("a-0", 7, 0)
    written.log.append(ring_id, [run_of(made, 7)])
    written.sync()
    files: Files = written.files
    _, walked = walk_table(files, files.open(PATHS[0]), "x", topics=True)
    order, groups = walked.groups(0, len(walked))
    topics, places = walked.by_topic(order, groups[0], len(keys))
    hashes = list(topics[::2])
    assert hashes == sorted({crc32c(key) for key in keys})
    data = bytes(written.files.names[PATHS[0]].cache)
    for n, key_hash in enumerate(hashes):
        end = topics[2 * n + 3] if n + 1 < len(hashes) else len(places)
        its = places[topics[2 * n + 1] : end]
        assert list(its) == sorted(its)
        found = [data[32 * at + 32 : 32 * at + 35] for at in its]
        wanted = [key for key in keys if crc32c(key) == key_hash]
        assert found == wanted
