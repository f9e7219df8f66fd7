"""Windows of time: the same query on the records that arrived in each window.

A record is in the window in which it became readable, so each record is in one window, also a late one.
Windows end at whole multiples of their length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from edge.sql.records import RecordRelation
from edge.sql.result import QueryResult


class TimeWindow(NamedTuple):
    """Rows of one window."""

    begin_s: float  # since 1970
    end_s: float
    rows: QueryResult


def windows(
    records: RecordRelation,
    query: str,
    length_s: float,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[TimeWindow]:
    """The rows of `query` for each window from now on, without end. The first window may be shorter.

    Raises QueryError: a mistake in the query.
    """
    after, begin_s = records.ends(), now()
    if not records.files:  # otherwise the query may change files, and runs only with its windows
        records.query(query, after)[0].close()  # a mistake is an error now, not after the first window
    while True:
        end_s = (begin_s // length_s + 1) * length_s
        while (left_s := end_s - now()) > 0:
            sleep(left_s)
        rows, after = records.query(query, after)
        yield TimeWindow(begin_s, end_s, rows)
        begin_s = max(end_s, now() // length_s * length_s)
