"""A lossy file system under a directory, and what may happen to it: lossy_fs.py in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.children import ModuleChild
from tests.support.waiting import wait_until


def missing() -> str:
    """Why this machine cannot mount one; "" if it can."""
    if os.geteuid() != 0:
        return "needs root, to mount"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    if shutil.which("fusermount3") is None:
        return "needs the Debian package fuse3"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError, AttributeError) as error:
        return f"needs mfusepy: {error}"
    return ""


class LossyMount:
    """A context manager; `path` is where it is mounted."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="brim-lossy-"))
        self._child = ModuleChild("tests.support.lossy_fs", self.path)

    def __enter__(self) -> Self:
        wait_until(self._mounted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resume()
        subprocess.run(["umount", "--lazy", self.path], check=False)
        self._child.__exit__(kind, error, trace)
        self.path.rmdir()

    def _mounted(self) -> bool:
        if self._child.process.poll() is not None:
            raise AssertionError(f"the file system has ended: {self._child.wait()}")
        return self.path.is_mount()

    def ask(self, *command: Any) -> Any:
        """Answer of the file system to a command (lossy_fs.py)."""
        self._child.say(json.dumps(command))
        return json.loads(self._child.line())

    def cut(self, seed: int) -> None:
        """The power goes: every call fails until boot()."""
        self.ask("cut", seed)

    def stall(self) -> None:
        """The disk answers no call until resume()."""
        self._child.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The disk answers again, also the calls that wait."""
        self._child.process.send_signal(signal.SIGCONT)

    def boot(self) -> None:
        """The disk is there again, as the cut has left it."""
        self.ask("boot")
