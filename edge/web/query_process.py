"""Query process: `brim sql` as a child with its own process group, and limits for its output.

    end of the rows          the child ends by itself
    rows_max, BYTES_MAX      the child is ended; the rows before are the result
    --time-limit             the child ends itself, also if the console is killed meanwhile
    cancellation             the child is ended

Owns the child until it has ended: SIGTERM, so that it removes its files, and SIGKILL after STOP_S.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from edge.verb_process import ends_within, start_verb

BYTES_MAX = 2 << 20  # of the rows
ERRORS_MAX = 16 << 10
READ_BYTES = 64 << 10
STOP_S = 1.0


class QueryOutput(NamedTuple):
    """Output of a query that has ended. `status` and `errors` are those of the command, if it is not cut."""

    lines: list[bytes]  # one JSON object each
    is_cut: bool
    status: int
    errors: str


async def run_query(words: Sequence[str], query: str, rows_max: int) -> QueryOutput:
    """Run a query with the options `words`. The child has ended when this returns or is cancelled."""
    process = await start_verb(
        *("sql", "--format", "json", *words, "-"), stdout=PIPE, stderr=PIPE, PYTHONUTF8="1"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(_head(process.stderr))
    try:
        process.stdin.write(query.encode("utf-8", "replace"))
        process.stdin.close()
        lines, is_cut = await _lines(process.stdout, rows_max)
        if is_cut:
            return QueryOutput(lines, is_cut, 0, "")
        text = (await errors).decode("utf-8", "replace")
        return QueryOutput(lines, is_cut, await process.wait(), text)
    finally:
        await _end(process)
        await asyncio.gather(errors, _head(process.stdout))  # a pipe is closed at its end


async def _lines(stream: asyncio.StreamReader, rows_max: int) -> tuple[list[bytes], bool]:
    """Whole lines, and whether a limit was reached."""
    lines: list[bytes] = []
    rest, size = b"", 0
    while data := await stream.read(READ_BYTES):
        size += len(data)
        *whole, rest = (rest + data).split(b"\n")
        lines += whole
        if len(lines) > rows_max or size > BYTES_MAX:
            return lines[:rows_max], True
    return lines, False


async def _head(stream: asyncio.StreamReader) -> bytes:
    """The first ERRORS_MAX bytes of a stream, which is read to its end."""
    kept = b""
    while data := await stream.read(READ_BYTES):
        kept = (kept + data)[:ERRORS_MAX]
    return kept


async def _end(process: Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await ends_within(process, STOP_S)
