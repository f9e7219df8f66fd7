"""Page of the formats on disk and between processes: the comments and docstrings that define them, collected.

Owns the list of formats: the files that define each one, its version, and its golden bytes in tests/golden.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bridge.drain import checkpoint as bridge_checkpoint
from bridge.drain import control_socket
from bridge.format import drained_file, installation, parquet_footer
from docs.generate import ROOT, MissingDescription
from docs.generate.commands import help_text
from docs.generate.markdown import code, table
from edge.consumers import offset_journal
from edge.consumers import protocol as consumer_protocol
from edge.delayed import store as delayed_store
from edge.local import protocol as control_protocol
from edge.local import zmq_frames
from edge.session_store import journal_records
from edge.streams import epochs
from persistence.archive import layout
from persistence.segment import clean_shutdown, footer
from persistence.segment import format as segment
from ringbuf import FORMAT_VERSION

GOLDEN = "tests/golden"
_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_MARGIN = re.compile(r"^ \* ?", re.MULTILINE)
_TABLE = re.compile(r"^ *byte +size", re.MULTILINE)


class Format(NamedTuple):
    """One format; `version` is None where the golden bytes or the text have no number."""

    title: str
    sources: tuple[str, ...]
    version: int | None
    golden: str = ""  # a pattern below tests/golden


def _defined(path: str, name: str) -> int:
    """The value of a #define that Python does not see."""
    match = re.search(rf"#define {name} (\d+)", (ROOT / path).read_text())
    assert match is not None, f"{path}: no {name}"
    return int(match[1])


_SPILL = "ringbuf/c/mqtt/out/spill_file.h"
FORMATS = (
    Format("Record", ("ringbuf/c/base/record.h",), FORMAT_VERSION, "ringbuf/ring-v*.bin"),
    Format("Ring and cursor file", ("ringbuf/c/ring/layout.h",), FORMAT_VERSION, "ringbuf/*-v*.bin"),
    Format(
        "Segment", ("persistence/segment/format.py",), segment.FORMAT_VERSION, "persistence/segment-v*.log"
    ),
    Format(
        "Footer of a segment",
        ("persistence/segment/footer.py",),
        footer.FOOTER_VERSION,
        "persistence/footer-v*",
    ),
    Format("Archive", ("persistence/archive/layout.py",), layout.ARCHIVE_VERSION, "persistence/archive-v*"),
    Format(
        "Checkpoint of a closed log",
        ("persistence/segment/clean_shutdown.py",),
        clean_shutdown.MARKER_VERSION,
        "persistence/checkpoint-v*",
    ),
    Format("Log directory", ("persistence/read/directories.py",), None, "persistence/log-v*"),
    Format("Envelope and frame", ("persistence/durable_file.py",), None),
    Format(
        "Drained file",
        ("bridge/format/drained_file.py", "bridge/format/file_name.py"),
        drained_file.VERSION,
        "bridge/drained-v*",
    ),
    Format("Merged file", ("bridge/format/merged_file.py",), None, "bridge/merged-v*"),
    Format(
        "Drained file as Parquet",
        ("bridge/sinks/parquet.py", "bridge/format/parquet_footer.py"),
        parquet_footer.VERSION,
        "bridge/parquet-*",
    ),
    Format("Kafka record", ("bridge/sinks/kafka.py",), None),
    Format(
        "Checkpoint of a bridge",
        ("bridge/drain/checkpoint.py",),
        bridge_checkpoint.VERSION,
        "bridge/checkpoint-v*",
    ),
    Format("Dead letters of a bridge", ("bridge/drain/dead_letters.py",), None),
    Format(
        "Control protocol of a bridge",
        ("bridge/drain/control_socket.py",),
        control_socket.VERSION,
        "control/bridge-v*",
    ),
    Format("Installation", ("bridge/format/installation.py",), installation.VERSION, "state/installation-v*"),
    Format("Holder of a lease", ("bridge/sinks/lease_holder.py", "bridge/sinks/lease.py"), None),
    Format("Epochs", ("edge/streams/epochs.py",), epochs.VERSION, "state/epochs-v*"),
    Format(
        "Session journal",
        ("ringbuf/c/mqtt/durable/journal.h", "edge/session_store/journal_records.py"),
        journal_records.STATE_VERSION,
        "state/sessions-v*.state",
    ),
    Format(
        "Session snapshot",
        ("edge/session_store/snapshot_file.py",),
        journal_records.STATE_VERSION,
        "state/sessions-v*.state",
    ),
    Format("Spill file", (_SPILL,), _defined(_SPILL, "MQ_SPILL_VERSION"), "state/sessions-v*.spill"),
    Format("Retained store", ("edge/recovery/retained_store.py",), None, "state/retained-v*.state"),
    Format(
        "Delayed messages", ("edge/delayed/store.py",), delayed_store.SCHEMA_VERSION, "state/delayed-v*.sql"
    ),
    Format("Author of a retained message", ("edge/broker/retained_authors.py",), None),
    Format("ZeroMQ message", ("edge/local/zmq_frames.py",), zmq_frames.VERSION, "zeromq/*.bin"),
    Format("Control protocol", ("edge/local/protocol.py",), control_protocol.VERSION, "control/broker-v*"),
    Format(
        "Protocol of consumers",
        ("edge/consumers/protocol.py",),
        consumer_protocol.VERSION,
        "consumers/vectors.txt",
    ),
    Format(
        "Committed offsets of consumers",
        ("edge/consumers/offset_journal.py", "edge/consumers/offset_store.py"),
        offset_journal.VERSION,
        "consumers/journal*.txt",
    ),
    Format("MQTT 5 properties of a record", ("ringbuf/c/mqtt/in/properties.c",), None),
)


def page() -> str:
    """Text of formats.md."""
    header = ("Format", "Version", "Defined in", "Golden bytes")
    parts = ["# Formats\n", table(header, map(_row, FORMATS))]
    for one in FORMATS:
        parts += [f"## {one.title}\n", *map(help_text, _texts(one.sources))]
    return "\n".join(parts)


def _row(one: Format) -> tuple[str, ...]:
    if one.golden and not list((ROOT / GOLDEN).glob(one.golden)):
        raise MissingDescription(f"{one.title}: no golden bytes match {GOLDEN}/{one.golden}")
    golden = one.golden and code(f"{GOLDEN}/{one.golden}")
    version = "" if one.version is None else str(one.version)
    return one.title, version, ", ".join(map(code, one.sources)), golden


def _texts(sources: Iterable[str]) -> Iterator[str]:
    """The docstring of a Python module; of a C file its first comment, and those with a table of bytes."""
    for path in sources:
        text = (ROOT / path).read_text()
        if path.endswith(".py"):
            yield ast.get_docstring(ast.parse(text)) or ""
            continue
        comments = (_MARGIN.sub("", f" *{inside}").strip("\n *") for inside in _COMMENT.findall(text))
        first, *others = comments
        yield first.partition("\n")[2].strip("\n")  # without the line of the licence
        yield from filter(_TABLE.search, others)
