"""Promises to publishers, compared with a table that Spark has made, or with the drained files themselves.

Reads with pyarrow and numpy, and none of the code that wrote it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tests.support.mass_publisher import Bytes, Ledger, Numbers, numbers_in
from tests.support.open_tables import form_of
from tests.support.open_tables import rows_of as open_rows_of
from tests.support.outside_client import Lost

COLUMNS = ["edge", "stream", "partition", "epoch", "offset", "topic", "payload"]
LENGTH_AT, OFFSET_AT, KEY_LENGTH_AT, HEADER_BYTES = 0, 8, 28, 32  # in a record


class Place(NamedTuple):
    """Stream and partition in which offsets count."""

    edge: str
    stream: str
    partition: int
    epoch: int


Ranges = list[tuple[int, int]]  # both ends included
Missing = dict[Place, Ranges]


def table_at(path: Path) -> pa.Table:
    """All that any reader finds in a bronze table: of its format, or of Parquet in its batches."""
    if (form := form_of(path)) != "parquet":
        return open_rows_of(path, form, COLUMNS)
    files = sorted(path.glob("batch=*/*.parquet"))
    return pa.concat_tables([pq.read_table(it, columns=COLUMNS, partitioning=None) for it in files])


def rows_of(table: pa.Table, ledger: Ledger) -> tuple[Numbers, Numbers]:
    """Numbers and offsets of one publisher's messages, in the order of epochs and offsets, whose bytes hold.

    Raises Lost.
    """
    mine = table.filter(pc.equal(table["topic"], ledger.topic))
    mine = mine.sort_by([("epoch", "ascending"), ("offset", "ascending")])
    data = pa.chunked_array(mine["payload"].chunks, pa.binary()).combine_chunks()
    if isinstance(data, pa.ChunkedArray):
        data = pa.concat_arrays(data.chunks or [pa.array([], pa.binary())])
    if not pc.all(pc.equal(pc.binary_length(data), ledger.size)).as_py() and len(data):
        raise Lost(f"{ledger.topic}: a message is not {ledger.size} bytes long")
    return numbers_in(ledger, _matrix(data, ledger.size)), mine["offset"].to_numpy().astype(np.int64)


def _matrix(data: Any, size: int) -> Bytes:
    if len(data) == 0:
        return np.empty((0, size), np.uint8)
    begin = np.frombuffer(data.buffers()[1], np.int32, len(data) + 1)[data.offset]
    values = np.frombuffer(data.buffers()[2], np.uint8)
    return values[begin : begin + len(data) * size].reshape(-1, size)


def missing_in(table: pa.Table) -> Missing:
    """Offsets that are not there, from 0 to the last that is, by place.  Raises Lost: one is there twice."""
    found: Missing = {}
    keys = ["edge", "stream", "partition", "epoch"]
    for row in table.select(keys).group_by(keys).aggregate([]).to_pylist():
        place = Place(*(row[key] for key in keys))
        chosen = pc.and_(pc.equal(table["stream"], place.stream), pc.equal(table["epoch"], place.epoch))
        chosen = pc.and_(chosen, pc.equal(table["partition"], place.partition))
        offsets = np.sort(table["offset"].filter(chosen).to_numpy().astype(np.int64))
        if np.any(doubled := np.diff(offsets) == 0):
            raise Lost(f"{place}: {doubled.sum()} offsets are twice in the table")
        found[place] = _holes(offsets)
    return found


def _holes(offsets: NDArray[np.int64]) -> Ranges:
    before = np.concatenate([[-1], offsets])
    at = np.flatnonzero(np.diff(before) > 1)
    return [(int(before[it]) + 1, int(before[it + 1]) - 1) for it in at]


def check_complete(table: pa.Table, ledgers: Iterable[Ledger]) -> None:
    """Every message that was acknowledged is there, and none more often than it was sent.  Raises Lost."""
    rows = 0
    for ledger in ledgers:
        numbers, _ = rows_of(table, ledger)
        rows += len(numbers)
        if np.any(numbers >= ledger.sent):
            raise Lost(f"{ledger.topic}: {numbers.max()} was never sent")
        times = np.bincount(numbers, minlength=ledger.sent)
        if np.any(gone := times[: ledger.acked] == 0):
            which = np.flatnonzero(gone)
            raise Lost(f"{ledger.topic}: {len(which)} acknowledged are lost: {which[0]} to {which[-1]}")
        if np.any(more := times > ledger.times()):
            which = np.flatnonzero(more)
            raise Lost(f"{ledger.topic}: {len(which)} are there too often: {which[0]} to {which[-1]}")
        if not ledger.again and np.any(np.diff(numbers) < 0):
            raise Lost(f"{ledger.topic}: not in the order in which they were published")
    if rows != len(table):
        raise Lost(f"{len(table) - rows} records are there that nobody has published")


def lost_of(table: pa.Table, ledger: Ledger) -> tuple[Place, Ranges]:
    """Of a publisher that has a place alone, and repeats nothing: which offsets are gone.  Raises Lost."""
    numbers, offsets = rows_of(table, ledger)
    if not np.array_equal(numbers, offsets):
        raise Lost(f"{ledger.topic}: a message is not at the offset with its number")
    if np.any(np.diff(offsets) == 0):
        raise Lost(f"{ledger.topic}: a message is there twice")
    stream = table.filter(pc.equal(table["topic"], ledger.topic)).slice(0, 1).to_pylist()
    if not stream:
        raise Lost(f"{ledger.topic}: nothing of it is there")
    place = Place(*(stream[0][key] for key in ("edge", "stream", "partition", "epoch")))
    return place, _holes(np.append(offsets, ledger.acked))


def check_report(report: dict[str, Any], missing: Missing, *, in_table: bool = True) -> None:
    """The report of gaps names exactly these offsets as lost, and nothing else.  Raises Lost."""
    said = {
        Place(it["edge"], it["stream"], it["partition"], it["epoch"]): [tuple(r) for r in it["lost"]]
        for it in report["epochs"]
    }
    if said != missing:
        raise Lost(f"the report says lost {_differing(said, missing)}")
    wrong = [it for it in report["epochs"] if it["missing"] or it["skipped"] or it["doubled"]]
    wrong += [it for it in report["edges"] if it["missing"] or it["doubled"] or it["first"] != 1]
    wrong += report["unreadable"]
    if in_table:
        wrong += [it for it in report["table"] if it["missing"] or it["doubled"] or it["unknown"]]
        wrong += [it for it in report["table"] if it["quarantined"]]
    verdict = "lost" if any(missing.values()) else "complete"
    if wrong or report["verdict"] != verdict:
        raise Lost(f"the report's verdict is {report['verdict']}, and not {verdict}: {wrong}")


def _differing(said: Missing, missing: Missing) -> str:
    return "; ".join(
        f"{place}: {said.get(place)}, and missing is {missing.get(place)}"
        for place in sorted({*said, *missing})
        if said.get(place) != missing.get(place)
    )


def table_of(files: Sequence[tuple[str, bytes]]) -> pa.Table:
    """The records of drained files, by name and content, as such a table: known by their headers alone."""
    rows: list[tuple[Any, ...]] = []
    for name, data in files:
        edge = name.partition("edge=")[2].partition("/")[0]
        stream, _, rest = name.rpartition("/")[2][17:].rpartition("-p")
        place = edge, stream, int(rest[:4]), int(rest[6:].partition("-")[0])
        at, end = 64, len(data) - 16 - int.from_bytes(data[-16:-12], "little")
        while at < end:
            at, until = at + 32, at + 32 + int.from_bytes(data[at : at + 4], "little")
            while at < until:
                rows.append((*place, *_record(data, at)))
                at += -(-int.from_bytes(data[at : at + 4], "little") // 32) * 32
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    return pa.table(dict(zip(COLUMNS, map(list, columns), strict=True)))


def _record(data: bytes, at: int) -> tuple[int, str, bytes]:
    """Offset, topic and payload."""
    length = int.from_bytes(data[at + LENGTH_AT : at + LENGTH_AT + 4], "little")
    offset = int.from_bytes(data[at + OFFSET_AT : at + OFFSET_AT + 8], "little")
    key = int.from_bytes(data[at + KEY_LENGTH_AT : at + KEY_LENGTH_AT + 2], "little")
    begin = at + HEADER_BYTES
    topic = data[begin : begin + key].decode()
    return offset, topic, data[begin + -(-key // 8) * 8 : at + length]
