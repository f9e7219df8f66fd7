"""Pages of a file in the page cache of the kernel."""

import ctypes
import mmap
import os
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)


def cached_bytes(path: Path) -> int:
    """Asks mincore(2), which reads nothing itself."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        view = ctypes.c_char.from_buffer(mapped)
        failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), pages)
        del view
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


def forgets(directory: Path) -> bool:
    """True if the file system can drop pages from the cache: one in memory cannot."""
    path = directory / "kept"
    path.write_bytes(bytes(mmap.PAGESIZE))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return cached_bytes(path) == 0
    finally:
        os.close(descriptor)
        path.unlink()
