"""Seat: a reader's slot, and the lock that proves its reader alive.

Slots of other processes are in the cursor file, one lock byte each.  Slots of the writing process itself
are in the ring's header; they die with the writer's lock.

The file's locks keep other processes out, and not this one: its threads share one open file description.
So a slot is reserved in this process first, by one atomic step, and locked after that.

Invariants: a slot is written only by the holder of its lock; a slot whose lock is free belongs to no reader,
whatever its words are; a slot is reserved by at most one thread.
"""

import os
import threading
from contextlib import suppress
from typing import Any

from ringbuf.constants import FOREIGN_SLOTS, OWN_SLOTS, READER_NAME_MAX_BYTES
from ringbuf.core import ffi, lib
from ringbuf.errors import RegistryFull, RingClosed
from ringbuf.memory import Mapping


class Seat:
    """One taken slot."""

    def __init__(self, registry: "Registry", slot: int) -> None:
        self._held = [registry]
        self.own = registry.own
        self.slot = slot

    def leave(self) -> None:
        """Give the slot back.  Any thread, any number of times, and from finalizers: the first one counts."""
        with suppress(IndexError):
            self._held.pop().give_back(self.slot)


class Unseated:
    """What a reader has that takes no slot."""

    slot = -1

    def leave(self) -> None:
        """There is nothing to give back."""


class Registry:
    """The slots of one file as this process sees them.  For any thread."""

    def __init__(self, mapping: Mapping, *, own: bool) -> None:
        self._mapping = mapping
        self.own = own
        self.count = OWN_SLOTS if own else FOREIGN_SLOTS
        self._reserved: dict[int, object] = {}
        self._changing = threading.RLock()  # take() does not miss a slot that sweep() looks at

    @property
    def is_open(self) -> bool:
        """False once its ring is closed, and in a forked child."""
        return self._mapping.descriptor >= 0

    def take(self, name: str) -> Seat:
        """A free slot, locked and named.  Raises RegistryFull, RingClosed."""
        with self._changing:
            for slot in range(self.count):
                if self._reserve(slot):
                    lib.rb_slot_free(self._mapping.pointer, self.own, slot)
                    text = name.encode()[:READER_NAME_MAX_BYTES]
                    lib.rb_slot_name(self._mapping.pointer, self.own, slot, text, os.getpid())
                    return Seat(self, slot)
        raise RegistryFull(self._mapping.path, self.count)

    def give_back(self, slot: int) -> None:
        """Free a slot of ours.  Takes no lock: finalizers call it, in the middle of anything."""
        with suppress(RingClosed):
            pointer = self._mapping.pointer  # before the look at the file: it holds the memory
            if self._mapping.descriptor >= 0:
                lib.rb_slot_free(pointer, self.own, slot)
                self._unlock(slot)
        del self._reserved[slot]

    def sweep(self) -> int:
        """Free the slots of readers that died; how many.  Raises RingClosed."""
        freed = 0
        pointer = self._mapping.pointer  # keeps the memory mapped if another thread closes the ring
        with self._changing:
            for slot in range(self.count):
                if self._is_taken(pointer, slot) and self._reserve(slot):
                    freed += self._is_taken(pointer, slot)  # Else its reader has left it meanwhile.
                    self.give_back(slot)
        return freed

    def _is_taken(self, pointer: Any, slot: int) -> bool:
        facts = ffi.new("rb_slot_facts *")
        lib.rb_slot_read(pointer, self.own, slot, facts)
        return bool(facts.state != lib.RB_SLOT_FREE)

    def _reserve(self, slot: int) -> bool:
        """Whether the slot is this caller's now, in this process and among all."""
        token = object()
        if self._reserved.setdefault(slot, token) is not token:
            return False
        locked = False
        try:
            locked = self.own or self._mapping.lock(slot)
        finally:
            if not locked:
                del self._reserved[slot]
        return locked

    def _unlock(self, slot: int) -> None:
        if not self.own:
            self._mapping.unlock(slot)
