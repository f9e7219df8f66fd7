"""One topic out of segments that have no footer: found as by reading all, and all is read but once."""

from random import Random

import pytest

from persistence import Log, LogReader
from persistence.read.topic_walks import PLACES_AT_ONCE, TopicWalks
from persistence.segment.format import segment_name
from tests.support.keyed_logs import EPOCH, CountingFiles, keyed, many_topics, topic_records
from tests.support.logs import DIRECTORY

Records = list[tuple[int, str, int, bytes]]


def growing() -> tuple[Log, Records]:
    files = CountingFiles(Random(1))
    log = Log(DIRECTORY, files, segment_bytes=8 << 20, retain_bytes=0)
    log.recover()
    for name in ("a-0", "b-0"):
        log.join(name, EPOCH, 0)
    return log, []


def grow(log: Log, its: Records, topics: int, count: int = 400) -> None:
    batch = [(f"t/{(len(its) + n) % topics}", 1 + len(its) + n, b"x" * 200) for n in range(count)]
    before = len(its)
    its += keyed(log, "a-0", batch, before, 0)
    keyed(log, "b-0", batch, before, 0)
    log.write()
    log.sync()


def all_of(reader: LogReader, topic: str, limit_bytes: int = 1 << 20) -> Records:
    found: Records = []
    offset = 0
    while here := topic_records(reader.read_topic("a-0", topic, EPOCH, offset, limit_bytes)):
        found += here
        offset = here[-1][0] + 1
    return found


def test_a_topic_of_the_segment_being_written_is_found_without_reading_it_again() -> None:
    log, its = growing()
    for _ in range(10):
        grow(log, its, 1000)
    CountingFiles.read_bytes = 0
    assert all_of(log.reader, "t/321") == [it for it in its if it[1] == "t/321"]
    first = CountingFiles.read_bytes
    assert first > 2 * 4000 * 256
    grow(log, its, 1000)
    CountingFiles.read_bytes = 0
    assert all_of(log.reader, "t/322") == [it for it in its if it[1] == "t/322"]
    assert CountingFiles.read_bytes < first / 5


@pytest.mark.parametrize("limit_bytes", [1, 1000, 1 << 20])
def test_a_topic_of_very_many_records_comes_in_parts(limit_bytes: int) -> None:
    log, its = growing()
    for _ in range(8):
        grow(log, its, 2)
    wanted = [it for it in its if it[1] == "t/1"]
    assert len(wanted) > PLACES_AT_ONCE
    if limit_bytes == 1:
        assert topic_records(log.reader.read_topic("a-0", "t/1", EPOCH, 700, 1)) == [wanted[350]]
    else:
        assert all_of(log.reader, "t/1", limit_bytes) == wanted


@pytest.mark.parametrize("seed", range(4))
def test_what_is_found_is_what_reading_all_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in segments that wait for their footers, and in damaged ones."""
    files, log, written = many_topics(80, list(range(5000)), seed=seed)
    bases = log.reader.bases()
    files.flip(f"{DIRECTORY}/{segment_name(bases[1])}", 8 * 6000)
    asked = [(name, f"t/{n}", offset) for name in written for n in range(6) for offset in (0, 40)]

    def everything() -> list[Records]:
        reader = LogReader(files, DIRECTORY)
        reader.refresh()
        return [topic_records(reader.read_topic(name, it, EPOCH, at, 1 << 20)) for name, it, at in asked]

    found = everything()
    monkeypatch.setattr(TopicWalks, "read", lambda *_: None)
    assert found == everything()
    assert any(found)


def test_what_is_cut_off_a_segment_that_was_walked_costs_only_itself() -> None:
    log, its = growing()
    for _ in range(4):
        grow(log, its, 10)
    wanted = [it for it in its if it[1] == "t/3"]
    assert all_of(log.reader, "t/3") == wanted
    file = log.files.names[f"{DIRECTORY}/{segment_name(0)}"]  # type: ignore[attr-defined]
    file.truncate(len(file.cache) // 2)
    left = all_of(log.reader, "t/3")
    assert 0 < len(left) < len(wanted)
    assert left == wanted[: len(left)]
    assert log.reader.damaged
