"""Errors of a ring.

    RingError
        NotARing            the file is something else, or damaged
            WrongVersion    another format version
            WrongAbi        a build with another layout of the structures
            WrongLength     the file is shorter or longer than its header says
        ForeignOwner        the file belongs to a user who is not in the accepted list
        WriterAlive         another process writes this ring
        NoFreeSlot        all reader slots are taken
        RingClosed          used after close()
        UsedAfterFork       created before a fork, used in the child
        RecordTooLarge      the record exceeds a quarter of the ring
        KeyTooLong          the key exceeds 65535 bytes
        InvalidTopic        the key is not a topic name, but the writer takes only topic names
        NoRoom              a claim that got no room is used
        ClaimPending        another claim of the writer is not committed yet
        ReaderBusy          the reader is in use by another call
        Overrun             the writer lapped this reader
        OffsetGone          the offset sought is not in the ring
        Evicted             this blocking reader stalled the writer and does not block it any more
        HeldTooMuch         this blocking reader holds more than half the ring
        Corrupt             an impossible record

Expected states on a hot path are values, not exceptions: polling an empty ring and publishing to a full one
return None.
"""

SHOWN_MAX_BYTES = 60  # of a key in an error text


class BrimError(Exception):
    """Root of the errors of Brim that a program can handle (brim.errors shows the whole tree)."""


class RingError(BrimError):
    """Base of all errors of a ring."""


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
    """The file was created by a build with other structure sizes."""

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
    """The file belongs to a user who is not in the accepted list."""

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


class NoFreeSlot(RingError):
    """Every reader slot is taken by a living reader."""

    def __init__(self, path: object, slots: int) -> None:
        super().__init__(f"{path}: all {slots} reader slots are taken; close a reader first")


class RingClosed(RingError):
    """The ring, reader or writer is already closed."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject} is closed" if " " not in subject else subject)


class UsedAfterFork(RingError):
    """The object was created before a fork and is used in the child."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"this {subject} was made before a fork; open the ring again in the child")


class RecordTooLarge(RingError, ValueError):
    """The record exceeds a quarter of the ring."""

    def __init__(self, length: int, largest: int) -> None:
        super().__init__(
            f"a payload of {length} bytes does not fit: a record may take {largest} bytes with its header "
            f"and key, a quarter of the ring; raise capacity_bytes above {largest * 4}"
        )
        self.length, self.largest = length, largest


class KeyTooLong(RingError, ValueError):
    """The key exceeds the length limit of the format."""

    def __init__(self, length: int, largest: int) -> None:
        super().__init__(f"a key of {length} bytes exceeds the {largest} that a record can hold; shorten it")


class InvalidTopic(RingError, ValueError):
    """The key is not a topic name, but the writer takes only topic names."""

    def __init__(self, key: bytes, why: str) -> None:
        shown = key if len(key) <= SHOWN_MAX_BYTES else key[:SHOWN_MAX_BYTES] + b"..."
        super().__init__(f"invalid topic {shown.decode(errors='backslashreplace')!a}: {why}")


class NoRoom(RingError):
    """A claim that got no room is used."""

    def __init__(self, length: int) -> None:
        super().__init__(
            f"the ring had no room for this claim of {length} bytes, or its broker takes no records now; "
            "test the claim with `if claim:` first (see Writer.refusal)"
        )


class ClaimPending(RingError):
    """Another claim or batch of the writer is not finished."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; a ring takes one claim at a time")


class ReaderBusy(RingError):
    """The reader is in use by another thread, or by the call that runs this filter."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}; a reader serves one call at a time: give each thread and each filter a reader of its own"
        )


class Overrun(RingError):
    """The writer lapped this reader.  The cursor now stands at the oldest record; continue reading."""

    def __init__(self, lost: int) -> None:
        super().__init__(
            f"{lost} record(s) were overwritten before they were read; "
            "read faster, raise capacity_bytes, or read with blocks_writer=True"
        )
        self.lost = lost


class OffsetGone(RingError, LookupError):
    """The offset is not in the ring.  The cursor now stands at the nearest offset that is."""

    def __init__(self, nearest: int) -> None:
        super().__init__(
            f"that offset is not in the ring; the nearest is {nearest}, where the cursor now stands"
        )
        self.nearest = nearest


class Evicted(RingError):
    """The blocking reader stalled the writer longer than its queue timeout."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"this reader held the writer back at offset {offset} for longer than queue_timeout_ms and is "
            "heeded no longer; open a new reader, and release records sooner"
        )
        self.offset = offset


class HeldTooMuch(RingError):
    """The blocking reader holds more than half the ring."""

    def __init__(self, held: int, held_max: int) -> None:
        super().__init__(
            f"{held} bytes of records are held, {held_max} (half the ring) are allowed; "
            "drop or release() records before reading on"
        )


class Corrupt(RingError):
    """A record that no correct writer produces: the writer is faulty or hostile, or the memory is damaged."""
