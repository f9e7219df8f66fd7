"""Directories for brokers and rings under test, in memory, and gone afterwards.

Their names carry the process id of the test run, so that parallel runs never meet, and so that the
leak guard can tell what this run left behind.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = f"brim-test-{os.getpid()}-"


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A new directory of mode 0750 on tmpfs, removed with all that is in it."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHARED_MEMORY))
    path.chmod(0o750)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def left_in_memory() -> frozenset[str]:
    """Directories of this run under /dev/shm, and all files in them."""
    tops = SHARED_MEMORY.glob(f"{PREFIX}*")
    return frozenset(str(path) for top in tops for path in (top, *top.rglob("*")))
