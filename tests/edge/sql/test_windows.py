"""Windows of `--follow`: each record is in one window."""

import itertools

import pytest

import brim
from edge.sql.result import QueryError
from edge.sql.windows import windows
from ringbuf import Ring
from tests.support.kept_logs import Kept, keep


class Clock:
    """Time that passes only while a program sleeps; something happens then."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.meanwhile = iter(())

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        next(self.meanwhile, None)


def test_each_record_is_in_one_window(tmp_path, runtime_directory):
    log = tmp_path / "log"
    keep(log, "a-0", [Kept("a", b"old")] * 3)
    clock = Clock(1003.0)
    with Ring.create(runtime_directory / "b-0", capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer()

        def events():
            writer.publish(b"1", "b")
            keep(log, "a-0", [Kept("a", b"2")])
            yield
            keep(log, "a-0", [Kept("a", b"3"), Kept("a", b"4", minute=-60)])
            yield
            yield
            writer.publish(b"5", "b")

        clock.meanwhile = events()
        records = brim.records(log=log, runtime_dir=runtime_directory)
        query = "SELECT payload_text FROM records ORDER BY 1"
        found = [
            (window.begin_s, window.end_s, [text for (text,) in window.rows])
            for window in itertools.islice(windows(records, query, 10.0, clock.now, clock.sleep), 4)
        ]
    assert found == [
        (1003.0, 1010.0, ["1", "2"]),
        (1010.0, 1020.0, ["3", "4"]),
        (1020.0, 1030.0, []),
        (1030.0, 1040.0, ["5"]),
    ]


def test_a_mistake_in_the_query_is_an_error_before_the_first_window(tmp_path, runtime_directory):
    keep(tmp_path / "log", "a-0", [Kept("a", b"1")])
    records = brim.records(log=tmp_path / "log", runtime_dir=runtime_directory)
    with pytest.raises(QueryError, match="syntax error"):
        next(windows(records, "SELEC 1", 10.0, sleep=lambda _: pytest.fail("it waits for a window")))
