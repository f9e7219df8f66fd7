"""Python processes for tests that need another process, or one to kill.

Standard error goes to a file: a pipe that is read only at the end blocks the process when 64 KiB are in it.
A process that is silent for too long is ended with SIGABRT; the failure shows the stacks of its threads.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, Self

from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S

STEP_S = 0.005
LOGGED_BYTES = 8_000  # of the log of a process, shown when the test has failed


class Child:
    """`python -c code arguments`, from the checkout.  A context manager: it is killed at the end."""

    def __init__(self, code: str, *arguments: object, environment: dict[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by _collect()
        self._logged: str | None = None  # all of it, once the process has ended
        self.process = subprocess.Popen(
            [sys.executable, *self._how(code), *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})},
            bufsize=0,
            **self._options(),
        )
        self._rest = b""
        self.patience_s = PATIENCE_S  # for a line; longer where a start may take long

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def line(self) -> str:
        """The next line of its standard output.  Fails when it ends or stays silent."""
        while b"\n" not in self._rest:
            self._rest += self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def lines_until(self, wanted: str) -> list[str]:
        """Lines up to and with the first that contains `wanted`."""
        lines = [self.line()]
        while wanted not in lines[-1]:
            lines.append(self.line())
        return lines

    def say(self, text: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())

    def kill(self) -> list[str]:
        """SIGKILL; the whole lines that it had still written."""
        self.process.kill()
        return self._remaining()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The signal, and then (exit status, rest of standard output, standard error)."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, patience_s: float = PATIENCE_S) -> tuple[int, str, str]:
        """(exit status, rest of standard output, standard error), once it has ended by itself."""
        out = self._collect(patience_s)
        return self.process.returncode, (self._rest + out).decode(), self.log()

    def log(self) -> str:
        """Its standard error until now, of a process that runs or has ended."""
        if self._logged is not None:
            return self._logged
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def log_until(self, wanted: str, count: int = 1) -> str:
        """Standard error, once it contains `wanted` so many times.  Fails when it ends or does not come."""
        deadline = time.monotonic() + PATIENCE_S
        while (log := self.log()).count(wanted) < count:
            assert self.process.poll() is None or self.log().count(wanted) >= count, (
                f"no {wanted!r} in {log!r}"
            )
            assert time.monotonic() < deadline, f"no {wanted!r} in {PATIENCE_S} s, in {log!r}"
            time.sleep(STEP_S)
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = self.process.poll()
        if status is None:
            self.process.kill()
        self._collect()
        if kind is not None:
            print(f"process {self.pid}: exit status {status}; the end of its log:")
            print(self.log()[-LOGGED_BYTES:])

    def _how(self, code: str) -> list[str]:
        return ["-c", code]

    def _options(self) -> dict[str, Any]:
        """Further arguments of Popen."""
        return {}

    def _more(self) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(self.patience_s):
                raise AssertionError(
                    f"process {self.pid} has said nothing for {self.patience_s} s:\n{self._abort()}"
                )
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise AssertionError(f"process {self.pid} has ended: {self.wait()}")
        return data

    def _abort(self) -> str:
        """End a silent process.  Return the end of its log, with the stacks of all threads."""
        self.process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        return self.log()[-LOGGED_BYTES:]

    def _remaining(self) -> list[str]:
        return (self._rest + self._collect()).decode().split("\n")[:-1]

    def _collect(self, patience_s: float | None = None) -> bytes:
        """Wait for its end.  Return the rest of standard output; keep the log without its file."""
        out, _ = self.process.communicate(timeout=patience_s)
        self._logged = self.log()
        self._log.close()
        return bytes(out or b"")


class ModuleChild(Child):
    """`python -m module arguments`."""

    def _how(self, module: str) -> list[str]:
        return ["-m", module]
