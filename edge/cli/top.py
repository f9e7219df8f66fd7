"""Show the work of a broker live: rates, lag, losses by cause, rings, bridges, consumers and clients.

    brim top                            refreshed every two seconds, until q
    brim top --once                     one sample, as text; also if standard output is not a terminal
    brim top --json --count 10          ten samples, as one JSON object per line

Keys: q quit, c clients instead of rings, s next sort column, + and - interval, / filter (Enter ends it),
space pause. If the broker ends, the command waits for the next one. It requests clients only while they are
shown.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused by the broker.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from edge.cli import clients, rate_columns
from edge.cli.argument_types import at_least_one, positive_seconds
from edge.cli.config_options import add_broker_arguments
from edge.cli.humanize import bytes_in_words, count_in_words, counted, seconds_in_words
from edge.cli.listing import Column, Row, ordered, table
from edge.cli.screen import Screen, is_terminal
from edge.errors import BrokerUnreachable, EdgeError
from edge.local.protocol import Connection, Overview, Report
from edge.observe.rates import sample
from edge.terminal_escape import escaped

INTERVAL_S = 2.0
FIRST_S = 0.5  # between the two overviews of the first sample
ROWS = 1_000  # of one table
CLIENTS_S = 5.0  # shortest time between two requests for all clients


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim top`."""
    parser.add_argument("--once", action="store_true", help="print one sample and end")
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=INTERVAL_S,
        metavar="TIME",
        help="time between two samples (default: 2s)",
    )
    parser.add_argument("--count", type=at_least_one, metavar="N", help="end after N samples")
    parser.add_argument("--clients", action="store_true", help="show clients instead of rings")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only rows with this text in their name")
    parser.add_argument("--sort", metavar="COLUMN", help="column to sort by, such as rate, lag or queued")
    parser.add_argument("--json", action="store_true", help="print one JSON object per sample")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    columns = clients.COLUMNS if arguments.clients else rate_columns.RING_COLUMNS
    titles = [column.title for column in columns]
    if arguments.sort is not None and arguments.sort not in titles:
        raise EdgeError(
            f"--sort {arguments.sort}: there is no such column", hint=f"choose from {', '.join(titles)}"
        )
    source = _SampleSource(arguments.runtime_dir)
    try:
        if is_terminal() and not (arguments.once or arguments.json or arguments.count):
            _LiveView(source, arguments).run()
        else:
            _print(source, arguments)
    finally:
        source.close()
    return 0


def _print(source: _SampleSource, arguments: argparse.Namespace) -> None:
    for number in range(arguments.count or 1):
        time.sleep(arguments.interval if number else 0)
        state = source.sample()
        rows = list(source.clients()) if arguments.clients else None
        if arguments.json:
            extra = {} if rows is None else {"clients": rows}
            print(msgspec.json.encode(state | extra).decode(), flush=True)
        else:
            print("\n".join(lines(state, rows, arguments.sort, arguments.filter)), flush=True)


class _SampleSource:
    """Samples of one broker, over a connection that is opened again when a broker has ended."""

    def __init__(self, runtime_dir: str | None) -> None:
        self._runtime_dir = runtime_dir
        self._connection: Connection | None = None
        self._before: tuple[float, Row] | None = None
        self._clients: tuple[float, list[Row]] = (-CLIENTS_S, [])

    def sample(self) -> Row:
        """A sample since the previous one. Raises BrokerUnreachable."""
        if self._before is None:
            self._before = self._overview()
            time.sleep(FIRST_S)
        before_s, before = self._before
        now_s, now = self._before = self._overview()
        if before["pid"] != now["pid"]:  # another broker: its totals began at zero
            before = now
        return sample(before, now, now_s - before_s)

    def clients(self) -> Iterable[Row]:
        """All clients; not requested more often than every CLIENTS_S."""
        if time.monotonic() - self._clients[0] >= CLIENTS_S:
            rows = ordered(clients.all_clients(self._open()), clients.COLUMNS, "queued", ROWS)
            self._clients = time.monotonic(), rows
        return self._clients[1]

    def close(self) -> None:
        """Close the connection, so that the next sample opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._before = None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._runtime_dir)
        return self._connection

    def _overview(self) -> tuple[float, Row]:
        report = self._open().request(Overview(), Report).report
        return time.monotonic(), report


class _LiveView:
    """The live view: state that keys change."""

    def __init__(self, source: _SampleSource, arguments: argparse.Namespace) -> None:
        self._source = source
        self._interval_s: float = arguments.interval
        self._sort: str | None = arguments.sort
        self._filter: str = arguments.filter
        self._clients: bool = arguments.clients
        self._typing = self._paused = False
        self._shown: list[str] = []

    def run(self) -> None:
        """Show samples until q."""
        self._refresh()  # without a broker at the start, this is an error
        with Screen() as screen:
            due = time.monotonic() + self._interval_s
            while True:
                screen.show([self._status_line(), *self._shown])
                key = screen.key(max(due - time.monotonic(), 0))
                if key == "q" and not self._typing:
                    return
                if key:
                    self._press(key)
                elif key == "":
                    continue
                if not self._paused:
                    self._refresh_or_wait()
                due = time.monotonic() + self._interval_s

    def _press(self, key: str) -> None:
        if self._typing:
            self._typing = key not in "\r\n\x1b"
            if key in "\x7f\x08":
                self._filter = self._filter[:-1]
            elif key.isprintable():
                self._filter += key
            return
        if key == "c":
            self._clients, self._sort = not self._clients, None
        elif key == "s":
            titles = [column.title for column in _columns(self._clients)]
            self._sort = titles[(titles.index(self._sort or titles[0]) + 1) % len(titles)]
        elif key in "+-":
            self._interval_s = min(max(self._interval_s * (2 if key == "+" else 0.5), 0.25), 60.0)
        self._typing = key == "/"
        self._paused ^= key == " "

    def _refresh(self) -> None:
        state = self._source.sample()
        rows = list(self._source.clients()) if self._clients else None
        self._shown = list(lines(state, rows, self._sort, self._filter))

    def _refresh_or_wait(self) -> None:
        try:
            self._refresh()
        except BrokerUnreachable as error:
            self._source.close()
            self._shown = [escaped(f"waiting for a broker: {error}")]

    def _status_line(self) -> str:
        state = "paused, " if self._paused else ""
        text = f"/{self._filter}" if self._filter or self._typing else ""
        keys = "q quit  c clients  s sort  / filter  + - interval  space pause"
        clock = time.strftime("%H:%M:%S")
        return f"brim top  {clock}  {state}every {self._interval_s:g} s  {escaped(text)}  {keys}"


def _columns(of_clients: bool) -> Sequence[Column]:
    return clients.COLUMNS if of_clients else rate_columns.RING_COLUMNS


def lines(state: Row, client_rows: list[Row] | None, sort: str | None, text: str) -> Iterator[str]:
    """Lines of a sample, safe to print: totals, losses, then tables."""
    up = seconds_in_words(state["uptime_s"])
    yield escaped(f"{state['edge_id']}, brim {state['version']}, process {state['pid']}, up {up}")
    rate = state["rates"]
    received = count_in_words(rate["published"] + rate["from_producers"])
    yield (
        f"in   {received} messages/s, {bytes_in_words(rate['bytes_in'])}/s   "
        f"out  {count_in_words(rate['delivered'])} messages/s, {bytes_in_words(rate['bytes_out'])}/s"
    )
    yield (
        f"{count_in_words(state['connections'])} connected, {counted(state['sessions'], 'session')}, "
        f"{counted(state['topics'], 'topic')}, {count_in_words(state['retained'])} retained, "
        f"{bytes_in_words(state['queued_bytes'])} queued, {counted(state['stalls'], 'stall')}"
    )
    if log := state["log"]:
        failed = f", {log['failures']} FAILURES" if log["failures"] else ""
        yield (
            f"log  {count_in_words(log['records_per_s'])} records/s, {bytes_in_words(log['unsynced_bytes'])} "
            f"not yet synced, {counted(log['segments'], 'segment')}{failed}"
        )
    for cause, lost in state["lost"].items():
        yield escaped(f"lost {count_in_words(lost['count'])} {cause} ({count_in_words(lost['rate'])}/s)")
    if not state["lost"]:
        yield "lost nothing"
    if client_rows is not None:
        yield from _table(client_rows, clients.COLUMNS, sort, text)
    else:
        yield from _table(state["rings"], rate_columns.RING_COLUMNS, sort, text)
    yield from _table(state["bridges"], rate_columns.BRIDGE_COLUMNS, None, text)
    yield from _table(state["consumers"], rate_columns.CONSUMER_COLUMNS, None, text)


def _table(rows: list[Row], columns: Sequence[Column], sort: str | None, text: str) -> Iterator[str]:
    """A table with an empty line before it; nothing if there are no rows."""
    chosen = [row for row in rows if text in columns[0].text(row)]
    if chosen:
        yield ""
        yield from table(ordered(chosen, columns, sort or columns[0].title, ROWS), columns)
