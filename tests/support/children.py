"""Python processes for tests that need another process, or one to kill."""

import os
import selectors
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.support.house import ROOT

PATIENCE_S = 20.0  # for a line that should come at once; a machine under load may take seconds

LOGGED_BYTES = 4_000  # of the log of a process, shown when the test has failed


class Child:
    """`python -c code arguments`, from the checkout.  A context manager: it is killed at the end."""

    def __init__(self, code: str, *arguments: object, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *self._how(code), *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            bufsize=0,
        )
        self._rest = b""

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
        out, error = self.process.communicate(timeout=patience_s)
        return self.process.returncode, (self._rest + out).decode(), error.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self.process.poll()
        if status is None:
            self.process.kill()
        said = self.process.communicate()[1]
        if kind is not None:
            print(f"process {self.pid}: exit status {status}; the end of its log:")
            print(said[-LOGGED_BYTES:].decode())

    def _how(self, code: str) -> list[str]:
        return ["-c", code]

    def _more(self) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_S):
                raise AssertionError(f"process {self.pid} has said nothing for {PATIENCE_S} s")
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise AssertionError(f"process {self.pid} has ended: {self.wait()}")
        return data

    def _remaining(self) -> list[str]:
        out, _ = self.process.communicate()
        return (self._rest + out).decode().split("\n")[:-1]


class ModuleChild(Child):
    """`python -m module arguments`."""

    def _how(self, module: str) -> list[str]:
        return ["-m", module]
