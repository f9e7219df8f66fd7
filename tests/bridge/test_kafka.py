"""The Kafka sinks against librdkafka's mock brokers: the protocol is real, and so is the socket."""

import dataclasses
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from bridge.drained import parse, verify
from bridge.errors import BadName, SinkBlocked, SinkUnavailable
from bridge.records import Records
from bridge.sink import RecordSink, open_sink
from bridge.sinks.kafka import KafkaSink
from bridge.sinks.kafka_chunks import KafkaChunkSink
from ringbuf import Batch
from tests.support.bridges import drain, publish, ring, run_dry, settings
from tests.support.drained_files import EPOCH, T0_NS, record, records_of, unit_of

pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'brim[kafka]'")
pytest.importorskip("backports.zstd", reason="needs zstd: pip install 'brim[archive]'")

if TYPE_CHECKING:
    from confluent_kafka import Message

from tests.support.kafka_mock import messages, mock_brokers

SETTLED_S = 40.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    with mock_brokers() as servers:
        yield servers


def headers_of(message: "Message") -> dict[str, Any]:
    return dict(message.headers() or {})


@pytest.fixture
def opened() -> Iterator[list[KafkaSink | KafkaChunkSink]]:
    made: list[KafkaSink | KafkaChunkSink] = []
    yield made
    for sink in made:
        sink.close()
        sink.close()


def test_a_record_is_a_message_with_its_topic_as_key_and_its_identity_in_headers(
    brokers: str, opened: list[KafkaSink]
) -> None:
    sink = open_sink(f"kafka://{brokers}/plain")
    assert isinstance(sink, KafkaSink)
    assert isinstance(sink, RecordSink)
    opened.append(sink)
    sink.begin("edge-1")
    sent = [sink.send(records_of(unit_of(0, 299))), sink.send(records_of(unit_of(300, 499)))]
    assert [list(future.result(SETTLED_S)) for future in sent] == [[], []]
    found = messages(brokers, "plain", 500)
    by_offset = {int(headers_of(it)["brim-record"].split()[0]): it for it in found}
    assert sorted(by_offset) == list(range(500))
    assert len(found) == 500
    for offset, it in by_offset.items():
        headers = headers_of(it)
        assert it.key() == f"plant/{offset % 4}/temp".encode()
        assert it.value() == str(offset).encode()
        assert it.timestamp()[1] == (T0_NS + offset * 1_000_000) // 1_000_000
        assert headers["brim-source"] == f"edge-1/default/0/{EPOCH}".encode()
        flags = offset % 3 | (4 if offset % 5 == 0 else 0)
        assert headers["brim-record"] == b"%d %d %d" % (offset, T0_NS + offset * 1_000_000, flags)
        assert headers.get("mqtt-properties") == (b"\x03\x01\x01\x02" if offset % 7 == 0 else None)
    for key in {it.key() for it in found}:
        placed = [(it.partition(), int(headers_of(it)["brim-record"].split()[0])) for it in found
                  if it.key() == key]  # fmt: skip
        assert len({partition for partition, _ in placed}) == 1
        assert [offset for _, offset in placed] == sorted(offset for _, offset in placed)


def test_a_chunk_is_a_drained_file_of_its_own(brokers: str, opened: list[KafkaChunkSink]) -> None:
    sink = open_sink(f"kafka://{brokers}/chunks-{{stream}}", {"mode": "chunk", "chunk_bytes": "4096"})
    assert isinstance(sink, KafkaChunkSink)
    opened.append(sink)
    sink.begin("edge-1")
    unit = unit_of(100, 699, drain_seq=3, lost=((90, 99),))
    sink.put(unit)
    found = messages(brokers, "chunks-default", 8)
    assert len(found) > 8
    assert {it.partition() for it in found} == {found[0].partition()}
    assert {it.key() for it in found} == {b"edge-1/default/0"}
    files = [parse(it.value() or b"") for it in found]
    for file, it in zip(files, found, strict=True):
        verify(file)
        ends = b"%d %d" % (file.footer.first_offset, file.footer.last_offset)
        assert headers_of(it) == {"brim-source": f"edge-1/default/0/{EPOCH}".encode(), "brim-range": ends}
        assert file.footer.drain_seq == 3
    ranges = [(file.footer.first_offset, file.footer.last_offset) for file in files]
    assert ranges[0][0] == 100
    assert ranges[-1][1] == 699
    assert all(one[1] + 1 == two[0] for one, two in itertools.pairwise(ranges))
    assert [file.footer.lost for file in files] == [((90, 99),)] + [()] * (len(files) - 1)
    assert b"".join(e.body for file in files for e in file.extents) == b"".join(r.records for r in unit.runs)


def test_a_record_that_is_too_large_is_named_and_the_others_arrive(
    brokers: str, opened: list[KafkaSink]
) -> None:
    sink = KafkaSink.of_url(f"kafka://{brokers}/small", {"message.max.bytes": "1000"})
    opened.append(sink)
    sink.begin("edge-1")
    unit = unit_of(0, 9, payload=lambda offset: b"x" * (2000 if offset == 4 else 10))
    (bad,) = sink.send(records_of(unit)).result(SETTLED_S)
    assert bad.offset == 4
    assert "larg" in bad.reason
    assert len(messages(brokers, "small", 9)) == 9


@pytest.mark.parametrize("renamed", [False, True], ids=["in C", "one by one"])
def test_a_client_whose_queue_is_full_is_waited_for_and_order_holds(
    brokers: str, opened: list[KafkaSink], renamed: bool
) -> None:
    topic = f"narrow-{renamed}"
    sink = KafkaSink.of_url(f"kafka://{brokers}/{topic}", {"queue.buffering.max.messages": "7"})
    opened.append(sink)
    sink.begin("edge-1")
    sent = [records_of(unit_of(first, first + 29)) for first in (0, 30, 60)]
    if renamed:
        sent = [dataclasses.replace(it, topic_of=lambda key: b"site/" + key) for it in sent]
    assert [list(it.result(SETTLED_S)) for it in [sink.send(records) for records in sent]] == [[], [], []]
    found = [(it.key(), int(headers_of(it)["brim-record"].split()[0])) for it in messages(brokers, topic, 90)]
    assert sorted(offset for _, offset in found) == list(range(90))
    for key in {key for key, _ in found}:
        offsets = [offset for its, offset in found if its == key]
        assert offsets == sorted(offsets)
        assert (key or b"").startswith(b"site/plant/" if renamed else b"plant/")


def test_a_chunk_that_no_broker_takes_stops_the_drain_and_says_what_to_change(
    brokers: str, opened: list[KafkaChunkSink]
) -> None:
    sink = KafkaChunkSink.of_url(f"kafka://{brokers}/small-chunks", {"message.max.bytes": "1000"})
    opened.append(sink)
    noise = random.Random(1).randbytes
    with pytest.raises(SinkBlocked, match="larg") as caught:
        sink.put(unit_of(0, 9, payload=lambda _: noise(500)))
    assert "message.max.bytes" in caught.value.hint


def test_brokers_that_are_not_there_are_unavailable(
    opened: list[KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.kafka_client.ASK_TIMEOUT_S", 0.5)
    with socket.socket() as taken:  # bound and not listening: refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for mode in ("message", "chunk"):
            sink = open_sink(f"kafka://127.0.0.1:{port}/t", {"mode": mode})
            opened.append(sink)  # type: ignore[arg-type]
            with pytest.raises(SinkUnavailable) as caught:
                sink.begin("edge-1")
            assert "check the network" in caught.value.hint


def test_brokers_that_go_away_fail_what_is_under_way_and_a_new_begin_goes_on(
    opened: list[KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bridge.sinks.kafka_client as module

    monkeypatch.setattr(module, "DEFAULTS", {**module.DEFAULTS, "message.timeout.ms": 1000})
    monkeypatch.setattr(module, "ASK_TIMEOUT_S", 0.5)
    with mock_brokers() as servers:
        sink = KafkaSink.of_url(f"kafka://{servers}/gone", {})
        opened.append(sink)
        sink.begin("edge-1")
        assert list(sink.send(records_of(unit_of(0, 9))).result(SETTLED_S)) == []
    outstanding = [sink.send(records_of(unit_of(n, n + 9))) for n in (10, 20)]
    for future in outstanding:
        with pytest.raises(SinkUnavailable):
            future.result(SETTLED_S)
    with pytest.raises(SinkUnavailable):
        sink.begin("edge-1")


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("kafka://host:9092", {}, "no topic"),
        ("kafka:///topic", {}, "no brokers"),
        ("kafka://user:secret@host:9092/topic", {}, "no brokers"),
        ("kafka://host:9092/topic", {"no.such": "1"}, "no.such"),
        ("kafka://host:9092/topic", {"acks": "1"}, "acks"),
        ("kafka://host:9092/topic", {"mode": "parcel"}, "parcel"),
        ("kafka://host:9092/topic", {"mode": "chunk", "chunk_bytes": "12"}, "chunk_bytes"),
    ],
)
def test_a_url_or_option_that_cannot_be_is_refused(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(BadName, match=said):
        open_sink(url, options)


def test_nothing_is_sent_before_begin() -> None:
    sink = KafkaSink.of_url("kafka://127.0.0.1:1/t", {})
    with pytest.raises(SinkUnavailable, match="not begun"):
        sink.send(records_of(unit_of(0, 0)))
    sink.close()


def test_records_may_be_alone_in_their_chunk(brokers: str, opened: list[KafkaChunkSink]) -> None:
    from bridge.unit import Intent, build
    from ringbuf import FLAG_UNCHECKED
    from tests.support.drained_files import CREATED_NS, batch_of

    sink = KafkaChunkSink.of_url(f"kafka://{brokers}/alone", {"chunk_bytes": "4096"})
    opened.append(sink)
    large = [record(n, b"\0" * 5000, flags=FLAG_UNCHECKED if n != 1 else 0) for n in range(3)]
    unit = build("edge-1", Intent(1, CREATED_NS, "s", 0, EPOCH, 0, None, 0, 2, (), ()), batch_of(large))
    sink.put(unit)
    files = [parse(it.value() or b"") for it in messages(brokers, "alone", 3)]
    for file in files:
        verify(file)
    assert [file.footer.count for file in files] == [1, 1, 1]


def test_what_a_ring_holds_is_drained_once_in_either_form(
    brokers: str, opened: list[KafkaSink | KafkaChunkSink], tmp_path: Path
) -> None:
    made = ring(tmp_path)
    publish(made, 500, size=30)
    for mode in ("message", "chunk"):
        sink = open_sink(f"kafka://{brokers}/drained-{mode}", {"mode": mode})
        opened.append(sink)  # type: ignore[arg-type]
        sink.begin("edge-1")
        with drain(settings(tmp_path, tmp_path / mode, unit_bytes=16384), sink) as drained:
            run_dry(drained)
    made.close()
    plain = messages(brokers, "drained-message", 500)
    rows = {int(headers_of(it)["brim-record"].split()[0]): it.value() for it in plain}
    chunks = [parse(it.value() or b"") for it in messages(brokers, "drained-chunk", 3)]
    records = {r.offset: r.bytes() for f in chunks for e in f.extents
               for r in Batch.of(e.body, EPOCH, f.footer.first_offset, None)}  # fmt: skip
    assert len(plain) == 500
    assert len({file.footer.drain_seq for file in chunks}) >= 3
    assert rows == records == {offset: str(offset).encode().rjust(30, b".") for offset in range(500)}


class Made(NamedTuple):
    """A record that a plug-in has made."""

    offset: int
    timestamp_ns: int
    key: bytes
    flags: int
    properties: bytes
    payload: bytes

    def bytes(self) -> bytes:
        return self.payload


def test_what_a_plug_in_has_made_goes_under_its_topic_at_the_sink(
    brokers: str, opened: list[KafkaSink]
) -> None:
    sink = KafkaSink.of_url(f"kafka://{brokers}/made", {})
    opened.append(sink)
    sink.begin("edge-1")
    made = (Made(3, T0_NS, b"a/b", 1, b"", b"three"), Made(5, T0_NS, b"c", 8, b"\x02\x01\x01", b"five"))
    records = Records("edge-1", "s", 2, EPOCH, 0, 9, 100, (made,), lambda key: b"site/" + key)
    assert list(sink.send(records).result(SETTLED_S)) == []
    found = {it.value(): (it.key(), headers_of(it)) for it in messages(brokers, "made", 2)}
    source = f"edge-1/s/2/{EPOCH}".encode()
    assert found == {
        b"three": (b"site/a/b", {"brim-source": source, "brim-record": b"3 %d 1" % T0_NS}),
        b"five": (
            b"site/c",
            {"brim-source": source, "brim-record": b"5 %d 0" % T0_NS, "mqtt-properties": b"\x02\x01\x01"},
        ),
    }
