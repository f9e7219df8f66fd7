/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds of the log: what persistence/writer.py does step by step, again and again without Python.
 *
 * A round takes runs of whole records from all rings that have some, puts a header in front of each (the
 * extents of persistence/format.py), hands them to the kernel, syncs if it is time, and says what is durable.
 * Python begins and seals segments, deals with failures, and adds and removes rings; for that every call here
 * comes back with a code, and what is not durable then is Python's to write again (rb_log_waiting()).
 *
 *     rings.c    which rings have news, and what is taken of them
 *     extents.c  headers, writes, what a sync makes durable
 *     rounds.c   when to write, to sync, to sleep
 *     disk.c     the system calls of writing through the page cache, and of syncing
 *     direct.c   writing past the page cache
 *
 * Invariants
 *   1. Extents stand in the order taken, written, settled: settled <= written <= queued.
 *   2. A durable word moves only in settle(), which is called when a sync has returned and at no other time.
 *   3. After a write or a sync failed nothing more is written: the round comes back, and whoever goes on
 *      enters another segment.
 *
 * One thread runs rounds; rb_log_settled() is for all, hence the lock around the list of extents.
 */
#ifndef BRIM_LOG_H
#define BRIM_LOG_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "ring.h"

#include "log_api.h"

#define EXTENT_HEADER_BYTES 32

typedef struct extent_header { /* persistence/format.py, "Extent" */
    uint32_t length, crc, ring_id, ring_epoch;
    uint64_t ring_position, durable_position;
} extent_header;
_Static_assert(sizeof(extent_header) == EXTENT_HEADER_BYTES, "an extent's header is 32 bytes");

#define RB_DISK_PAGE_BYTES 4096u
#define RB_DISK_BATCH_BYTES (256u << 10) /* so much ends at a page, less at a block of the device */
#define RB_DISK_CHUNKS 8u

typedef struct rb_disk {
    uint64_t started; /* through the page cache: up to here it has been asked to write */
    /* past it (direct.c) */
    int descriptor; /* O_DIRECT, or -1 */
    int of;         /* the segment's own descriptor, and seed */
    uint32_t of_seed, block_bytes, chunk_bytes;
    int error; /* a negative errno: nothing more is written to this segment */
    uint8_t *stage;
    uint64_t begin, end, flushed;                             /* places: handed over, staged, flushed */
    uint64_t in_flight;                                       /* chunks, a bit each */
    uint64_t places[RB_DISK_CHUNKS], lengths[RB_DISK_CHUNKS]; /* of those */
    unsigned long context;                                    /* of asynchronous I/O; 0: none */
    int no_context;                                           /* a negative errno: why there is none */
} rb_disk;

struct rb_log_inside {
    rb_bell *bell;
    rb_log_ring *rings[RB_BELL_RINGS];
    uint64_t hungry[RB_BELL_RINGS / 64]; /* rings that have rung, or had more than was taken */
    uint32_t highest;                    /* no ring has an index above */
    uint32_t turn;                       /* which ring comes first next */

    pthread_mutex_t lock; /* over the list, its numbers and settled_end */
    rb_log_extent *list;
    uint64_t room;
    uint64_t settled_end; /* place behind the last settled extent */

    rb_log_ring **moved; /* rings with a settled extent, in one settle() */

    rb_log_calls calls;
    rb_disk disk;

    extent_header headers[RB_LOG_EXTENTS_MOST];
    rb_log_piece pieces[2 * RB_LOG_EXTENTS_MOST + 1];

    int64_t nap_ns;
    int64_t lazy_at, urgent_at; /* when a ring of either kind was last taken from */
    uint64_t largest_share;     /* of a ring, in 1/256, taken in one go since the last nap */
    int64_t oldest_at;          /* when the first extent that is not settled was taken, or before */
    bool short_of_memory;
};

static inline uint64_t extent_bytes(const rb_log_extent *extent)
{
    return EXTENT_HEADER_BYTES + extent->length;
}

/* rings.c.  Takes up to about `limit` bytes: how many. */
uint64_t rb_log_take(rb_log *log, int64_t now_ns, uint64_t limit);
bool rb_log_hungry(const rb_log *log);
void rb_log_note_due(rb_log *log, const rb_log_ring *ring); /* something of it waits: when for a sync */

/* extents.c */
bool rb_log_reserve(rb_log *log, uint64_t count); /* room in the list for so many; false: no memory */
void rb_log_push(rb_log *log, rb_log_ring *ring, const rb_range *range);
int rb_log_write_all(rb_log *log);
int rb_log_sync_all(rb_log *log, int64_t now_ns);

/* disk.c */
int64_t rb_disk_write(rb_log *log, rb_log_piece *pieces, int count, uint64_t place);
int rb_disk_sync(rb_log *log);
void rb_disk_enter(rb_log *log);
void rb_disk_wake(int descriptor);

/* direct.c.  All return 0 or a negative errno; of the first two, others see nothing before a flush. */
static inline bool rb_direct(const rb_log *log)
{
    return log->inside->disk.descriptor >= 0;
}
/* `header->crc` is the checksum up to the body. */
int rb_direct_extent(rb_log *log, extent_header *header, const uint8_t *body);
/* Goes on with the checksum *crc; then nothing goes out before the next call. */
int rb_direct_stage(rb_log *log, const void *bytes, uint64_t length, uint32_t *crc);
int rb_direct_flush(rb_log *log);
void rb_direct_enter(rb_log *log);
void rb_direct_free(rb_log *log);

int64_t rb_log_now(void);

#endif
