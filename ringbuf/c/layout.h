/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a ring: two files in the runtime directory.
 *
 *   NAME.ring      header (16 KiB, below), then `capacity_bytes` of records.  Written by one process.
 *                  Readers map it read-only; its mode keeps other users from doing more.
 *   NAME.cursors   64 slots in which readers of other processes say where they are.  Writable by them,
 *                  therefore hostile: every word is read once and clamped, and none can stop a writer that
 *                  was not told to heed that slot, nor for longer than its queue timeout.  A file that is
 *                  shortened is made as long again, and costs its readers what their slots said (fault.c).
 *
 * Both have the time when the ring was made and a random number: its identity.  The cursor file of another
 * ring, though it has the same name, is not used.
 *
 * Ring header, by line of 128 bytes (two 64-byte cache lines: x86 prefetches pairs, Apple's and some other
 * ARM cores have lines of 128), one writer to each line:
 *
 *   0x0000  geometry       constant once `magic` is there; magic is stored last, with release
 *   0x0080  end            where the next record goes, as two {position, offset} pairs and a count that
 *                          says which holds: a writer killed between two stores leaves the other pair whole
 *   0x0100  reserve        how far the writer is about to take; who joins looks at it.  Beside it how many
 *                          records the writer has refused, by cause
 *   0x0180  wake           futex word, raised when a record is there and somebody sleeps; beside it which own
 *                          slots sleep, and how often one that gates was placed (the cursor file has both
 *                          words for its own slots): else the writer goes by what it knows of their cursors
 *   0x0200  durable        position up to which the log has synced; 0 without a log; beside it how many wait
 *   0x0280  granted        the lap watermark: everything below granted - capacity may be overwritten; never
 *                          ahead of reserve.  A line of its own: readers look at it with each record, and
 *                          would make the writer wait at the fence behind reserve.  Beside it, because
 *                          readers look here anyway: whether they are shown what is durable alone, and
 *                          what the log may not take yet, because it rests on what another has not synced
 *   0x0300  refusal        why the ring shall take no records, or 0: the one word that is not the writer's.
 *                          Where the writer is a local producer, the broker stores it, which made the file
 *                          and keeps the log; cursor files, which every reader may write, are no place for it
 *   0x0400  own slots      8 of 128 bytes: cursors of the writing process itself (log, bridge, ZeroMQ)
 *   0x1000  index          256 entries of 32 bytes: the first record that begins in each chunk
 *   0x3000  geometry again  a copy, for the writer that takes the ring over and finds the first one damaged;
 *                          zeros in a ring that was made before there was one, until it is taken over
 *   0x4000  records
 *
 * Invariants
 *   1. A record is there when its length is not 0.  The word where the next record will begin is 0 before
 *      the length of this one is stored: a reader needs no other word to find the end.
 *   2. end never runs ahead of what is there; after a kill it may lag by the records of one publish_many.
 *      Recovery walks on from it, as long as lengths are not 0, offsets follow and checksums hold.
 *   3. granted is stored, and fenced, before the first byte that it gives up is overwritten; reserve before
 *      the gating cursors are looked at, so that one who joins sees it, or is seen.
 *   4. A record never wraps: a padding record fills the end of the ring.
 *
 * Version 2 added the identity; version 1 has 0 there, and is raised when a writer takes the ring over.
 *
 * Rule for change: raise RB_FORMAT_VERSION; a reader refuses another version, naming both.
 */
#ifndef BRIM_LAYOUT_H
#define BRIM_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "record.h"

#define RB_MAGIC 0x474e49524d495242ull         /* "BRIMRING" */
#define RB_CURSORS_MAGIC 0x534352554d495242ull /* "BRIMURCS" */

/* Two builds that lay these structures out in another way refuse each other's files. */
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
    uint64_t first_offset;   /* offset of the first record this ring ever held */
    char name[64];           /* UTF-8, zero-terminated: what `brim ls` shows */
    uint32_t identity;       /* random */
    uint32_t crc;            /* of the bytes before it, magic counted as RB_MAGIC */
} rb_geometry;

typedef struct rb_end {
    _Atomic uint64_t count; /* pair[count & 1] holds */
    struct {
        _Atomic uint64_t position, offset;
    } pair[2];
} rb_end;

typedef struct rb_slot {
    _Atomic uint32_t state;    /* RB_SLOT_* */
    uint32_t pid;              /* for people; nothing is decided by it */
    _Atomic uint64_t cursor;   /* position; for a gating reader what it has released */
    _Atomic uint64_t offset;   /* offset at the cursor: lag without a walk */
    _Atomic uint64_t lost;     /* records it was told it lost */
    char name[32];             /* for people */
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
    _Atomic uint64_t refused[RB_REFUSALS]; /* by RB_REFUSAL_*; for people */
    _Alignas(RB_LINE_BYTES) _Atomic uint32_t wake;
    uint32_t unused;
    _Atomic uint64_t own_sleepers; /* bit i: own slot i sleeps, or slept when its process died */
    _Atomic uint64_t own_joined;   /* raised after an own slot that gates has got its cursor by a seek */
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t durable; /* its lower half is a futex word, too */
    _Atomic uint32_t durable_waiters; /* threads of the writing process that sleep on it */
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t granted;
    _Atomic uint32_t shows_durable; /* 1: readers are shown what is durable, 0: what is committed */
    _Atomic uint64_t held; /* the log takes nothing yet that begins at this - 1 or behind it; 0: it does */
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t refusal; /* RB_REFUSAL_* | ms of the monotonic clock << 8 */
    _Alignas(1024) rb_slot own[RB_OWN_SLOTS];
    _Alignas(4096) rb_index_entry index[RB_INDEX_ENTRIES];
    _Alignas(4096) rb_geometry copy;
} rb_header;

typedef struct rb_cursors {
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t magic;
    uint32_t format_version;
    uint32_t abi_word;
    uint64_t created_ns; /* with identity: the ring's */
    uint32_t identity;
    /* bit i: slot i sleeps; taken back by the writer's wake */
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t sleepers;
    _Atomic uint64_t joined;
    _Alignas(4096) rb_slot slot[RB_FOREIGN_SLOTS];
} rb_cursors;

_Static_assert(sizeof(rb_geometry) == RB_LINE_BYTES, "geometry fills one line");
_Static_assert(sizeof(rb_slot) == RB_LINE_BYTES, "one slot, one line");
_Static_assert(sizeof(rb_index_entry) == 32, "index entries are 32 bytes");
_Static_assert(offsetof(rb_header, end) == 0x0080, "end at 0x80");
_Static_assert(offsetof(rb_header, reserve) == 0x0100, "reserve at 0x100");
_Static_assert(offsetof(rb_header, granted) == 0x0280, "granted at 0x280");
_Static_assert(offsetof(rb_header, held) == 0x0290, "held at 0x290");
_Static_assert(offsetof(rb_header, refused) == 0x0108, "refused at 0x108");
_Static_assert(offsetof(rb_header, refusal) == RB_REFUSAL_AT, "refusal at 0x300");
_Static_assert(offsetof(rb_header, wake) == 0x0180, "wake at 0x180");
_Static_assert(offsetof(rb_header, own_joined) == 0x0190, "own_joined at 0x190");
_Static_assert(offsetof(rb_cursors, identity) == 0x0018, "identity at 0x18");
_Static_assert(offsetof(rb_cursors, joined) == 0x0088, "joined at 0x88");
_Static_assert(offsetof(rb_header, durable) == 0x0200, "durable at 0x200");
_Static_assert(offsetof(rb_header, durable_waiters) == 0x0208, "durable_waiters at 0x208");
_Static_assert(offsetof(rb_header, own) == 0x0400, "own slots at 0x400");
_Static_assert(offsetof(rb_header, index) == 0x1000, "index at 0x1000");
_Static_assert(offsetof(rb_header, copy) == 0x3000, "the copy of the geometry at 0x3000");
_Static_assert(sizeof(rb_header) <= RB_HEADER_BYTES, "the header fits in front of the records");
_Static_assert(sizeof(rb_cursors) == RB_CURSORS_BYTES, "the cursor file is 12 KiB");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics are lock-free: a lock in shared memory is not");

#endif
