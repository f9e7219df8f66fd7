"""Seat: a reader's slot, and the lock that proves its reader alive.

Slots of other processes are in the cursor file, one lock byte each.  Slots of the writing process itself
are in the ring's header; they die with the writer's lock.

Invariants: a slot is written only by who holds its lock; a slot whose lock is free belongs to nobody,
whatever its words say.
"""

import os

from ringbuf.constants import FOREIGN_SLOTS, OWN_SLOTS, READER_NAME_MAX_BYTES
from ringbuf.core import ffi, lib
from ringbuf.errors import RegistryFull
from ringbuf.memory import Mapping


class Seat:
    """One taken slot."""

    def __init__(self, registry: "Registry", slot: int) -> None:
        self._registry = registry
        self._left = False
        self.slot = slot

    @property
    def own(self) -> bool:
        """Whether it is in the ring's header."""
        return self._registry.own

    def leave(self) -> None:
        """Give the slot back; once is enough, and then it may be another's."""
        if not self._left:
            self._registry.give_back(self.slot)
        self._left = True


class Unseated:
    """What a reader has that takes no slot."""

    slot = -1

    def leave(self) -> None:
        """There is nothing to give back."""


class Registry:
    """The slots of one file as this process sees them."""

    def __init__(self, mapping: Mapping, *, own: bool) -> None:
        self._mapping = mapping
        self.own = own
        self.count = OWN_SLOTS if own else FOREIGN_SLOTS
        self._taken: set[int] = set()

    def take(self, name: str) -> Seat:
        """A free slot, locked and named.  Raises RegistryFull."""
        for slot in range(self.count):
            if slot not in self._taken and self._lock(slot):
                self._taken.add(slot)
                lib.rb_slot_free(self._mapping.pointer, self.own, slot)
                text = name.encode()[:READER_NAME_MAX_BYTES]
                lib.rb_slot_name(self._mapping.pointer, self.own, slot, text, os.getpid())
                return Seat(self, slot)
        raise RegistryFull(self._mapping.path, self.count)

    def give_back(self, slot: int) -> None:
        """Free a slot of ours."""
        if slot in self._taken and self._mapping.descriptor >= 0:
            lib.rb_slot_free(self._mapping.pointer, self.own, slot)
            self._unlock(slot)
        self._taken.discard(slot)

    def sweep(self) -> int:
        """Free the slots of readers that died; how many.  Raises RingClosed."""
        freed = 0
        facts = ffi.new("rb_slot_facts *")
        pointer = self._mapping.pointer  # keeps the memory mapped if another thread closes the ring
        for slot in range(self.count):
            lib.rb_slot_read(pointer, self.own, slot, facts)
            if facts.state == lib.RB_SLOT_FREE or slot in self._taken or not self._lock(slot):
                continue
            lib.rb_slot_free(pointer, self.own, slot)
            self._unlock(slot)
            freed += 1
        return freed

    def _lock(self, slot: int) -> bool:
        return self.own or self._mapping.lock(slot)

    def _unlock(self, slot: int) -> None:
        if not self.own:
            self._mapping.unlock(slot)
