/* SPDX-License-Identifier: Apache-2.0
 *
 * The log's rounds, as Python sees them (log.h says how they work).  Read twice: by cffi and by the compiler,
 * through log.h.
 */

enum {
    RB_LOG_EXTENTS_MOST = 511, /* of one write: header and body each, and the zeros behind them; IOV_MAX */
    RB_LOG_RANGES_MOST = 64,
    RB_LOG_BUCKETS = 26
};

enum { /* why a call came back: the first two need nothing */
    RB_LOG_DONE = 0,
    RB_LOG_CALLED = 1,  /* somebody has called: rb_bell_call() */
    RB_LOG_MOVED = 2,   /* durable words have moved, and Python wants to know */
    RB_LOG_FULL = 3,    /* the next extent does not fit into the segment, which is synced up to its end */
    RB_LOG_FAILED = 4,  /* the disk did: `error` is the errno, `failed_sync` says of what */
    RB_LOG_TROUBLE = 5, /* a ring cannot be read on as it is: it is `leaving`, and `trouble` says why */
    RB_LOG_IDLE = 6     /* the end of the log is not proven yet, and nothing more has come */
};

/* A ring that is logged.  Python makes it and keeps it as long as it is added; both sides write it, in turn.
 */
typedef struct rb_log_ring {
    rb_reader *reader; /* gating; what it has read is in `taken` */
    void *memory;      /* of the ring, to write its durable word */
    void *cursors;     /* its cursor file: whom to wake, where that is what readers wait for */
    uint32_t ring_id, epoch, index;
    int32_t on_disk; /* synced in the round that writes it; else after interval_ns or sync_bytes */
    int32_t leaving; /* nothing more is taken */
    int32_t trouble; /* RB_CORRUPT, ... */
    int64_t interval_ns;
    int64_t waits_since; /* when its first record that is not durable was taken; -1: none waits */
    uint64_t sync_bytes;
    uint64_t taken, durable;               /* positions in the ring */
    uint64_t taken_offset, durable_offset; /* the offsets there, for what rounds have taken; else 0 */
} rb_log_ring;

/* A run of records on its way to the disk, or there: an extent. */
typedef struct rb_log_extent {
    const uint8_t *body;
    uint64_t length, position, first_offset, count, first_timestamp_ns, last_timestamp_ns;
    uint64_t place; /* of its header in the file, once written */
    rb_log_ring *ring;
    uint32_t ring_id, epoch;
} rb_log_extent;

typedef struct rb_log_times { /* durations; counts[i]: below 2^i us, and not below the one before */
    uint64_t count, total_ns, max_ns, counts[26];
} rb_log_times;

typedef struct rb_log_inside rb_log_inside;

typedef struct rb_log_piece { /* as struct iovec */
    void *base;
    size_t length;
} rb_log_piece;

/* The log's numbers.  Written by the thread that runs rounds, or by Python between them. */
typedef struct rb_log {
    rb_log_inside *inside;
    /* the segment */
    uint64_t base, end, room, first_place; /* places in the file, but base */
    uint32_t seed;
    int32_t descriptor; /* -1: none */
    uint64_t durable_position, proven;
    /* bounds */
    uint64_t extent_bytes, round_bytes, step_bytes, write_bytes;
    int64_t prove_after_ns, spin_ns;
    int32_t tells;           /* come back with RB_LOG_MOVED */
    int32_t wake_descriptor; /* an eventfd that is written when durable words move; -1: none */
    /* what came of it */
    int32_t error, failed_sync;
    int32_t troubles;                                          /* a ring has been left */
    int64_t active_at;                                         /* when something was last taken */
    int64_t due_ns;                                            /* when the next sync is due */
    uint64_t extents_queued, extents_written, extents_settled; /* of this segment, each of them also in those
                                                                  before it */
    uint64_t unsynced_bytes;
    /* counters */
    uint64_t rounds, records, record_bytes, extents, written_bytes, synced_bytes, syncs, naps, sleeps;
    rb_log_times write, fsync, commit; /* commit: of a sync's oldest extent, from taken to durable */
} rb_log;

/* NULL: no memory. */
rb_log *rb_log_new(rb_bell *bell);
void rb_log_free(rb_log *log);

/* For another disk than the operating system's.  The calls return what pwritev(), pread() and fdatasync() do,
 * or a negative errno.  submit() begins a write, of memory that stays as it is until reap() has told of it:
 * 0, or not now; reap() waits for one that has begun: its slot, and what came of it as of a write. */
typedef int64_t (*rb_log_write_call)(void *context, const rb_log_piece *pieces, int count, uint64_t place);
typedef int64_t (*rb_log_read_call)(void *context, void *out, uint64_t length, uint64_t place);
typedef int (*rb_log_sync_call)(void *context);
typedef int (*rb_log_submit_call)(void *context, const void *bytes, uint64_t length, uint64_t place,
                                  uint32_t slot);
typedef uint32_t (*rb_log_reap_call)(void *context, int64_t *result);
typedef struct rb_log_calls {
    rb_log_write_call write; /* NULL: it is the operating system's */
    rb_log_read_call read;
    rb_log_sync_call sync;
    rb_log_submit_call submit; /* NULL: each write is waited for */
    rb_log_reap_call reap;
    void *context;
    uint32_t block_bytes,
        chunk_bytes; /* powers of two; writes past a cache, and how large they are at most */
} rb_log_calls;
void rb_log_files(rb_log *log, const rb_log_calls *calls);

/* From the next round on the ring is logged, or not.  RB_INVALID: its index is out of range. */
int rb_log_add(rb_log *log, rb_log_ring *ring);
void rb_log_remove(rb_log *log, rb_log_ring *ring);

/* Rounds go on in the segment that the fields say; nothing of the rings is waiting, and all are looked at.
 * What was left of the segment before is forgotten. */
void rb_log_enter(rb_log *log, int64_t now_ns);
/* After RB_LOG_FULL: rounds go on in the segment that the fields say, with what did not fit into the last. */
void rb_log_go_on(rb_log *log);

/* Before anybody else writes to the segment: what has been written is where they see it.  Or a negative
 * errno, and then nobody may. */
int rb_log_leave(rb_log *log);

/* One round: takes what the rings have, writes it, and syncs if that is due, or `sync`. */
int rb_log_round(rb_log *log, int64_t now_ns, int sync);

/* Rounds, and sleep between them, until there is something for Python or `timeout_ns` have gone. */
int rb_log_run(rb_log *log, int64_t timeout_ns);

/* Extents of this segment from number `first` on, as far as they are durable: how many were copied to `out`.
 * *end is the place behind the last durable one.  From any thread. */
int rb_log_settled(rb_log *log, uint64_t first, rb_log_extent *out, int room, uint64_t *end);
/* Those that are not, from number `first` on (counted from extents_settled); not while rounds run. */
int rb_log_waiting(rb_log *log, uint64_t first, rb_log_extent *out, int room);

/* ---- the disk (direct.c, disk.c) --------------------------------------------------------------- */

/* From here on this segment is written past the page cache, by whole blocks of the device: their bytes, or a
 * negative errno where the file system refuses, and it goes through the cache. */
int rb_log_direct(rb_log *log);

/* Why each of those writes is waited for before the next: a negative errno of the kernel, which gives no
 * asynchronous I/O; 0: it does. */
int rb_log_one_by_one(const rb_log *log);

/* The calling thread's requests come after all others', where the device has a scheduler that heeds it. */
void rb_disk_yields(void);
