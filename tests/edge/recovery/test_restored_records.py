"""The file of retained messages, restored by C, against the same records restored one by one in Python."""

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.auth.interfaces import ClientInfo
from edge.auth.tenants import Tenants
from edge.broker.retained_authors import UNKNOWN_AUTHOR, author_of
from edge.broker.retained_delivery import RetainedRecord
from edge.config.tenant import Tenant
from edge.engine.engine import NO_TOPIC, EngineLimits, Table, counters_of
from edge.recovery.retained_store import RetainedStore
from persistence.durable_file import pack_frame
from ringbuf import FLAG_EXPIRY, FLAG_PROPERTIES, FLAG_RETAIN
from tests.support.examples import examples
from tests.support.mqtt_bench import Bench

EXPIRY = b"\x05\x02\x00\x00\x00\x3c"
AUTHORS = [
    b"",
    author_of(ClientInfo("c", "ann", "10.0.0.1:5", 0, identity="ann", verified=True)),
    author_of(ClientInfo("$tenant/a/c", None, "10.0.0.2:5", 0)),
    UNKNOWN_AUTHOR,
    b"no author",
]
NAMES = [
    "a",
    "a/b",
    "b/a",
    "ä/b",
    "a/+",
    "",
    "l" * 40,
    "$SYS/x",
    "$delayed/1/a",
    "$tenant/a/t",
    "$tenant/a/$x",
    "$tenant/z/t",
]
RECORD = st.builds(
    RetainedRecord,
    st.sampled_from([*(name.encode() for name in NAMES), b"\xff"]),
    st.sampled_from([FLAG_RETAIN, FLAG_RETAIN | 1, FLAG_RETAIN | 3, 1]),
    st.integers(1, 1 << 60),
    st.sampled_from([b"", EXPIRY]),
    st.binary(max_size=40),
    st.sampled_from(AUTHORS),
)
PIECE = st.lists(RECORD, max_size=8, unique_by=lambda record: record.key)  # of one save


def packed(record: RetainedRecord) -> bytes:
    flags = record.flags | (FLAG_PROPERTIES | FLAG_EXPIRY if record.properties else 0)
    body = record.key + record.properties
    payload_at = 32 + len(body) + 7 & ~7
    length = payload_at + len(record.payload)
    header = struct.pack("<I12xQ4xHH", length, record.timestamp_ns, len(record.key), flags)
    return (header + body).ljust(payload_at, b"\0") + record.payload + bytes(-length % 32)


def saved(pieces: list[list[RetainedRecord]]) -> bytes:
    """Frames of a file, as saves write them: an empty payload has no author."""
    data = b""
    for piece in pieces:
        records = b"".join(map(packed, piece))
        known = [it for it in piece if it.flags & FLAG_RETAIN and it.payload and it.author]
        authors = b"".join(
            struct.pack("<II", len(it.key), len(it.author)) + it.key + it.author for it in known
        )
        data += pack_frame(b"r", records) + records
        data += pack_frame(b"a", authors) + authors if authors else b""
    return data


def bench_of(retained_max: int) -> Bench:
    limits = EngineLimits(topics_max=7, retained_max=retained_max)
    bench = Bench(engine=limits, tenants=Tenants((Tenant("a"),)))
    bench.broker.router.delay_max_s = 60
    return bench


def content(bench: Bench) -> dict[str, object]:
    """Retained messages with their authors, and the owners that they count for."""
    found: dict[str, object] = {}
    rows, _ = bench.engine.retained_authors(0, 100)
    authors = dict(rows)
    for name in NAMES:
        topic = bench.engine.topic_find(name.encode())
        if topic != NO_TOPIC and (message := bench.engine.retained_message(topic, 100)) is not None:
            found[name] = message, authors.get(topic)
    for table in (Table.RETAINED, Table.RETAINED_BYTES):
        found[table.name] = sorted(bench.engine.owners_top(table, 64))
    found["sum"] = counters_of(bench.engine).retained, counters_of(bench.engine).retained_bytes
    return found


@settings(max_examples=examples(100))
@given(st.lists(PIECE, max_size=4), st.sampled_from([0, 3, 100]))
@example([[RetainedRecord(b"a", FLAG_RETAIN, 1, b"", b"x", AUTHORS[1])]] * 2, 100)
@example(
    [
        [
            RetainedRecord(b"a/b", FLAG_RETAIN, 1, b"", b"x", AUTHORS[0]),
            RetainedRecord(b"b/a", FLAG_RETAIN, 2, b"", b"y", AUTHORS[1]),
        ]
    ],
    100,
)
def test_c_restores_what_python_would(pieces: list[list[RetainedRecord]], retained_max: int) -> None:
    with bench_of(retained_max) as one, bench_of(retained_max) as other, TemporaryDirectory() as directory:
        for record in (record for piece in pieces for record in piece):
            if record.payload or one.engine.topic_find(record.key) != NO_TOPIC:
                flags = record.flags | (FLAG_EXPIRY if record.properties else 0)
                one.broker.retained.restore([record._replace(flags=flags)])
        store = RetainedStore(Path(directory, "retained.state"), sync=False)
        store.path.write_bytes(saved(pieces))
        store.restore(other.broker, [other.partition.ring], None)
        store.stop()
        assert content(one) == content(other)
