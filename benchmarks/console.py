"""Web console: first paint, and its cost and that of `brim top` for an idle and a busy broker.

    ./dev bench console [--rounds 6] [--seconds 3] [--only paint,idle,ingest] [--pages overview,topics]

Starts a broker with the default configuration, `brim web` and headless Chromium, and drives its pages as the
tests do. Prints a table and, as its last line, one JSON object.

    first_paint_ms     from the start of the navigation to the first contentful paint of the overview, in new
                       tabs with an empty cache: median and worst; wanted: at most 500
    figures_ms         the same until the figures of the broker are shown
    idle_...           processor time in percent of a core, while no client does anything; wanted: below 1.
                       web_unseen: `brim web` without a page; web: with the overview in view; top: `brim top`
                       with its live view; ..._broker: in the broker, above that without a watcher
    ingest_PAGE        rate of acknowledged messages with that page in view, over the rate without a console,
                       median of the rounds; 500,000 messages a second are offered. Wanted: 0.98
    ..._rate_PAGE      the rate without a console, in messages a second
    ingest_max_PAGE    the same without a limit of the rate: broker and generator take all of two cores
    web_PAGE           processor time of `brim web` with that page in view, under 500,000 messages a second

Each round measures with and without the console, in an order that alternates. The browser has the lowest
priority: a page is read on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks._mqtt_process import cpu_clock
from benchmarks._mqtt_tests import scenario
from edge.load import Generator, LoadTarget, Scenario
from edge.load.result import result_of
from tests.support.brim_process import BrimProcess
from tests.support.chromium import Chromium, Page
from tests.support.directories import memory_directory
from tests.support.web_console import console

PARTS = ("paint", "idle", "ingest")
LOWEST_PRIORITY = 19
TABS = 20
IDLE_S = 20.0
SETTLE_S = 3.0
OFFERED = 500_000.0
PAGES = {
    "overview": "document.querySelectorAll('canvas').length === 6",
    "clients": "document.querySelector('#view table')",
    "topics": "document.querySelector('#view table')",
    "tap": "document.querySelector('#view ol')",
}
FIGURES = """new Promise((done) => {
  const look = () => document.body.innerText.includes("Messages in") ? done(performance.now())
    : requestAnimationFrame(look);
  look();
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')"

Figures = dict[str, float]


class Site(NamedTuple):
    """A broker with the default configuration, and a browser."""

    broker: BrimProcess
    browser: Chromium


# ---- first paint ----


def paint(site: Site) -> Figures:
    """First paint of the overview, and its first figures, in new tabs."""
    paints, figures = [], []
    with console(site.broker.runtime_dir) as (url, _):
        for _ in range(TABS):
            page = site.browser.page()
            page.open(url)
            figures.append(page.value(FIGURES))
            page.until(f"{PAINT}.length")
            paints.append(page.value(f"{PAINT}[0].startTime"))
            page.close()
    return {
        "first_paint_ms": statistics.median(paints),
        "first_paint_worst_ms": max(paints),
        "figures_ms": statistics.median(figures),
    }


# ---- idle ----


def idle(site: Site) -> Figures:
    """Processor time of console and `top`, in percent of a core, while the broker has nothing to do."""
    broker = site.broker.pid
    [alone] = busy_percent(broker)
    with console(site.broker.runtime_dir) as (url, child):
        unseen, _ = busy_percent(child.pid, broker)
        page = shown(site, url, "overview")
        web, web_broker = busy_percent(child.pid, broker)
        page.close()
    with live_view("top", "--runtime-dir", str(site.broker.runtime_dir)) as pid:
        top, top_broker = busy_percent(pid, broker)
    return {
        "idle_web_unseen": unseen,
        "idle_web": web,
        "idle_web_broker": web_broker - alone,
        "idle_top": top,
        "idle_top_broker": top_broker - alone,
    }


def busy_percent(*pids: int) -> list[float]:
    """Processor time of each process over IDLE_S, in percent of a core."""
    time.sleep(SETTLE_S)
    before, begun = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(IDLE_S)
    seconds = time.monotonic() - begun
    return [100 * (cpu_s(pid) - earlier) / seconds for pid, earlier in zip(pids, before, strict=True)]


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    return time.clock_gettime(cpu_clock(pid))


@contextmanager
def live_view(*words: str) -> Iterator[int]:
    """`brim` in a terminal whose output is read and dropped; yields its process."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "edge", *words]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    reading = threading.Thread(target=drop, args=(master,), daemon=True)
    reading.start()
    try:
        yield process.pid
    finally:
        os.write(master, b"q")
        process.wait()
        reading.join()
        os.close(master)


def drop(descriptor: int) -> None:
    """Read until the terminal has no other end."""
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except OSError:  # EIO: the process has ended
        return


# ---- under load ----


def ingest(site: Site, pages: list[str], rounds: int, seconds: float) -> Figures:
    """Rates with a page in view over those without a console."""
    loads = {"ingest": scenario(pairing="nobody", qos=(1,), rate=OFFERED)}
    loads["ingest_max"] = scenario(pairing="nobody", qos=(1,))
    figures: Figures = {}
    rate(site, loads["ingest_max"], seconds)  # warms up
    for name in pages:
        ratios: dict[str, list[float]] = {load: [] for load in loads}
        rates: dict[str, list[float]] = {load: [] for load in loads}
        costs: dict[str, list[float]] = {load: [] for load in loads}
        for number in range(rounds):
            for load, of in loads.items():
                plain = partial(rate, site, of, seconds)
                with_page = partial(watched_rate, site, name, of, seconds, costs[load])
                without, watched = in_turn(plain, with_page, number % 2)
                ratios[load].append(watched / without)
                rates[load].append(without)
        figures |= {f"{load}_{name}": statistics.median(each) for load, each in ratios.items()}
        figures |= {f"{load}_rate_{name}": statistics.median(each) for load, each in rates.items()}
        figures[f"web_{name}"] = statistics.median(costs["ingest"])
    return figures


def in_turn(first: Callable[[], float], second: Callable[[], float], swapped: int) -> tuple[float, float]:
    """Results of two measurements, made in this order or in the other one."""
    if swapped:
        later = second()
        return first(), later
    return first(), second()


def watched_rate(site: Site, name: str, of: Scenario, seconds: float, costs: list[float]) -> float:
    """Messages a second with a page in view. Appends the percent of a processor of `brim web` to `costs`."""
    with console(site.broker.runtime_dir) as (url, child):
        page = shown(site, url, name)
        before, begun = cpu_s(child.pid), time.monotonic()
        found = rate(site, of, seconds)
        costs.append(100 * (cpu_s(child.pid) - before) / (time.monotonic() - begun))
        page.close()
    return found


def rate(site: Site, of: Scenario, seconds: float) -> float:
    """Acknowledged messages a second."""
    with Generator(LoadTarget(port=site.broker.port), of) as crowd:
        crowd.connect(10.0)
        crowd.publish(seconds)
        crowd.drain(10.0)
        return result_of(crowd).sent / crowd.seconds


def shown(site: Site, url: str, name: str) -> Page:
    """A page of the console, drawn."""
    page = site.browser.page()
    page.open(f"{url}/#/{name}")
    page.until(PAGES[name])
    if page.value("document.hidden"):
        raise SystemExit(f"{url}: the browser does not show the page, which then requests nothing")
    return page


# ---- all ----


def main() -> None:
    """Measure and print."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--pages", default="overview,topics")
    arguments = parser.parse_args()
    parts, figures = arguments.only.split(","), Figures()
    with (
        tempfile.TemporaryDirectory(prefix="brim-console-") as directory,
        memory_directory() as runtime,
        Chromium() as browser,
        BrimProcess(runtime, Path(directory), bridge=False) as broker,
    ):
        os.setpriority(os.PRIO_PGRP, browser.pid, LOWEST_PRIORITY)
        site = Site(broker, browser)
        if "paint" in parts:
            figures |= paint(site)
        if "idle" in parts:
            figures |= idle(site)
        if "ingest" in parts:
            figures |= ingest(site, arguments.pages.split(","), arguments.rounds, arguments.seconds)
    for name, value in figures.items():
        print(f"{name:24} {value:14,.3f}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
