"""The compiled module with its types installed: the only way to reach it.

`lib` and `ffi` are cffi's (GIL released: waits and whole batches); the types are those of c/calls.c (GIL
kept: one call a message).
"""

from typing import TYPE_CHECKING

try:
    from ringbuf import _ringbuf
except ImportError as error:  # also what `from` says of a module that is not there
    raise ImportError(
        "ringbuf._ringbuf, the C core, is not there or does not fit this Python; compile it with "
        "`python build.py`, which `pip install -e .` does, too",
        name="ringbuf._ringbuf",
    ) from error

lib = _ringbuf.lib
ffi = _ringbuf.ffi

if lib.rb_install(b"ringbuf._ringbuf") != 0:
    raise ImportError("ringbuf._ringbuf: its types could not be made; rebuild it with `python build.py`")
if not hasattr(_ringbuf, "Writer"):  # They are those of the interpreter that imported ringbuf first.
    raise ImportError("ringbuf works in the main interpreter of a process only; use threads or processes")

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
