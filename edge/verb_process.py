"""Verb process: a verb of this Brim, such as `brim web`, as a child process.

Owns the command line and the environment, and the wait for the end of the child. Never ends a child.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])  # in the Debian package outside of Python's path


async def start_verb(*words: str, stdout: int, stderr: int | None = None, **variables: str) -> Process:
    """Start `brim` with these words. Standard input is a pipe. `variables`: of the environment.

    The child has a session and a process group of its own: Ctrl-C ends only this process.
    """
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "edge", *words),
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdin=PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


async def ends_within(process: Process, timeout_s: float) -> bool:
    """Wait for the end of a child; False if it takes longer. Works in a task that is cancelled, too."""
    with suppress(TimeoutError):
        # not asyncio.timeout(): before Python 3.11.3 it ends a task that is cancelled already
        await asyncio.wait_for(process.wait(), timeout_s)
    return process.returncode is not None
