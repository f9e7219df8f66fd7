"""Publish a request by MQTT 5 and print its responses: response topic and correlation data.

    brim request plant/7/command start              one request, one response
    brim request fleet/ping x -C 10 -W 2s            up to ten responses, within two seconds

`brim reply` answers such requests. The command generates a response topic, unless --response-topic is given.
Only responses with the correlation data of this request are printed.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable or the connection broke, 4 refused by the
broker, 5 no response in the time of -W.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

from edge.cli.argument_types import at_least_one, positive_seconds
from edge.cli.error_text import error_text
from edge.cli.exit_status import Exit
from edge.cli.humanize import counted
from edge.cli.message_format import line_form
from edge.cli.mqtt_options import add_connection_arguments, client_of, run_verb
from edge.client.subscriptions import Message
from edge.local.arrivals import Arrival
from edge.local.payloads import property_fields
from edge.mqtt import Properties

WAIT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim request`."""
    parser.add_argument("topic", metavar="TOPIC", help="topic of the request")
    parser.add_argument(
        "payload", nargs="?", metavar="PAYLOAD", default="", help="payload of the request, as text"
    )
    parser.add_argument("--response-topic", metavar="TOPIC", help="topic for responses (default: a new one)")
    parser.add_argument(
        "-C", "--count", type=at_least_one, default=1, metavar="N", help="number of responses (default: 1)"
    )
    parser.add_argument(
        "-W",
        "--wait",
        type=positive_seconds,
        default=WAIT_S,
        metavar="TIME",
        help="time for responses (default: 10s)",
    )
    add_exchange_arguments(parser, "response")


def add_exchange_arguments(parser: argparse.ArgumentParser, printed: str) -> None:
    """Add what `brim request` and `brim reply` share. `printed`: the messages that they print."""
    parser.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=1, help="QoS (default: %(default)s)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help=f"print the topic before each {printed}")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, with all fields")
    add_connection_arguments(parser)
    parser.set_defaults(protocol="5")


def run(args: argparse.Namespace) -> int:
    """Run `brim request` and return its exit status."""
    return run_verb("request", _request(args), as_json=args.json)


async def _request(args: argparse.Namespace) -> Exit:
    correlation = secrets.token_bytes(16)
    response_topic = args.response_topic or f"brim/response/{secrets.token_hex(8)}"
    properties = Properties(response_topic=response_topic, correlation_data=correlation)
    form = line_form(as_json=args.json, verbose=args.verbose)
    received = 0
    try:
        async with (
            asyncio.timeout(args.wait) as waiting,
            client_of(args) as client,
            client.subscribe(response_topic, qos=args.qos) as responses,
        ):
            await client.publish(args.topic, args.payload, args.qos, properties=properties)
            async for response in responses:
                if response.properties.correlation_data != correlation:
                    continue
                print(form(arrival_of(response)).decode(errors="replace"), flush=True)
                received += 1
                if received == args.count:
                    break
    except TimeoutError:
        if not waiting.expired():
            raise
        text = f"{received} of {counted(args.count, 'response')} within {args.wait:g} s"
        hint = "check that a program answers the topic, or raise -W"
        print(error_text("request", text, hint, as_json=args.json), file=sys.stderr)
        return Exit.TIMEOUT
    return Exit.OK


def arrival_of(message: Message) -> Arrival:
    """A message in the form that line_form() prints."""
    shown = {"qos": message.qos, "retain": message.retain} | property_fields(message.properties)
    return Arrival(message.topic, message.payload, shown)
