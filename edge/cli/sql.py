"""Query the records of a broker of this machine with SQL: rings, log and archive as one relation.

    brim sql "SELECT topic, count(*), max(timestamp) FROM records GROUP BY topic ORDER BY 2 DESC LIMIT 10"
    brim sql -t 'plant/+/temp' --since -1h "SELECT avg((payload_text->>'$.temp')::DOUBLE) FROM records"
    brim sql --payloads payloads.toml "SELECT topic, avg(temp) FROM records WHERE temp > 80 GROUP BY 1"
    brim sql --follow --every 10s "SELECT topic, count(*) FROM records GROUP BY 1"
    brim sql -o last.parquet "SELECT topic, arg_max(payload, timestamp_ns) FROM records GROUP BY topic"

Columns of `records`: stream, ring, epoch, "offset", timestamp (UTC), timestamp_ns, topic, qos, retain,
properties, payload, payload_text, and those of --payloads. The SQL is that of DuckDB. Needs the extra `sql`.
A query reads `records` only; --files lets it use files, databases and extensions, as this user.

The options -t, --since, --until, --stream and --ring exclude records before they are decoded. The broker may
run: nothing is locked, and the command has the lowest priority. Exit status: 0 done, 1 done, but records were
missing (damaged, or overwritten meanwhile), 2 the query or an argument is wrong, 5 the query took longer than
--time-limit, 130 ended by a signal.
"""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.argument_types import at_least_one, percent, positive_seconds
from edge.cli.error_text import error_text
from edge.cli.exit_status import Exit
from edge.cli.humanize import counted
from edge.cli.light_imports import forgo_pandas
from edge.cli.log_options import (
    accept_negative_places,
    add_filter_arguments,
    add_log_arguments,
    log_directory,
)
from edge.cli.mqtt_options import UsageError
from edge.cli.progress import waiting
from edge.cli.sql_output import FORMATS, format_of, remove_partial, writer_of
from edge.errors import EdgeError
from edge.sql.spill_directory import remove_all
from persistence.processor_priority import LOWEST, lower_priority
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from edge.cli.sql_output import RowWriter
    from edge.sql.records import RecordRelation
    from edge.sql.result import QueryResult

IMPORTS_NICENESS = 0  # they would take long with the lowest priority, if the machine is busy
OOM_SCORE_MAX = 1000
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGALRM}  # SIGALRM: --time-limit
LIMIT_MAX_S = 1e9  # of a timer
TIME_HINT = "narrow the query with --topic and --since, or raise the limit"
SHOW_CURSOR = b"\x1b[?25h\n"  # the spinner hides it
EVERY_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim sql`."""
    accept_negative_places(parser)
    parser.add_argument("query", metavar="QUERY", help="SQL on the relation records; -: standard input")
    part = parser.add_argument_group("part of the records")
    times = "-15m, a time (2026-11-21T14:00 local, 2026-11-21T14:00Z UTC), or @SECONDS"
    part.add_argument("--since", "--from", metavar="TIME", help=f"records from this time on: {times}")
    part.add_argument("--until", metavar="TIME", help="records before this time")
    add_filter_arguments(part)
    parser.add_argument(
        "--payloads", metavar="FILE", type=Path, help="payload schema, whose fields become columns"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path,
        help="file of the result; its suffix is the default of --format (default: standard output)",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", choices=FORMATS, help="form of the result (default: table)")
    form.add_argument("--json", action="store_true", help="--format json, and errors as JSON")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="repeat for the new records of each window"
    )
    parser.add_argument(
        "--every", type=positive_seconds, metavar="TIME",
        help="length of a window of --follow (default: 10s)",
    )  # fmt: skip
    parser.add_argument("-C", "--count", type=at_least_one, metavar="N", help="end --follow after N windows")
    parser.add_argument(
        "--threads", type=at_least_one, default=0, metavar="N", help="threads (default: one a processor)"
    )
    parser.add_argument(
        "--memory", type=percent, default=0, metavar="PERCENT",
        help="part of the machine's memory; larger queries use the disk (default: 25)",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=positive_seconds, metavar="TIME", help="end the query after TIME"
    )
    parser.add_argument(
        "--files", action="store_true",
        help="let the query read and write files, attach databases and load extensions (default: no)",
    )  # fmt: skip
    add_log_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `brim sql` and return its exit status."""
    _check_installed()
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    if not query.strip():
        raise UsageError("the query is empty", hint="write SQL, as in SELECT count(*) FROM records")
    form = "json" if arguments.json else format_of(arguments.format, arguments.output)
    if arguments.follow and form in {"parquet", "arrow"}:
        raise UsageError(f"--follow cannot write {form}", hint="choose table, csv or json")
    if not arguments.follow and (arguments.every or arguments.count):
        raise UsageError("--every and --count need --follow", hint="add --follow")
    if arguments.output is not None:
        _check_place(arguments.output)
    lower_priority(IMPORTS_NICENESS)
    with _ended_by_signals(arguments.time_limit, as_json=arguments.json):
        records = _records(arguments)
        _yield_to_broker()
        if arguments.follow:
            with writer_of(form, arguments.output, grows=True) as writer:
                return _followed(records, query, arguments, writer)
        with (
            waiting("reading records") as end_waiting,
            records.sql(query) as rows,  # before the file is overwritten: a query may have mistakes
            writer_of(form, arguments.output, grows=False) as writer,
        ):
            if arguments.output is None:  # rows may go to the terminal of the spinner
                rows.on_batch = end_waiting
            writer.write(rows)
            end_waiting()
            return _status(rows)


def _check_place(file: Path) -> None:
    """Raise FileNotFoundError if the directory is absent. The file is opened after the query is prepared."""
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))


def _check_installed() -> None:
    for library in ("duckdb", "pyarrow"):
        if importlib.util.find_spec(library) is None:
            raise EdgeError(f"{library} is not installed", hint=install_extra("sql"))


@contextmanager
def _ended_by_signals(limit_s: float | None, *, as_json: bool) -> Iterator[None]:
    """End the process on signals and after `limit_s`, by a thread: DuckDB may work long without Python."""
    is_done = threading.Event()
    # a shell starts a command in the background without SIGINT
    is_interactive = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    stop_signals = STOP_SIGNALS if is_interactive else STOP_SIGNALS - {signal.SIGINT}

    def end() -> None:
        number = signal.sigwait(stop_signals)
        if is_done.is_set():
            return
        remove_all()
        remove_partial()
        is_late = number == signal.SIGALRM
        with suppress(OSError):  # the reader of standard error may have ended
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), SHOW_CURSOR)
            if is_late:
                text = f"the query took longer than {limit_s:g} s"
                text = error_text("sql", text, TIME_HINT, as_json=as_json)
                os.write(sys.stderr.fileno(), f"{text}\n".encode())
        os._exit(Exit.TIMEOUT if is_late else Exit.INTERRUPTED)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)  # threads that libraries start inherit it
    waiter = threading.Thread(target=end, name="brim-sql-signals", daemon=True)
    waiter.start()
    if limit_s is not None:
        signal.setitimer(signal.ITIMER_REAL, min(limit_s, LIMIT_MAX_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        is_done.set()
        assert waiter.ident is not None
        signal.pthread_kill(waiter.ident, signal.SIGTERM)  # to this thread only
        waiter.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _yield_to_broker() -> None:
    """Run at the lowest priority, end first if memory runs out, and allow a descriptor for each archive."""
    lower_priority(LOWEST)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_MAX))
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _records(arguments: argparse.Namespace) -> RecordRelation:
    forgo_pandas()
    from edge.sql.records import RecordRelation

    return RecordRelation(
        arguments.topic,
        since=arguments.since,
        until=arguments.until,
        streams=arguments.stream,
        rings=arguments.ring,
        payloads=arguments.payloads,
        log=log_directory(arguments),
        runtime_dir=arguments.runtime_dir,
        config=arguments.config,
        threads=arguments.threads,
        memory_percent=arguments.memory,
        files=arguments.files,
    )


def _followed(records: RecordRelation, query: str, arguments: argparse.Namespace, writer: RowWriter) -> int:
    from edge.sql.windows import windows

    status = Exit.OK
    for number, window in enumerate(windows(records, query, arguments.every or EVERY_S), 1):
        begin = datetime.fromtimestamp(window.begin_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
        with window.rows as rows:
            text = f"SELECT TIMESTAMP '{begin}' AS window_start, * FROM result"  # noqa: S608 - no user's text
            writer.write(rows.mapped(text))
            status = max(status, _status(rows))
        if number == arguments.count:
            break
    return status


def _status(rows: QueryResult) -> Exit:
    if not rows.missing and not rows.damage:
        return Exit.OK
    for place in rows.damage:
        print(f"brim sql: {place}", file=sys.stderr)
    text = f"{counted(rows.missing, 'record')} missing: damaged, removed or overwritten"
    print(f"brim sql: {text}\n  see `brim segments verify`", file=sys.stderr)
    return Exit.INCOMPLETE
