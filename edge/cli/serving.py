"""The process of `brim run`: starts a BrokerServer, serves signals and systemd, and stops in order."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import logging
import shlex
import signal
import sys
import time
from functools import partial

from edge import logging_setup
from edge.cli import version
from edge.cli.config_options import configured
from edge.cli.exit_status import Exit
from edge.config.schema import Config
from edge.errors import PortTaken
from edge.logging_setup import pairs
from edge.server.sd_notify import notify, watchdog_interval_s
from edge.server.server import BrokerServer
from edge.server.sighup import sighup
from edge.transport import descriptors

__all__ = ["serve"]

log = logging.getLogger(__name__)

# A full collection visits every topic and session, 0.3 s for a million, on the thread that happens
# to allocate. On the MQTT thread every client would wait. So _tidy() does it, on a thread that
# may wait, while C serves everything that needs no Python.
COLLECT = (10_000, 20, 1_000_000_000)
TIDY_S = 300.0
# The longest that the MQTT thread waits for the interpreter while another thread computes, for example
# encodes a checkpoint; by default it is 5 ms, each time.
SWITCH_S = 0.000_5

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(arguments: argparse.Namespace) -> int:
    """Run the broker until a signal ends it."""
    started_s = time.monotonic()
    logging_setup.configure(arguments.log_level, arguments.log_format)
    config = configured(arguments)
    gc.set_threshold(*COLLECT)
    sys.setswitchinterval(SWITCH_S)
    try:
        with logging_setup.detached():
            return asyncio.run(_serve(config, arguments, started_s))
    except PortTaken as error:
        raise _with_owner(error, config) from error
    except Exception as error:
        if not _lacks_files(error):
            raise
        raise descriptors.refusal(error) from error


def _lacks_files(error: BaseException | None) -> bool:
    """True if an error or its cause is that no more files may be open."""
    while error is not None:
        if getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE}:  # of OSError or ZMQError
            return True
        error = error.__cause__ or error.__context__
    return False


async def _serve(config: Config, arguments: argparse.Namespace, started_s: float) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    failures: list[str] = []

    def fail() -> None:
        failures.append("the MQTT thread")
        loop.call_soon_threadsafe(stopping.set)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _stop, loop, stopping, number)
    async with BrokerServer(config, version(), fail) as broker:
        gc.collect()
        gc.freeze()  # existing objects stay: later collections need not visit them
        tasks = [asyncio.create_task(it) for it in (_watch(broker), _tidy())]
        if not arguments.quiet:
            print(_ready(broker, arguments, time.monotonic() - started_s), flush=True)
        reload = partial(_reload, broker, set())
        sighup.serve(lambda: loop.call_soon_threadsafe(reload))
        notify("READY=1")
        log.info("ready %s", pairs(edge_id=config.edge_id, version=version()))
        try:
            await stopping.wait()
        finally:
            sighup.serve(None)
        notify("STOPPING=1")
        log.info("stopping %s", pairs(because=failures[0] if failures else "a signal"))
        for task in tasks:
            task.cancel()
    log.info("stopped")
    return Exit.INCOMPLETE if failures else 0


def _reload(broker: BrokerServer, running: set[asyncio.Task[None]]) -> None:
    """Start a reload. Its task is referenced until it is done; otherwise it might be collected before."""
    if not broker.has_files:
        log.info("signal %s", pairs(name="SIGHUP", effect="none: there are no files to read again"))
        return
    if len(running) > 1:  # one reads, and one waits that will read the files of now
        return
    task = asyncio.get_running_loop().create_task(broker.reload())
    running.add(task)
    task.add_done_callback(running.discard)
    task.add_done_callback(_report)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("reload failed %s", pairs(error=error), exc_info=error)


def _stop(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, number: int) -> None:
    """Handle the first signal: an orderly end. The next one of any kind has its default effect."""
    stopping.set()
    for other in STOP_SIGNALS:
        loop.remove_signal_handler(other)
        signal.signal(other, signal.SIG_DFL)
    log.info("signal %s", pairs(name=signal.Signals(number).name))


async def _watch(broker: BrokerServer) -> None:
    """Notify systemd while the event loop and the MQTT thread run and clients are served."""
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        await asyncio.wrap_future(broker.listener.ask(lambda: None))
        if not broker.watchdog.stalled_s:
            notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)


async def _tidy() -> None:
    """Run full collections from time to time."""
    while True:
        await asyncio.sleep(TIDY_S)
        gc.collect()


def _ready(broker: BrokerServer, arguments: argparse.Namespace, seconds: float) -> str:
    """Summary of a started broker, for its user."""
    mqtt = ", ".join(map(str, broker.listener.addresses)) or "no listener"
    zmq = broker.zmq.endpoint if broker.zmq else "off"
    where = ""
    plain = [address for address in broker.listener.addresses if address.scheme == "tcp"]
    if plain and plain[0].port != 1883:
        where = f" --port {plain[0].port}"
    memory = ""
    if arguments.runtime_dir is not None or arguments.config is not None:
        memory = f" --runtime-dir {shlex.quote(str(broker.config.runtime_dir))}"
    return (
        f"brim {version()} is ready after {seconds:.1f} s: "
        f"mqtt {mqtt}, memory {broker.config.runtime_dir}, zmq {zmq}\n"
        f"try\n"
        f"  brim sub 'plant/#' --shm{memory}\n"
        f"  brim pub plant/1/temp 21.5{where}\n"
        f"  brim status{memory}"
    )


def _with_owner(error: PortTaken, config: Config) -> PortTaken:
    """The same error with the name of the port's owner."""
    from edge.server.port_owner import port_owner

    for listener in config.listener:
        owner = port_owner(listener.port) if str(listener.port) in str(error) else ""
        if owner:
            text = f"port {listener.port} of {listener.host} is used by {owner}"
            return PortTaken(text, hint="stop it, or set port in [[listener]], or run with --port 0")
    return error
