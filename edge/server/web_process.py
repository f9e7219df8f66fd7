"""Web console process: starts `brim web` for [web] of the configuration, and starts it again if it ends.

A process of its own, so that no request of a browser takes time from the threads of the broker. Its log is
that of the broker. Standard input of the process is a pipe: it has the settings, and the process ends with
it, also if the broker is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from importlib.util import find_spec

import msgspec

from edge import logging_setup
from edge.config.schema import Config
from edge.errors import EdgeError
from edge.logging_setup import pairs
from edge.verb_process import ends_within, start_verb
from ringbuf.extras import install_extra

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
STEADY_S = 60.0  # after such a time the next wait is the first one again
STOP_S = 5.0


def check_available() -> None:
    """Raise EdgeError if the extra `web` is not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        hint = f"{install_extra('web')}, or remove listen from [web]"
        raise EdgeError("web.listen is set, and the web console is not installed", hint=hint)


class WebProcess:
    """The process; call start() and stop() once each."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def start(self) -> None:
        """Start the process, and keep it running, on this event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the process."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            began_s = time.monotonic()
            status = await self._run_once()
            if time.monotonic() - began_s >= STEADY_S:
                retry_s = RETRY_FIRST_S
            log.warning("web console ended, will be started again %s", pairs(status=status, retry_s=retry_s))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _run_once(self) -> int:
        """Exit status of the process."""
        level = logging.getLevelName(logging.getLogger().level).lower()
        process = await start_verb(
            *("web", "--with-parent", "--runtime-dir", str(self._config.runtime_dir)),
            *("--log-level", level, "--log-format", logging_setup.form()),
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(self._config.web, enc_hook=str) + b"\n")
            return await process.wait()
        finally:
            process.stdin.close()
            if not await ends_within(process, STOP_S):
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
