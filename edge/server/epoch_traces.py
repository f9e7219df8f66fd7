"""Traces of epochs outside of the epoch files: lower bounds for new epochs after those files are lost.

Owns nothing and changes nothing. Reads rings in the runtime directory, ends of logs, bridge checkpoints,
committed offsets of consumers, the session snapshot and the retained file. All of these have checksums;
damaged ones are skipped. The modules that read a file are imported if the file exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from bridge.format.lake_epoch import ring_epoch
from edge.config.schema import Config
from edge.recovery.retained_store import marks_in
from edge.recovery.state_files import FILE_NAMES, RETAINED_NAME
from edge.session_store.journal_records import Rings, decode_record
from edge.session_store.snapshot_file import RECORD, SavedSnapshot
from edge.streams.epochs import EPOCH_MARGIN, EPOCH_MAX
from ringbuf.ring import epoch_in


def highest_in_use(config: Config, log_epochs: Iterable[int]) -> int:
    """The highest epoch of rings, logs and bridges; 0 if there is none. `log_epochs`: ends of the logs."""
    rings = map(epoch_in, config.runtime_dir.glob("*.ring*"))
    cursors = (
        epoch for path in config.state_dir.glob("bridge/*.checkpoint*") for epoch in _bridge_epochs(path)
    )
    return max(_highest(log_epochs), _highest(rings), _highest(cursors))


def _bridge_epochs(path: Path) -> Iterator[int]:
    from bridge.drain.checkpoint import cursors_in

    return (ring_epoch(cursor.epoch) for cursor in cursors_in(path) or ())


def highest_trace(config: Config, log_epochs: Iterable[int]) -> int:
    """The highest epoch found on this machine; 0 if there is none. `log_epochs` as above."""
    state = config.state_dir
    sources: list[Callable[[], Iterable[int]]] = [
        lambda: [highest_in_use(config, log_epochs)],
        lambda: _consumer_epochs(state / "consumers" / "offsets"),
        lambda: _session_epochs([config.runtime_dir, state]),
        lambda: (epoch for epoch, _ in marks_in(state / RETAINED_NAME).values()),
    ]
    return _highest(epoch for source in sources for epoch in source())


def _highest(numbers: Iterable[int]) -> int:
    return max((number for number in numbers if number < EPOCH_MAX - EPOCH_MARGIN), default=0)


def _consumer_epochs(path: Path) -> Iterator[int]:
    if not path.exists():
        return
    from edge.consumers.offset_journal import bodies_in
    from edge.consumers.offset_store import PlaceBody, decode_body

    for data in bodies_in(path):
        with suppress(ValueError):
            body = decode_body(data)
            if isinstance(body, PlaceBody):
                yield body.epoch


def _session_epochs(directories: Iterable[Path]) -> Iterator[int]:
    for path in (directory / name for directory in directories for name in FILE_NAMES):
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            snapshot = SavedSnapshot(path)
            yield snapshot.origin.epoch
            for kind, body in snapshot:
                if kind == RECORD and isinstance(record := decode_record(body), Rings):
                    yield from (epoch for _, epoch, _ in record.rings.values())
