"""Reader slots: reservation of a slot, and the lock that proves that its reader is alive.

Slots of other processes are in the cursor file, with one lock byte each.  Slots of the writing process are in
its private memory.

The locks of the file exclude other processes but not threads of this process, which share one open file
description.  A slot is therefore first reserved in this process by one atomic step, and then locked.

Invariants:
  - Only the holder of a slot's lock writes the slot.
  - A slot whose lock is free belongs to no reader, whatever its words contain.
  - At most one thread reserves a slot.
"""

import os
import threading
from contextlib import suppress
from typing import Any

from ringbuf.constants import READER_NAME_MAX_BYTES
from ringbuf.errors import NoFreeSlot, RingClosed
from ringbuf.native import ffi, lib
from ringbuf.shared_mapping import Mapping, PrivateMemory


class ReaderSlot:
    """A taken slot of a reader."""

    def __init__(self, table: "SlotTable", slot: int) -> None:
        self._tables = [table]  # empty after leave()
        self.slot = slot

    def leave(self) -> None:
        """Give the slot back. Any thread or finalizer may call this; only the first call counts."""
        with suppress(IndexError):
            self._tables.pop().give_back(self.slot)


class NoSlot:
    """Reader without a slot, with the interface of ReaderSlot."""

    slot = -1

    def leave(self) -> None:
        """No effect: there is no slot."""


class SlotTable:
    """The first `count` slots of one cursor file, or of the table of local readers.  Safe for any thread."""

    def __init__(self, mapping: Mapping | PrivateMemory, count: int) -> None:
        self._mapping = mapping
        self.count = count
        self._reserved: dict[int, object] = {}
        self._changing = threading.RLock()  # sweep() reserves slots that take() must not miss

    @property
    def is_open(self) -> bool:
        """False after its ring is closed, and in a forked child."""
        return self._mapping.descriptor >= 0

    def take(self, name: str) -> ReaderSlot:
        """A free slot, locked and named.  Raises NoFreeSlot, RingClosed."""
        with self._changing:
            for slot in range(self.count):
                if self._reserve(slot):
                    lib.rb_slot_free(self._mapping.pointer, slot)
                    text = name.encode()[:READER_NAME_MAX_BYTES]
                    lib.rb_slot_name(self._mapping.pointer, slot, text, os.getpid())
                    return ReaderSlot(self, slot)
        raise NoFreeSlot(self._mapping.path, self.count)

    def give_back(self, slot: int) -> None:
        """Free a slot of this process.  Takes no lock, because finalizers may call this at any point."""
        with suppress(RingClosed):
            pointer = self._mapping.pointer  # taken before the descriptor is read: keeps the memory mapped
            if self._mapping.descriptor >= 0:
                lib.rb_slot_free(pointer, slot)
                self._mapping.unlock(slot)
        del self._reserved[slot]

    def sweep(self) -> int:
        """Free the slots of readers that died.  Returns their number.  Raises RingClosed."""
        freed = 0
        pointer = self._mapping.pointer  # keeps the memory mapped if another thread closes the ring
        with self._changing:
            for slot in range(self.count):
                if self._is_taken(pointer, slot) and self._reserve(slot):
                    freed += self._is_taken(pointer, slot)  # 0 if its reader has just given it back
                    self.give_back(slot)
        return freed

    def _is_taken(self, pointer: Any, slot: int) -> bool:
        info = ffi.new("rb_slot_info *")
        lib.rb_slot_read(pointer, slot, info)
        return bool(info.state != lib.RB_SLOT_FREE)

    def _reserve(self, slot: int) -> bool:
        """Reserve the slot in this process and lock it in the file.  True if both succeeded."""
        token = object()
        if self._reserved.setdefault(slot, token) is not token:
            return False
        locked = False
        try:
            locked = self._mapping.lock(slot)
        finally:
            if not locked:
                del self._reserved[slot]
        return locked
