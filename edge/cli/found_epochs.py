"""Traces of epochs outside the epoch files: the numbers below which no new epoch may lie once those are lost.

Owns nothing and changes nothing: rings in the runtime directory, ends of logs, bridge checkpoints, committed
offsets of consumers, the session checkpoint and the retained file are read as they are.  All of these have
checksums; a damaged one is passed over.  The times at which the files of the state directory were written
count too, because an epoch is a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from bridge.checkpoint import cursors_in
from edge.config import Config
from edge.consumers.journal import bodies_in
from edge.consumers.offsets import PlaceBody, decode_body
from edge.epochs import EPOCH_MARGIN, EPOCH_MAX, Traces
from edge.state.checkpoint import NOTE, parse_checkpoint
from edge.state.home import FILE_NAMES, RETAINED_NAME
from edge.state.notes import Sources, note_of
from edge.state.retained_file import marks_in
from ringbuf.ring import epoch_in

__all__ = ["find_traces"]


def find_traces(config: Config, log_epochs: Iterable[int]) -> Traces:
    """Traces of epochs on this machine.  `log_epochs`: ends of the logs."""
    state = config.state_dir
    sources: list[Callable[[], Iterable[int]]] = [
        lambda: log_epochs,
        lambda: map(epoch_in, config.runtime_dir.glob("*.ring*")),
        lambda: (it.epoch for path in state.glob("bridge/*.checkpoint") for it in cursors_in(path) or ()),
        lambda: _consumer_epochs(state / "consumers" / "offsets"),
        lambda: _session_epochs([config.runtime_dir, state]),
        lambda: (epoch for epoch, _ in marks_in(state / RETAINED_NAME).values()),
        lambda: _modified(
            [state / RETAINED_NAME, state / "consumers" / "offsets"]
        ),  # of any life, however short
    ]
    return Traces(
        _highest(it for source in sources for it in source()), _highest(_modified(state.rglob("*")))
    )


def _highest(numbers: Iterable[int]) -> int:
    return max((it for it in numbers if it < EPOCH_MAX - EPOCH_MARGIN), default=0)


def _consumer_epochs(path: Path) -> Iterator[int]:
    for data in bodies_in(path):
        with suppress(ValueError):
            body = decode_body(data)
            if isinstance(body, PlaceBody):
                yield body.epoch


def _session_epochs(directories: Iterable[Path]) -> Iterator[int]:
    for path in (directory / name for directory in directories for name in FILE_NAMES):
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            found = parse_checkpoint(memoryview(path.read_bytes()))
            yield found.origin.epoch
            for kind, body in found.frames:
                if kind == NOTE and isinstance(note := note_of(body), Sources):
                    yield from (epoch for _, epoch, _ in note.rings.values())


def _modified(paths: Iterable[Path]) -> Iterator[int]:
    """Whole seconds since 1970, of each file that exists."""
    for path in paths:
        with suppress(OSError):
            yield int(path.stat().st_mtime)
