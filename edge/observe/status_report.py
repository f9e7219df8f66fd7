"""Status report: the dictionary of `brim status`, with and without --json.

Only gathers, counts nothing. It shows every loss with its place and cause: each drop by cause, the fill level
of each ring, its readers and their lag, and the work that log and bridges have left. Bounded: of many clients
and readers it shows those in trouble, and the number of the others.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict

from edge.auth.tenant_streams import streams_of_tenants
from edge.broker.counters import ClientRow, Counters, shortened
from edge.config.schema import Config, Stream
from edge.local.control_server import LocalEndpoint
from edge.local.producers import Producers
from edge.local.protocol import ANSWER_MAX_BYTES, Report
from edge.observe.directory_watch import Missing
from edge.observe.rates import OBSERVERS
from edge.rpc.protocol import encode
from edge.session_store.spill_file import SpillReport
from edge.streams.ring_files import records_lost
from edge.streams.streams import Streams
from edge.terminal_escape import escaped
from edge.transport.listener import Listener
from persistence.stats import LatencyHistogram
from ringbuf import Extremes, Ring, SlotInfo
from ringbuf.errors import Corrupt

Status = dict[str, Any]
T = TypeVar("T")

SAMPLE_S = 2.0  # interval of the rates: short enough to watch, with hardly any cost
CLIENTS_SHOWN = 100
TEXT_MAX = 64  # characters of a text of a client: 100 clients may not displace other parts of the report
CLIENTS_PAGE = 250  # sessions in one turn of the MQTT thread: about a millisecond
CLIENTS_S = 2.0  # time for all pages; `brim status` waits 5 s for its answer
ANSWER_S = 2.0  # time for the MQTT thread, or the disk, to answer
READERS_SHOWN = 16  # of one ring
_REFUSED = {
    "full": "the ring was full",
    "no_room": "the log or its stream was full",
    "no_log": "the log took no records",
}
_LOST_BY = {
    "overwritten": "overwritten in the ring",
    "retention": "removed from the log",
    "damaged": "damaged in the ring",
}
_LOST_DELAYED = {
    "invalid": "not of the form $delayed/SECONDS/TOPIC",
    "damaged": "damaged in the file",
    "too_large": "too large for the ring of the topic",
    "lost": "damaged or overwritten in the ring",
}
_RATED = ("published", "from_producers", "delivered", "bytes_in", "bytes_out")


class StatusReporter(Struct, eq=False):
    """The parts of a running broker that contribute to the report."""

    config: Config
    version: str
    streams: Streams
    producers: Producers
    listener: Listener
    stats: Counters
    zmq: Callable[[], Status | None] = lambda: None  # None: not enabled
    log: Callable[[], Status] | None = None  # reads files; log_totals does not
    log_totals: Callable[[], dict[str, int]] | None = None
    consumers: Callable[[], list[Status]] | None = None  # consumer groups with their progress
    watchdog: Callable[[], Status] = dict
    upstream: Callable[[], Status] = dict
    bridges: Callable[[], list[Status]] = list
    missing: Callable[[], Sequence[Missing]] = tuple
    delayed: Callable[[], Status] | None = None  # None: not enabled
    local: LocalEndpoint | None = None
    metrics_url: str | None = None
    started_s: float = field(default_factory=time.monotonic)
    _rates: dict[str, float] = field(default_factory=dict)
    _spill: SpillReport = field(default_factory=SpillReport)
    _last_log: Status = field(default_factory=dict)
    _question: tuple[asyncio.Task[Status], float] | None = None  # the last one to the log, and its time

    async def sample(self) -> None:
        """Compute the rates, until cancelled."""
        before, at = self._totals(), time.monotonic()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._log()
        while True:
            await asyncio.sleep(SAMPLE_S)
            now, then = self._totals(), at
            at = time.monotonic()
            self._rates = {name: round((now[name] - was) / (at - then), 1) for name, was in before.items()}
            before = now
            self._spill.log_changes(self.stats.snapshot(), self.config.limits.spill_max_bytes)

    def _totals(self) -> dict[str, int]:
        """Totals that have a rate."""
        mqtt = self.stats.totals()
        written = self.log_totals() if self.log_totals else {}
        return {name: mqtt[name] for name in _RATED} | {
            f"log_{name}": value for name, value in written.items()
        }

    def _mqtt(self) -> Status:
        times = LatencyHistogram().plus(self.stats.delivery).as_dict()
        snapshot_failure = self.listener.broker.journal.failure
        return {**self.stats.snapshot(), "delivery": times, "snapshot_failure": snapshot_failure}

    async def report(self, *, clients: bool = True) -> Status:
        """The whole report, or without clients, shortened to fit an answer."""
        return _fitting(await self.gathered(clients=clients))

    async def essentials(self) -> Status:
        """The parts of the report that show if the broker is ready: no client and no ring is visited."""
        return {
            "mqtt": self._mqtt(),
            "watchdog": self.watchdog(),
            "missing": [missing._asdict() for missing in self.missing()],
            "log": await self._log(),
            "bridges": self.bridges(),
        }

    async def gathered(self, *, clients: bool = True) -> Status:
        """The whole report, or without the rows of clients, which take time in proportion to their number."""
        nothing: tuple[dict[str, int], Status, list[Status]] = ({}, {}, [])
        counts, owners, tenants = await self._submit(self._of_broker, nothing)
        rows, not_shown = await self._clients() if clients else ([], 0)
        mqtt = self._mqtt() | counts | {"refused": self.listener.broker.refused}
        # Topics of users: the $SYS topics are the broker's, and "retained" does not count them either.
        mqtt["topics"] = max(0, mqtt["topics"] - counts.get("sys_topics", 0))
        status: Status = {
            "version": self.version,
            "pid": os.getpid(),
            "edge_id": self.config.edge_id,
            "uptime_s": round(time.monotonic() - self.started_s, 1),
            "runtime_dir": str(self.config.runtime_dir),
            "log_dir": str(self.config.log_directory),
            "listeners": [str(address) for address in self.listener.addresses],
            "rates": self._rates,
            "mqtt": mqtt,
            "watchdog": self.watchdog(),
            "owners": owners,
            "tenants": tenants,
            "clients": [shortened(asdict(row), TEXT_MAX) for row in rows],
            "clients_not_shown": not_shown,
            # Directories and files of the broker that were removed or replaced: key, path and remedy of each.
            "missing": [missing._asdict() for missing in self.missing()],
            "streams": [_stream_row(stream) for stream in self.config.stream],
            "rings": [*self._partitions(), *self._producers()],
            "metrics": self.metrics_url,
            "zmq": self.zmq(),
            "local": self._local(),
            "log": await self._log(),
            "consumers": self.consumers() if self.consumers else [],
            # Rings whose publishers wait for sinks: the offset that each bridge has reached.
            "upstream": self.upstream(),
            "bridges": self.bridges(),
            "delayed": self.delayed() if self.delayed is not None else None,
        }
        self._add_stored_bytes(status)
        status["lost"] = _lost(status)
        return status

    async def _log(self) -> Status | None:
        """Status of the log; while its disk does not answer the last one, with `silent_s`, at once.

        All reports share one question, which keeps a thread. The first answer has no limit of time.
        """
        if self.log is None:
            return None
        if self._question is None or self._question[0].done():
            self._question = asyncio.ensure_future(asyncio.to_thread(self.log)), time.monotonic()
        task, began_s = self._question
        left_s = max(0.0, began_s + ANSWER_S - time.monotonic()) if self._last_log else None
        await asyncio.wait([task], timeout=left_s)
        if not task.done():
            return {**self._last_log, "silent_s": round(time.monotonic() - began_s, 1)}
        self._last_log = task.result()
        return self._last_log

    def _add_stored_bytes(self, status: Status) -> None:
        """Add the bytes in the log to the tenants that share none of their logged streams."""
        by_stream = ((status["log"] or {}).get("maintenance") or {}).get("bytes_by_stream", {})
        apart = streams_of_tenants(self.config)
        for row in status["tenants"]:
            if streams := apart.get(row["name"]):
                row["stored_bytes"] = sum(by_stream.get(name, 0) for name in streams)

    async def _submit(self, function: Callable[[], T], otherwise: T) -> T:
        """Result of `function` on the MQTT thread; `otherwise` if that is stuck: the watchdog reports it."""
        answer = asyncio.wrap_future(self.listener.submit(function))
        await asyncio.wait([answer], timeout=ANSWER_S)
        return answer.result() if answer.done() else otherwise

    def _of_broker(self) -> tuple[dict[str, int], Status, list[Status]]:
        """Counters, owners and tenants. On the MQTT thread."""
        broker = self.listener.broker
        return broker.counts(), broker.owners.top(), broker.tenants.rows()

    async def _clients(self) -> tuple[list[ClientRow], int]:
        """Clients in trouble first, and the number of the others.

        The MQTT thread gives a page of sessions at a time, and serves clients in between. Pages that take
        longer than CLIENTS_S are left out, and their sessions count among the others.
        """
        until_s = time.monotonic() + CLIENTS_S
        shown: dict[str, ClientRow] = {}
        none: list[ClientRow] = []
        seen, page = 0, CLIENTS_PAGE
        while page == CLIENTS_PAGE:
            rows = await self._submit(partial(self._page, seen), none)
            page = len(rows)
            seen += page
            unique = {row.client_id: row for row in (*shown.values(), *rows)}.values()
            shown = {row.client_id: row for row in heapq.nsmallest(CLIENTS_SHOWN, unique, key=_by_trouble)}
            if time.monotonic() >= until_s:
                seen = len(self.listener.broker.sessions)
                break
        return list(shown.values()), max(0, seen - CLIENTS_SHOWN)

    def _page(self, first: int) -> list[ClientRow]:
        """One page of sessions. On the MQTT thread."""
        sessions = self.listener.broker.sessions.all()
        return self.stats.clients(islice(sessions, first, first + CLIENTS_PAGE))

    def _partitions(self) -> Iterable[Status]:
        zmq = self.zmq()
        for partition in self.streams.all():
            row = _ring_row(partition.ring)
            # it does not read now, and misses nothing
            if zmq is not None and not zmq["prefixes"]:
                row["readers"] = [reader for reader in row["readers"] if reader["name"] != "zmq"]
            row["stream"] = partition.stream
            row["durability"] = partition.durability
            row["visible"] = partition.visible
            row["rejected"] = partition.writer.rejected
            row["damaged"] = records_lost(partition.ring.check)  # at the check of the start
            yield row

    def _producers(self) -> Iterable[Status]:
        for producer in self.producers.all():
            with suppress(Corrupt):  # another process owns the header, and may have damaged it
                yield {
                    **_ring_row(producer.ring),
                    "stream": producer.stream.name,
                    "producer": producer.producer,
                    "refused": producer.ring.refused(),  # since the ring was created
                }

    def _local(self) -> Status | None:
        if self.local is None:
            return None
        return {"open": self.local.connections, **self.local.counts}


def _by_trouble(row: ClientRow) -> tuple[int, int, str]:
    return -sum(row.dropped.values()), -row.queued, row.client_id


def _stream_row(stream: Stream) -> Status:
    return {
        "name": stream.name,
        "topics": list(stream.topics),
        "partitions": stream.partitions,
        "when_full": stream.when_full,
        "is_logged": stream.durability.is_logged,
        "retain_bytes": stream.retain_bytes,
        "retain_s": stream.retain_s,
        "discard": stream.discard,
    }


def _ring_row(ring: Ring) -> Status:
    extremes = ring.extremes()
    slots = sorted(ring.slots(), key=lambda slot: (-slot.lost, slot.offset))
    unread_bytes = extremes.end_position - min(
        (slot.cursor for slot in slots if slot.state == "blocking"), default=extremes.end_position
    )
    return {
        "name": ring.name,
        "epoch": ring.epoch,
        "capacity_bytes": ring.capacity_bytes,
        "oldest_offset": extremes.oldest_offset,
        "end_offset": extremes.end_offset,
        "bytes": extremes.end_position - extremes.oldest_position,
        # Part of the ring that blocking readers have not read: at 1 the writer waits.
        "unread_ratio": round(min(1.0, max(0, unread_bytes) / ring.capacity_bytes), 4),
        "not_durable_bytes": max(0, extremes.end_position - extremes.durable_position),
        "readers": [_reader_row(slot, extremes) for slot in slots[:READERS_SHOWN]],
        "readers_not_shown": max(0, len(slots) - READERS_SHOWN),
        "shortened": ring.faults,  # times that another process has truncated one of its files
    }


def _reader_row(slot: SlotInfo, extremes: Extremes) -> Status:
    # The reader's process writes the slot: impossible numbers are shown as 0, and the name is escaped.
    lag = extremes.end_offset - slot.offset
    if slot.local and slot.name == "log":
        lag = min(lag, _records_not_synced(extremes))
    return {
        "name": escaped(slot.name),
        "pid": slot.pid,
        "own": slot.local,
        "state": slot.state,
        "lag": lag if 0 <= lag <= extremes.end_offset else 0,
        "lost": slot.lost if slot.lost <= extremes.end_offset else 0,
    }


def _records_not_synced(extremes: Extremes) -> int:
    """Records that are not on the disk: 0 is exact, another number an estimate from their bytes.

    The log moves the offset in its slot once a chunk, and the bytes after each sync.
    """
    records = extremes.end_offset - extremes.oldest_offset
    used = extremes.end_position - extremes.oldest_position
    waiting = max(0, extremes.end_position - extremes.durable_position)
    return -(-waiting * records // used) if used > 0 else 0


def _lost(status: Status) -> dict[str, int]:
    """All losses by place and cause; only those that have happened."""
    lost: Counter[str] = Counter()
    for cause, count in status["mqtt"]["dropped"].items():
        lost[f"mqtt: {cause}"] += count
    lost["mqtt: delivered, but not retained: the store was full"] += status["mqtt"]["retained_refused"]
    lost["local ring: overrun"] += status["mqtt"]["producer_lost"]
    for ring in status["rings"]:
        refused = ring.get("refused", {"full": ring.get("rejected", 0)})
        for cause, count in refused.items():
            lost[f"{ring['name']}: refused, {_REFUSED[cause]}"] += count
        lost[f"{ring['name']}: damaged in memory before the start"] += ring.get("damaged", 0)
        for reader in ring["readers"]:
            if reader["name"] not in {"zmq", "mqtt", *OBSERVERS}:
                lost[f"{ring['name']}: overrun of {reader['name'] or 'reader'} ({reader['pid']})"] += reader[
                    "lost"
                ]
    if status["zmq"]:
        lost["zmq: overrun"] += status["zmq"]["overrun"]
        lost["zmq: a subscriber's queue was full (times)"] += status["zmq"]["full_queues"]
    for bridge in status["bridges"]:
        for cause, count in bridge["lost_by"].items():
            lost[f"bridge {bridge['name']}: {_LOST_BY[cause]} before it was drained"] += count
    for cause, text in _LOST_DELAYED.items():
        lost[f"delayed: {text}"] += (status.get("delayed") or {}).get(cause, 0)
    return {cause: count for cause, count in lost.items() if count}


def _fitting(status: Status) -> Status:
    """`status`, without some details if it would not fit one answer."""
    shortened: list[str] = []
    for part, shorten in (
        ("readers", lambda: [ring.update(readers=[]) for ring in status["rings"]]),
        ("partitions", lambda: [bridge.update(partitions=[]) for bridge in status["bridges"]]),
        ("losses", lambda: [bridge.update(losses=[]) for bridge in status["bridges"]]),
        ("clients", lambda: status.update(clients=[])),
        ("places", lambda: [consumer.update(places=[]) for consumer in status["consumers"]]),
        ("tenants", lambda: status.update(tenants=[])),
        ("rings", lambda: status.update(rings=[])),
        ("streams", lambda: status.update(streams=[])),
    ):
        if len(encode(Report({**status, "shortened": shortened}))) <= ANSWER_MAX_BYTES:
            break
        shorten()
        shortened.append(part)
    status["shortened"] = shortened
    return status
