"""Dead letters: records that the sink can never take, stored next to the checkpoint with the reason.

Owns one file per bridge, NAME.dead.jsonl: one line of JSON per record, with its identity, its topic and its
payload in base64. So no special tool is needed to find the reason. A letter is on the disk before the cursor
moves. When the file is full the bridge stops and reports it: no record is dropped for lack of space. On a
full disk it tries again until there is room. A crash may write a letter twice; both have the same identity.

After the reason is removed, `brim bridge backfill` sends the records again while the log has them.

A payload that does not fit the payload schema is no dead letter: its file has it (bridge/payloads/decode.py).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from bridge.drain.settings import BridgeSettings
from bridge.errors import SinkBlocked, SinkUnavailable
from bridge.format.record_batch import RecordBatch
from bridge.format.sink_batch import Rejected
from bridge.format.write_intent import WriteIntent
from persistence.durable_file import remedy_of
from persistence.files import OsFiles
from ringbuf import Batch as RingBatch


class DeadLetters:
    """Dead letters of one bridge."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self.path = settings.dead_letters_path

    def add(self, intent: WriteIntent, batch: RecordBatch, rejected: Sequence[Rejected]) -> None:
        """Append rejected records and sync them, or none. Raises SinkBlocked: the file is full;
        SinkUnavailable: the disk does not take them.
        """
        lines = "".join(
            json.dumps(rejection) + "\n" for rejection in self._letters(intent, batch, rejected)
        ).encode()
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                max_bytes = self._settings.dead_letters_bytes
                if (length := os.fstat(fd).st_size) + len(lines) > max_bytes:
                    raise SinkBlocked(
                        f"{self.path}: {length} bytes of dead letters, and {len(lines)} more would be above "
                        f"dead_letters_bytes = {max_bytes}; the last reason: {rejected[-1].reason}",
                        hint="correct the cause, move the file away, then resume the bridge",
                    )
                _append(fd, lines, length)
            finally:
                os.close(fd)
            if length == 0:
                OsFiles().dirsync(str(self.path.parent))
        except OSError as error:
            raise SinkUnavailable(f"{self.path}: {error.strerror}", hint=remedy_of(error)) from error

    def _letters(
        self, intent: WriteIntent, batch: RecordBatch, rejected: Sequence[Rejected]
    ) -> Iterator[dict[str, Any]]:
        reasons = {rejection.offset: rejection.reason for rejection in rejected}
        for run in batch.runs:
            for record in RingBatch.of(run.records, batch.ring_epoch, run.first_offset, None):
                if record.offset not in reasons:
                    continue
                yield {
                    "edge": self._settings.edge_id,
                    "stream": intent.stream,
                    "partition": intent.partition,
                    "epoch": intent.epoch,
                    "offset": record.offset,
                    "time": datetime.fromtimestamp(record.timestamp_ns / 1e9, UTC).isoformat(),
                    "topic": record.key.decode(errors="replace"),
                    "reason": reasons[record.offset],
                    "payload": base64.b64encode(record.bytes()).decode(),
                }


def _append(fd: int, lines: bytes, length: int) -> None:
    """Append all lines to the file and sync it, or leave the file unchanged. Raises OSError."""
    rest = memoryview(lines)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fdatasync(fd)
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, length)
        raise
