"""The Kafka sink against a real broker, killed under way.

`./dev kafka` fetches it, and `./dev test -m campaign tests/interop/test_kafka_broker.py` runs this.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.errors import SinkUnavailable
from bridge.sinks.interface import RecordSink
from bridge.sinks.registry import open_sink
from tests.support.drained_files import drained_file_of, records_of
from tests.support.kafka_broker import KafkaBroker, kafka_broker, why_not
from tests.support.kafka_mock import headers_of, messages

pytestmark = [  # a minute, of which most is Java
    pytest.mark.campaign,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is there"),
]

SETTLED_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with kafka_broker(tmp_path) as running:
        yield running


def begun(sink: RecordSink) -> None:
    """As the drain does: tried until it works."""
    for _ in range(10):
        try:
            sink.begin("edge-1")
        except SinkUnavailable:
            continue
        return
    raise AssertionError("ten tries to begin have failed")


def test_a_broker_that_is_killed_loses_nothing_and_what_comes_twice_is_known_by_its_headers(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bridge.sinks.kafka_client as module

    monkeypatch.setattr(module, "DEFAULTS", {**module.DEFAULTS, "message.timeout.ms": 2000})
    sink = open_sink(f"kafka://{broker.servers}/killed")
    assert isinstance(sink, RecordSink)
    begun(sink)
    assert list(sink.send(records_of(drained_file_of(0, 499))).result(SETTLED_S)) == []
    outstanding = [sink.send(records_of(drained_file_of(n, n + 499))) for n in range(500, 3000, 500)]
    broker.kill()
    failed = [at for at, future in enumerate(outstanding) if future.exception(SETTLED_S) is not None]
    broker.start()
    begun(sink)
    for at in range(failed[0] if failed else len(outstanding), len(outstanding)):  # all behind the first
        first = 500 + 500 * at
        assert list(sink.send(records_of(drained_file_of(first, first + 499))).result(SETTLED_S)) == []
    sink.close()
    kept: dict[tuple[bytes, int], bytes] = {}
    highest: dict[tuple[bytes, bytes], int] = {}
    for it in messages(broker.servers, "killed", 3000):
        headers = headers_of(it)
        offset = int(headers["brim-record"].split()[0])
        kept[headers["brim-source"], offset] = it.value() or b""
        key = headers["brim-source"], it.key() or b""
        if offset > highest.get(key, -1) + 4 and key in highest:
            raise AssertionError(f"{offset} after {highest[key]} of {key}: out of order")
        highest[key] = max(offset, highest.get(key, -1))
    assert [offset for _, offset in sorted(kept)] == list(range(3000))
    assert all(value == b"%d" % offset for (_, offset), value in kept.items())
