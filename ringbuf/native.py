"""The compiled module with its types installed.  Other modules import the core only from here.

`lib` and `ffi` are cffi's; their calls release the GIL (waits and whole batches).  The types come from
c/python/; their methods keep the GIL (one call per message).
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any


def _unsupported() -> str:
    """The reason why this interpreter cannot load a C core; "" if it can."""
    if "t" in sys.abiflags:
        return (
            "Brim does not support free-threaded builds of Python (without the GIL): its C core relies on "
            "the GIL and on the stable ABI (abi3), which such builds do not load; "
            "use a regular build of Python"
        )
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, and before
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
    """The id of an interpreter.  Since Python 3.13 it is the first item of a tuple."""
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


if cause := _unsupported():
    raise ImportError(cause, name="ringbuf._ringbuf")

try:
    from ringbuf import _ringbuf
except ImportError as error:  # `from` raises it also for a missing module
    raise ImportError(
        f"ringbuf._ringbuf, the C core, is not there or does not fit this Python ({error}); compile it with "
        "`python build.py`, which `pip install -e .` does, too",
        name="ringbuf._ringbuf",
    ) from error

lib = _ringbuf.lib
ffi = _ringbuf.ffi

if lib.rb_install(b"ringbuf._ringbuf") != 0:
    raise ImportError("ringbuf._ringbuf: its types could not be made; rebuild it with `python build.py`")
if not hasattr(_ringbuf, "Writer"):  # the types belong to the first interpreter that imported ringbuf
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
