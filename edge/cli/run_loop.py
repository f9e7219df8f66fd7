"""Event loop of `brim run`: starts the services of a running broker, and waits for a reason to stop.

Owns the tasks of the loop: reload, systemd's watchdog, full collections. Imported after clients are served.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from edge.cli.exit_status import Exit
from edge.cli.stop_request import StopRequest
from edge.config.directories import default_runtime_dir
from edge.config.schema import Web
from edge.logging_setup import pairs
from edge.server.sd_notify import notify, watchdog_interval_s
from edge.server.server import BrokerServer
from edge.server.sighup import sighup

log = logging.getLogger(__name__)

TIDY_S = 300.0


def run_loop(
    broker: BrokerServer,
    arguments: argparse.Namespace,
    started_s: float,
    stop: StopRequest,
    threads: ThreadPoolExecutor,
) -> int:
    """Run the broker, which serves clients already, until a stop is requested. `threads`: for slow work."""
    with asyncio.Runner(loop_factory=partial(_Loop, threads)) as runner:
        return runner.run(_run(broker, arguments, started_s, stop))


class _Loop(asyncio.SelectorEventLoop):
    """Event loop whose end starts no thread, as that of asyncio does: there may be no memory for one."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        super().__init__()
        self._threads = threads
        self.set_default_executor(threads)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the work of the threads, and end them."""
        del timeout
        self._threads.shutdown()


async def _run(
    server: BrokerServer, arguments: argparse.Namespace, started_s: float, stop: StopRequest
) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    stop.notify(lambda: loop.call_soon_threadsafe(stopping.set))
    async with server as broker:
        gc.collect()
        gc.freeze()  # existing objects stay: later collections need not visit them
        tasks = [asyncio.create_task(coroutine) for coroutine in (_watch(broker), _tidy())]
        if not arguments.quiet:
            print(_ready(broker, arguments, time.monotonic() - started_s), flush=True)
        reload = partial(_reload, broker, set())
        sighup.serve(lambda: loop.call_soon_threadsafe(reload))
        notify("READY=1")
        log.info("ready %s", pairs(edge_id=broker.config.edge_id, version=broker.version))
        try:
            await stopping.wait()
        finally:
            sighup.serve(None)
        notify("STOPPING=1")
        if stop.signal:
            log.info("signal received %s", pairs(name=stop.signal))
        log.info("stopping %s", pairs(because=stop.defect or "a signal"))
        for task in tasks:
            task.cancel()
    log.info("stopped")
    return Exit.INCOMPLETE if stop.defect else 0


def _reload(broker: BrokerServer, running: set[asyncio.Task[Any]]) -> None:
    """Start a reload. Its task is referenced until it is done; otherwise it might be collected before."""
    if not broker.has_files:
        log.info("signal received %s", pairs(name="SIGHUP", effect="none: there are no files to read again"))
        return
    if len(running) > 1:  # one reads, and one waits that will read the files of now
        return
    task = asyncio.get_running_loop().create_task(broker.reload())
    running.add(task)
    task.add_done_callback(running.discard)
    task.add_done_callback(_report)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("reload failed %s", pairs(error=error), exc_info=error)


async def _watch(broker: BrokerServer) -> None:
    """Notify systemd while the event loop and the MQTT thread run and clients are served."""
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        await asyncio.wrap_future(broker.listener.submit(lambda: None))
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
    where = ""
    plain = [address for address in broker.listener.addresses if address.scheme == "tcp"]
    if plain and plain[0].port != 1883:
        where = f" --port {plain[0].port}"
    login = " -u USER -P -" if broker.config.auth.password_file else ""
    memory = f" --instance {arguments.instance}" if arguments.instance else ""
    if broker.config.runtime_dir != default_runtime_dir():
        import shlex

        memory = f" --runtime-dir {shlex.quote(str(broker.config.runtime_dir))}"
    return (
        f"brim {broker.version} is ready after {seconds:.1f} s: mqtt {mqtt}\n"
        f"  memory   {broker.config.runtime_dir}\n"
        f"  zmq      {broker.zmq_endpoint or 'off'}\n"
        f"  metrics  {broker.metrics_url or 'off (set metrics.listen)'}\n"
        f"  console  {_console(broker.config.web)}\n"
        f"try\n"
        f"  brim sub 'plant/#' --shm{memory}\n"
        f"  brim pub plant/1/temp 21.5{login}{where}\n"
        f"  brim status{memory}"
    )


def _console(web: Web) -> str:
    """URL of the console, which the broker starts now."""
    if not web.listen:
        return "off (set web.listen, or run `brim web`)"
    return f"{'http' if web.tls is None else 'https'}://{web.listen}/"
