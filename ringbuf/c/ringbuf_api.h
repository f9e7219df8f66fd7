/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations of the ring and its records that Python sees.
 *
 * The file is read twice: by the C compiler, and by cffi's cdef() in build.py.  It therefore has declarations
 * only: no preprocessor lines, inline functions or _Atomic.  cffi releases the GIL around each of these
 * functions: they are for waits and whole batches.  Functions that keep the GIL (one call per message) are in
 * python/.  Python sees them as the types Writer, Reader, Claim, Record, Batch and KeyFilter, which
 * rb_install() adds to the module.
 *
 * C includes this file through record.h or ring.h.  Other parts (mqtt/, arrow/) have a header of this kind of
 * their own.
 */

/* ---- sizes and codes -------------------------------------------------------------------------- */

enum {
    RB_FORMAT_VERSION = 2,
    RB_RECORD_HEADER_BYTES = 32,
    RB_RECORD_ALIGN = 32,
    RB_LINE_BYTES = 128,
    RB_HEADER_BYTES = 16384,
    RB_CURSORS_BYTES = 12288,
    RB_REMOTE_SLOTS = 64, /* of the cursor file: readers in other processes */
    RB_LOCAL_SLOTS = 8,   /* of readers in the writing process */
    RB_INDEX_ENTRIES = 256,
    RB_CAPACITY_MIN_BYTES = 65536,
    RB_CHUNK_MIN_BYTES = 4096,
    RB_KEY_MAX_BYTES = 65535,
    RB_CHECKED_IN_PLACE_MAX_BYTES = 2048, /* a longer payload filled in place is committed unchecked */
    RB_NAME_MAX_BYTES = 63,
    RB_REFUSAL_AT = 768, /* position of `refusal` in the header: layout.h */
    RB_READER_NAME_MAX_BYTES = 31
};

enum {
    /* 2020, seconds since 1970: a record with an earlier time is of a clock that was not set */
    RB_CLOCK_SET_S = 1577836800
};

enum { /* record flags */
    RB_FLAG_QOS = 3,         /* two bits: QoS of the publish */
    RB_FLAG_RETAIN = 4,
    RB_FLAG_PROPERTIES = 8,  /* MQTT 5 properties follow the key */
    RB_FLAG_EXPIRY = 16,     /* Message Expiry Interval is one of the properties */
    RB_FLAG_UNCHECKED = 32,  /* crc32c does not cover the payload, which was filled in place */
    RB_FLAGS_CRITICAL = 65472 /* 0xffc0: a reader must refuse a record with one of these */
};

enum { /* results; 0 and above is success */
    RB_OK = 0,
    RB_EMPTY = -1,     /* no record yet */
    RB_FULL = -2,      /* a blocking cursor blocks the space */
    RB_OVERRUN = -3,   /* the writer lapped this reader */
    RB_EVICTED = -4,   /* this blocking reader stalled and does not block any more */
    RB_CORRUPT = -5,   /* impossible lengths or a wrong checksum */
    RB_TOO_LARGE = -6,
    RB_PENDING = -7,   /* a claim of this writer is neither committed nor aborted */
    RB_TIMEOUT = -8,
    RB_WRONG_FORMAT = -9,   /* another magic, version or ABI word */
    RB_INVALID = -10,  /* an argument out of its range */
    RB_GAP = -11,      /* internal: a gap marker; readers get RB_OVERRUN */
    RB_INTERRUPTED = -12 /* a signal ended a wait; check its condition and deadline again */
};

enum { /* reader slots */
    RB_SLOT_FREE = 0,
    RB_SLOT_PLAIN = 1,   /* may be lapped; the cursor is only for display */
    RB_SLOT_BLOCKING = 2,  /* blocks the writer */
    RB_SLOT_EVICTED = 3
};

enum { /* causes for which a writer refuses a record */
    RB_REFUSAL_FULL = 0,    /* not requested: a blocking reader blocked the space */
    RB_REFUSAL_NO_ROOM = 1, /* the log may not grow: its disk or its stream is full */
    RB_REFUSAL_NO_LOG = 2,  /* the log takes no records, for another reason */
    RB_REFUSAL_LOST = 3,    /* another process has shortened the ring's file; this memory has no reader */
    RB_REFUSALS = 4
};

typedef struct rb_record { /* header of a record: record.h */
    uint32_t length;
    uint32_t crc;
    uint64_t offset;
    uint64_t timestamp_ns;
    uint32_t key_hash;
    uint16_t key_length;
    uint16_t flags;
} rb_record;

typedef struct rb_writer rb_writer;
typedef struct rb_reader rb_reader;

/* Add the types of py_module.c to the compiled module named `module`.  Returns 0, or -1 if Python is out of
 * memory. */
int rb_install(const char *module);

/* ---- making and checking (ring.c) ------------------------------------------------------------- */

/* Write the header of a new ring at `memory` (RB_HEADER_BYTES + capacity_bytes, zeroed).  `name` is cut at
 * RB_NAME_MAX_BYTES.  RB_INVALID: capacity_bytes is not a power of two, below the minimum or above 4 GiB. */
int rb_format(void *memory, uint64_t capacity_bytes, uint32_t epoch, uint64_t first_offset, const char *name,
              uint64_t created_ns, uint32_t identity);
/* Format the cursor file of the ring at `ring`.  Both files carry created_ns and `identity`, a random
 * number. */
int rb_format_cursors(void *memory, const void *ring);
/* Give a ring of version 1 without a writer an identity and the current version.  1 if done; 0 for another
 * ring. */
int rb_upgrade(void *memory, uint32_t identity);

typedef struct rb_ring_info {
    uint64_t capacity_bytes, chunk_bytes, created_ns, first_offset;
    uint32_t epoch, format_version, abi_word;
    char name[64];
} rb_ring_info;

/* Read and check the header at `memory`, a file of `file_bytes`.  RB_WRONG_FORMAT: another format;
 * info.format_version and abi_word have the values found, or 0 without the magic.  RB_CORRUPT: wrong
 * checksum, or a file that is too short. */
int rb_inspect(const void *memory, uint64_t file_bytes, rb_ring_info *info);
/* Returns RB_OK if `memory` is the cursor file of the ring at `ring`; RB_WRONG_FORMAT; RB_CORRUPT (of another
 * ring). */
int rb_inspect_cursors(const void *memory, uint64_t file_bytes, const void *ring);
uint32_t rb_abi_word(void);

/* The header has a copy of its constant part.  rb_geometry_copy() writes the copy.  rb_geometry_mend()
 * restores the original from it if the original's checksum is wrong; 1 if it did. */
void rb_geometry_copy(void *memory);
int rb_geometry_mend(void *memory);

typedef struct rb_extremes {
    uint64_t end_position, end_offset;       /* position of the next record */
    uint64_t oldest_position, oldest_offset; /* oldest record that is safe to read */
    uint64_t durable_position;
    uint64_t reserve_position;
} rb_extremes;
/* RB_OK, or RB_CORRUPT if the header of `memory`, `bytes` long, has changed since rb_inspect(). */
int rb_extremes_read(const void *memory, uint64_t bytes, rb_extremes *out);

/* Publish the position up to which the log has synced: stored with release, only by the writing process.
 * Wakes sleeping readers, found in `cursors` and `local_cursors`, if readers see only durable records. */
void rb_durable_store(void *memory, void *cursors, void *local_cursors, uint64_t position);
/* Show readers only durable records (yes), or all committed records. */
void rb_visible_when_durable_set(void *memory, int yes);

/* Request the writer of `memory`, in any process, to refuse records since `now_ns` of the monotonic clock,
 * for cause `why`.  RB_REFUSAL_FULL permits records again.  The writer obeys after its queue timeout. */
void rb_refuse(void *memory, uint32_t why, uint64_t now_ns);
int rb_is_refused(const void *memory);
/* Number of records that the writer has refused for cause `why` since the ring was created. */
uint64_t rb_refused(const void *memory, uint32_t why);

/* ---- check of a ring that had another writer before (check.c) ---------------------------------- */

enum { /* parts of a header that contradicted the records */
    RB_REBUILT_END = 1,
    RB_REBUILT_WATERMARK = 2,
    RB_REBUILT_INDEX = 4
};

typedef struct rb_check {
    uint64_t position, offset;              /* everything before is verified */
    uint64_t damage_end, damage_end_offset; /* after RB_CORRUPT: no record verifies before it */
    uint64_t first_position, first_offset;  /* of the oldest record */
    uint64_t end_position, end_offset;      /* end of the ring according to its header */
    uint64_t floor, granted;                /* the writer may have overwritten everything below floor */
    uint64_t records, unchecked, lost;
    uint64_t capacity;
    uint64_t budget;                        /* bytes that may still be searched for a record */
    uint32_t rebuilt;                       /* RB_REBUILT_* */
    uint32_t has_passed_end;
    uint32_t epoch;
    uint64_t index_position[256], index_offset[256], index_ns[256];
} rb_check;

/* Begin to verify the ring at `memory`, `bytes` long, which has been inspected and has no writer: find its
 * oldest record.  RB_OK, or RB_CORRUPT if the header gives no way to the records. */
int rb_check_begin(void *memory, uint64_t bytes, rb_check *check);
/* Verify up to the end (RB_OK) or up to damage (RB_CORRUPT).  After damage the caller restores bytes from a
 * copy and calls again, or calls rb_check_lose(), which turns the damage into a gap. */
int rb_check_next(void *memory, rb_check *check);
void rb_check_lose(void *memory, rb_check *check);
/* Correct, after RB_OK, the parts of the header that contradict the records. */
void rb_check_end(void *memory, rb_check *check);

/* ---- files that other users may shorten (sigbus_guard.c) -------------------------------------- */

enum { RB_GUARDS = 8192, RB_GUARD_PATCH_BYTES = 64 };

/* Guard the mapping of `bytes` at `begin`: if its file is shortened, the missing pages become zeros and no
 * SIGBUS ends the process.  Returns the number of the guard; RB_FULL; RB_INVALID: no handler can be
 * installed. */
int rb_guard(void *begin, uint64_t bytes);
/* Set the bytes that guard `number` writes at `at` of such zeros.  With a `descriptor`, open as long as the
 * guard exists, the file also gets its length back and stays shared. */
int rb_guard_patch(int number, int descriptor, uint64_t at, const void *patch, uint32_t bytes);
void rb_guard_restore(int number); /* restore at once: a file cut within its last page causes no fault */
void rb_unguard(int number);       /* before the memory is unmapped */
uint32_t rb_guard_faults(int number); /* times that the file was found shortened */
int rb_guard_lost(int number);        /* true if the memory is private zeros */

/* ---- slots (ring.c) --------------------------------------------------------------------------- */

typedef struct rb_slot_info {
    uint32_t state, pid;
    uint64_t cursor, offset, lost;
    char name[32];
} rb_slot_info;

/* `cursors` is the cursor file, or private memory with the same layout for readers in the writing process.
 * Each word is read once. */
int rb_slot_read(const void *cursors, int slot, rb_slot_info *out);
void rb_slot_name(void *cursors, int slot, const char *name, uint32_t pid);
void rb_slot_free(void *cursors, int slot);

/* Let a slot of the cursor file block a writer that only admitted slots may block
 * (rb_writer_select_blocking()).  rb_writer_evict() ends this, until the slot is admitted or freed. */
int rb_writer_admit(rb_writer *writer, int slot);
int rb_writer_evict(rb_writer *writer, int slot);

/* ---- waiting (wait.c) ---------------------------------------------------------------------------- */

/* Sleep until one of `count` readers has a record, *interrupts differs from `seen`, the time is over, or a
 * signal comes.  Returns the index of the reader, `count` after an interrupt, RB_TIMEOUT, RB_INTERRUPTED.
 * Records of the first 127 readers wake it at once; all further readers are checked each millisecond. */
int rb_readers_wait(rb_reader **readers, int count, uint32_t *interrupts, uint32_t seen, int64_t timeout_ns);
void rb_readers_interrupt(uint32_t *interrupts); /* adds 1, and ends the sleep */

/* Sleep until everything below `position` is durable.  Returns RB_OK, RB_TIMEOUT, or RB_INTERRUPTED.  Only in
 * the writing process. */
int rb_durable_wait(void *memory, uint64_t position, int64_t timeout_ns);

/* ---- wakeup (log_wakeup.c): one thread that sleeps on many rings of this process --------------------- */

/* Depth of a sleep: SLEEPS is ended by every ring, BACKOFF by urgent rings and writers without room, WAITS
 * only by rb_wakeup_call(). */
enum {
    RB_WAKEUP_AWAKE = 0,
    RB_WAKEUP_SLEEPS = 1,
    RB_WAKEUP_BACKOFF = 2,
    RB_WAKEUP_WAITS = 4,
    RB_WAKEUP_RINGS = 4096
};

typedef struct rb_wakeup rb_wakeup;
rb_wakeup *rb_wakeup_new(void); /* NULL: no memory */
void rb_wakeup_free(rb_wakeup *wakeup);

/* Have the writer of a ring, in this process, signal the wakeup as number `index` at each publish; NULL ends
 * this.  The wakeup must live as long as the writer. */
void rb_writer_wakeup(rb_writer *writer, rb_wakeup *wakeup, uint32_t index);
/* Commit index (commit_index.h) that a writer fills for a blocking reader in this process.  It must live as
 * long as both. */
typedef struct rb_commit_index rb_commit_index;
rb_commit_index *rb_commit_index_new(void); /* NULL: no memory */
void rb_commit_index_free(rb_commit_index *commit_index);
void rb_writer_commit_index(rb_writer *writer, rb_commit_index *commit_index);
void rb_reader_commit_index(rb_reader *reader, const rb_commit_index *commit_index);

/* End the sleep, or the next one, and make rb_wakeup_called() true once. */
void rb_wakeup_call(rb_wakeup *wakeup);
int rb_wakeup_called(rb_wakeup *wakeup);

/* Sleep until one of the rings signals, rb_wakeup_call() is called, or the time is over.  Returns at once if
 * that has already happened. */
void rb_wakeup_sleep(rb_wakeup *wakeup, uint32_t how, int64_t timeout_ns);

/* ---- whole batches: ranges of ring memory, and records in bytes ------------------------------- */

/* A run of complete records, contiguous in ring memory and without padding: either all checked, or one
 * unchecked record.  It becomes one extent of the log. */
typedef struct rb_range {
    uint64_t position;       /* in the ring; memory at position & (capacity - 1) */
    uint64_t length;         /* bytes, a multiple of RB_RECORD_ALIGN */
    uint64_t first_offset;
    uint64_t count;          /* records */
    uint64_t first_timestamp_ns, last_timestamp_ns;
} rb_range;

/* True if the end of the ring is ahead although no record stands at the cursor. */
int rb_reader_is_stuck(const rb_reader *reader);

typedef struct rb_scan {
    uint64_t count;             /* good records from the start */
    uint64_t good_bytes;        /* position of the first bad record, or the end */
    uint64_t first_offset, last_offset;
    uint64_t first_timestamp_ns, last_timestamp_ns;
    uint64_t bad_length;        /* span of the bad record if its header is plausible, otherwise 0 */
} rb_scan;

/* Scan records in `bytes` (32-aligned, no padding records) up to the first one that does not verify.  RB_OK
 * if all verify, otherwise RB_CORRUPT. */
int rb_scan_records(const uint8_t *bytes, uint64_t length, uint32_t epoch, rb_scan *out);

/* Copy without the GIL: Python's own copy of some megabytes keeps the GIL for a millisecond. */
void rb_copy(uint8_t *to, const uint8_t *from, uint64_t length);

/* CRC-32C, continued from `seed` (0 to begin), for headers and footers that Python packs. */
uint32_t rb_crc32c_of(uint32_t seed, const uint8_t *bytes, uint64_t length);

/* Add the first bytes to *crc, a checksum as in zlib, not CRC-32C.  Returns the number of bytes taken: almost
 * all, or 0 if the processor is not faster than zlib. */
uint64_t rb_crc32_fold(uint32_t *crc, const uint8_t *bytes, uint64_t length);
