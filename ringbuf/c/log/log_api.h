/* SPDX-License-Identifier: Apache-2.0
 *
 * Log rounds, as Python sees them (log.h explains them).  Read twice: by cffi and by the compiler, through
 * log.h.
 */

enum {
    RB_LOG_EXTENTS_MAX = 511, /* per write: header and body each, then zeros; IOV_MAX */
    RB_LOG_RANGES_MAX = 64,
    RB_LOG_BUCKETS = 26
};

enum { /* result of a call; the first two need no action */
    RB_LOG_DONE = 0,
    RB_LOG_CALLED = 1,  /* rb_wakeup_call() was called */
    RB_LOG_MOVED = 2,   /* durable positions have changed, and `returns_durable` is set */
    RB_LOG_FULL = 3,    /* there is no segment, or it is full and synced up to its end: begin the next one */
    RB_LOG_FAILED = 4,  /* the disk failed: `error` is the errno; end this segment */
    RB_LOG_TROUBLE = 5  /* a ring cannot be read further: it is `leaving`, with the cause in `trouble` */
};

/* A ring that is logged.  Python allocates it and keeps it while it is added; both sides write it, in
 * turn. */
typedef struct rb_log_ring {
    rb_reader *reader; /* blocks the writer; its read position is `taken` */
    void *memory;      /* of the ring, to store its durable position; NULL: no position is published */
    void *cursors;     /* its cursor file: readers to wake if they see only durable records */
    void *local_cursors;         /* the same for readers in this process */
    uint32_t ring_id, epoch, index;
    int32_t on_disk; /* 1: synced in the round that writes it; 0: after interval_ns or sync_bytes */
    int32_t leaving; /* 1: no more records of this ring are taken */
    int32_t trouble; /* RB_CORRUPT, ... */
    int32_t catches_up; /* 1 from rb_log_add() or rb_log_resume() until a read finds no record: the ring is
                           read again without a signal */
    int64_t interval_ns;
    int64_t waits_since; /* time when its first non-durable record was taken; -1: none */
    uint64_t sync_bytes;
    uint64_t taken, durable;               /* positions in the ring */
    uint64_t taken_offset, durable_offset; /* the offsets there; 0 before the first records */
} rb_log_ring;

/* An extent: a run of records, or a catalogue.  It is queued, then written, then synced. */
typedef struct rb_log_extent {
    const uint8_t *body;
    uint64_t length, position, first_offset, count, first_timestamp_ns, last_timestamp_ns;
    uint64_t place;    /* position of its header in the file, once written */
    rb_log_ring *ring; /* NULL: its sync changes no ring */
    uint64_t ring_end, offset_end; /* position and offset below which the ring is durable after its sync */
    uint64_t append_number; /* number of an extent that Python appended, rising; 0: taken from a ring in C */
    uint32_t ring_id, epoch;
} rb_log_extent;

typedef struct rb_log_times { /* durations; counts[i]: below 2^i us, at or above the limit of i - 1 */
    uint64_t count, total_ns, max_ns, counts[26];
} rb_log_times;

typedef struct rb_log_inside rb_log_inside;

typedef struct rb_log_piece { /* as struct iovec */
    void *base;
    size_t length;
} rb_log_piece;

/* State of the log.  Written by the thread that runs rounds, or by Python between rounds. */
typedef struct rb_log {
    rb_log_inside *inside;
    /* the segment */
    uint64_t base, end, capacity, first_place; /* positions in the file, except base */
    uint32_t seed;
    int32_t descriptor; /* -1: none */
    /* the water marks: log positions, and numbers of extents since the log was opened */
    uint64_t durable_position; /* everything below is on the disk */
    uint64_t proven;           /* the highest durable position that the files of the log contain: in the
                                  header of an extent, or as the base of a segment */
    uint64_t extents_queued, extents_written, extents_synced; /* synced <= written <= queued */
    uint64_t synced_append;  /* the highest append_number of a synced extent */
    uint64_t unsynced_bytes;                                   /* of extents that are not synced */
    /* bounds */
    uint64_t extent_bytes, round_bytes, step_bytes, write_bytes;
    int64_t prove_after_ns, spin_ns;
    int32_t returns_durable;           /* 1: return with RB_LOG_MOVED */
    int32_t wake_descriptor; /* an eventfd written when durable positions change; -1: none */
    /* results */
    int32_t error;
    int32_t moved; /* durable positions have changed, and `returns_durable` is set; the caller clears this */
    int32_t troubles;  /* number of rings that left the log because of an error */
    int64_t active_at; /* time of the last taken records */
    int64_t due_ns;    /* time of the next sync */
    /* counters */
    uint64_t rounds, records, record_bytes, extents, written_bytes, synced_bytes, syncs, backoffs, sleeps;
    uint64_t rewritten_bytes, failed_writes, failed_syncs;
    rb_log_times write, fsync, commit; /* commit: from taken to durable, of the oldest extent of a sync */
} rb_log;

/* A new log, or NULL without memory. */
rb_log *rb_log_new(rb_wakeup *wakeup);
void rb_log_free(rb_log *log);

/* Replacements for the operating system's calls, for tests.  They return the results of pwritev(), pread()
 * and fdatasync(), or a negative errno.  submit() begins a write of memory that does not change until reap()
 * has returned it: 0, or another value if not possible now.  reap() waits for a submitted write and returns
 * its slot and its result. */
typedef int64_t (*rb_log_write_call)(void *context, const rb_log_piece *pieces, int count, uint64_t place);
typedef int64_t (*rb_log_read_call)(void *context, void *out, uint64_t length, uint64_t place);
typedef int (*rb_log_sync_call)(void *context);
typedef int (*rb_log_submit_call)(void *context, const void *bytes, uint64_t length, uint64_t place,
                                  uint32_t slot);
typedef uint32_t (*rb_log_reap_call)(void *context, int64_t *result);
typedef struct rb_log_calls {
    rb_log_write_call write; /* NULL: the operating system's calls */
    rb_log_read_call read;
    rb_log_sync_call sync;
    rb_log_submit_call submit; /* NULL: each write is synchronous */
    rb_log_reap_call reap;
    void *context;
    uint32_t block_bytes,
        chunk_bytes; /* powers of two: block size and largest write of direct I/O */
} rb_log_calls;
void rb_log_files(rb_log *log, const rb_log_calls *calls);

/* Add the ring to the next rounds.  RB_INVALID: its index is out of range or in use. */
int rb_log_add(rb_log *log, rb_log_ring *ring);
void rb_log_remove(rb_log *log, rb_log_ring *ring);

/* Take records of a `leaving` ring again. */
void rb_log_resume(rb_log *log, rb_log_ring *ring);

/* Use the segment given by the fields from now on.  Extents that are not synced are written to it; synced
 * ones are discarded from the list. */
void rb_log_enter(rb_log *log);
/* End the segment: nothing is written to it after this call, and no write is in flight.  Extents that are not
 * synced wait for the next segment, including written ones. */
void rb_log_end(rb_log *log);

/* Queue extents, whose memory must not change until they are synced.  Returns 0 if there is no memory; then
 * none is queued. */
int rb_log_append(rb_log *log, const rb_log_extent *extents, int count, int64_t now_ns);
/* Remove the waiting records of a ring from the queue.  Only without a segment. */
void rb_log_drop(rb_log *log, uint32_t ring_id);
/* A waiting extent; `number` from extents_synced to extents_queued. */
rb_log_extent *rb_log_waiting(rb_log *log, uint64_t number);

/* Write the queue.  A write is visible to other programs only after a flush or a sync. */
int rb_log_write(rb_log *log);
int rb_log_flush(rb_log *log);
/* Put everything written on the disk, and publish durable positions. */
int rb_log_sync(rb_log *log, int64_t now_ns);
/* Write the proof of the end (persistence/segment/format.py): these catalogues, or two empty ones if there is
 * none.  The next sync covers them.  Only if no extent waits. */
int rb_log_prove(rb_log *log, const rb_log_extent *catalogues, int count);

/* Run one round: take records of the rings if `take` is set, write everything that waits, and sync if that is
 * due or `sync` is set. */
int rb_log_round(rb_log *log, int64_t now_ns, int take, int sync);
/* Time in ns until the next round is due. */
int64_t rb_log_pause_ns(const rb_log *log, int64_t now_ns);
/* Run rounds, and sleep between them, until Python must act or `timeout_ns` are over. */
int rb_log_run(rb_log *log, int64_t timeout_ns);

/* Copy the synced extents of this segment from number `first` on to `out`.  Returns their number.  *end is
 * the position after the last synced one.  From any thread. */
int rb_log_synced(rb_log *log, uint64_t first, rb_log_extent *out, int capacity, uint64_t *end);

/* ---- the disk (direct_io.c, buffered_io.c) --------------------------------------------------- */

/* Write this segment past the page cache from now on, in blocks of the device.  Returns the block size, or a
 * negative errno if the file system refuses; then writes go through the cache. */
int rb_log_direct(rb_log *log);

/* Cause for which each direct write is synchronous: a negative errno of the kernel, which gives no
 * asynchronous I/O; 0: asynchronous. */
int rb_log_one_by_one(const rb_log *log);

/* Give the calling thread's disk requests the lowest best-effort priority, if the device's scheduler supports
 * it. */
void rb_disk_yields(void);
