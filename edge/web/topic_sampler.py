"""Topic sampler: keeps a tree of all topics up to date while a page requests it, with a bounded cost.

A thread reads the rings in shared memory: first the newest FILL_RECORDS of each, in slices, then every TICK_S
the records since the last time, but at most the newest TICK_RECORDS of a ring. Counts and rates of a busier
ring are estimates from that sample; the rest is read later, when it is calm. Between two ticks no ring is
attached, so that no reader of the console is overrun and counted as a loss. Retained messages are read from
the broker once. Without requests for FORGET_S the tree is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.errors import EdgeError
from edge.local.protocol import Connection, Retained, RetainedList
from edge.local.shm_subscription import Place, RingBatch, ShmSubscription
from edge.local.topic_census import TOPICS_MAX
from edge.logging_setup import pairs
from edge.web.topic_tree import TopicTree
from ringbuf import FLAG_QOS, Record
from ringbuf.errors import Overrun, RingError

log = logging.getLogger(__name__)

READER = "brim web"  # name of the console's readers in `brim status`
TICK_S = 2.0
TICK_RECORDS = 5_000
FILL_RECORDS = 500_000
WATCHING_S = 10.0  # after the last request
FORGET_S = 600.0
BATCH = 1_024
REST = 2.0  # pause after a slice of work, as a multiple of its time

Row = dict[str, Any]


class TopicSampler:
    """The tree, and the thread that fills it. Any thread may call children() and search()."""

    def __init__(self, runtime_dir: Path | None) -> None:
        self.error = ""
        self._runtime_dir = runtime_dir
        self._lock = threading.Lock()
        self._tree = TopicTree(TOPICS_MAX)
        self._ends: dict[str, Place] = {}
        self._gaps: dict[str, tuple[Place, int]] = {}  # skipped records: from a place to an offset
        self._tick_s = 0.0
        self._sampled = False  # True: not every record was read
        self._has_retained = False
        self._requested_s = -FORGET_S
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brim-web-topics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join()

    def children(self, prefix: str, first: int, count: int, sort: str) -> Row:
        """A page of the levels below `prefix`."""
        self._watch()
        with self._lock:
            rows, total = self._tree.children(prefix, first, count, sort, time.monotonic())
            return self._answer(rows, total)

    def search(self, text: str, first: int, count: int) -> Row:
        """A page of the topics that contain `text`."""
        self._watch()
        with self._lock:
            rows, total = self._tree.search(text.casefold(), first, count, time.monotonic())
            return self._answer(rows, total)

    def _answer(self, rows: list[Row], total: int) -> Row:
        return {
            "rows": rows,
            "total": total,
            "topics": self._tree.topics,
            "others": self._tree.others,
            "estimated": self._sampled,
            "filling": not self._has_retained,
            "error": self.error,
        }

    def _watch(self) -> None:
        self._requested_s = time.monotonic()
        self._wanted.set()

    # ---- thread ----

    def _run(self) -> None:
        while not self._stopping.is_set():
            idle_s = time.monotonic() - self._requested_s
            if idle_s < WATCHING_S:
                self._tick_or_report()
                self._stopping.wait(TICK_S)
                continue
            if idle_s >= FORGET_S and self._ends:
                self._begin_again()
            self._wanted.clear()
            if time.monotonic() - self._requested_s >= WATCHING_S and not self._stopping.is_set():
                self._wanted.wait(FORGET_S)

    def _begin_again(self) -> None:
        with self._lock:
            self._tree = TopicTree(TOPICS_MAX)
        self._ends, self._tick_s, self._has_retained, self._sampled = {}, 0.0, False, False
        self._gaps.clear()

    def _tick_or_report(self) -> None:
        try:
            self._tick()
            if self._gaps and not self._sampled:
                self._read_skipped()
            if not self._has_retained:
                self._read_retained()
            self.error = ""
        except (EdgeError, RingError, OSError) as error:
            if self.error != str(error):
                log.info("topics not read %s", pairs(reason=error))
            self.error = str(error)

    def _tick(self) -> None:
        with ShmSubscription(["#"], runtime_dir=self._runtime_dir, name=READER, limit=BATCH) as subscription:
            ends = subscription.places()
            begins, scale = self._begins(ends)
            subscription.seek(begins)
            now_s = time.monotonic()
            elapsed_s = now_s - self._tick_s if self._tick_s else 0.0
            for batch in subscription.present_batches():
                began_s = time.monotonic()
                with self._lock:
                    self._add(batch, scale.get(batch.ring, 1.0), now_s, elapsed_s)
                if elapsed_s == 0.0:
                    time.sleep(REST * (time.monotonic() - began_s))
                if self._stopping.is_set():
                    return
            self._ends = subscription.places()
            self._tick_s = now_s

    def _begins(self, ends: dict[str, Place]) -> tuple[dict[str, int], dict[str, float]]:
        """Offsets to begin at, and the number of messages that each record of a ring stands for."""
        begins, scale = {}, {}
        self._sampled = False
        for ring, end in ends.items():
            last = self._ends.get(ring)
            known = last is not None and last.epoch == end.epoch
            after = last.offset if last is not None and known else 0
            begins[ring] = max(after, end.offset - (TICK_RECORDS if known else FILL_RECORDS), 0)
            if known and begins[ring] > after:
                scale[ring] = (end.offset - after) / (end.offset - begins[ring])
                self._sampled = True
                self._gaps[ring] = Place(end.epoch, after), begins[ring]
        return begins, scale

    def _read_skipped(self) -> None:
        """Read some records that were skipped in a burst, while it is calm: their topics are not lost."""
        read = 0
        with ShmSubscription(["#"], runtime_dir=self._runtime_dir, name=READER, limit=BATCH) as subscription:
            places = subscription.places()
            for ring, (place, _) in list(self._gaps.items()):
                if ring not in places or places[ring].epoch != place.epoch:
                    del self._gaps[ring]
            subscription.seek({ring: place.offset for ring, (place, _) in self._gaps.items()})
            for batch in subscription.present_batches():
                if batch.ring in self._gaps and len(batch):
                    end = self._gaps[batch.ring][1]
                    with self._lock:
                        self._add(batch, 1.0, 0.0, 0.0, end)
                    read += len(batch)
                    place = Place(batch.epoch, batch[-1].offset + 1)
                    self._gaps[batch.ring] = place, end
                    if place.offset >= end:
                        del self._gaps[batch.ring]
                if read >= TICK_RECORDS or not self._gaps:
                    return

    def _add(
        self, batch: RingBatch, scale: float, now_s: float, elapsed_s: float, end: int | None = None
    ) -> None:
        """Add the records of a batch; `end`: only those of unknown topics, up to that offset."""
        last: dict[bytes, tuple[Record, int]] = {}
        for record in batch:
            if end is not None and record.offset >= end:
                break
            try:
                key = record.key
            except Overrun:
                continue
            last[key] = record, last[key][1] + 1 if key in last else 1
        for key, (record, count) in last.items():
            try:
                value = record.bytes()
            except Overrun:
                continue
            topic, qos = key.decode("utf-8", "replace"), record.flags & FLAG_QOS
            if end is not None:
                self._tree.add_skipped(topic, value, record.timestamp_ns, qos, count)
            else:
                counted = round(count * scale)
                self._tree.add(topic, value, record.timestamp_ns, qos, counted, now_s, elapsed_s)

    def _read_retained(self) -> None:
        for page in self._retained_pages():
            with self._lock:
                for row in page:
                    self._tree.add_retained(row["topic"], row["payload"], row["timestamp_ns"], row["qos"])
        self._has_retained = True

    def _retained_pages(self) -> Iterator[tuple[Row, ...]]:
        with Connection(self._runtime_dir) as connection:
            after: int | None = 0
            while after is not None and not self._stopping.is_set():
                began_s = time.monotonic()
                page = connection.request(Retained("#", after), RetainedList)
                yield page.messages
                after = page.after
                time.sleep(REST * (time.monotonic() - began_s))


def newest(runtime_dir: Path | None, topic: str, records: int, count: int) -> list[RingBatch]:
    """Batches of up to `count` records of one topic, from the newest `records` of each ring."""
    with ShmSubscription([topic], runtime_dir=runtime_dir, name=READER, limit=count) as subscription:
        subscription.seek({ring: max(end.offset - records, 0) for ring, end in subscription.places().items()})
        return list(subscription.present_batches())
