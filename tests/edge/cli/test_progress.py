"""Progress is shown on a terminal only, after a second, and leaves nothing behind."""

import os
import pty
import subprocess
import sys

from tests.support.project import ROOT

PROGRAM = """
import threading
from rich.progress import Progress
from edge.cli import progress

started, start = threading.Event(), Progress.start
Progress.start = lambda self: (start(self), started.set())
progress.SHOW_AFTER_S = {after_s}
with progress.waiting("reading records") as end:
    if {shown}:
        started.wait()
    end()
    print("rows", flush=True)
"""


def run(*, after_s: float, shown: bool) -> tuple[bytes, bytes]:
    """Standard output, and what the terminal got."""
    terminal, side = pty.openpty()
    words = [sys.executable, "-c", PROGRAM.format(after_s=after_s, shown=shown)]
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=side, check=True, env={**os.environ, "TERM": "xterm"}
    )
    os.set_blocking(terminal, False)
    try:
        text = os.read(terminal, 65_536)
    except BlockingIOError:
        text = b""
    os.close(side)
    os.close(terminal)
    return done.stdout, text


def test_long_work_shows_a_spinner_that_is_gone_before_other_output() -> None:
    output, text = run(after_s=0.05, shown=True)
    assert output == b"rows\n"
    assert b"reading records" in text
    assert text.rstrip().endswith(b"\x1b[2K")  # the line is erased


def test_short_work_shows_nothing() -> None:
    assert run(after_s=60.0, shown=False) == (b"rows\n", b"")
