"""Samples of records for the inference of a payload schema: from drained files, and from lines.

Bounded by the number of records, the length of a payload and the bytes of all. A sample of drained files has
records of files that are spread evenly over all files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from bridge.arrow import parquet_reader
from bridge.arrow.decode import decode_file
from bridge.arrow.schema import DecodedColumns
from bridge.errors import DrainedFileError, SourceOptionError
from bridge.format import file_parser
from bridge.format.file_name import PARQUET_SUFFIX, FileName, as_drained

PAYLOAD_MAX_BYTES: Final = 1 << 20
SAMPLE_MAX_BYTES: Final = 128 << 20  # decoded they are several times as large, next to a broker
LINE_MAX_BYTES = 2 * PAYLOAD_MAX_BYTES
FILES_MAX = 64
TOPIC: Final = re.compile(r"[^+#\0\ud800-\udfff]*")
COLUMNS = ("topic", "payload")


@dataclass(slots=True)
class Sample:
    """Topics and payloads of some records. A topic name that MQTT does not allow is "" here.

    `too_long`: number of payloads left out. `room_bytes`: bytes of payloads that still fit. `unreadable`: the
    reason for each drained file left out.
    """

    topics: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    too_long: int = 0
    room_bytes: int = SAMPLE_MAX_BYTES
    unreadable: list[str] = field(default_factory=list)

    def add(self, topic: str, payload: bytes | None) -> None:
        """Add a record. A payload above the limits, or None, is left out and counted in `too_long`."""
        if payload is None or len(payload) > min(PAYLOAD_MAX_BYTES, self.room_bytes):
            self.too_long += 1
            return
        self.room_bytes -= len(payload)
        self.topics.append(topic if TOPIC.fullmatch(topic) else "")  # a line may have any text
        self.payloads.append(payload)


def of_lines(lines: BinaryIO, count: int) -> Sample:
    """The first lines of a stream: payloads, or objects with topic and payload. Empty lines are ignored."""
    sample = Sample()
    while len(sample.topics) < count and (line := lines.readline(LINE_MAX_BYTES)):
        rest = line
        while len(rest) == LINE_MAX_BYTES and not rest.endswith(b"\n"):
            rest = lines.readline(LINE_MAX_BYTES)
        if rest is not line:
            sample.too_long += 1
        elif stripped := line.strip():
            sample.add(*_record(stripped))
    return sample


def _record(line: bytes) -> tuple[str, bytes]:
    """Topic and payload of a line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return "", line
    if not isinstance(value, dict) or not isinstance(value.get("topic"), str) or "payload" not in value:
        return "", line
    payload = value["payload"]
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return value["topic"], text.encode(errors="surrogatepass")


def of_drained_files(root: Path, count: int) -> Sample:
    """Records of the drained files below `root`.

    Raises SourceOptionError if there is no such file, or none of them can be read.
    """
    paths = sorted(path for path in root.rglob("edge=*/dt=*/*") if FileName.parse(as_drained(str(path))))
    if root.name.startswith("dt="):
        paths = sorted(path for path in root.iterdir() if FileName.parse(as_drained(str(path.absolute()))))
    if not paths:
        raise SourceOptionError(
            f"{str(root)!r} has no drained files",
            hint="name the directory that the bridge drains to: its `to`",
        )
    chosen = (
        [paths[at * len(paths) // FILES_MAX] for at in range(FILES_MAX)] if len(paths) > FILES_MAX else paths
    )
    sample = Sample()
    for number, path in enumerate(chosen):
        quota = (count - len(sample.topics)) // (len(chosen) - number)
        try:
            _add_file(sample, path, quota)
        except (DrainedFileError, OSError) as error:
            sample.unreadable.append(str(error))  # the others may be readable
    if not sample.topics and sample.unreadable:
        raise SourceOptionError(
            f"no drained file can be read: {sample.unreadable[0]}",
            hint="correct the file, or name another directory",
        )
    return sample


def _add_file(sample: Sample, path: Path, quota: int) -> None:
    """Add the first records of the file."""
    for decoded in _rows(path):
        rows = min(quota, decoded.rows)
        topics, payloads = (decoded.columns[name].slice(0, rows).to_pylist() for name in COLUMNS)
        for topic, payload in zip(topics, payloads, strict=True):
            sample.add(topic, payload)
        quota -= rows
        if quota <= 0:
            return


def _rows(path: Path) -> Iterator[DecodedColumns]:
    name = FileName.parse(as_drained(str(path.absolute())))
    assert name is not None
    if path.suffix == PARQUET_SUFFIX:
        with path.open("rb") as file:
            yield from parquet_reader.rows_of(file, str(path), name, COLUMNS)
        return
    data: Any = memoryview(path.read_bytes())
    yield from decode_file(file_parser.parse(data, str(path)), COLUMNS)
