"""Records into columns without compiled code of ours: numpy finds the records, Arrow copies their parts out.

For executors that were given only a zip.  The same rows as decode.py's, at about a fifth of the speed.

decode_verified() trusts the bytes, because the file's body_crc32 holds: zlib, which Python has, checks that
at 2 GB/s, and no checksum of a single record is looked at.  decode() is for files whose body_crc32 does not
hold: it goes record by record in Python, checks each, and is slow; damaged files are few.

How records are found: each begins where the one before ends, which is a chain of as many steps as there are
records.  Instead, for every place where a record could begin, in a window of 64 Ki such places, the place
behind it is computed at once (`step`); applied to itself it jumps 2, 4, 8, ... records; and the list of
starts doubles with each jump.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bridge.spark.columns import TYPES, Decoded, as_text

__all__ = ["crc32c", "decode", "decode_verified", "offset_at"]

# The record, as in ringbuf/c/record.h: a test holds these to the numbers that the compiled core has.
HEADER_BYTES = 32
FLAG_QOS, FLAG_RETAIN, FLAG_PROPERTIES, FLAG_UNCHECKED, FLAGS_CRITICAL = 3, 4, 8, 32, 0xFFC0
PADDING_BIT = 1 << 31

WINDOW_SLOTS = 1 << 16  # 2 MiB
ROWS_MOST = 65_536
_OFFSET = struct.Struct("<8xQ")
_HEADER = struct.Struct("<IIQQIHH")
_SLOT = np.dtype(
    [
        ("length", "<u4"),
        ("crc", "<u4"),
        ("offset", "<u8"),
        ("timestamp_ns", "<u8"),
        ("key_hash", "<u4"),
        ("key_length", "<u2"),
        ("flags", "<u2"),
    ]
)
Ints: TypeAlias = npt.NDArray[np.int64]
Slots: TypeAlias = npt.NDArray[np.void]


def offset_at(records: memoryview, at: int, least: int, most: int) -> int:
    """The offset that the record there says it has, if that is in least .. most; else `least`."""
    if at + HEADER_BYTES > len(records):
        return least
    said = int(_OFFSET.unpack_from(records, at)[0])
    return said if least <= said <= most else least


# ---- all at once ----


class _Window(NamedTuple):
    """Records that begin in one window: their slots, headers, parts, and the slot behind them."""

    starts: Ints  # slots from the window's first on
    headers: Slots
    properties_length: Ints
    payload_at: Ints  # from the start of the record
    end: int


def decode_verified(
    records: memoryview, epoch: int, first_offset: int, last_offset: int, wanted: Collection[str]
) -> Iterator[Decoded]:
    """Rows of a run of records whose bytes are known to be what was written.

    Where they nevertheless are no records with dense offsets, it goes on as decode() does.
    """
    slots = np.frombuffer(records, _SLOT)
    at, least = 0, first_offset
    while at < len(slots) and least <= last_offset:
        expected = offset_at(records, at * HEADER_BYTES, least, last_offset)
        window = _window(slots, records, at, expected, last_offset)
        if window is None:
            yield from decode(records[at * HEADER_BYTES :], epoch, least, last_offset, wanted)
            return
        data = records[at * HEADER_BYTES : (at + window.end) * HEADER_BYTES]
        yield Decoded(expected, len(window.starts), _columns(window, data, wanted))
        at, least = at + window.end, expected + len(window.starts)


def _window(slots: Slots, records: memoryview, at: int, expected: int, last_offset: int) -> _Window | None:
    """The records from slot `at` on; None: something there is no record, or not the one expected."""
    here = slots[at : at + WINDOW_SLOTS]
    length = here["length"].astype(np.int64)
    behind = np.arange(len(here)) + (length + HEADER_BYTES - 1) // HEADER_BYTES
    believable = (length >= HEADER_BYTES) & (length < PADDING_BIT) & (behind <= len(slots) - at)
    starts = _chain(np.where(believable, behind, len(here)))[: last_offset - expected + 1]
    if not believable[starts[-1]]:
        return None
    headers, end = here[starts], int(behind[starts[-1]])
    key_length = headers["key_length"].astype(np.int64)
    room = headers["length"].astype(np.int64) - HEADER_BYTES - key_length
    properties_at = (at + starts) * HEADER_BYTES + HEADER_BYTES + key_length
    has_properties = (headers["flags"] & FLAG_PROPERTIES) != 0
    properties_length = _properties_length(records, properties_at, np.where(has_properties, room, -1))
    payload_at = (HEADER_BYTES + key_length + properties_length + 7) & ~7
    good = (
        end * HEADER_BYTES <= np.iinfo(np.int32).max
        and bool(np.all(headers["offset"] == expected + np.arange(len(starts), dtype=np.uint64)))
        and not np.any(headers["flags"] & FLAGS_CRITICAL)
        and bool(np.all(room >= 0))
        and bool(np.all((properties_length > 0) == has_properties))
        and bool(np.all(payload_at <= headers["length"]))
    )
    return _Window(starts, headers, properties_length, payload_at, end) if good else None


def _chain(behind: Ints) -> Ints:
    """0, behind[0], behind[behind[0]], ... as far as that stays inside."""
    step = np.append(np.minimum(behind, len(behind)), len(behind)).astype(np.int32)
    chain = np.zeros(1, np.int32)
    while True:
        more = step[chain]
        inside = more[more < len(behind)]
        chain = np.concatenate([chain, inside])
        if len(inside) < len(more):
            return chain.astype(np.int64)
        step = step[step]


def _properties_length(records: memoryview, at: Ints, room: Ints) -> Ints:
    """Bytes of the properties at each place, with their length; 0: room is below 0, or they do not fit."""
    data = np.frombuffer(records, np.uint8)
    value, found = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    rows = np.flatnonzero(room >= 0)
    for index in range(4):
        rows = rows[room[rows] > index]
        byte = data[at[rows] + index]
        value[rows] |= (byte & 0x7F).astype(np.int64) << 7 * index
        ends = (byte & 0x80) == 0
        last = rows[ends]
        found[last] = np.where(value[last] + index + 1 <= room[last], value[last] + index + 1, 0)
        rows = rows[~ends]
    return found


def _columns(window: _Window, data: memoryview, wanted: Collection[str]) -> dict[str, pa.Array]:
    headers, rows = window.headers, len(window.starts)
    columns: dict[str, pa.Array] = {}
    if "offset" in wanted:
        columns["offset"] = pa.array(headers["offset"].astype(np.int64))
    if "timestamp" in wanted:
        columns["timestamp"] = pa.array((headers["timestamp_ns"] // 1000).astype(np.int64)).cast(
            TYPES["timestamp"]
        )
    if "qos" in wanted:
        columns["qos"] = pa.array((headers["flags"] & FLAG_QOS).astype(np.int32))
    if "retain" in wanted:
        columns["retain"] = pa.array((headers["flags"] & FLAG_RETAIN) != 0)
    # One array over the records as they lie, six values each, of which three are taken: nothing is copied
    # twice.
    begin = window.starts * HEADER_BYTES
    key_end = begin + HEADER_BYTES + headers["key_length"]
    bounds = np.empty((rows, 6), np.int32)
    bounds[:, 0] = begin
    bounds[:, 1] = begin + HEADER_BYTES  # key
    bounds[:, 2] = key_end  # properties
    bounds[:, 3] = key_end + window.properties_length
    bounds[:, 4] = begin + window.payload_at  # payload
    bounds[:, 5] = begin + headers["length"]
    ends = pa.py_buffer(np.append(bounds.ravel(), np.int32(len(data))))
    parts = pa.Array.from_buffers(pa.binary(), 6 * rows, [None, ends, pa.py_buffer(data)])
    places = np.arange(0, 6 * rows, 6)
    if "topic" in wanted:
        columns["topic"] = as_text(parts.take(pa.array(places + 1)))
    if "properties" in wanted:
        columns["properties"] = parts.take(pa.array(places + 2, mask=window.properties_length == 0))
    if "payload" in wanted:
        columns["payload"] = parts.take(pa.array(places + 4))
    return columns


# ---- one by one ----


class _Row(NamedTuple):
    offset: int
    timestamp_ns: int
    flags: int
    key: bytes
    properties: bytes | None
    payload: bytes


def decode(
    records: memoryview, epoch: int, first_offset: int, last_offset: int, wanted: Collection[str]
) -> Iterator[Decoded]:
    """Rows of a run of records, each checked; what does not verify is left out, as decode_compiled() does."""
    at, least = 0, first_offset
    rows: list[_Row] = []
    while at < len(records) and least <= last_offset:
        expected = least if rows else offset_at(records, at, least, last_offset)
        row, span = _row_at(records, at, epoch, expected)
        if row is not None:
            rows.append(row)
            at, least = at + span, expected + 1
        if rows and (row is None or len(rows) == ROWS_MOST):
            yield Decoded(rows[0].offset, len(rows), _columns_of(rows, wanted))
            rows = []
        elif row is None and span:
            at += span
        elif row is None:
            return
    if rows:
        yield Decoded(rows[0].offset, len(rows), _columns_of(rows, wanted))


def _row_at(records: memoryview, at: int, epoch: int, expected: int) -> tuple[_Row | None, int]:
    """The record there, or None: it does not verify; and its span, 0 if its length cannot be believed."""
    room = len(records) - at
    if room < HEADER_BYTES:
        return None, 0
    length, crc, offset, timestamp_ns, _, key_length, flags = _HEADER.unpack_from(records, at)
    span = -(-length // HEADER_BYTES) * HEADER_BYTES
    if length < HEADER_BYTES or length & PADDING_BIT or span > room:
        return None, 0
    key_end = HEADER_BYTES + key_length
    properties_length = 0
    if flags & FLAG_PROPERTIES and key_end <= length:
        begin = np.array([at + key_end], np.int64)
        properties_length = int(_properties_length(records, begin, np.array([length - key_end], np.int64))[0])
    payload_at = (key_end + properties_length + 7) & ~7
    bad_properties = flags & FLAG_PROPERTIES and properties_length == 0
    if (
        flags & FLAGS_CRITICAL
        or bad_properties
        or key_end > length
        or payload_at > length
        or offset != expected
    ):
        return None, span
    if crc32c(records[at + 8 : at + (payload_at if flags & FLAG_UNCHECKED else length)], epoch) != crc:
        return None, span
    data = bytes(records[at : at + length])
    properties = data[key_end : key_end + properties_length] if properties_length else None
    return _Row(offset, timestamp_ns, flags, data[HEADER_BYTES:key_end], properties, data[payload_at:]), span


def _columns_of(rows: list[_Row], wanted: Collection[str]) -> dict[str, pa.Array]:
    made: dict[str, Any] = {
        "offset": lambda: pa.array([row.offset for row in rows], pa.int64()),
        "timestamp": lambda: pa.array([row.timestamp_ns // 1000 for row in rows], pa.int64()).cast(
            TYPES["timestamp"]
        ),
        "topic": lambda: as_text(pa.array([row.key for row in rows], pa.binary())),
        "qos": lambda: pa.array([row.flags & FLAG_QOS for row in rows], pa.int32()),
        "retain": lambda: pa.array([bool(row.flags & FLAG_RETAIN) for row in rows], pa.bool_()),
        "properties": lambda: pa.array([row.properties for row in rows], pa.binary()),
        "payload": lambda: pa.array([row.payload for row in rows], pa.binary()),
    }
    return {name: make() for name, make in made.items() if name in wanted}


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in table]
    return table


_CRC_TABLE = _table()


def crc32c(data: memoryview, seed: int = 0) -> int:
    """CRC-32C (RFC 3720 appendix B.4), continued from `seed`, at some MB/s."""
    crc = ~seed & 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return ~crc & 0xFFFFFFFF
