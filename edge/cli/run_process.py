"""Process of `brim run`: serves clients first, then imports and runs the event loop with all the rest."""

from __future__ import annotations

import argparse
import errno
import logging
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from edge import logging_setup
from edge.cli import VERSION
from edge.cli.config_options import configured
from edge.cli.light_imports import import_asyncio
from edge.cli.standard_streams import limit_waits
from edge.cli.stop_request import StopRequest
from edge.config.schema import Config
from edge.errors import THREADS_REMEDY, EdgeError, PortTaken
from edge.server.server import BrokerServer
from edge.transport import descriptors
from persistence.durable_file import problem_of, remedy_of
from persistence.errors import is_thread_limit

log = logging.getLogger(__name__)

# The longest that the MQTT thread waits for the interpreter while another thread computes, for example
# encodes a snapshot; by default it is 5 ms, each time.
SWITCH_S = 0.000_5
TASK_THREADS = 4


def serve(arguments: argparse.Namespace) -> int:
    """Run the broker until a signal ends it."""
    started_s = time.monotonic()
    limit_waits()
    logging_setup.configure(form=arguments.log_format)
    config = configured(arguments)
    logging_setup.set_level(config.log_level)
    sys.setswitchinterval(SWITCH_S)
    try:
        descriptors.make_table(config, descriptors.allow(config))
        with logging_setup.detached():  # begins a thread
            return _serve(config, arguments, started_s)
    except PortTaken as error:
        raise _with_owner(error, config) from error
    except Exception as error:
        if _lacks_files(error):
            raise descriptors.refusal(error) from error
        if any(map(is_thread_limit, _causes(error))):
            raise EdgeError(f"no thread could be started: {error}", hint=THREADS_REMEDY) from error
        raise


def _serve(config: Config, arguments: argparse.Namespace, started_s: float) -> int:
    stop = StopRequest()
    stop.install()
    threads = _task_threads()
    read_config = partial(configured, arguments, again=True) if arguments.config else None
    broker = BrokerServer(config, VERSION, partial(stop.fail, "the MQTT thread"), read_config)
    try:
        broker.serve_clients()
    except OSError as error:
        if error.filename is None:
            raise
        hint = f"{remedy_of(error)}, then start the broker again"
        raise EdgeError(problem_of(error), hint=hint) from error
    uses_tls = bool(config.auth.plugin) or any(bridge.in_broker for bridge in config.bridge)
    import_asyncio(with_tls=uses_tls)
    from edge.cli.run_loop import run_loop  # imports asyncio, while clients are served

    return run_loop(broker, arguments, started_s, stop, threads)


def _task_threads() -> ThreadPoolExecutor:
    """Threads for slow work of the event loop, started now: later there may be no memory for them.

    Without memory threading.Thread.start() may also wait for ever, and the stop of the broker with it.
    """
    threads = ThreadPoolExecutor(TASK_THREADS, thread_name_prefix="brim-task")
    started = threading.Barrier(TASK_THREADS + 1)
    try:
        for _ in range(TASK_THREADS):
            threads.submit(started.wait)
        started.wait()
    except BaseException:
        started.abort()
        raise
    return threads


def _lacks_files(error: BaseException) -> bool:
    """True if an error or its cause is that no more files may be open."""
    # of OSError or ZMQError
    return any(getattr(cause, "errno", None) in {errno.EMFILE, errno.ENFILE} for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _with_owner(error: PortTaken, config: Config) -> PortTaken:
    """The same error with the name of the port's owner."""
    from edge.server.port_owner import port_owner

    for listener in config.listener:
        owner = port_owner(listener.port) if str(listener.port) in str(error) else ""
        if owner:
            text = f"port {listener.port} of {listener.host} is used by {owner}"
            return PortTaken(text, hint="stop it, or set port in [[listener]], or run with --port 0")
    return error
