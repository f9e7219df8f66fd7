"""Memory that C code of this process has allocated, by glibc's own count.

Sees leaks of extension modules, which tracemalloc does not.  Python objects below 512 bytes are not in it.
"""

import ctypes


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_bytes() -> int:
    """Return the bytes allocated by malloc() and not freed.  Skips the test where glibc has no such count."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # another C library, or glibc before 2.33
        import pytest

        pytest.skip("needs mallinfo2() of glibc 2.33")
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
