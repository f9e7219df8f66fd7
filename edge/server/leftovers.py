"""Leftovers: temporary files of a broker that was killed, or of an earlier build, are removed at a start.

    NAME.tmp, NAME.RANDOM.tmp    a replacement that was not renamed (persistence/durable_file.py)
    NAME.new, NAME.RANDOM.new    likewise, of builds before that
    .RING.PID.new                a ring that was not linked to its name (ringbuf/ring.py): memory as large as
                                 the ring

Owns these names, and removes no others. Recovery of a log removes its own temporary files.
The caller has locked the directories.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edge.config.schema import Config
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

REPLACEMENT = re.compile(
    r"(epochs|installation|offsets|retained\.state|sessions\.state)(\.copy)?(\.[0-9a-f]{8,16})?\.(new|tmp)"
)
RING = re.compile(r"\..+\.([0-9]+)\.new")


def leftovers(config: Config) -> Iterator[Path]:
    """The leftovers in the directories of this broker, which must not run."""
    for directory in _directories(config):
        yield from _replacements(directory)
    yield from _unlinked_rings(config)


def _replacements(directory: Path) -> Iterator[Path]:
    return (path for path in _files_in(directory) if REPLACEMENT.fullmatch(path.name))


def _unlinked_rings(config: Config) -> Iterator[Path]:
    for path in _files_in(config.runtime_dir):
        if (match := RING.fullmatch(path.name)) and not _is_alive(int(match[1])):
            yield path


def _directories(config: Config) -> tuple[Path, ...]:
    return config.state_dir, config.runtime_dir, config.state_dir / "consumers", config.log_directory


def remove_leftovers(config: Config) -> None:
    """Remove the leftovers in the directories of this broker. A name that cannot be removed is logged."""
    for directory in _directories(config):
        if paths := list(_replacements(directory)):
            _remove_locked(directory, paths)
    for path in _unlinked_rings(config):
        _remove(path)


def _files_in(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(directory.iterdir())


def _remove_locked(directory: Path, paths: list[Path]) -> None:
    """Remove files, unless a bridge in another process creates the installation there at this moment."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as bridge/format/installation.py
        for path in paths:
            _remove(path)
    except BlockingIOError:
        return  # the next start removes them
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("leftover file not removed; remove it %s", pairs(path=path, reason=error))
    else:
        log.info("leftover file removed %s", pairs(path=path))


def _is_alive(pid: int) -> bool:
    """True if another process of this number may still create the ring."""
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
