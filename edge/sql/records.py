"""Records of a broker on this machine: rings, log and archive as one relation, for SQL and for programs.

    for row in brim.sql("SELECT topic, count(*) FROM records GROUP BY 1"): ...
    frame = brim.records("plant/#", since="-1h").pandas()

Owns the plan of each query and its connection of DuckDB. The broker may run; nothing is locked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bridge.payloads.schema import Payloads
from edge.config import loader
from edge.config.directories import StrPath, runtime_directory
from edge.errors import EdgeError, InvalidArgument, NoLog
from edge.local.running_log import log_directory_of
from edge.log.log_place import place_of
from edge.log.offline_reader import LogView
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter
from edge.sql.losses import QueryLosses
from edge.sql.plan import Ends, Plan, QueryScope, plan
from edge.sql.result import QueryResult, failed
from edge.sql.scan import RecordSource
from edge.sql.spill_directory import spill_directory
from edge.sql.view import SOURCE_COLUMNS, functions, projection
from persistence.archive import ArchiveFile

SETTINGS = {
    "memory_limit": "25%",  # the rest is for the broker; larger queries use temp_directory
    "preserve_insertion_order": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",  # a name in a query is never that of a variable of this program
    "TimeZone": "UTC",
}
# After these, a query reads `records` and the archives only: no file, no network, no extension, no setting.
CLOSED = ("SET enable_external_access = false", "SET lock_configuration = true")
LATEST_NS = (1 << 63) - 1
TIME_HINT = "write -15m, @SECONDS, 2026-11-21T14:00 (local time) or 2026-11-21T14:00Z (UTC)"
THREADS_MAX = 256  # of a query


class RecordRelation:
    """The relation `records`, narrowed before anything is decoded.

    `topics`: topic filters. `since` and `until`: a datetime, or a text such as -15m or 2026-11-21T14:00;
    `until` is exclusive. `streams`, `rings`: only these. `payloads`: file with a payload schema, whose fields
    become columns. `log`, `runtime_dir`, `config`: those of another broker than the default one of this user.
    `threads`: of a query; 0: one for each processor. `memory_percent`: part of the machine's memory that
    a query may use before it uses the disk; 0: a quarter. `files`: queries may also read and write files,
    attach databases, load extensions and change settings; without it, text of others is safe to run as a
    query.

    Raises InvalidArgument; EdgeError if there is neither a log nor a ring.
    """

    def __init__(
        self,
        topics: str | Iterable[str] = (),
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        streams: str | Iterable[str] = (),
        rings: str | Iterable[str] = (),
        payloads: StrPath | None = None,
        log: StrPath | None = None,
        runtime_dir: StrPath | None = None,
        config: StrPath | None = None,
        threads: int = 0,
        memory_percent: int = 0,
        files: bool = False,
    ) -> None:
        settings = loader.load(Path(config)) if config is not None else None
        configured = settings.runtime_dir if settings is not None else None
        running = log_directory_of(runtime_dir) if log is None and settings is None else None
        self.log_directory = (
            Path(log) if log is not None else running or (settings or loader.parse("")).log_directory
        )
        self.runtime_dir = runtime_directory(runtime_dir or configured)
        self.scope = QueryScope(
            _checked(topics), _time(since, "since"), _time(until, "until"), _names(streams), _names(rings)
        )
        self.payloads = Payloads.read(Path(payloads)) if payloads is not None else None
        if not 0 <= threads <= THREADS_MAX:
            text = f"invalid number of threads {threads} (allowed: 1 to {THREADS_MAX})"
            raise InvalidArgument(text, hint="leave it out for one thread for each processor")
        self.threads = threads or len(os.sched_getaffinity(0))
        self.memory = f"{memory_percent}%" if memory_percent else SETTINGS["memory_limit"]
        self.files = files

    def __repr__(self) -> str:
        source = f"{self.log_directory} and rings in {self.runtime_dir}"
        return (
            f"<RecordRelation of {source}: records by .pandas(), .polars(), .arrow(), .batches() or .sql()>"
        )

    def sql(self, query: str) -> QueryResult:
        """Run a query of DuckDB's SQL on the relation `records`. Raises QueryError."""
        return self.query(query, {})[0]

    def batches(self, rows: int = 65_536) -> pa.RecordBatchReader:
        """All records as Arrow record batches."""
        return self.sql("SELECT * FROM records").batches(rows)

    def arrow(self) -> pa.Table:
        """All records as an Arrow table."""
        return self.sql("SELECT * FROM records").arrow()

    def pandas(self) -> Any:
        """All records as a pandas DataFrame."""
        return self.sql("SELECT * FROM records").pandas()

    def polars(self) -> Any:
        """All records as a polars DataFrame."""
        return self.sql("SELECT * FROM records").polars()

    def ends(self) -> Ends:
        """The offset after the last record of each ring and epoch, as of now."""
        return plan(self._view(), self.runtime_dir, self.scope, {}, QueryLosses(), verify=False).ends

    def query(self, query: str, after: Ends) -> tuple[QueryResult, Ends]:
        """As sql(), on records from the offsets `after` on; also the ends of the records that it reads."""
        losses, view = QueryLosses(), self._view()
        planned = plan(view, self.runtime_dir, self.scope, after, losses)
        source = RecordSource(view, planned.parts, losses, self.threads)
        with ExitStack() as stack:
            spilled = stack.enter_context(spill_directory())
            connection = stack.enter_context(_connected(self.threads, self.memory, spilled))
            files = [stack.enter_context(_descriptor(archive)) for archive in planned.archives]
            self._create_view(connection, planned, source, files)
            if not self.files:
                for setting in (f"SET allowed_paths = {files!r}", *CLOSED):
                    connection.execute(setting)
            try:
                rows = connection.sql(query)
            except duckdb.Error as error:
                raise failed(error, source.failure) from error
            kept = stack.pop_all()
        kept.callback(_note_damage, view, losses)
        return QueryResult(rows, losses, kept.close, lambda: source.failure), planned.ends

    def _view(self) -> LogView | None:
        try:
            return LogView(self.log_directory)
        except NoLog:
            if self.runtime_dir.is_dir() and any(self.runtime_dir.glob("*.ring")):
                return None
            raise

    def _create_view(self, connection: Any, planned: Plan, source: RecordSource, files: list[str]) -> None:
        """Create the view `records`. The relations that it unites have no names, so no query reads them."""
        if self.payloads is not None:
            for function in functions(self.payloads):
                connection.create_function(
                    function.name, function.decode, ["VARCHAR", "BLOB"], function.type,
                    type="arrow", null_handling="special",
                )  # fmt: skip
        parts = [connection.from_arrow(source)] if planned.parts or not files else []
        if files:
            parts.append(connection.read_parquet(files))
        united = reduce(lambda one, other: one.union(other), [part.project(SOURCE_COLUMNS) for part in parts])
        rows = united.filter(self.scope.condition(planned.rings)).project(projection(self.payloads))
        rows.create_view("records")


def sql(
    query: str,
    topics: str | Iterable[str] = (),
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    streams: str | Iterable[str] = (),
    rings: str | Iterable[str] = (),
    payloads: StrPath | None = None,
    log: StrPath | None = None,
    runtime_dir: StrPath | None = None,
    config: StrPath | None = None,
    threads: int = 0,
    memory_percent: int = 0,
    files: bool = False,
) -> QueryResult:
    """Run a query on the relation `records`; the arguments are those of records(). Raises QueryError."""
    return RecordRelation(
        topics, since=since, until=until, streams=streams, rings=rings, payloads=payloads, log=log,
        runtime_dir=runtime_dir, config=config, threads=threads, memory_percent=memory_percent, files=files,
    ).sql(query)  # fmt: skip


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)


def _checked(topics: str | Iterable[str]) -> tuple[str, ...]:
    filters = _names(topics)
    for topic_filter in filters:
        try:
            check_filter(topic_filter)
        except ProtocolError as error:
            raise InvalidArgument(error.detail, hint="correct the filter") from error
    return filters


def _time(place: str | datetime | None, name: str) -> int | None:
    if place is None or place == "":
        return None
    if isinstance(place, datetime):
        whole = place.astimezone(UTC).replace(microsecond=0)
        return int(whole.timestamp()) * 10**9 + place.microsecond * 1000
    try:
        time_ns = place_of(place, name).timestamp_ns
    except EdgeError as error:
        raise InvalidArgument(f"{name} {place!r} is not a time", hint=TIME_HINT) from error
    if time_ns is None:
        raise InvalidArgument(f"{name} {place!r} is an offset, and must be a time", hint=TIME_HINT)
    return min(time_ns, LATEST_NS)


def _connected(threads: int, memory: str, spilled: Path) -> Any:
    settings: dict[str, Any] = {
        **SETTINGS,
        "threads": threads,
        "memory_limit": memory,
        "temp_directory": str(spilled),
        "max_temp_directory_size": f"{shutil.disk_usage(spilled).free // 2}B",  # the log may be on that disk
    }
    return duckdb.connect(":memory:", config=settings)


@contextmanager
def _descriptor(archive: ArchiveFile) -> Iterator[str]:
    """Path of an open archive, which stays readable when retention removes the file."""
    file = os.open(archive.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _note_damage(view: LogView | None, losses: QueryLosses) -> None:
    for place, reason in view.damage() if view is not None else ():
        losses.note(place, reason)
