"""Constants of the formats, taken from the compiled core; c/ringbuf_api.h is their only definition."""

from typing import Final

from ringbuf.native import lib

FORMAT_VERSION: Final[int] = lib.RB_FORMAT_VERSION
RECORD_HEADER_BYTES: Final[int] = lib.RB_RECORD_HEADER_BYTES
RECORD_ALIGN: Final[int] = lib.RB_RECORD_ALIGN
HEADER_BYTES: Final[int] = lib.RB_HEADER_BYTES
CURSORS_BYTES: Final[int] = lib.RB_CURSORS_BYTES
LOCAL_SLOTS: Final[int] = lib.RB_LOCAL_SLOTS
REMOTE_SLOTS: Final[int] = lib.RB_REMOTE_SLOTS
KEY_MAX_BYTES: Final[int] = lib.RB_KEY_MAX_BYTES
CAPACITY_MIN_BYTES: Final[int] = lib.RB_CAPACITY_MIN_BYTES
CAPACITY_MAX_BYTES: Final[int] = 1 << 32  # a header word holds positions in 31 bits: see rb_format()
CHECKED_IN_PLACE_MAX_BYTES: Final[int] = lib.RB_CHECKED_IN_PLACE_MAX_BYTES
NAME_MAX_BYTES: Final[int] = lib.RB_NAME_MAX_BYTES
READER_NAME_MAX_BYTES: Final[int] = lib.RB_READER_NAME_MAX_BYTES

FLAG_QOS: Final[int] = lib.RB_FLAG_QOS
FLAG_RETAIN: Final[int] = lib.RB_FLAG_RETAIN
FLAG_PROPERTIES: Final[int] = lib.RB_FLAG_PROPERTIES
FLAG_EXPIRY: Final[int] = lib.RB_FLAG_EXPIRY
FLAG_UNCHECKED: Final[int] = lib.RB_FLAG_UNCHECKED
FLAGS_CRITICAL: Final[int] = lib.RB_FLAGS_CRITICAL

# 2020. A record with an earlier time is of a clock that was not set: its age is not known.
CLOCK_SET_NS: Final[int] = lib.RB_CLOCK_SET_S * 1_000_000_000

# Reasons for a writer to refuse records: the disk or the stream of the log is full (NO_ROOM), or the log
# takes none for another cause (NO_LOG).
REFUSAL_NO_ROOM: Final[int] = lib.RB_REFUSAL_NO_ROOM
REFUSAL_NO_LOG: Final[int] = lib.RB_REFUSAL_NO_LOG
REFUSAL_LOST: Final[int] = lib.RB_REFUSAL_LOST  # another process has shortened the ring's file
REFUSAL_CAUSES: Final[dict[str, int]] = {
    "full": lib.RB_REFUSAL_FULL,
    "no_room": lib.RB_REFUSAL_NO_ROOM,
    "no_log": lib.RB_REFUSAL_NO_LOG,
}

SLOT_STATES: Final[dict[int, str]] = {
    lib.RB_SLOT_FREE: "free",
    lib.RB_SLOT_PLAIN: "plain",
    lib.RB_SLOT_BLOCKING: "blocking",
    lib.RB_SLOT_EVICTED: "evicted",
}
