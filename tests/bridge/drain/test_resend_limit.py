"""The resend limit: data that a killed bridge sends again to a sink that cannot report its content."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.drain.checkpoint import cursors_in
from bridge.drain.resend_limit import ResendLimit
from bridge.errors import SinkUnavailable
from bridge.format.sink_batch import Rejected, SinkBatch
from bridge.format.write_intent import WriteIntent
from tests.support.bridges import SteppedDrain, drain, publish, ring, settings
from tests.support.mosquitto import BINARY, running
from tests.support.project import ROOT
from tests.support.watch import Watch

RECORDS, WINDOW, KILLS = 9_000, 800, 3
SETTINGS = {"resend_max_records": WINDOW, "window": 4, "file_bytes": 16_384}


def drained(runtime: Path, root: Path, url: str, *, killed_at: int = 0) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.killed_at_ack", str(runtime), str(root)]
    command += [url, str(killed_at), json.dumps(SETTINGS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (-9 if killed_at else 0), done.stderr


def killed_often(runtime: Path, root: Path, url: str) -> None:
    """Each life takes a different number of acknowledgements; what it took last, no checkpoint has."""
    with ring(runtime, capacity_bytes=1 << 21) as made:
        publish(made, RECORDS)
        for life in range(KILLS):
            drained(runtime, root, url, killed_at=19 + life)
        drained(runtime, root, url)


def check(times: Counter[int]) -> None:
    assert sorted(times) == list(range(RECORDS))
    again = times.total() - RECORDS
    assert 0 < again <= KILLS * WINDOW


def test_a_killed_bridge_sends_at_most_one_window_to_kafka_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'brim[kafka]'")
    from tests.support.kafka_mock import headers_of, messages, mock_brokers

    times: Counter[int] = Counter()
    with mock_brokers() as servers:
        killed_often(runtime_directory, tmp_path, f"kafka://{servers}/again")
        for it in messages(servers, "again", RECORDS):
            times[int(headers_of(it)["brim-record"].split()[0])] += 1
    check(times)


@pytest.mark.skipif(BINARY is None, reason="needs mosquitto: apt-get install mosquitto")
async def test_a_killed_bridge_sends_at_most_one_window_to_mqtt_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with running(tmp_path, "max_queued_messages 0") as upstream:
        async with Watch(upstream.url, "#") as watch:
            await asyncio.to_thread(killed_often, runtime_directory, tmp_path, upstream.url)
            found = await watch.heard(RECORDS)
            while len({it.payload for it in found}) < RECORDS:
                found += await watch.heard(1)
    check(Counter(int(it.payload.lstrip(b".")) for it in found))


class Hasty:
    """A sink that answers some of what waits, in any order, and knows what is sent behind the checkpoint."""

    url = "hasty://here"

    def __init__(self, checkpoint: Path, seed: int) -> None:
        self._checkpoint, self._random = checkpoint, random.Random(seed)
        self._waiting: list[Future[Sequence[Rejected]]] = []
        self.sent: Counter[int] = Counter()
        self.most = self.most_bytes = 0
        self.sizes: dict[int, int] = {}

    def begin(self, edge: str) -> None:
        """Nothing to do."""

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        for it in records:
            self.sent[it.offset] += 1
            self.sizes[it.offset] = len(it.bytes())  # less than the record takes
        saved = {it.next_offset for it in cursors_in(self._checkpoint) or []} or {0}
        behind = [offset for offset in self.sizes if offset >= max(saved)]
        self.most = max(self.most, len(behind))
        if len(behind) > 1:
            payloads = sum(self.sizes[offset] for offset in behind)
            self.most_bytes = max(self.most_bytes, payloads)
        self._waiting.append(Future())
        given = self._waiting[-1]
        for future in self._random.sample(self._waiting, self._random.randrange(len(self._waiting) + 1)):
            self.answer(future)
        return given

    def answer(self, future: Future[Sequence[Rejected]]) -> None:
        self._waiting.remove(future)
        if self._random.random() < 0.02:
            future.set_exception(SinkUnavailable("away"))
        else:
            future.set_result(())

    def close(self) -> None:
        """Nothing to do."""

    def answer_one(self) -> None:
        if self._waiting:
            self.answer(self._waiting[0])


class NarrowLine:
    """A sink that gives up all that is in flight if that is more than `records`."""

    url = "narrow://here"

    def __init__(self, records: int) -> None:
        self._records = records
        self._waiting: list[tuple[int, Future[Sequence[Rejected]]]] = []
        self.arrived: Counter[int] = Counter()
        self.sent = 0

    def begin(self, edge: str) -> None:
        """Nothing to do."""

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        self._waiting.append((records.count, Future()))
        self.sent += records.count
        self.arrived.update(it.offset for it in records if sum(n for n, _ in self._waiting) <= self._records)
        return self._waiting[-1][1]

    def answer_one(self) -> None:
        given_up = sum(count for count, _ in self._waiting) > self._records
        for _, future in self._waiting:
            if given_up:
                future.set_exception(SinkUnavailable("timed out"))
            else:
                future.set_result(())
        self._waiting.clear()

    def close(self) -> None:
        """Nothing to do."""


def run_through(made: SteppedDrain, sink: Hasty | NarrowLine) -> None:
    """Steps until nothing waits; the sink answers one file when there is nothing to do."""
    for _ in range(20_000):
        try:
            if made.step() > 0:
                if not made.in_flight and made.drained():
                    return
                sink.answer_one()
        except SinkUnavailable:
            continue
    raise AssertionError("still waiting after 20,000 steps")


@pytest.mark.parametrize("seed", range(3))
def test_records_behind_the_saved_checkpoint_are_never_more_than_the_window(
    runtime_directory: Path, tmp_path: Path, seed: int
) -> None:
    limits = {"resend_max_records": 200, "resend_max_bytes": 16_384, "window": 4}
    chosen = settings(runtime_directory, tmp_path, **limits)
    sink = Hasty(chosen.checkpoint_path, seed)
    with (
        ring(runtime_directory, capacity_bytes=1 << 20) as made,
        drain(chosen, sink) as drained,
    ):
        publish(made, 2000)
        publish(made, 300, size=200)
        run_through(drained, sink)
    assert sorted(sink.sent) == list(range(2300))
    assert 50 < sink.most <= 200
    assert sink.most_bytes <= 16_384


@dataclass
class Acknowledged:
    """A file that the sink has acknowledged."""

    intent: WriteIntent
    length: int
    took_s: float = 0.0


@pytest.mark.parametrize(("records", "length", "due"), [(49, 499, False), (50, 10, True), (10, 500, True)])
def test_a_save_is_due_when_it_frees_half_of_the_records_or_bytes(
    records: int, length: int, due: bool
) -> None:
    limit = ResendLimit(100, 1000)
    limit.acknowledged(Acknowledged(WriteIntent(1, 0, "s", 0, 1, 0, None, 0, records - 1, (), ()), length))
    assert limit.is_due() is due
    limit.saved()
    assert not limit.is_due()


def test_a_record_that_is_larger_than_the_window_goes_without_others(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path, resend_max_bytes=4096, window=4)
    sink = Hasty(chosen.checkpoint_path, 1)
    with ring(runtime_directory, capacity_bytes=1 << 18) as made, drain(chosen, sink) as drained:
        publish(made, 100)
        publish(made, 1, size=20_000)
        publish(made, 100)
        run_through(drained, sink)
    assert sorted(sink.sent) == list(range(201))
    assert sink.most_bytes <= 4096


def test_a_line_too_narrow_for_the_window_gets_smaller_files_and_few_records_twice(
    runtime_directory: Path, tmp_path: Path
) -> None:
    limits = {"resend_max_records": 400, "window": 4, "file_bytes": 1 << 20}
    sink = NarrowLine(20)
    with (
        ring(runtime_directory, capacity_bytes=1 << 20) as made,
        drain(settings(runtime_directory, tmp_path, **limits), sink) as drained,
    ):
        publish(made, 2000)
        run_through(drained, sink)
    assert sorted(sink.arrived) == list(range(2000))
