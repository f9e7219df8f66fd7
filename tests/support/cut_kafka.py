"""A real Kafka as upstream that can be cut: behind a line (cut_line.py) that leads there, or killed.

Spark gets there directly: its listener is another one.
"""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.support.cut_line import KINDS, CutLine, Kind
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_connector import conf
from tests.support.kafka_mock import messages, quiet
from tests.support.ports import free_port

TOPIC = "records"
OFFSETS_A_BATCH = 150_000
ASK_S = 30.0
READ_S = 300.0  # without any record, on a busy machine


class CutKafka:
    """One broker, with its files in `directory`, which is there."""

    kinds: Sequence[str] = ("refused", "half-open", "slow", "killed")
    lake = ""

    def __init__(self, directory: Path, seed: int = 0, offsets_a_batch: int = OFFSETS_A_BATCH) -> None:
        self._offsets_a_batch = offsets_a_batch
        behind = free_port()
        self._line = CutLine(behind, seed)
        self._broker = KafkaBroker(directory, by_line=(behind, self._line.port))
        self._killed = False
        self._stack = ExitStack()
        self.reset = self._line.reset

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._line)
            stack.callback(self._broker.kill)
            self._broker.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def settings(self) -> str:
        """See Upstream."""
        return f"to = {json.dumps(f'kafka://127.0.0.1:{self._line.port}/{TOPIC}')}"

    @property
    def job(self) -> list[str]:
        """See Upstream."""
        settings = [f"--conf={conf()}", f"--option=maxOffsetsPerTrigger={self._offsets_a_batch}"]
        return [self._broker.servers, TOPIC, *settings]

    def cut(self, kind: str) -> None:
        """See Upstream."""
        if kind == "killed":
            self._broker.kill()
            self._killed = True
            return
        chosen: dict[str, Kind] = {it: it for it in KINDS}
        self._line.cut(chosen[kind])

    def mend(self) -> None:
        """See Upstream."""
        if self._killed:
            self._broker.start()
            self._killed = False
        self._line.mend()

    def objects(self) -> list[str]:
        """Partition and offset of each record of Kafka's."""
        return [f"{number}-{at}" for number, end in self._ends().items() for at in range(end)]

    def contents(self) -> list[tuple[str, bytes]]:
        """See Upstream."""
        every = messages(self._broker.servers, TOPIC, sum(self._ends().values()))
        return [(f"{it.partition()}-{it.offset()}", it.value() or b"") for it in every]

    def came_twice(self) -> int:
        """Records of the topic that it has more than once, each of them once less."""
        ends = self._ends()
        consumer = Consumer({"bootstrap.servers": self._broker.servers, "group.id": "test"}, logger=quiet)
        seen: set[tuple[Any, int]] = set()
        total, heard_at = 0, time.monotonic()
        try:
            consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in ends])
            while total < sum(ends.values()):
                found = [it for it in consumer.consume(10_000, 1.0) if it.error() is None]
                heard_at = time.monotonic() if found else heard_at
                assert time.monotonic() < heard_at + READ_S, f"{total} records of {ends}"
                total += len(found)
                for it in found:
                    headers: dict[str, Any] = dict(it.headers() or [])
                    seen.add((headers["brim-source"], int(headers["brim-record"].split()[0])))
        finally:
            consumer.close()
        return total - len(seen)

    def _ends(self) -> dict[int, int]:
        if self._killed:
            return {}
        consumer = Consumer({"bootstrap.servers": self._broker.servers, "group.id": "test"}, logger=quiet)
        try:
            topics = consumer.list_topics(timeout=ASK_S).topics
            numbers = list(topics[TOPIC].partitions) if TOPIC in topics else []
            places = {number: TopicPartition(TOPIC, number) for number in numbers}
            return {n: consumer.get_watermark_offsets(it, timeout=ASK_S)[1] for n, it in places.items()}
        finally:
            consumer.close()
