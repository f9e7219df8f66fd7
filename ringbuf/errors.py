"""What can go wrong with a ring.

    RingError
        NotARing            the file is something else, or damaged
            WrongVersion    another format version
            WrongAbi        a build that lays the structures out in another way
            WrongLength     the file is shorter or longer than its header says
        ForeignOwner        the file belongs to a user who is not trusted
        WriterAlive         another process writes this ring
        RegistryFull        all reader slots are taken
        RingClosed          used after close()
        UsedAfterFork       made before a fork, used in the child
        RecordTooLarge      does not fit a quarter of the ring
        KeyTooLong          the key exceeds 65535 bytes
        InvalidTopic        the key is not a topic name, in a writer of topics
        NoRoom              a claim without room is used
        ClaimPending        the writer is busy with another claim
        ReaderBusy          the reader is in use by another call
        Overrun             the writer lapped this reader
        OffsetGone          the offset sought is not in the ring
        Evicted             this gating reader stalled the writer and is heeded no longer
        HeldTooMuch         this gating reader holds more than half the ring
        Corrupt             a record that cannot be

What is normal on a hot path is not here: an empty ring polls as None, a full one publishes as None.
"""

SHOWN_MAX_BYTES = 60  # of a key in a message


class RingError(Exception):
    """Any error of a ring."""


class NotARing(RingError):
    """The file is not a ring, or its header is damaged."""


class WrongVersion(NotARing):
    """The file has another format version."""

    def __init__(self, path: object, found: int, expected: int) -> None:
        super().__init__(
            f"{path}: ring format version {found}, this build reads {expected}; "
            "stop the broker and remove the file, or install matching versions on both sides"
        )
        self.found, self.expected = found, expected


class WrongAbi(NotARing):
    """The file was made by a build with other sizes."""

    def __init__(self, path: object, found: int, expected: int) -> None:
        super().__init__(
            f"{path}: made by a build with ABI word {found:#010x}, this one has {expected:#010x}; "
            "use the same build of Brim on both sides"
        )
        self.found, self.expected = found, expected


class WrongLength(NotARing):
    """The file is shorter or longer than its header says."""

    def __init__(self, path: object, size: int, expected: int) -> None:
        super().__init__(f"{path}: {size} bytes, but its header says {expected}; remove it")
        self.size, self.expected = size, expected


class ForeignOwner(RingError):
    """The file belongs to somebody who is not trusted."""

    def __init__(self, path: object, owner: int, trusted: object) -> None:
        super().__init__(
            f"{path}: owned by uid {owner}, trusted are {trusted}; "
            "run as the broker's user or pass owners={...} if that user is to be trusted"
        )
        self.owner = owner


class WriterAlive(RingError):
    """Another process holds the writer's lock."""

    def __init__(self, path: object) -> None:
        super().__init__(f"{path}: another process writes this ring; stop it first")


class RegistryFull(RingError):
    """Every reader slot is taken by a living reader."""

    def __init__(self, path: object, slots: int) -> None:
        super().__init__(f"{path}: all {slots} reader slots are taken; close a reader first")


class RingClosed(RingError):
    """Used after it was closed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed" if " " not in what else what)


class UsedAfterFork(RingError):
    """Made before a fork and used in the child."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this {what} was made before a fork; open the ring again in the child")


class RecordTooLarge(RingError):
    """The record does not fit a quarter of the ring."""

    def __init__(self, length: int, largest: int) -> None:
        super().__init__(
            f"a payload of {length} bytes does not fit: a record may take {largest} bytes with its header "
            f"and key, a quarter of the ring; raise capacity_bytes above {largest * 4}"
        )
        self.length, self.largest = length, largest


class KeyTooLong(RingError):
    """The key exceeds what the format can hold."""

    def __init__(self, length: int, largest: int) -> None:
        super().__init__(f"a key of {length} bytes exceeds the {largest} that a record can hold; shorten it")


class InvalidTopic(RingError):
    """The key is not a topic name, and the writer takes topic names only."""

    def __init__(self, key: bytes, why: str) -> None:
        shown = key if len(key) <= SHOWN_MAX_BYTES else key[:SHOWN_MAX_BYTES] + b"..."
        super().__init__(f"invalid topic {shown.decode(errors='backslashreplace')!a}: {why}")


class NoRoom(RingError):
    """A claim without room is used as if it had some."""

    def __init__(self, length: int) -> None:
        super().__init__(
            f"the ring had no room for this claim of {length} bytes, or its broker takes no records now; "
            "test the claim with `if claim:` first (see Writer.refusal)"
        )


class ClaimPending(RingError):
    """The writer is busy."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; a ring takes one claim at a time")


class ReaderBusy(RingError):
    """The reader is in use: by another thread, or by the call that runs this filter."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}; a reader serves one call at a time: give each thread and each filter a reader of its own"
        )


class Overrun(RingError):
    """The writer lapped this reader.  The cursor already stands at the oldest record: read on."""

    def __init__(self, lost: int) -> None:
        super().__init__(
            f"{lost} record(s) were overwritten before they were read; "
            "read faster, raise capacity_bytes, or read with gating=True"
        )
        self.lost = lost


class OffsetGone(RingError):
    """The offset is not in the ring.  The cursor stands at the nearest one that is."""

    def __init__(self, nearest: int) -> None:
        super().__init__(
            f"that offset is not in the ring; the nearest is {nearest}, where the cursor now stands"
        )
        self.nearest = nearest


class Evicted(RingError):
    """The gating reader stalled the writer longer than its queue timeout."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"this reader held the writer back at offset {offset} for longer than queue_timeout_ms and is "
            "heeded no longer; open a new reader, and release records sooner"
        )
        self.offset = offset


class HeldTooMuch(RingError):
    """The gating reader holds more than half the ring."""

    def __init__(self, held: int, most: int) -> None:
        super().__init__(
            f"{held} bytes of records are held, {most} (half the ring) are allowed; "
            "drop or release() records before reading on"
        )


class Corrupt(RingError):
    """A record that cannot be: its writer is broken or hostile, or the memory was damaged."""
