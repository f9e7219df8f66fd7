"""The compiled module with its types installed: the only way to reach it.

`lib` and `ffi` are cffi's (GIL released: waits and whole batches); the types are those of c/calls.c (GIL
kept: one call a message).
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any


def _unsupported() -> str:
    """The reason why no C core works in this interpreter; "" if one may."""
    if "t" in sys.abiflags:
        return (
            "Brim does not support free-threaded builds of Python (without the GIL): its C core relies on "
            "the GIL and on the stable ABI (abi3), which such builds do not load; "
            "use a regular build of Python"
        )
    for name in ("_interpreters", "_xxsubinterpreters"):  # of Python 3.13, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        if _number(current) != _number(main):
            return (
                "ringbuf, the C core of Brim, works in the main interpreter of a process only, and this is a "
                "sub-interpreter; use threads or processes"
            )
        break
    return ""


def _number(interpreter: Any) -> int:
    """The id of an interpreter; since Python 3.13 a tuple has it first."""
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


if cause := _unsupported():
    raise ImportError(cause, name="ringbuf._ringbuf")

try:
    from ringbuf import _ringbuf
except ImportError as error:  # also what `from` says of a module that is not there
    raise ImportError(
        f"ringbuf._ringbuf, the C core, is not there or does not fit this Python ({error}); compile it with "
        "`python build.py`, which `pip install -e .` does, too",
        name="ringbuf._ringbuf",
    ) from error

lib = _ringbuf.lib
ffi = _ringbuf.ffi

if lib.rb_install(b"ringbuf._ringbuf") != 0:
    raise ImportError("ringbuf._ringbuf: its types could not be made; rebuild it with `python build.py`")
if not hasattr(_ringbuf, "Writer"):  # They are those of the interpreter that imported ringbuf first.
    raise ImportError(
        "ringbuf, the C core of Brim, works in the main interpreter of a process only; "
        "use threads or processes"
    )

if TYPE_CHECKING:
    from ringbuf._ringbuf import Batch, Claim, CReader, KeyFilter, Record, Writer
else:
    Batch = _ringbuf.Batch
    Claim = _ringbuf.Claim
    CReader = _ringbuf.Reader
    KeyFilter = _ringbuf.KeyFilter
    Record = _ringbuf.Record
    Writer = _ringbuf.Writer

__all__ = ["Batch", "CReader", "Claim", "KeyFilter", "Record", "Writer", "ffi", "lib"]
