"""A mosquitto for tests: on a free loopback port, with its own directory, killed by its process id."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

BINARY = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


class Mosquitto:
    """A broker that can be stopped, killed, paused and started again on the same port."""

    def __init__(self, directory: Path, *config: str) -> None:
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        user = pwd.getpwuid(os.geteuid()).pw_name  # started by root it would become another, and see no files
        lines = [f"user {user}", f"listener {self.port} 127.0.0.1", "allow_anonymous true", *config]
        (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    @property
    def log(self) -> str:
        """Standard error until now."""
        return (self._directory / "mosquitto.log").read_text()

    def wait_for_log(self, text: str, count: int) -> None:
        """Returns when its log has `text` so many times.  Fails after a while."""
        deadline = time.monotonic() + PATIENCE_S
        while self.log.count(text) < count:
            assert time.monotonic() < deadline, f"not {count} times {text!r} in\n{self.log}"
            time.sleep(0.02)

    def start(self) -> None:
        """Returns when it listens."""
        assert BINARY is not None
        with (self._directory / "mosquitto.log").open("ab") as log:
            command = [BINARY, "-v", "-c", str(self._directory / "mosquitto.conf")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert self._process.poll() is None, f"mosquitto did not start:\n{self.log}"
            assert time.monotonic() < deadline, "mosquitto does not listen"
            time.sleep(0.01)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def kill(self) -> None:
        """At once, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order: it closes its connections.  May be called twice."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if (
                how is not signal.SIGKILL
            ):  # which also ends a stopped process, and an awake one would still answer
                self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None

    def pause(self) -> None:
        """Stop its process: connections stay open, and no packet is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after pause()."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running(directory: Path, *config: str) -> Iterator[Mosquitto]:
    """A broker with `config` lines, listening; gone afterwards."""
    broker = Mosquitto(directory, *config)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
