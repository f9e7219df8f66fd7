"""The Kafka sink against librdkafka's mock brokers: the protocol is real, and so is the socket."""

import dataclasses
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from bridge.errors import BadName, SinkUnavailable
from bridge.format.sink_batch import SinkBatch
from bridge.sinks.interface import RecordSink
from bridge.sinks.kafka import KafkaSink
from bridge.sinks.registry import open_sink
from tests.support.bridges import drain, publish, ring, run_dry, settings
from tests.support.drained_files import EPOCH, T0_NS, drained_file_of, records_of

pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'brim[kafka]'")


from tests.support.kafka_mock import headers_of, messages, mock_brokers, stalling_line

SETTLED_S = 40.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    with mock_brokers() as servers:
        yield servers


@pytest.fixture
def opened() -> Iterator[list[KafkaSink]]:
    made: list[KafkaSink] = []
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
    sent = [sink.send(records_of(drained_file_of(0, 299))), sink.send(records_of(drained_file_of(300, 499)))]
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


def test_a_record_that_is_too_large_is_named_and_the_others_arrive(
    brokers: str, opened: list[KafkaSink]
) -> None:
    sink = KafkaSink.of_url(f"kafka://{brokers}/small", {"message.max.bytes": "1000"})
    opened.append(sink)
    sink.begin("edge-1")
    file = drained_file_of(0, 9, payload=lambda offset: b"x" * (2000 if offset == 4 else 10))
    (bad,) = sink.send(records_of(file)).result(SETTLED_S)
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
    sent = [records_of(drained_file_of(first, first + 29)) for first in (0, 30, 60)]
    if renamed:
        sent = [dataclasses.replace(it, topic_of=lambda key: b"site/" + key) for it in sent]
    assert [list(it.result(SETTLED_S)) for it in [sink.send(records) for records in sent]] == [[], [], []]
    found = [(it.key(), int(headers_of(it)["brim-record"].split()[0])) for it in messages(brokers, topic, 90)]
    assert sorted(offset for _, offset in found) == list(range(90))
    for key in {key for key, _ in found}:
        offsets = [offset for its, offset in found if its == key]
        assert offsets == sorted(offsets)
        assert (key or b"").startswith(b"site/plant/" if renamed else b"plant/")


def test_brokers_that_are_not_there_are_unavailable(
    opened: list[KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.kafka_client.CHECK_TIMEOUT_S", 0.5)
    with socket.socket() as taken:  # bound and not listening: refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        sink = KafkaSink.of_url(f"kafka://127.0.0.1:{port}/t", {})
        opened.append(sink)
        with pytest.raises(SinkUnavailable) as caught:
            sink.begin("edge-1")
        assert "check the network" in caught.value.hint


def test_brokers_that_go_away_fail_what_is_under_way_and_a_new_begin_goes_on(
    opened: list[KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bridge.sinks.kafka_client as module

    monkeypatch.setattr(module, "DEFAULTS", {**module.DEFAULTS, "message.timeout.ms": 3000})
    with mock_brokers() as servers:
        sink = KafkaSink.of_url(f"kafka://{servers}/gone", {})
        opened.append(sink)
        sink.begin("edge-1")
        assert list(sink.send(records_of(drained_file_of(0, 9))).result(SETTLED_S)) == []
    outstanding = [sink.send(records_of(drained_file_of(n, n + 9))) for n in (10, 20)]
    for future in outstanding:
        with pytest.raises(SinkUnavailable):
            future.result(SETTLED_S)
    monkeypatch.setattr(module, "CHECK_TIMEOUT_S", 0.5)  # the brokers may answer later under load
    with pytest.raises(SinkUnavailable):
        sink.begin("edge-1")


def test_a_record_that_does_not_arrive_in_time_although_it_was_sent_alone_is_named_and_gets_more_time(
    brokers: str, opened: list[KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bridge.sinks.kafka_client as module

    configs: list[Mapping[str, object]] = []

    class Client(module.KafkaClient):
        def __init__(self, config: Mapping[str, object]) -> None:
            configs.append(config)
            super().__init__(config)

    monkeypatch.setattr(module, "DEFAULTS", {**module.DEFAULTS, "message.timeout.ms": 200})
    monkeypatch.setattr(module, "KafkaClient", Client)
    alone = records_of(drained_file_of(4, 4, payload=lambda _: b"x" * 60_000))
    with stalling_line(brokers) as (line, carries):
        sink = KafkaSink.of_url(f"kafka://{line}/slow", {})
        opened.append(sink)
        sink.begin("edge-1")
        carries.clear()
        with pytest.raises(SinkUnavailable, match="timed out"):
            sink.send(records_of(drained_file_of(0, 1))).result(SETTLED_S)
        named = f"record 4 of edge-1/default/0/{EPOCH}, with 60000 bytes, did not arrive in 0.2 s although"
        with pytest.raises(SinkUnavailable, match=named) as caught:
            sink.send(alone).result(SETTLED_S)
        assert "it gets 0.4 s now" in caught.value.hint
        carries.set()
        assert any(sink.send(alone).exception(SETTLED_S) is None for _ in range(4))
        patient = next(index for index, it in enumerate(configs) if it["message.timeout.ms"] == 400)
        assert configs[patient]["socket.timeout.ms"] == 60_000
        # a record that arrives in the usual time shows that the line was broken, not slow
        for _ in range(100):
            if any(it["message.timeout.ms"] == 200 for it in configs[patient:]):
                break
            sink.send(alone).exception(SETTLED_S)
        else:
            raise AssertionError("no client has the usual time again")
        carries.clear()
        assert sink.send(alone).exception(SETTLED_S) is not None
        sink._cluster.patience = module.PATIENCE_MAX
        late = sink.send(alone)
        sink.close()  # does not wait for minutes
        assert "closed" in str(late.exception())
        opened.remove(sink)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("kafka://host:9092", {}, "no topic"),
        ("kafka:///topic", {}, "no brokers"),
        ("kafka://user:secret@host:9092/topic", {}, "no brokers"),
        ("kafka://host:9092/topic", {"no.such": "1"}, "no.such"),
        ("kafka://host:9092/topic", {"acks": "1"}, "acks"),
        ("kafka://host:9092/topic", {"chunk_bytes": "65536"}, "chunk_bytes"),
    ],
)
def test_a_url_or_option_that_cannot_be_is_refused(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(BadName, match=said):
        open_sink(url, options)


@pytest.mark.parametrize("mode", ["chunk", "message"])
def test_the_option_mode_is_refused_with_its_remedy(mode: str) -> None:
    with pytest.raises(BadName, match=f"unknown option mode .*{mode}") as caught:
        open_sink("kafka://host:9092/topic", {"mode": mode, "chunk_bytes": "65536"})
    assert "remove it" in caught.value.hint
    assert "one Kafka record for each record" in caught.value.hint


def test_nothing_is_sent_before_begin() -> None:
    sink = KafkaSink.of_url("kafka://127.0.0.1:1/t", {})
    with pytest.raises(SinkUnavailable, match="client is not open"):
        sink.send(records_of(drained_file_of(0, 0)))
    sink.close()


def test_what_a_ring_holds_is_drained_once(brokers: str, opened: list[KafkaSink], tmp_path: Path) -> None:
    made = ring(tmp_path)
    publish(made, 500, size=30)
    sink = KafkaSink.of_url(f"kafka://{brokers}/drained", {})
    opened.append(sink)
    sink.begin("edge-1")
    with drain(settings(tmp_path, tmp_path / "state", file_bytes=16384), sink) as drained:
        run_dry(drained)
    made.close()
    found = messages(brokers, "drained", 500)
    rows = {int(headers_of(it)["brim-record"].split()[0]): it.value() for it in found}
    assert len(found) == 500
    assert rows == {offset: str(offset).encode().rjust(30, b".") for offset in range(500)}


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
    records = SinkBatch("edge-1", "s", 2, EPOCH, 0, 9, 100, (made,), lambda key: b"site/" + key)
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
