"""`python -m examples.demo`: arguments, output, and the exit status.

0    the ledger matches
1    it does not, or the run could not be completed
130  Ctrl-C
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.text import Text

from bridge.errors import SparkUnavailable
from bridge.spark.session import check_java
from examples.demo.broker import BrokerFailed
from examples.demo.cast import DemoFailed
from examples.demo.page import render
from examples.demo.plots import draw
from examples.demo.report import Report, print_ledger, print_table
from examples.demo.scene import Scene
from examples.demo.screen import Screen, screen_for
from examples.demo.script import Options, Script
from ringbuf.extras import install_extra

RATE = 4_000.0
SECONDS = 60.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="./dev demo",
        description="The whole way from a device to a Spark table, and a ledger at the end.",
    )
    parser.add_argument("--no-spark", action="store_true", help="make the table without Spark and Java")
    parser.add_argument(
        "--keep", action="store_true", help="keep the working directory: state, logs, drained files"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load (%(default)s)")
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second, together (%(default)s)")
    parser.add_argument("--plain", action="store_true", help="lines instead of one screen")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="where page and plots go (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if not 4 <= options.seconds <= 3_600:
        parser.error(f"--seconds {options.seconds:g}: must be 4 to 3600")
    if not 10 <= options.rate <= 100_000:
        parser.error(f"--rate {options.rate:g}: must be 10 to 100000")
    return options


async def play(script: Script) -> Report:
    """Run the script. SIGTERM and Ctrl-C interrupt it; its processes end in all cases."""
    running = asyncio.current_task()
    assert running is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await script.play()
    finally:
        await script.close()


def leave(report: Report, out: Path, commands: Sequence[tuple[str, str]]) -> None:
    """Write page and plots."""
    out.mkdir(parents=True, exist_ok=True)
    svg = draw(report.lake, report.samples, report.outages, out / "plots.png")
    (out / "plots.svg").write_text(svg)
    (out / "index.html").write_text(render(report, svg, commands))


def next_commands() -> list[tuple[str, str]]:
    """Commands to try next, with their purpose."""
    return [
        ("./dev shell -c 'brim run'", "a broker of your own, on 127.0.0.1:1883"),
        ("./dev shell -c 'brim sub --shm \"#\"'", "in a second shell: all its messages, without a copy"),
        ("./dev demo --keep --seconds 120", "this again, longer, and every file is kept"),
    ]


def why_no_spark(options: argparse.Namespace) -> str:
    """Reason why the table is made without Spark, and the remedy; empty: Spark is available."""
    if options.no_spark:
        return "--no-spark"
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed; {install_extra('spark')}"
    try:
        check_java()
    except SparkUnavailable as error:
        return f"{error}; {error.hint}"
    return ""


def finish(report: Report, screen: Screen, out: Path, no_spark: str) -> None:
    """Print and write the results."""
    console = screen.console
    commands = next_commands()
    leave(report, out, commands)
    console.print()
    print_table(console, report.lake)
    if no_spark:
        text = f"Without Spark ({no_spark}): the table was decoded from the drained files by ringbuf."
        console.print(Text(text, "bold yellow"))
    print_ledger(console, report.ledger)
    console.print(f"\n{out / 'index.html'} shows the run in a browser, without a network. To try next:")
    width = max(len(command) for command, _ in commands)
    for command, meaning in commands:
        console.print(Text.assemble("    ", (command.ljust(width), "bold cyan"), f"   {meaning}"))


def run(options: argparse.Namespace) -> int:
    """Run one demo. Returns its exit status."""
    scene = Scene()
    screen = screen_for(plain=options.plain)
    keep, no_spark = True, why_no_spark(options)
    script = Script(scene, screen, Options(options.seconds, options.rate, spark=not no_spark))
    if no_spark:
        screen.happened(f"without Spark: {no_spark}")
    try:
        report = asyncio.run(play(script))
        screen.close()
        finish(report, screen, options.out, no_spark)
        keep = options.keep or not report.ledger.matches
    except (asyncio.CancelledError, KeyboardInterrupt):
        screen.close()
        print("interrupted; every process of the demo has ended", file=sys.stderr)
        keep = options.keep
        return 130
    except (DemoFailed, BrokerFailed) as error:
        screen.close()
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        screen.close()
        scene.close(keep=keep)
        if keep:
            print(f"kept: {scene.root} (state, drained files, logs)", file=sys.stderr)
    return 0 if report.ledger.matches else 1


def main() -> int:
    """See the module."""
    with contextlib.suppress(ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return run(parse(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
