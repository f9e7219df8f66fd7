"""The Parquet library: whether it is installed, without loading it.

It is loaded when the first record of an archive is written or read.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING

from persistence.errors import ArchiveUnavailable
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from types import ModuleType


@functools.cache
def is_installed() -> bool:
    """True if pyarrow can be found."""
    return importlib.util.find_spec("pyarrow") is not None


def check_available() -> None:
    """Raises ArchiveUnavailable, which has the command that installs the extra."""
    if not is_installed():
        text = "archives need pyarrow, which is not installed"
        raise ArchiveUnavailable(f"{text}; {install_extra('archive')}")


@functools.cache
def load() -> ModuleType:
    """The module `parquet`, which imports pyarrow.  Raises ArchiveUnavailable."""
    check_available()
    try:
        from persistence.archive import parquet
    except ImportError as error:
        raise ArchiveUnavailable(f"archives need pyarrow, which cannot be imported: {error}") from error
    return parquet


def release_unused() -> None:
    """Give memory back to the system that the library keeps for later."""
    if load.cache_info().currsize:
        load().release_unused()
