"""Start the broker; it runs until SIGTERM or Ctrl-C.

Without a configuration file the broker listens on 127.0.0.1:1883, keeps every topic in one ring of 64 MiB in
memory, and serves the ring to processes of this machine by shared memory and ZeroMQ. A second signal, half a
second or more after the first, ends the broker at once: acknowledged messages are in the rings, and the next
start continues there. SIGHUP has the effect of `brim reload`.

Exit status: 0 stopped, 1 stopped after an error, 2 not started, 4 ended by the watchdog, 78 not started: the
configuration, or a file of users or rules, is not valid, and a restart would change nothing.
"""

from __future__ import annotations

import argparse

from edge.cli.config_options import add_config_arguments
from edge.logging_setup import FORMATS, LEVELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim run`."""
    add_config_arguments(parser)
    parser.add_argument("--host", help="address of the first listener (default: 127.0.0.1)")
    parser.add_argument(
        "-p", "--port", type=int, help="port of the first listener; 0: a free one (default: 1883)"
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, help="lowest level logged (default: log_level of the configuration)"
    )
    parser.add_argument(
        "--log-format", choices=FORMATS, default="text", help="form of log lines (default: %(default)s)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the log")


def run(arguments: argparse.Namespace) -> int:
    """Run the broker until it is stopped."""
    from edge.cli.run_process import serve  # not needed for --help

    return serve(arguments)
