"""Check of a ring before reuse: damaged places are restored from a copy or reported as lost.

The work is done in c/ring/check.c.
"""

from collections.abc import Callable
from typing import NamedTuple

from ringbuf.constants import HEADER_BYTES
from ringbuf.errors import NotARing
from ringbuf.native import ffi, lib
from ringbuf.shared_mapping import Mapping


class Damage(NamedTuple):
    """Place of a reattached ring at which no record verifies."""

    epoch: int
    position: int
    end_position: int
    offset: int  # of the first record that stood there
    end_offset: int  # one past the last

    @property
    def records(self) -> int:
        """Number of records that stood there."""
        return self.end_offset - self.offset


class Check(NamedTuple):
    """Result of the check of a reattached ring."""

    records: int  # verified
    unchecked: int  # how many of `records` have a payload that no checksum covers
    restored: list[Damage]  # places filled from a copy
    lost: list[Damage]  # places that are gaps now
    rebuilt: tuple[str, ...]  # parts of the header that were damaged: geometry, end, watermark, index, size


PART = 64  # of the capacity: a larger area without records before the oldest one counts as damage

Restore = Callable[[Damage, memoryview], bool]
"""Called with a damaged place and the ring's memory; the byte of position P is at P % capacity_bytes.  Writes
the complete records that a copy has of the place.  Returns True if it changed the memory."""

_REBUILT = {
    lib.RB_REBUILT_END: "end",
    lib.RB_REBUILT_WATERMARK: "watermark",
    lib.RB_REBUILT_INDEX: "index",
}


def checked(memory: Mapping, restore: Restore, mended: list[str]) -> Check:
    """Verify the ring in `memory`, and turn damage that `restore` does not fill into gaps.

    `mended`: parts of the file that were repaired before.  Raises NotARing if the header gives no way to the
    records.
    """
    check = ffi.new("rb_check *")
    if lib.rb_check_begin(memory.pointer, memory.size, check) != lib.RB_OK:
        raise NotARing(f"{memory.path}: the header does not say where the ring ends; remove the file")
    restored: list[Damage] = []
    lost: list[Damage] = []
    ahead = Damage(check.epoch, check.floor, check.first_position, check.first_offset, check.first_offset)
    if ahead.end_position - ahead.position > check.capacity // PART and restore(
        ahead, memory.view[HEADER_BYTES:]
    ):
        lib.rb_check_begin(memory.pointer, memory.size, check)
        restored.append(ahead._replace(offset=check.first_offset))
    while lib.rb_check_next(memory.pointer, check) != lib.RB_OK:
        damage = Damage(check.epoch, check.position, check.damage_end, check.offset, check.damage_end_offset)
        if restore(damage, memory.view[HEADER_BYTES:]):
            restored.append(damage)
        else:
            lib.rb_check_lose(memory.pointer, check)
            lost.append(damage)
    lib.rb_check_end(memory.pointer, check)
    mended += [name for bit, name in _REBUILT.items() if check.rebuilt & bit]
    return Check(check.records, check.unchecked, restored, lost, tuple(mended))
