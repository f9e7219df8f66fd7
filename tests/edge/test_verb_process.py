"""Verb process: its command line, environment and session, and the wait for its end."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from edge.verb_process import ends_within, start_verb
from tests.support.project import ROOT

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of Python: prints its environment and arguments, and ends with standard input."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$PYTHONPATH" "$MARK" "$@"\ncat\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(("before", "path"), [(None, str(ROOT)), ("/more", f"{ROOT}:/more")])
async def test_a_verb_finds_this_brim_first_and_has_a_session_of_its_own(
    monkeypatch: pytest.MonkeyPatch, before: str | None, path: str
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    process = await start_verb("web", "--with-parent", stdout=PIPE, MARK="of the child")
    assert process.stdin is not None
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line.decode() == f"{path} of the child -P -m edge web --with-parent\n"
    assert os.getsid(process.pid) == process.pid
    process.stdin.close()
    assert await ends_within(process, PATIENCE_S)


async def test_the_wait_for_the_end_has_a_limit_also_in_a_cancelled_task() -> None:
    process = await start_verb("web", stdout=PIPE)
    assert process.stdin is not None
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(await ends_within(process, 0.01))
            process.stdin.close()  # type: ignore[union-attr]
            ended.append(await ends_within(process, PATIENCE_S))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [False, True]
