"""Publish messages to an MQTT broker: one message, the lines of standard input, or one message repeatedly.

The options of mosquitto_pub work too. Ends when the broker has acknowledged all messages (QoS 1 and 2).
Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable or the connection broke, 4 refused by the
broker.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

from edge.cli.argument_types import seconds, whole_seconds
from edge.cli.exit_status import Exit
from edge.cli.mqtt_options import (
    UsageError,
    add_connection_arguments,
    add_will_arguments,
    client_of,
    run_verb,
    topic_of_url,
    will_of,
)
from edge.client import Client
from edge.mqtt import Properties

READ_BYTES = 65_536
CHUNKS_WAITING = 16  # of standard input; with more the writing process waits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim pub`."""
    parser.set_defaults(refuse=parser.error)  # names the help
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="topic of the messages")
    parser.add_argument("-t", "--topic", dest="named_topic", metavar="TOPIC", help="topic, as an option")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("payload", nargs="?", metavar="PAYLOAD", help="payload of the message, as text")
    source.add_argument(
        "-m",
        "--message",
        metavar="PAYLOAD",
        help="payload, as an option; write -m=-1 if it begins with a dash",
    )
    source.add_argument("-n", "--null-message", action="store_true", help="publish an empty payload")
    source.add_argument(
        "-l",
        "--stdin-lines",
        "--stdin-line",
        action="store_true",
        help="publish each line of standard input as a message",
    )
    source.add_argument(
        "-f",
        "--file",
        type=Path,
        metavar="PATH",
        help='publish the content of a file; "-" is standard input',
    )
    source.add_argument(
        "-s",
        "--stdin-file",
        dest="file",
        action="store_const",
        const=Path("-"),
        help="publish standard input as one message",
    )
    parser.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="QoS (default: %(default)s)"
    )
    parser.add_argument("-r", "--retain", action="store_true", help="publish retained messages")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="number of times; 0: without end")
    parser.add_argument(
        "--rate", type=float, metavar="R", help="highest rate in messages per second (default: no limit)"
    )
    parser.add_argument(
        "--window", type=int, default=20, metavar="N", help="messages in flight (default: %(default)s)"
    )
    parser.add_argument(
        "--repeat-delay", type=seconds, metavar="TIME", help="time between repeated messages (2, 500ms)"
    )
    properties = parser.add_argument_group("properties, with --protocol 5")
    properties.add_argument(
        "--user-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="MQTT 5 user property; may be repeated",
    )
    properties.add_argument("--content-type", metavar="TEXT", help="content type, such as application/json")
    properties.add_argument(
        "--expiry", type=whole_seconds, metavar="TIME", help="message expiry interval (60, 1h)"
    )
    properties.add_argument("--response-topic", metavar="TOPIC", help="topic for a response")
    add_will_arguments(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run `brim pub` and return its exit status."""
    _settle_words(args)
    return run_verb("pub", _publish_all(args))


def _settle_words(args: argparse.Namespace) -> None:
    """Find topic and payload: words without an option are both, or the payload if an option has the topic."""
    named = args.named_topic if args.named_topic is not None else topic_of_url(args) or None
    if named is not None:
        if args.payload is not None:
            args.refuse(f"the topic is given twice: {named!a} and {args.topic!a}")
        args.payload, args.topic = args.topic, named
    if args.topic is None:
        args.refuse("no topic; name it, or add -t TOPIC")
    given = (args.payload, args.message, args.file)
    count = sum(value is not None for value in given) + args.null_message + args.stdin_lines
    if count != 1:
        args.refuse(
            "no payload; name it, or add -m, -n, -l, -f or -s" if not count else "more than one payload"
        )
    if args.repeat_delay:
        args.rate = 1 / args.repeat_delay


async def _publish_all(args: argparse.Namespace) -> Exit:
    if args.repeat < 0:
        raise UsageError(f"--repeat {args.repeat} is negative", hint="0 repeats for ever")
    if args.rate is not None and not args.rate > 0:
        raise UsageError(f"--rate {args.rate:g} is not above 0", hint="it is messages a second")
    if args.stdin_lines and args.repeat != 1:
        raise UsageError("--stdin-lines cannot be repeated", hint="standard input is read once")
    properties = _properties(args)
    payloads = _stdin_lines() if args.stdin_lines else _again(_payload(args), args.repeat)
    async with client_of(args, window=args.window, will=will_of(args)) as client:
        started, count = time.monotonic(), 0
        async for _ in _published(client, args, _paced(payloads, args.rate), properties):
            count += 1
    if count != 1 and sys.stderr.isatty():
        took_s = time.monotonic() - started
        print(f"{count} messages in {took_s:.2f} s: {count / took_s:,.0f}/s", file=sys.stderr)
    return Exit.OK


async def _published(
    client: Client, args: argparse.Namespace, payloads: AsyncIterator[bytes], properties: Properties
) -> AsyncIterator[None]:
    """Publish with a whole window in flight, and yield for each; at the end all are acknowledged."""
    waiting: deque[asyncio.Future[None]] = deque()
    async for payload in payloads:
        sent = await client.submit(args.topic, payload, args.qos, args.retain, properties=properties)
        waiting.append(sent)
        while waiting and waiting[0].done():
            waiting.popleft().result()
        yield
    for future in waiting:
        await future


async def _again(payload: bytes, times: int) -> AsyncIterator[bytes]:
    left = times
    while left or not times:
        yield payload
        left -= 1


async def _paced(payloads: AsyncIterator[bytes], rate: float | None) -> AsyncIterator[bytes]:
    """At most `rate` payloads a second; after a delay it catches up, so that the average is right."""
    due = time.monotonic()
    async for payload in payloads:
        if rate is not None:
            delay_s = due - time.monotonic()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            due += 1 / rate
        yield payload


def _properties(args: argparse.Namespace) -> Properties:
    user = []
    for pair in args.user_property:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--user-property {pair!r} is not KEY=VALUE")
        user.append((key, value))
    properties = Properties(
        user=tuple(user),
        content_type=args.content_type,
        message_expiry_interval_s=args.expiry,
        response_topic=args.response_topic,
    )
    if properties != Properties() and args.protocol != "5":
        raise UsageError("properties need MQTT 5", hint="add --protocol 5")
    return properties


def _payload(args: argparse.Namespace) -> bytes:
    if args.file is None:
        text: str = args.payload if args.message is None else args.message
        # the original bytes of the command line
        return b"" if args.null_message else text.encode("utf-8", "surrogateescape")
    try:
        return sys.stdin.buffer.read() if str(args.file) == "-" else bytes(args.file.read_bytes())
    except OSError as error:
        raise UsageError(
            f"--file {args.file} cannot be read: {error.strerror}", hint="name a file with the payload"
        ) from error


async def _stdin_lines() -> AsyncIterator[bytes]:
    """Lines of standard input without their ends, as they arrive.

    A thread reads, because standard input may be a file, which no event loop can wait for. It reads the
    descriptor itself, so that it holds no lock and does not delay the end of the process.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_WAITING)

    def read() -> None:
        while room.acquire():
            chunk = os.read(0, READ_BYTES)
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: drop the line
                return
            if not chunk:
                return

    threading.Thread(target=read, name="standard input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
