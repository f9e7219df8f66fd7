"""The numbers of the formats, as the compiled core has them: defined in c/ringbuf_api.h and nowhere else."""

from typing import Final

from ringbuf.core import lib

FORMAT_VERSION: Final[int] = lib.RB_FORMAT_VERSION
RECORD_HEADER_BYTES: Final[int] = lib.RB_RECORD_HEADER_BYTES
RECORD_ALIGN: Final[int] = lib.RB_RECORD_ALIGN
HEADER_BYTES: Final[int] = lib.RB_HEADER_BYTES
CURSORS_BYTES: Final[int] = lib.RB_CURSORS_BYTES
OWN_SLOTS: Final[int] = lib.RB_OWN_SLOTS
FOREIGN_SLOTS: Final[int] = lib.RB_FOREIGN_SLOTS
KEY_MAX_BYTES: Final[int] = lib.RB_KEY_MAX_BYTES
CAPACITY_MIN_BYTES: Final[int] = lib.RB_CAPACITY_MIN_BYTES
CAPACITY_MAX_BYTES: Final[int] = 1 << 32  # positions in a header word of 31 bits: see rb_format()
CHECKED_IN_PLACE_MAX_BYTES: Final[int] = lib.RB_CHECKED_IN_PLACE_MAX_BYTES
NAME_MAX_BYTES: Final[int] = lib.RB_NAME_MAX_BYTES
READER_NAME_MAX_BYTES: Final[int] = lib.RB_READER_NAME_MAX_BYTES

FLAG_QOS: Final[int] = lib.RB_FLAG_QOS
FLAG_RETAIN: Final[int] = lib.RB_FLAG_RETAIN
FLAG_PROPERTIES: Final[int] = lib.RB_FLAG_PROPERTIES
FLAG_EXPIRY: Final[int] = lib.RB_FLAG_EXPIRY
FLAG_UNCHECKED: Final[int] = lib.RB_FLAG_UNCHECKED
FLAGS_CRITICAL: Final[int] = lib.RB_FLAGS_CRITICAL

# Why a writer refuses: the log may not grow (its disk, or its stream, is full), or takes none otherwise.
REFUSAL_NO_ROOM: Final[int] = lib.RB_REFUSAL_NO_ROOM
REFUSAL_NO_LOG: Final[int] = lib.RB_REFUSAL_NO_LOG
REFUSAL_LOST: Final[int] = lib.RB_REFUSAL_LOST  # Another process has shortened the ring's file.
REFUSAL_CAUSES: Final[dict[str, int]] = {
    "full": lib.RB_REFUSAL_FULL,
    "no_room": lib.RB_REFUSAL_NO_ROOM,
    "no_log": lib.RB_REFUSAL_NO_LOG,
}

SLOT_STATES: Final[dict[int, str]] = {
    lib.RB_SLOT_FREE: "free",
    lib.RB_SLOT_PLAIN: "plain",
    lib.RB_SLOT_GATING: "gating",
    lib.RB_SLOT_EVICTED: "evicted",
}
