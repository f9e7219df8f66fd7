/* SPDX-License-Identifier: Apache-2.0
 *
 * Native commit: the queue of a log's extents, its water marks, and the only writer of its segments.
 *
 * A round takes runs of complete records from all rings with new ones.  It puts a header in front of each
 * (the extents of persistence/segment/format.py) and writes them.  If a sync is due, it syncs and publishes
 * the durable positions.  Python begins and seals segments, adds and removes rings, and appends catalogues
 * and copied records to the same queue.
 *
 * States, and the code that leads from one to the next:
 *
 *     no segment   rb_log_enter() -> segment; a round with extents in the queue returns RB_LOG_FULL
 *     segment      rounds write and sync; RB_LOG_FULL: synced up to its end; RB_LOG_FAILED: content unknown
 *     both codes   Python calls rb_log_end() -> no segment, creates a file and enters again
 *
 * rb_log_end() puts the mark `written` back to `synced`, so the next segment gets every extent that is not
 * synced, from the memory of the rings.  No call is repeated on a file whose write or sync has failed.
 *
 *     choose_rings.c   selection of rings with new records, and the records taken from them
 *     write_extents.c  queue of extents, their headers, and the writes
 *     sync.c           syncs and their effects: durable positions
 *     log_schedule.c   times of writes, syncs and sleeps
 *     buffered_io.c    system calls for writes through the page cache, and for syncs
 *     direct_io.c      writes past the page cache
 *
 * Invariants
 *   1. Extents are in the order queued, written, synced: synced <= written <= queued.
 *   2. A durable position changes only in mark_synced() (sync.c), after a sync has returned.
 *   3. After a failed write or sync nothing more is written: the round returns, and the caller enters another
 *      segment.
 *
 * Only one thread runs rounds.  rb_log_synced() may be called from any thread, so a lock protects the list
 * of extents.
 */
#ifndef BRIM_LOG_H
#define BRIM_LOG_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "ring/ring.h"
#include "base/clock.h"

#include "log/log_api.h"

#define EXTENT_HEADER_BYTES 32

typedef struct extent_header { /* persistence/segment/format.py, "Extent" */
    uint32_t length, crc, ring_id, ring_epoch;
    uint64_t ring_position, durable_position;
} extent_header;
_Static_assert(sizeof(extent_header) == EXTENT_HEADER_BYTES, "an extent's header is 32 bytes");

#define RB_DISK_PAGE_BYTES 4096u
/* a larger write ends at a page, a smaller one at a block of the device */
#define RB_DISK_BATCH_BYTES (256u << 10)
#define RB_DISK_CHUNKS 8u

typedef struct rb_disk {
    uint64_t started; /* page cache: write-back was started up to here */
    /* direct I/O (direct_io.c) */
    int descriptor; /* O_DIRECT, or -1 */
    uint32_t block_bytes, chunk_bytes;
    int error; /* a negative errno: no more writes to this segment */
    uint8_t *stage;
    uint64_t begin, end, flushed;                             /* positions: submitted, staged, flushed */
    uint64_t in_flight;                                       /* chunks, one bit each */
    uint64_t places[RB_DISK_CHUNKS], lengths[RB_DISK_CHUNKS]; /* of the chunks in flight */
    unsigned long context;                                    /* of asynchronous I/O; 0: none */
    int no_context;                                           /* a negative errno: cause for having none */
} rb_disk;

struct rb_log_inside {
    rb_wakeup *wakeup;
    rb_log_ring *rings[RB_WAKEUP_RINGS];
    uint64_t pending[RB_WAKEUP_RINGS / 64]; /* signalled, or with more records than were taken */
    uint32_t highest;                    /* highest index of a ring */
    uint32_t turn;                       /* index of the ring that is next in turn */

    pthread_mutex_t lock; /* protects the list, its numbers and synced_end */
    rb_log_extent *list;  /* from number `first` on */
    uint64_t first, capacity;
    uint64_t synced_end; /* position after the last synced extent */

    rb_log_ring **moved; /* rings with a synced extent, in one publish_extents() */

    rb_log_calls calls;
    rb_disk disk;

    extent_header headers[RB_LOG_EXTENTS_MAX];
    rb_log_piece pieces[2 * RB_LOG_EXTENTS_MAX + 1];

    int64_t backoff_ns;
    int64_t lazy_at, urgent_at; /* time of the last records from a ring of either kind */
    uint64_t largest_share;     /* largest part of a ring that one call took since the last backoff, in
                                   1/256 of the ring */
    uint64_t fits_bytes;        /* bytes that the disk writes and syncs in the time of one round */
    int64_t sync_ns;            /* average time of a small sync */
    int64_t oldest_at;          /* lower bound of the time when the oldest unsynced extent was taken */
    bool short_of_memory;
};

static inline rb_log_extent *rb_log_extent_at(const rb_log *log, uint64_t number)
{
    return log->inside->list + (number - log->inside->first);
}

static inline uint64_t extent_bytes(const rb_log_extent *extent)
{
    return EXTENT_HEADER_BYTES + extent->length;
}

/* choose_rings.c.  Take up to about `limit` bytes.  Returns the number of bytes. */
uint64_t rb_log_take(rb_log *log, int64_t now_ns, uint64_t limit);
bool rb_log_pending(const rb_log *log);
/* update ring and log after records up to the ring's `taken` were queued */
void rb_log_update_taken(rb_log *log, rb_log_ring *ring, int64_t now_ns);
/* compute the time of the next sync from all waiting extents */
void rb_log_update_deadlines(rb_log *log);

/* write_extents.c */
bool rb_log_reserve(rb_log *log, uint64_t count); /* reserve room in the list; false: no memory */
void rb_log_push(rb_log *log, rb_log_ring *ring, const rb_range *range);
void rb_log_add_time(rb_log_times *times, int64_t took_ns);
/* End a direct sync at a block boundary.  0, or a negative errno. */
int rb_log_finish_block(rb_log *log);
/* Store the error of a write or a sync; `result` is a negative errno.  Returns RB_LOG_FAILED. */
static inline int rb_log_failed(rb_log *log, int64_t result, bool sync)
{
    log->error = (int32_t)-result;
    *(sync ? &log->failed_syncs : &log->failed_writes) += 1;
    return RB_LOG_FAILED;
}

/* buffered_io.c */
int64_t rb_disk_write(rb_log *log, rb_log_piece *pieces, int count, uint64_t place);
int rb_disk_sync(rb_log *log);
void rb_disk_enter(rb_log *log);
void rb_disk_wake(int descriptor);

/* direct_io.c.  All return 0 or a negative errno.  Bytes of the first two are visible to others only after a
 * flush. */
static inline bool rb_direct(const rb_log *log)
{
    return log->inside->disk.descriptor >= 0;
}
/* `header->crc` is the checksum of the header only; the body is added. */
int rb_direct_extent(rb_log *log, extent_header *header, const uint8_t *body);
/* Stage bytes and continue the checksum *crc.  With crc, no byte is written before the next call. */
int rb_direct_stage(rb_log *log, const void *bytes, uint64_t length, uint32_t *crc);
int rb_direct_flush(rb_log *log);
void rb_direct_enter(rb_log *log);
void rb_direct_close(rb_log *log); /* wait for the writes in flight, and close the file */
void rb_direct_free(rb_log *log);


#endif
