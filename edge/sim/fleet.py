"""Fleet of simulated devices: starts them at a rate, and counts what they do."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable

from edge.client import Client
from edge.errors import FILES_REMEDY, EdgeError
from edge.sim.device import FleetCounts, SimulatedDevice
from edge.sim.plan import FleetPlan

DESCRIPTORS_BESIDE = 64
TICK_S = 1.0
END_S = 10.0  # for the last acknowledgements and the ends of connections


async def simulate(
    plan: FleetPlan,
    connect: Callable[[str], Client],
    *,
    duration_s: float | None,
    connect_rate: float,
    tick: Callable[[FleetCounts], object] = lambda _: None,
) -> FleetCounts:
    """Run all devices for a time, or until cancelled, which ends the run early.

    `connect` makes the client of a device by its name.
    `tick` is called each second. Raises EdgeError: the process may not open enough files.
    """
    _allow_descriptors(sum(device.count for device in plan.device) + DESCRIPTORS_BESIDE)
    counts, ending = FleetCounts(), asyncio.Event()
    devices = [
        SimulatedDevice(device, number, plan.seed, connect, counts, ending)
        for device in plan.device
        for number in range(1, device.count + 1)
    ]
    running: list[asyncio.Task[None]] = []
    starting = asyncio.create_task(_start(devices, running, connect_rate))
    running.append(starting)
    try:
        async with asyncio.timeout(duration_s):
            await _watch(running, lambda: tick(counts))
    except (TimeoutError, asyncio.CancelledError):  # Ctrl-C: the counts are still wanted
        starting.cancel()
        ending.set()
        await asyncio.wait(running, timeout=END_S)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return counts


async def _start(
    devices: list[SimulatedDevice], running: list[asyncio.Task[None]], connect_rate: float
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number, device in enumerate(devices):
        await asyncio.sleep(max(0.0, began + number / connect_rate - loop.time()))
        running.append(asyncio.create_task(device.run(), name=device.name))


async def _watch(running: list[asyncio.Task[None]], tick: Callable[[], object]) -> None:
    """Call `tick` each second. Ends with the exception of the first device that has a defect."""
    while True:
        await asyncio.sleep(TICK_S)
        tick()
        for task in running:
            if task.done():
                task.result()


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        return
    raise EdgeError(f"{count} open files are needed (limit: {hard})", hint=FILES_REMEDY)
