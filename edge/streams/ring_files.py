"""Ring files of an earlier run of the broker: taken over, renamed, or created again.

A ring that is taken over is checked first, record by record. Damaged records are restored from the log if it
has them. The others are declared lost, by a log line each and in the ring itself, so that every reader counts
them and continues after them. A ring with an unusable header, of another version, or older than the log, is
renamed to NAME.ring.bad, with a warning. None of this prevents a start. Only one such file per name is kept,
because it occupies memory, and none if a new ring has no room otherwise.

A file that cannot be opened, because of its owner, its mode or a lack of memory, has its records. It stays as
it is, and the start is refused.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from edge.errors import RingsUnavailable
from edge.logging_setup import pairs
from edge.streams.epochs import Epochs
from persistence.durable_file import problem_of, remedy_of
from persistence.errors import LogError
from ringbuf import Range, Ring
from ringbuf.check import Check, Damage
from ringbuf.errors import RingError, WriterAlive
from ringbuf.ring import cursor_file, ring_file

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_BYTES = 1 << 20  # of the log, at a time
UNUSABLE = ".ring.bad"  # suffix of a renamed file
LINES_MAX = 20  # of one ring's damage; the rest is summed up


def stream_of(ring_name: str) -> str:
    """Stream of a ring: of "press-0", or of a producer's ring "press@camera"."""
    stream, at, _ = ring_name.partition("@")
    return stream if at else ring_name.rpartition("-")[0]


class LogEnd(NamedTuple):
    """End of a ring in the log: its last epoch, and the offset after its last record."""

    epoch: int = 0
    offset: int = 0


NO_LOG = LogEnd()


class LoggedRecords(Protocol):
    """Reader of the records that the log has."""

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int, /) -> Sequence[Range]:
        """Runs of records from a ring position on."""


class _BehindTheLog(RingError):
    """The log has records of this ring that the ring never had: its memory is older."""


def ring_to_write(
    path: Path,
    capacity_bytes: int,
    epochs: Epochs,
    *,
    log_end: LogEnd = NO_LOG,
    past: LoggedRecords | None = None,
    prepare: Callable[[Ring], T],
    mode: int = 0o640,
) -> tuple[Ring, T]:
    """Ring at `path` for this process to write, and the result of `prepare` for it: its writer.

    The ring is re-attached, with its epoch and records, if possible. Otherwise it is new, in a new epoch that
    begins at `log_end`; its pages wait for Ring.populate(). `past`: source of
    damaged records. A RingError of `prepare` means damage. `mode`: of a new file. Raises RingsUnavailable.
    """
    ring = _left_behind(path, past)
    if ring is not None:
        try:
            _check_name(ring)
            prepared = prepare(ring)
            _compare_with_log(ring, log_end)
        except RingError as error:
            ring.close()
            _rename_unusable(path, error)
        else:
            ring.refuse(0)  # another process may write the refusal, or damage may set it
            _log_losses(ring, capacity_bytes)
            return ring, prepared
    epoch = epochs.next(path.name, log_end.epoch)
    ring = _created(path, capacity_bytes, epoch, log_end.offset, mode, populate=False)
    return ring, prepare(ring)


def ring_to_read(
    path: Path, capacity_bytes: int, epochs: Epochs, *, log_end: LogEnd = NO_LOG, mode: int = 0o640
) -> Ring:
    """Ring at `path` for another process to write and this one to read.

    It is the existing one, or new, in a new epoch that begins at `log_end`. Raises RingsUnavailable.
    """
    try:
        return attached_to_read(path, log_end)
    except (RingError, FileNotFoundError, PermissionError) as error:
        if ring_file(path).exists():
            _rename_unusable(path, error)
    epoch = epochs.next(path.name, log_end.epoch)
    _created(path, capacity_bytes, epoch, log_end.offset, mode).close()
    return Ring.attach(path)


def attached_to_read(path: Path, log_end: LogEnd = NO_LOG) -> Ring:
    """Attach an existing ring. Raises RingError: it is damaged, or older than the log."""
    ring = Ring.attach(path)
    if ring.epoch < log_end.epoch:
        ring.close()
        raise _BehindTheLog(f"the log ends in epoch {log_end.epoch}, the ring is of epoch {ring.epoch}")
    return ring


def reattached(path: Path, past: LoggedRecords | None) -> Ring:
    """The ring of an earlier broker, checked and repaired. Raises RingError, OSError, WriterAlive."""
    return Ring.reattach(path, partial(_restore, path.name, past))


def mend_left_behind(path: Path, past: LoggedRecords | None) -> None:
    """Check and repair a ring that another process wrote, unless that process still writes it."""
    with (
        suppress(RingError, OSError),  # the next process that attaches the ring reports the error
        reattached(path, past) as ring,
    ):
        _report_damage(ring)


def _left_behind(path: Path, past: LoggedRecords | None) -> Ring | None:
    try:
        return reattached(path, past)
    except WriterAlive as error:
        raise RingsUnavailable(f"{ring_file(path)}: written by another process", hint="stop it") from error
    except (RingError, FileNotFoundError) as error:
        if ring_file(path).exists():
            _rename_unusable(path, error)
        return None
    except OSError as error:  # also a wrong owner or mode: the records are there
        file = error.filename or ring_file(path)  # or the cursor file
        raise RingsUnavailable(
            f"{file}: cannot be opened: {error.strerror}", hint=remedy_of(error)
        ) from error


def _restore(name: str, past: LoggedRecords | None, damage: Damage, memory: memoryview) -> bool:
    """Write records of a damaged place from the log into the ring. True if the log had any of them."""
    if past is None:
        return False
    changed, position = False, damage.position
    try:
        while position < damage.end_position:
            runs = past.read_at(name, damage.epoch, position, READ_BYTES)
            for run in runs:
                changed |= _written(run, damage, memory)
            if not runs or runs[-1].position + len(runs[-1].view) <= position:
                break
            position = runs[-1].position + len(runs[-1].view)
    except (LogError, OSError) as error:
        log.error("damaged records not read from the log %s", pairs(ring=name, reason=error))
    return changed


def _written(run: Range, damage: Damage, memory: memoryview) -> bool:
    begin = max(run.position, damage.position)
    end = min(run.position + len(run.view), damage.end_position)
    if begin >= end:
        return False
    place = begin % len(memory)  # a run never wraps around the end of the ring
    there, logged = memory[place : place + end - begin], run.view[begin - run.position : end - run.position]
    if there == logged:
        return False
    there[:] = logged
    return True


def _check_name(ring: Ring) -> None:
    if ring.name != ring.path.name:
        raise RingError(f"{ring_file(ring.path)} is ring {ring.name} by its own words")


def _compare_with_log(ring: Ring, log_end: LogEnd) -> None:
    """Check that the ring is not older than the log.

    Must be called after its writer was opened: a killed writer has not yet published the end of its committed
    records, and the log may have those.
    """
    end = LogEnd(ring.epoch, ring.extremes().end_offset)
    if end < log_end:
        raise _BehindTheLog(f"the log ends at {log_end}, the ring at {end}: it is an older life of this ring")


def _rename_unusable(path: Path, error: Exception) -> None:
    bad_file = ring_file(path).with_suffix(UNUSABLE)
    ring_file(path).replace(bad_file)
    with suppress(OSError):  # a directory: then the new ring reports it
        cursor_file(path).unlink()
    details = pairs(name=path.name, reason=error, kept=bad_file)
    log.warning("unusable ring file renamed; new ring created %s", details)


def _created(
    path: Path, capacity_bytes: int, epoch: int, first_offset: int, mode: int, *, populate: bool = True
) -> Ring:
    create = partial(
        Ring.create,
        path,
        capacity_bytes=capacity_bytes,
        epoch=epoch,
        first_offset=first_offset,
        mode=mode,
        populate=populate,
    )
    try:
        ring = _with_room(create, path.parent)
    except OSError as error:
        with suppress(OSError):
            cursor_file(path).unlink()
        problem = f"ring {path.name} of {capacity_bytes} bytes cannot be created in {path.parent}"
        if error.errno == errno.ENOSPC:
            hint = "lower ring_bytes or partitions, or give that file system more room (docker --shm-size)"
            raise RingsUnavailable(f"{problem}: it is full", hint=hint) from error
        is_memory = error.errno == errno.ENOMEM
        hint = "lower ring_bytes or partitions, or free memory" if is_memory else remedy_of(error)
        raise RingsUnavailable(f"{problem}: {problem_of(error)}", hint=hint) from error
    log.info("ring created %s", pairs(name=path.name, bytes=capacity_bytes, epoch=epoch, offset=first_offset))
    return ring


def _with_room(create: Callable[[], Ring], directory: Path) -> Ring:
    """Result of `create`. Unusable rings are removed, oldest first, until there is room. Raises OSError."""
    unusable = sorted(directory.glob(f"*{UNUSABLE}"), key=lambda file: file.lstat().st_ctime_ns)
    for file in unusable:
        try:
            return create()
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.ENOMEM}:
                raise
            with suppress(OSError):  # a directory
                file.unlink()
                log.warning("unusable ring file removed %s", pairs(file=file, reason=error.strerror))
    return create()


def _report_damage(ring: Ring) -> None:
    check = ring.check
    if check is None:
        return
    if check.rebuilt:
        log.warning("ring header repaired %s", pairs(name=ring.name, parts=" ".join(check.rebuilt)))
    if check.restored:
        details = {"name": ring.name, "places": len(check.restored), "first": check.restored[0].offset}
        log.warning("damaged ring records restored from the log %s", pairs(**details))
    lost = [damaged for damaged in check.lost if damaged.records]  # without places that held none
    for damaged in lost[:LINES_MAX]:
        details = {
            "name": ring.name,
            "epoch": ring.epoch,
            "offset": damaged.offset,
            "records": damaged.records,
        }
        log.error("damaged ring records lost %s", pairs(**details))
    if len(lost) > LINES_MAX:
        more = lost[LINES_MAX:]
        details = {"name": ring.name, "places": len(more), "records": _records(more)}
        log.error("more damaged ring records lost %s", pairs(**details))


def records_lost(check: Check | None) -> int:
    """Number of records that the check of a ring has declared lost."""
    return 0 if check is None else _records(check.lost)


def _records(damage: Iterable[Damage]) -> int:
    return sum(damaged.records for damaged in damage)


def _log_losses(ring: Ring, capacity_bytes: int) -> None:
    _report_damage(ring)
    end = ring.extremes().end_offset
    log.info("ring re-attached %s", pairs(name=ring.name, epoch=ring.epoch, offset=end))
    if ring.capacity_bytes != capacity_bytes:
        log.warning(
            "ring keeps its size; for another, remove the file while the broker is stopped %s",
            pairs(bytes=ring.capacity_bytes, ring_bytes=capacity_bytes, file=ring_file(ring.path)),
        )
