"""Topics that have the same CRC-32C, as a client can make them up: it needs no key for that."""

from collections.abc import Iterator
from itertools import islice

from ringbuf import crc32c

LETTERS = (b"b", b"c")  # they differ in one bit
LENGTH = 64


def colliding_topics(count: int) -> list[bytes]:
    """`count` topics of 64 letters, all different, with one checksum.

    A checksum is linear: changing some letters changes it by the exclusive or of what each change does.  Of
    64 changes there are at least 2 ** 32 combinations that do nothing.
    """
    return [_topic(combination) for combination in islice(_combinations(_neutral()), count)]


def _topic(changes: int) -> bytes:
    return b"".join(LETTERS[changes >> i & 1] for i in range(LENGTH))


def _neutral() -> list[int]:
    """Sets of changes, as bits, that leave the checksum as it is, and of which none follows from others."""
    plain, pivots, found = crc32c(_topic(0)), dict[int, tuple[int, int]](), []
    for i in range(LENGTH):
        effect, changes = plain ^ crc32c(_topic(1 << i)), 1 << i
        while effect and (known := pivots.get(effect.bit_length())):
            effect, changes = effect ^ known[0], changes ^ known[1]
        if effect:
            pivots[effect.bit_length()] = effect, changes
        else:
            found.append(changes)
    return found


def _combinations(neutral: list[int]) -> Iterator[int]:
    for number in range(1 << len(neutral)):
        changes = 0
        for i, each in enumerate(neutral):
            if number >> i & 1:
                changes ^= each
        yield changes
