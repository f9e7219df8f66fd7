/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a ring: two files in the runtime directory.
 *
 *   NAME.ring      header (16 KiB, below), then `capacity_bytes` of records.  Written by one process.
 *                  Readers map it read-only; its mode keeps other users from writing.
 *   NAME.cursors   64 slots with the cursors of readers in other processes.  These may write it, so it is
 *                  hostile: every word is read once and clamped.  A slot can block only a writer that admits
 *                  it, and not longer than the queue timeout.  A file that was shortened gets its length back
 *                  (sigbus_guard.c); its readers lose the content of their slots.
 *
 * Readers in the writing process (log, ZeroMQ) have a third table, in private memory, with the layout of the
 * cursor file: no other process can change their cursors.
 *
 * Both files contain the creation time of the ring and a random number: the ring's identity.  The cursor file
 * of another ring with the same name is not used.
 *
 * Ring header in lines of 128 bytes, with one writer to each line.  128 bytes are two 64-byte cache lines,
 * which x86 prefetches together, and one line of Apple's and some other ARM cores.
 *
 *   0x0000  geometry       constant once `magic` is set; magic is stored last, with release
 *   0x0080  end            position of the next record: two {position, offset} pairs and a count that selects
 *                          the valid pair.  A writer killed between two stores leaves the other pair intact
 *   0x0100  reserve        position up to which the writer is about to take memory; joining readers check it.
 *                          Then the number of records the writer has refused, by cause
 *   0x0180  wake           epoch of an eventcount (base/eventcount.h), incremented when a record is ready and
 *                          a reader sleeps.  The cursor file has the bits of the readers that sleep, and a
 *                          count of blocking readers placed by a seek.  Without a change of the count, the
 *                          writer relies on the cursors it has read before
 *   0x0200  durable        position up to which the log has synced; 0 without a log.  Then the eventcount of
 *                          publishers that wait for it: words that only the writing process uses
 *   0x0280  granted        lap watermark: everything below granted - capacity may be overwritten; never above
 *                          reserve.  It has its own line because readers read it with each record and would
 *                          delay the writer at the fence after reserve.  Then two more words that readers
 *                          need: the switch to show only durable records, and the position from which the log
 *                          must not take records yet because they depend on another log's sync
 *   0x0300  refusal        cause for which the ring must take no records, or 0: the only word that another
 *                          process writes.  If a local producer is the writer, the broker stores it; the
 *                          broker created the file and keeps the log.  Every reader may write cursor files,
 *                          so they are not safe for it
 *   0x0400  unused         written by builds that kept slots of the writing process here; no process reads it
 *   0x1000  index          256 entries of 32 bytes: the first record that begins in each chunk
 *   0x3000  geometry again  a copy, for a new writer that finds the first one damaged; zeros in a ring from
 *                          before the copy existed, until a writer takes it over
 *   0x4000  records
 *
 * Invariants
 *   1. A record is committed when its length is not 0.  The word at the next record's position is set to 0
 *      before the length of this record is stored.  A reader needs no other word to find the end.
 *   2. end is never ahead of the committed records.  After a kill it may be behind by the records of one
 *      publish_many.  Recovery continues from end while lengths are not 0, offsets follow and checksums hold.
 *   3. granted is stored and fenced before the first byte below the new watermark is overwritten.  reserve is
 *      stored before the blocking cursors are read, so that the writer or the joining reader sees the other.
 *   4. A record never wraps: a padding record fills the end of the ring.
 *
 * Version 2 added the identity.  Version 1 has 0 there and is upgraded when a writer takes the ring over.
 *
 * Rule for changes: raise RB_FORMAT_VERSION.  A reader refuses another version; its error names both
 * versions.
 */
#ifndef BRIM_LAYOUT_H
#define BRIM_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/record.h"

#define RB_MAGIC 0x474e49524d495242ull         /* "BRIMRING" */
#define RB_CURSORS_MAGIC 0x534352554d495242ull /* "BRIMURCS" */

/* Layout of the structures: builds with different words refuse each other's files. */
#define RB_ABI_WORD                                                                                          \
    (0x01u | (uint32_t)RB_RECORD_ALIGN << 8 | (uint32_t)RB_LINE_BYTES << 16 | (uint32_t)sizeof(void *) << 24)

typedef struct rb_geometry {
    _Atomic uint64_t magic;
    uint32_t format_version;
    uint32_t abi_word;
    uint32_t header_bytes;
    uint32_t epoch;
    uint64_t capacity_bytes; /* a power of two */
    uint64_t chunk_bytes;    /* step of reserve and of the index; a power of two */
    uint64_t created_ns;
    uint64_t first_offset;   /* offset of the first record that this ring ever had */
    char name[64];           /* UTF-8, zero-terminated; shown to people */
    uint32_t identity;       /* random */
    uint32_t crc;            /* of the bytes before this field, with magic taken as RB_MAGIC */
} rb_geometry;

typedef struct rb_end {
    _Atomic uint64_t count; /* pair[count & 1] is valid */
    struct {
        _Atomic uint64_t position, offset;
    } pair[2];
} rb_end;

typedef struct rb_slot {
    _Atomic uint32_t state;    /* RB_SLOT_* */
    uint32_t pid;              /* shown to people; no decision depends on it */
    _Atomic uint64_t cursor;   /* position; of a blocking reader: everything below is released */
    _Atomic uint64_t offset;   /* offset at the cursor: gives the lag without reading records */
    _Atomic uint64_t lost;     /* lost records reported to the reader */
    char name[32];             /* shown to people */
    uint8_t unused[64];
} rb_slot;

typedef struct rb_index_entry {
    _Atomic uint64_t position; /* of the first record that begins in the chunk, or RB_NO_POSITION */
    _Atomic uint64_t offset;
    _Atomic uint64_t timestamp_ns;
    uint64_t unused;
} rb_index_entry;

#define RB_NO_POSITION UINT64_MAX

typedef struct rb_header {
    _Alignas(RB_LINE_BYTES) rb_geometry geometry;
    _Alignas(RB_LINE_BYTES) rb_end end;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t reserve;
    _Atomic uint64_t refused[RB_REFUSALS]; /* by RB_REFUSAL_*; shown to people */
    _Alignas(RB_LINE_BYTES) _Atomic uint32_t wake;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t durable;
    _Atomic uint64_t durable_sleepers; /* not 0: threads of the writing process sleep on durable_wake */
    _Atomic uint32_t durable_wake;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t granted;
    _Atomic uint32_t visible_when_durable; /* 1: readers see durable records, 0: committed records */
    _Atomic uint64_t log_blocked_from; /* the log must not take records at or after it - 1; 0: no limit */
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t refusal; /* RB_REFUSAL_* | ms of the monotonic clock << 8 */
    _Alignas(4096) rb_index_entry index[RB_INDEX_ENTRIES];
    _Alignas(4096) rb_geometry copy;
} rb_header;

typedef struct rb_cursors {
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t magic;
    uint32_t format_version;
    uint32_t abi_word;
    uint64_t created_ns; /* creation time and identity are the ring's */
    uint32_t identity;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t sleepers; /* bit i: slot i sleeps, or died asleep */
    _Atomic uint64_t joined; /* incremented after a blocking slot got its cursor by a seek */
    _Alignas(4096) rb_slot slot[RB_REMOTE_SLOTS];
} rb_cursors;

_Static_assert(sizeof(rb_geometry) == RB_LINE_BYTES, "geometry fills one line");
_Static_assert(sizeof(rb_slot) == RB_LINE_BYTES, "one slot, one line");
_Static_assert(sizeof(rb_index_entry) == 32, "index entries are 32 bytes");
_Static_assert(offsetof(rb_header, end) == 0x0080, "end at 0x80");
_Static_assert(offsetof(rb_header, reserve) == 0x0100, "reserve at 0x100");
_Static_assert(offsetof(rb_header, granted) == 0x0280, "granted at 0x280");
_Static_assert(offsetof(rb_header, log_blocked_from) == 0x0290, "log_blocked_from at 0x290");
_Static_assert(offsetof(rb_header, refused) == 0x0108, "refused at 0x108");
_Static_assert(offsetof(rb_header, refusal) == RB_REFUSAL_AT, "refusal at 0x300");
_Static_assert(offsetof(rb_header, wake) == 0x0180, "wake at 0x180");
_Static_assert(offsetof(rb_cursors, identity) == 0x0018, "identity at 0x18");
_Static_assert(offsetof(rb_cursors, joined) == 0x0088, "joined at 0x88");
_Static_assert(offsetof(rb_header, durable) == 0x0200, "durable at 0x200");
_Static_assert(offsetof(rb_header, durable_wake) == 0x0210, "durable_wake at 0x210");
_Static_assert(offsetof(rb_header, index) == 0x1000, "index at 0x1000");
_Static_assert(offsetof(rb_header, copy) == 0x3000, "the copy of the geometry at 0x3000");
_Static_assert(sizeof(rb_header) <= RB_HEADER_BYTES, "the header fits in front of the records");
_Static_assert(sizeof(rb_cursors) == RB_CURSORS_BYTES, "the cursor file is 12 KiB");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics are lock-free: a lock in shared memory is not");

#endif
