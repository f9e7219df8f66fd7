"""Child processes of the demo: they report their state in JSON lines, and end with their parent.

Owns starting and ending them. Only processes that were started here get signals, by their own handle. If the
demo itself is killed with -9, the kernel ends them (PR_SET_PDEATHSIG), so no process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
LINE_MAX_BYTES = 1 << 20
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before any fork


def _die_with_parent() -> None:
    """Runs in the child, before it becomes the program."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A Python program as a process. Created by start(); `latest` is its last JSON line."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_line: Callable[[str], None] | None
    ) -> None:
        self.name = name
        self.pid = process.pid
        self.latest: dict[str, Any] = {}
        self._process = process
        self._on_line = on_line
        self._reading = asyncio.create_task(self._read())
        self._rates: dict[str, tuple[float, float, float]] = {}  # fact -> time, value, rate

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Child:
        """Start `python ARGUMENTS`, with its standard error added to `log`.

        `on_line` gets lines that are not JSON.
        """
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                limit=LINE_MAX_BYTES,
                preexec_fn=_die_with_parent,
                start_new_session=True,  # the demo handles Ctrl-C, and ends the children in order; see kill()
            )
        return cls(name, process, on_line)

    @property
    def ended(self) -> bool:
        """True if it has ended."""
        return self._process.returncode is not None

    @property
    def status(self) -> int | None:
        """Its exit status; a negative signal number if it was killed; None: it runs."""
        return self._process.returncode

    def number(self, fact: str) -> int:
        """A counter of its last line; 0 before the first."""
        return int(self.latest.get(fact, 0))

    def rate(self, fact: str) -> float:
        """Rate at which a counter grows, per second."""
        now, value = time.monotonic(), float(self.latest.get(fact, 0))
        then, old, rate = self._rates.get(fact, (now, value, 0.0))
        if now - then >= 1.0 or fact not in self._rates:
            rate = (value - old) / (now - then) if now > then else 0.0
            self._rates[fact] = (now, value, rate)
        return rate

    def terminate(self) -> None:
        """End it with SIGTERM."""
        if not self.ended:
            self._process.terminate()

    def kill(self) -> None:
        """End it with -9, together with all processes that it has started: they are a process group."""
        if not self.ended:
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it has ended and all its output is read.

        Returns its exit status. Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            status = await self._process.wait()
            await asyncio.shield(self._reading)
        return status

    async def end(self, timeout_s: float) -> int:
        """Call terminate(), then kill() if it does not end in time. Returns its exit status."""
        self.terminate()
        with contextlib.suppress(TimeoutError):
            return await self.wait(timeout_s)
        self.kill()
        return await self.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            with contextlib.suppress(ValueError):
                message = json.loads(text)
                if isinstance(message, dict):
                    self.latest = message
            if self._on_line is not None:
                self._on_line(text)
