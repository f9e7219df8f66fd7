"""The history of `python -m tests.campaigns million`, in a small form: broker and bridge are killed -9."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")
pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")
pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'brim[kafka]'")

from bridge.sinks.interface import RecordSink
from bridge.sinks.registry import open_sink
from tests.campaigns.million import SINKS, WINDOW, history, toll_of
from tests.support import kafka_connector
from tests.support.cut_kafka import CutKafka
from tests.support.drained_files import drained_file_of, records_of
from tests.support.pipeline import Pipeline, check
from tests.support.upstreams import Lake

EACH = 500  # records of a publisher


def test_with_broker_and_bridge_killed_each_record_is_once_in_the_lake(tmp_path: Path) -> None:
    found = []

    def check_files(pipeline: Pipeline) -> None:
        found.append(check(pipeline))

    counts = history(Lake(tmp_path), EACH, toll_of(1, 0), 0, check_files)
    assert counts["records"] >= 5 * EACH
    assert (counts["broker kills"], counts["bridge kills"]) == (1, 1)
    assert len(found) == 1
    assert not any(found[0].values())


needs_kafka = pytest.mark.skipif(
    bool(kafka_connector.why_not()), reason=kafka_connector.why_not() or "it is there"
)


@pytest.mark.campaign
@pytest.mark.java
@pytest.mark.timeout(580)
@needs_kafka
def test_what_goes_to_kafka_twice_is_at_most_one_window_for_each_kill(tmp_path: Path) -> None:
    with SINKS["kafka"](tmp_path) as upstream:
        counts = history(upstream, 10_000, toll_of(3, 0), 0)
    assert counts["bridge kills"] == 3
    assert counts["twice in Kafka"] <= 3 * WINDOW


@pytest.mark.campaign
@pytest.mark.java
@needs_kafka
def test_records_that_are_twice_in_kafka_are_counted(tmp_path: Path) -> None:
    with SINKS["kafka"](tmp_path) as upstream, upstream:
        assert isinstance(upstream, CutKafka)
        sink = open_sink(f"kafka://{upstream.job[0]}/records")
        assert isinstance(sink, RecordSink)
        sink.begin("edge-1")
        for first, last in ((0, 499), (400, 599), (450, 459)):
            assert list(sink.send(records_of(drained_file_of(first, last))).result(60)) == []
        sink.close()
        assert upstream.came_twice() == 110
