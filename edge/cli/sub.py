r"""Show messages as they arrive: from an MQTT broker, or from shared memory or ZeroMQ of a local broker.

The options of mosquitto_sub work too. On a terminal, control characters are escaped. Exit status: 0 done,
2 wrong arguments, 3 no broker is reachable or the connection broke, 4 refused by the broker, 5 the time of -W
is over.

Sequences of -F, with flags, width and maximum as in %-20.20t:

    %t topic          %p payload         %x %X payload in hexadecimal   %l length of the payload
    %q QoS            %r retain flag     %I time, ISO 8601              %U time in seconds.nanoseconds
    %j all, as JSON   %J all, the payload being JSON itself             %% a percent sign
    %C content type   %D correlation data   %E expiry   %F payload format   %P user properties
    %R response topic   %S subscription identifiers
    @X the sequence %X of strftime   @N nanoseconds   @@ an at sign   \\ \0 \a \e \n \r \t \v
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from edge.cli.argument_types import at_least_one, seconds
from edge.cli.config_options import add_runtime_argument
from edge.cli.exit_status import Exit
from edge.cli.log_options import accept_negative_places
from edge.cli.message_format import line_form
from edge.cli.mqtt_options import (
    UsageError,
    add_connection_arguments,
    add_will_arguments,
    run_verb,
    topic_of_url,
)
from edge.cli.sub_sources import Arrivals, chosen, from_memory, from_mqtt, from_zeromq
from edge.local.arrivals import Arrival
from edge.log.log_place import PLACE_HELP
from edge.mqtt import check_filter

RATE_PERIOD_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim sub`."""
    parser.set_defaults(refuse=parser.error)  # prints the usage
    parser.add_argument(
        "filters", nargs="*", metavar="FILTER", help="topic filter: a/b, plant/+/temp, plant/#"
    )
    parser.add_argument(
        "-t",
        "--topic",
        dest="named_filters",
        action="append",
        default=[],
        metavar="FILTER",
        help="topic filter, as an option; may be repeated",
    )
    parser.add_argument(
        "-T",
        "--filter-out",
        action="append",
        default=[],
        metavar="FILTER",
        help="leave out messages whose topic matches; may be repeated",
    )
    parser.add_argument(
        "-R", "--no-retained", action="store_true", help="leave out messages that were retained before"
    )
    parser.add_argument(
        "--retained-only", action="store_true", help="show only messages that were retained before"
    )
    parser.add_argument(
        "--remove-retained",
        action="store_true",
        help="remove each retained message that arrives from the broker; not those of -T",
    )
    _add_output_arguments(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--shm", action="store_true", help="read the shared memory of the broker of this machine"
    )
    source.add_argument(
        "--zmq", action="store_true", help="read the ZeroMQ endpoint of the broker of this machine"
    )
    add_runtime_argument(parser)  # of --shm and --zmq
    accept_negative_places(parser)
    parser.add_argument(
        "--from",
        dest="first",
        default="",
        metavar="PLACE",
        help=f"with --shm: messages in memory too, from here on: oldest, {PLACE_HELP}",
    )
    parser.add_argument(
        "--last", type=at_least_one, metavar="N", help="with --shm: the last N messages in memory first"
    )
    add_will_arguments(parser)
    add_connection_arguments(parser)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="highest QoS (default: %(default)s)"
    )
    parser.add_argument("-C", "--count", type=int, metavar="N", help="end after N messages")
    parser.add_argument(
        "-W", "--wait", type=seconds, metavar="TIME", help="end after this time (5, 500ms, 1h), with status 5"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the topic before each message")
    parser.add_argument(
        "-F",
        "--format",
        metavar="FORMAT",
        help="print each message in this form, such as '%%I %%t %%p', as in mosquitto_sub",
    )
    parser.add_argument("-N", "--no-eol", action="store_true", help="print no line break after a message")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, with all fields")
    parser.add_argument(
        "--rate", action="store_true", help="print messages and bytes per second, no messages"
    )
    parser.add_argument(
        "-c",
        "--keep-session",
        "--disable-clean-session",
        action="store_true",
        help="with --id: keep the session; the broker queues messages while this command is not running",
    )


def run(args: argparse.Namespace) -> int:
    """Run `brim sub` and return its exit status."""
    args.filters += [*args.named_filters, *filter(None, [topic_of_url(args)])]
    if not args.filters:
        args.refuse("no topic filter; name one, or add -t FILTER")
    return run_verb("sub", _subscribe(args), as_json=args.json)


async def _subscribe(args: argparse.Namespace) -> Exit:
    _check(args)
    source = from_memory(args) if args.shm else from_zeromq(args) if args.zmq else from_mqtt(args)
    if args.filter_out or args.no_retained or args.retained_only:
        source = chosen(source, args)
    form = line_form(as_json=args.json, verbose=args.verbose, form=args.format)
    show = _Rate(args.json) if args.rate else _Lines(form, b"" if args.no_eol else b"\n")
    try:
        async with asyncio.timeout(args.wait) as waiting:
            await _show_all(source, show, args.count)
    except TimeoutError:
        if not waiting.expired():  # the broker did not answer
            raise
        return Exit.TIMEOUT
    except asyncio.CancelledError:  # Ctrl-C is the normal end without --count
        if args.count is None:
            return Exit.OK
        raise
    finally:
        show.close()
    return Exit.OK


def _check(args: argparse.Namespace) -> None:
    if (args.first or args.last is not None) and not args.shm:
        raise UsageError("--from and --last read memory; add --shm", hint="`brim replay` reads the log")
    if args.count is not None and args.count < 1:
        raise UsageError(f"-C {args.count} is not at least 1", hint="without -C it receives until Ctrl-C")
    if args.wait is not None and not args.wait > 0:
        raise UsageError(f"-W {args.wait:g} is not above 0", hint="without -W it waits until Ctrl-C")
    if args.keep_session and not args.id:
        raise UsageError("--keep-session needs --id", hint="the broker keeps a session under that name")
    if (args.shm or args.zmq) and (args.no_retained or args.retained_only or args.remove_retained):
        raise UsageError("retained messages come by MQTT only", hint="leave out --shm and --zmq")
    for unwanted in args.filter_out:
        check_filter(unwanted)


async def _show_all(source: AsyncIterator[Arrivals], show: _Lines | _Rate, count: int | None) -> None:
    left = count
    async with aclosing(source) as arrivals:  # type: ignore[type-var]
        async for some in arrivals:
            if some.lost:
                print(f"brim sub: {some.lost} lost: this reader was too slow", file=sys.stderr)
            shown = show.add(some, left)
            if left is not None:
                left -= shown
                if left <= 0:
                    return


class _Lines:
    """Output of one line per message."""

    def __init__(self, form: Callable[[Arrival], bytes], end: bytes) -> None:
        self._form, self._end = form, end
        self._out = sys.stdout.buffer

    def add(self, some: Arrivals, left: int | None) -> int:
        """Print all messages, or `left` of them. Returns their number."""
        shown = 0
        for message in some.messages:
            self._out.write(self._form(message) + self._end)
            shown += 1
            if shown == left:
                break
        self._out.flush()
        return shown

    def close(self) -> None:
        """Do nothing: every line was printed already."""


class _Rate:
    """Output of messages and bytes per second, once a second."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._count = self._size_bytes = 0
        self._since = time.monotonic()
        self._timer = asyncio.create_task(self._report_forever())

    def add(self, some: Arrivals, left: int | None) -> int:
        """Count messages without reading them."""
        if self._timer.done():
            self._timer.result()  # raises the exception that ended it, for example a closed standard output
        self._count += some.count
        self._size_bytes += some.size_bytes
        return some.count

    def close(self) -> None:
        """Print the counts since the last line, and end."""
        self._timer.cancel()
        if self._count:
            self._report()

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(RATE_PERIOD_S)
            self._report()

    def _report(self) -> None:
        now = time.monotonic()
        took_s = now - self._since
        per_s, bytes_per_s = self._count / took_s, self._size_bytes / took_s
        if self._json:
            line = json.dumps({"messages_per_s": round(per_s, 1), "bytes_per_s": round(bytes_per_s, 1)})
        else:
            line = f"{per_s:>12,.0f} messages/s {bytes_per_s:>16,.0f} bytes/s"
        print(line, flush=True)
        self._count = self._size_bytes = 0
        self._since = now
