"""Files of a ring: names, creation, opening and header check.

Returns mappings whose headers have been checked; owns no ring.  Formats: c/ring/layout.h.
"""

import errno
import os
from pathlib import Path
from typing import Any

from ringbuf.constants import CURSORS_BYTES, FORMAT_VERSION, HEADER_BYTES
from ringbuf.errors import NotARing, WriterAlive, WrongAbi, WrongLength, WrongVersion
from ringbuf.native import ffi, lib
from ringbuf.shared_mapping import Mapping, check_free_memory

WRITER_LOCK_BYTE = 0
CURSORS_PATCH_BYTES = 32  # from the magic to the identity


def ring_file(path: Path | str) -> Path:
    """Name of the file that holds the ring `path`."""
    return Path(f"{path}.ring")


def cursor_file(path: Path | str) -> Path:
    """Name of the file with the reader slots of the ring `path`."""
    return Path(f"{path}.cursors")


def epoch_in(file: Path) -> int:
    """The epoch in the header of a ring file; 0 if the file is unreadable or the header checksum is wrong."""
    facts = ffi.new("rb_ring_info *")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO does not block
        try:
            header = os.read(descriptor, HEADER_BYTES)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    except OSError:
        return 0
    if len(header) == HEADER_BYTES:
        lib.rb_inspect(ffi.from_buffer(header), size, facts)
    return int(facts.epoch)


def identity() -> int:
    """A random number for the header of a ring and of its cursor file."""
    return int.from_bytes(os.urandom(4)) | 1


def made_cursors(path: Path, mode: int, ring: Mapping) -> Mapping:
    """A new cursor file for `ring`, whose file has `mode`; replaces an existing one."""
    file = cursor_file(path)
    file.unlink(missing_ok=True)
    mode |= (mode & 0o444) >> 1  # users who may read the ring may also write its cursors
    cursors = Mapping.create(file, CURSORS_BYTES, mode, populate=True, lock_memory=False, huge_pages=False)
    lib.rb_format_cursors(cursors.pointer, ring.pointer)
    return _restorable(cursors)


def opened_cursors(path: Path, ring: Mapping) -> Mapping:
    """The cursor file of `ring`.  Raises FileNotFoundError, PermissionError, NotARing."""
    cursors = Mapping.open(cursor_file(path), writable=True)
    result = lib.rb_inspect_cursors(cursors.pointer, cursors.size, ring.pointer)
    if result == lib.RB_OK:
        return _restorable(cursors)
    cursors.close()
    if result == lib.RB_CORRUPT:
        raise NotARing(f"{cursor_file(path)}: the cursor file of another ring; remove it with its ring")
    raise NotARing(f"{cursor_file(path)}: not a cursor file of this version; remove it with its ring")


def cursors_to_read(path: Path, ring: Mapping) -> Mapping | None:
    """The cursor file of `ring`; None if this user may not write it.  Raises FileNotFoundError, NotARing."""
    try:
        return opened_cursors(path, ring)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return None


def _restorable(cursors: Mapping) -> Mapping:
    """Keep the header restorable: readers then only lose their slots if another user shortens the file."""
    cursors.patch(0, bytes(cursors.view[:CURSORS_PATCH_BYTES]), restore=True)
    return cursors


def locked_whole(file: Path) -> tuple[Mapping, list[str]]:
    """The memory of a ring without a writer, locked for writing and as long as its header says.

    Also returns the names of the repaired parts of the header.  Raises FileNotFoundError, WriterAlive,
    NotARing and its subclasses.
    """
    memory = Mapping.open(file, writable=True)
    mended = []
    try:
        if not memory.lock(WRITER_LOCK_BYTE):
            raise WriterAlive(memory.path)
        if memory.size >= HEADER_BYTES and lib.rb_geometry_mend(memory.pointer):
            mended.append("geometry")
        if memory.size >= HEADER_BYTES:
            lib.rb_upgrade(memory.pointer, identity())
        facts = ffi.new("rb_ring_info *")
        lib.rb_inspect(memory.pointer, memory.size, facts)
        size = HEADER_BYTES + facts.capacity_bytes
        if not facts.capacity_bytes or size == memory.size:
            inspected(memory)
            return memory, mended
        check_free_memory(file, size - memory.size)
        os.truncate(memory.descriptor, size)
        # with a full tmpfs: ENOSPC here instead of SIGBUS later
        os.posix_fallocate(memory.descriptor, 0, size)
    except BaseException:
        memory.close()
        raise
    memory.close()
    memory, _ = locked_whole(file)
    return memory, [*mended, "size"]


def inspected(memory: Mapping) -> Any:
    """The fields of a ring's header (rb_ring_info).  Raises NotARing and its subclasses."""
    facts = ffi.new("rb_ring_info *")
    result = lib.rb_inspect(memory.pointer, memory.size, facts)
    if result == lib.RB_OK:
        return facts
    if result == lib.RB_WRONG_FORMAT and facts.format_version == 0:
        raise NotARing(f"{memory.path}: not a ring; remove it or choose another path")
    if facts.format_version != FORMAT_VERSION:
        raise WrongVersion(memory.path, facts.format_version, FORMAT_VERSION)
    if facts.abi_word != lib.rb_abi_word():
        raise WrongAbi(memory.path, facts.abi_word, lib.rb_abi_word())
    if facts.capacity_bytes:
        raise WrongLength(memory.path, memory.size, HEADER_BYTES + facts.capacity_bytes)
    raise NotARing(f"{memory.path}: the header's checksum does not hold; remove the file")
