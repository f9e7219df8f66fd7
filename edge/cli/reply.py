"""Answer MQTT 5 requests: publish a reply to the response topic of each, with its correlation data.

    brim reply plant/7/command done             the same reply to every request
    brim reply plant/7/command --echo           the payload of the request

Requests are printed; those without a response topic are not answered.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable or the connection broke, 4 refused by the
broker.
"""

from __future__ import annotations

import argparse
import asyncio

from edge.cli.argument_types import at_least_one
from edge.cli.exit_status import Exit
from edge.cli.message_format import line_form
from edge.cli.mqtt_options import client_of, run_verb
from edge.cli.request import add_exchange_arguments, arrival_of
from edge.mqtt import Properties


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim reply`."""
    parser.add_argument("filter", metavar="FILTER", help="topic filter of the requests")
    answer = parser.add_mutually_exclusive_group(required=True)
    answer.add_argument("payload", nargs="?", metavar="PAYLOAD", help="payload of every reply, as text")
    answer.add_argument("--echo", action="store_true", help="reply with the payload of the request")
    parser.add_argument("-C", "--count", type=at_least_one, metavar="N", help="end after N requests")
    add_exchange_arguments(parser, "request")


def run(args: argparse.Namespace) -> int:
    """Run `brim reply` and return its exit status."""
    return run_verb("reply", _reply(args), as_json=args.json)


async def _reply(args: argparse.Namespace) -> Exit:
    form = line_form(as_json=args.json, verbose=args.verbose)
    received = 0
    try:
        async with client_of(args) as client, client.subscribe(args.filter, qos=args.qos) as requests:
            async for request in requests:
                print(form(arrival_of(request)).decode(errors="replace"), flush=True)
                if topic := request.properties.response_topic:
                    answer = Properties(correlation_data=request.properties.correlation_data)
                    payload = request.payload if args.echo else args.payload
                    await client.publish(topic, payload, args.qos, properties=answer)
                received += 1
                if received == args.count:
                    break
    except asyncio.CancelledError:  # Ctrl-C is the normal end without --count
        if args.count is not None:
            raise
    return Exit.OK
