"""`brim run` as a process: killed and started again on the same port, rings and state."""

import json
from pathlib import Path
from typing import Self

from tests.support.children import Child, ModuleChild
from tests.support.ports import free_port

LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["brim", *sys.argv[2:]]
runpy.run_module("edge", run_name="__main__")
"""


class BrimProcess:
    """A broker, with a `bridge` to a directory or none; a context manager that starts and stops it.

    `settings` is TOML to add, such as streams; $PORT in it is the broker's.  `open_files`: its limit; 0: that
    of the tests.  `module`: another broker, such as one with a planted mistake.  `edge`: its edge id.
    """

    def __init__(
        self,
        runtime_dir: Path,
        directory: Path,
        settings: str = "",
        *,
        bridge: bool = True,
        open_files: int = 0,
        log_level: str | None = "info",
        module: str = "edge",
        edge: str = "here",
        log_format: str = "text",
    ) -> None:
        self._open_files, self._log_level, self._module = open_files, log_level, module
        self._log_format = log_format
        self.port = free_port()
        self.runtime_dir = runtime_dir
        self.sink = directory / "drained"
        self.config = directory / "brim.toml"
        names = {"edge_id": edge, "runtime_dir": str(runtime_dir), "state_dir": str(directory / "state")}
        lines = [f"{key} = {json.dumps(value)}" for key, value in names.items()]
        lines += ["[[listener]]", f"port = {self.port}"]
        if bridge:
            lines += ["[[bridge]]", 'name = "lake"', f"to = {json.dumps(self.sink.as_uri())}"]
        self.config.write_text("\n".join([*lines, settings.replace("$PORT", str(self.port))]))
        self._child: Child | None = None

    def start(self, **environment: str) -> None:
        """Returns when it is ready. `environment`: more variables."""
        words: tuple[object, ...] = ("run", "--config", self.config, "--log-format", self._log_format)
        if self._log_level is not None:
            words += ("--log-level", self._log_level)
        limited = self._open_files > 0
        self._child = (
            Child(LIMITED, self._open_files, *words, environment=environment)
            if limited
            else ModuleChild(self._module, *words, environment=environment)
        )
        self._child.lines_until("ready")

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._child is not None
        return self._child.pid

    def log_until(self, wanted: str) -> str:
        """Its log, once that contains `wanted`."""
        assert self._child is not None
        return self._child.log_until(wanted)

    def kill(self) -> None:
        """With -9."""
        assert self._child is not None
        self._child.kill()
        self._child = None

    @property
    def running(self) -> bool:
        """True between start() and its end by kill() or stop()."""
        return self._child is not None

    def stop(self) -> str:
        """With SIGTERM, which it obeys with status 0.  Return what it logged."""
        if self._child is None:
            return ""
        status, _, log = self._child.stop()
        self._child = None
        assert status == 0, log
        return log

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        elif self._child is not None:
            self.kill()
