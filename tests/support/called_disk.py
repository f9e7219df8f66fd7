"""Stand-in disk for the C side of a log: C calls back into Python instead of the kernel.

A Files class takes part by stand_in(), which makes a CalledDisk of it.  CalledFiles does that for real files
with a mistake in some of their methods.
"""

import errno
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from persistence.files import Files, OsFiles
from persistence.log.native_commit import STEP_BYTES
from ringbuf.native import ffi, lib


@runtime_checkable
class QueuedFiles(Files, Protocol):
    """Files on a disk that takes several writes at once, for a simulation of one."""

    block_bytes: int  # of the device: written whole or not at all
    chunk_bytes: int  # of one of these writes, at most

    def submit(self, handle: int, data: memoryview, position: int, slot: int) -> None:
        """Begins a write; `data` stays as it is until reap() has told of `slot`."""

    def reap(self) -> int:
        """The slot of the write that is done next."""

    def result(self, slot: int) -> int:
        """Number of bytes written.  Raises OSError."""


class CalledDisk:
    """The calls of `files` for an rb_log `c`.  Keep it as long as `c`."""

    def __init__(self, files: Files, c: Any) -> None:
        self.handle = -1
        self.raised: BaseException | None = None  # by a disk that does not only fail
        self._files = files
        self._calls = ffi.new("rb_log_calls *")
        self._kept = [self._set("write", self._on_write), self._set("read", self._on_read)]
        self._kept.append(self._set("sync", self._on_sync))
        self._calls.block_bytes, self._calls.chunk_bytes = 512, STEP_BYTES
        if isinstance(files, QueuedFiles):
            self._kept += [self._set("submit", self._on_submit), self._set("reap", self._on_reap)]
            self._calls.block_bytes, self._calls.chunk_bytes = files.block_bytes, files.chunk_bytes
        lib.rb_log_files(c, self._calls)

    def _set(self, name: str, call: Callable[..., int]) -> Any:
        made = ffi.callback(f"rb_log_{name}_call", call)
        setattr(self._calls, name, made)
        return made

    def _on_write(self, _: Any, pieces: Any, count: int, place: int) -> int:
        buffers = [memoryview(ffi.buffer(it.base, it.length)) for it in pieces[0:count]]
        return self._guarded(lambda: self._files.pwritev(self.handle, buffers, place))

    def _on_read(self, _: Any, out: Any, length: int, place: int) -> int:
        return self._guarded(lambda: self._read_into(ffi.buffer(out, length), length, place))

    def _read_into(self, out: Any, length: int, place: int) -> int:
        found = self._files.read(self.handle, length, place)
        out[: len(found)] = found
        return len(found)

    def _on_sync(self, _: Any) -> int:
        return self._guarded(lambda: self._files.fdatasync(self.handle))

    def _on_submit(self, _: Any, data: Any, length: int, place: int, slot: int) -> int:
        assert isinstance(self._files, QueuedFiles)
        files, bytes_ = self._files, memoryview(ffi.buffer(data, length))
        return self._guarded(lambda: files.submit(self.handle, bytes_, place, slot))

    def _on_reap(self, _: Any, result: Any) -> int:
        assert isinstance(self._files, QueuedFiles)
        files, slot = self._files, self._files.reap()
        result[0] = self._guarded(lambda: files.result(slot))
        return slot

    def _guarded(self, call: Callable[[], int | None]) -> int:
        try:
            return call() or 0
        except OSError as error:
            return -(error.errno or errno.EIO)
        except BaseException as error:  # noqa: BLE001  C cannot carry it; Rounds raises it again.
            self.raised = error
            return -errno.EIO


class CalledFiles(OsFiles):
    """Real files whose methods C calls, too: a subclass overrides some of them."""

    def stand_in(self, log: Any) -> CalledDisk:
        """See Files."""
        return CalledDisk(self, log)
