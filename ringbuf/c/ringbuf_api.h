/* SPDX-License-Identifier: Apache-2.0
 *
 * Every declaration that Python sees, and no other.
 *
 * Read twice: by the C compiler, and by cffi's cdef() in build.py, so it holds declarations only: no
 * preprocessor lines, no inline functions, no _Atomic.  cffi releases the GIL around each of these
 * functions: they are for waiting and for whole batches.  What must keep the GIL, one call a message,
 * is in calls.c and reaches Python as the types Writer, Reader, Claim, Record, Batch and KeyFilter,
 * which rb_install() adds to the module.
 *
 * C includes it through record.h or ring.h; each further part (mqtt/, decode.c) has its own section below.
 */

/* ---- sizes and codes -------------------------------------------------------------------------- */

enum {
    RB_FORMAT_VERSION = 2,
    RB_RECORD_HEADER_BYTES = 32,
    RB_RECORD_ALIGN = 32,
    RB_LINE_BYTES = 128,
    RB_HEADER_BYTES = 16384,
    RB_CURSORS_BYTES = 12288,
    RB_OWN_SLOTS = 8,
    RB_FOREIGN_SLOTS = 64,
    RB_INDEX_ENTRIES = 256,
    RB_CAPACITY_MIN_BYTES = 65536,
    RB_CHUNK_MIN_BYTES = 4096,
    RB_KEY_MAX_BYTES = 65535,
    RB_CHECKED_IN_PLACE_MAX_BYTES = 4096, /* a payload filled in place beyond this is committed unchecked */
    RB_NAME_MAX_BYTES = 63,
    RB_REFUSAL_AT = 768, /* of the word in the header: layout.h */
    RB_READER_NAME_MAX_BYTES = 31
};

enum { /* record flags */
    RB_FLAG_QOS = 3,         /* two bits: the QoS it was published with */
    RB_FLAG_RETAIN = 4,
    RB_FLAG_PROPERTIES = 8,  /* MQTT 5 properties follow the key */
    RB_FLAG_EXPIRY = 16,     /* and Message Expiry Interval is among them */
    RB_FLAG_UNCHECKED = 32,  /* crc32c ends where the payload begins: it was filled in place */
    RB_FLAGS_CRITICAL = 65472 /* 0xffc0: a reader that sees one of these must refuse the record */
};

enum { /* results; 0 and above is success */
    RB_OK = 0,
    RB_EMPTY = -1,     /* nothing there yet */
    RB_FULL = -2,      /* a gating cursor is in the way */
    RB_OVERRUN = -3,   /* the writer lapped this reader */
    RB_EVICTED = -4,   /* this gating reader stalled, and is heeded no longer */
    RB_CORRUPT = -5,   /* lengths that cannot be, or a checksum that does not hold */
    RB_TOO_LARGE = -6,
    RB_PENDING = -7,   /* a claim of this writer is neither committed nor aborted */
    RB_TIMEOUT = -8,
    RB_FOREIGN = -9,   /* magic, version or ABI word of something else */
    RB_INVALID = -10,  /* an argument out of its range */
    RB_GAP = -11,      /* inside the core: a gap marker; readers are told RB_OVERRUN */
    RB_INTERRUPTED = -12 /* a signal ended a wait, whose condition and time are to be looked at again */
};

enum { /* reader slots */
    RB_SLOT_FREE = 0,
    RB_SLOT_PLAIN = 1,   /* may be overrun; the cursor is for people */
    RB_SLOT_GATING = 2,  /* holds the writer back */
    RB_SLOT_EVICTED = 3
};

enum { /* why a writer has taken no record */
    RB_REFUSAL_FULL = 0,    /* nobody told it to: a gating reader was in the way */
    RB_REFUSAL_NO_ROOM = 1, /* the log may not grow any more: its disk, or its stream, is full */
    RB_REFUSAL_NO_LOG = 2,  /* the log takes no records, for another reason */
    RB_REFUSAL_LOST = 3,    /* another process has shortened the ring's file: nobody reads this memory */
    RB_REFUSALS = 4
};

typedef struct rb_writer rb_writer;
typedef struct rb_reader rb_reader;

/* Adds the types of calls.c to the compiled module named `module`.  0, or -1 if Python is out of memory. */
int rb_install(const char *module);

/* ---- making and checking (ring.c) ------------------------------------------------------------- */

/* Writes the header of a new ring at `memory` (RB_HEADER_BYTES + capacity_bytes, zeroed).  `name` is cut at
 * RB_NAME_MAX_BYTES.  RB_INVALID: capacity_bytes is no power of two, below the minimum or above 4 GiB. */
int rb_format(void *memory, uint64_t capacity_bytes, uint32_t epoch, uint64_t first_offset, const char *name,
              uint64_t created_ns, uint32_t identity);
/* The cursor file of the ring at `ring`: both carry created_ns and `identity`, a random number. */
int rb_format_cursors(void *memory, const void *ring);
/* Gives a ring of version 1 that has no writer an identity and this version.  1: done; 0: no such ring. */
int rb_upgrade(void *memory, uint32_t identity);

typedef struct rb_facts {
    uint64_t capacity_bytes, chunk_bytes, created_ns, first_offset;
    uint32_t epoch, format_version, abi_word;
    char name[64];
} rb_facts;

/* What the header at `memory`, a file of `file_bytes`, says.  RB_FOREIGN (facts.format_version and abi_word
 * are then what was found, or 0 if not even the magic fits) or RB_CORRUPT (checksum, or file too short). */
int rb_inspect(const void *memory, uint64_t file_bytes, rb_facts *facts);
/* Whether `memory` is the cursor file of the ring at `ring`: RB_OK, RB_FOREIGN, RB_CORRUPT (of another). */
int rb_inspect_cursors(const void *memory, uint64_t file_bytes, const void *ring);
uint32_t rb_abi_word(void);

/* The header has a copy of its constant part.  rb_geometry_copy() makes it, rb_geometry_mend() puts it in the
 * place of one whose checksum does not hold: 1 if it did. */
void rb_geometry_copy(void *memory);
int rb_geometry_mend(void *memory);

typedef struct rb_extremes {
    uint64_t end_position, end_offset;       /* where the next record goes */
    uint64_t oldest_position, oldest_offset; /* the oldest that is safe to read */
    uint64_t durable_position;
    uint64_t reserve_position;
} rb_extremes;
/* RB_OK, or RB_CORRUPT if the header of `memory`, `bytes` long, has changed since rb_inspect(). */
int rb_extremes_read(const void *memory, uint64_t bytes, rb_extremes *out);

/* The log says how far it has synced: stored with release, only ever by the writing process.  Wakes who
 * sleeps, by `cursors`, where readers are shown what is durable alone. */
void rb_durable_store(void *memory, void *cursors, uint64_t position);
/* Whether readers are shown what is durable alone, or what is committed. */
void rb_shows_durable_set(void *memory, int yes);

/* Tells the writer of `memory`, in whatever process, to take no records since `now_ns` of the monotonic
 * clock, and why; RB_REFUSAL_FULL: it may take them again.  It heeds that once its queue timeout is over. */
void rb_refuse(void *memory, uint32_t why, uint64_t now_ns);
int rb_is_refused(const void *memory);
/* How many records the writer has refused for that cause, since the ring was made. */
uint64_t rb_refused(const void *memory, uint32_t why);

/* ---- a ring of a former life (check.c) --------------------------------------------------------- */

enum { /* parts of a header that were not what the records prove */
    RB_REBUILT_END = 1,
    RB_REBUILT_WATERMARK = 2,
    RB_REBUILT_INDEX = 4
};

typedef struct rb_check {
    uint64_t position, offset;              /* all before is verified */
    uint64_t damage_end, damage_end_offset; /* after RB_CORRUPT: up to there no record verifies */
    uint64_t first_position, first_offset;  /* of the oldest record */
    uint64_t end_position, end_offset;      /* where the ring ends by its header */
    uint64_t floor, granted;                /* what is below floor was given up to the writer */
    uint64_t records, unchecked, lost;
    uint64_t capacity;
    uint64_t budget;                        /* bytes that may still be looked at in search of a record */
    uint32_t rebuilt;                       /* RB_REBUILT_* */
    uint32_t has_passed_end;
    uint32_t epoch;
    uint64_t index_position[256], index_offset[256], index_ns[256];
} rb_check;

/* Begins to verify the ring at `memory`, `bytes` long, which has been inspected and has no writer: finds its
 * oldest record.  RB_OK, or RB_CORRUPT: the header does not say where records are. */
int rb_check_begin(void *memory, uint64_t bytes, rb_check *check);
/* Goes on to the end, RB_OK, or up to damage, RB_CORRUPT.  Then the caller restores bytes of it from a copy
 * and calls again; or it calls rb_check_lose(), which makes a gap of the damage. */
int rb_check_next(void *memory, rb_check *check);
void rb_check_lose(void *memory, rb_check *check);
/* After RB_OK: writes what of the header differs from what the records prove. */
void rb_check_end(void *memory, rb_check *check);

/* ---- files that other users may shorten (fault.c) --------------------------------------------- */

enum { RB_GUARDS = 8192, RB_GUARD_PATCH_BYTES = 64 };

/* Guards the mapping of `bytes` at `begin`: where its file is shortened it becomes zeros, and no SIGBUS ends
 * the process.  The number of the guard; RB_FULL; RB_INVALID: no handler can be installed. */
int rb_guard(void *begin, uint64_t bytes);
/* What it then has at `at`.  With a `descriptor`, open as long as the guard is there, the file is given its
 * length back, so that it stays shared. */
int rb_guard_patch(int number, int descriptor, uint64_t at, const void *patch, uint32_t bytes);
void rb_guard_restore(int number); /* now: a file cut within its last page faults nowhere */
void rb_unguard(int number);       /* before the memory is unmapped */
uint32_t rb_guard_faults(int number); /* how often the file was found shortened */
int rb_guard_lost(int number);        /* whether the memory is private zeros by now */

/* ---- slots (ring.c) --------------------------------------------------------------------------- */

typedef struct rb_slot_facts {
    uint32_t state, pid;
    uint64_t cursor, offset, lost;
    char name[32];
} rb_slot_facts;

/* `slots` is the ring's memory (own) or the cursor file's.  Words are read once. */
int rb_slot_read(const void *memory, int own, int slot, rb_slot_facts *out);
void rb_slot_name(void *memory, int own, int slot, const char *name, uint32_t pid);
void rb_slot_free(void *memory, int own, int slot);

/* Which foreign slots a writer heeds: all that say they gate (the default: readers of the same trust), or
 * only those listed here by rb_writer_admit().  Evicting ends it for that slot until it is admitted or
 * freed. */
void rb_writer_heed(rb_writer *writer, int only_listed);
int rb_writer_admit(rb_writer *writer, int slot);
int rb_writer_evict(rb_writer *writer, int slot);

/* ---- waiting (wait.c): the only system calls of ringbuf ---------------------------------------- */

/* Sleeps until one of `count` readers has a record, *doorbell changes from `seen`, the time is up, or a
 * signal comes.  Index of the reader, `count` for the doorbell, RB_TIMEOUT, RB_INTERRUPTED.  Records wake it
 * of the first 127 readers; it looks at all others each millisecond. */
int rb_readers_wait(rb_reader **readers, int count, uint32_t *doorbell, uint32_t seen, int64_t timeout_ns);
void rb_doorbell_ring(uint32_t *doorbell);

/* Sleeps until everything below `position` is durable: RB_OK, RB_TIMEOUT, or RB_INTERRUPTED.  Only in the
 * writing process. */
int rb_durable_wait(void *memory, uint64_t position, int64_t timeout_ns);

/* ---- a bell (bell.c): many rings of this process, one thread that sleeps on all of them ---------- */

/* How it sleeps: every ring wakes it; or only those that are urgent, and writers that have no room; or only
 * who calls. */
enum { RB_BELL_AWAKE = 0, RB_BELL_SLEEPS = 1, RB_BELL_NAPS = 2, RB_BELL_WAITS = 3, RB_BELL_RINGS = 4096 };

typedef struct rb_bell rb_bell;
rb_bell *rb_bell_new(void); /* NULL: no memory */
void rb_bell_free(rb_bell *bell);

/* The writer of a ring, in this process, rings for what it publishes, as number `index`, until told
 * otherwise (NULL).  The bell must live as long as the writer. */
void rb_writer_bell(rb_writer *writer, rb_bell *bell, uint32_t index);
/* And leaves this trail (trail.h), for a gating reader in this process.  It must live as long, too. */
typedef struct rb_trail rb_trail;
rb_trail *rb_trail_new(void); /* NULL: no memory */
void rb_trail_free(rb_trail *trail);
void rb_writer_trail(rb_writer *writer, rb_trail *trail);
void rb_reader_trail(rb_reader *reader, const rb_trail *trail);
void rb_bell_urgent(rb_bell *bell, uint32_t index, int urgent);

/* Ends the sleep, or the next one, and makes rb_bell_called() true once. */
void rb_bell_call(rb_bell *bell);
int rb_bell_called(rb_bell *bell);

/* Sleeps until one of those rings, somebody calls, or the time is up.  Returns at once if that has been. */
void rb_bell_sleep(rb_bell *bell, uint32_t how, int64_t timeout_ns);

/* Forgets who has rung: before a look at all of the rings. */
void rb_bell_drain(rb_bell *bell);

/* ---- whole batches: ranges of ring memory, and records in bytes ------------------------------- */

/* A run of whole records, contiguous in ring memory and without padding; either all checked, or one
 * unchecked record: what becomes one extent of the log. */
typedef struct rb_range {
    uint64_t position;       /* in the ring; memory at position & (capacity - 1) */
    uint64_t length;         /* bytes, a multiple of RB_RECORD_ALIGN */
    uint64_t first_offset;
    uint64_t count;          /* records */
    uint64_t first_timestamp_ns, last_timestamp_ns;
} rb_range;

/* Ranges from the reader's cursor on, at most `room` of them and about limit_bytes together (at least one
 * record if one is there).  Moves the read cursor behind them; a gating reader's hold stays until
 * rb_reader_release().  Number of ranges, or RB_OVERRUN (after it the cursor stands at the oldest record),
 * RB_EVICTED, RB_CORRUPT. */
int rb_reader_ranges(rb_reader *reader, uint64_t limit_bytes, rb_range *out, int room);

/* Gives up the hold on everything below `position`. */
void rb_reader_release(rb_reader *reader, uint64_t position);

/* skip.c.  After RB_CORRUPT, or of a reader that is stuck: moves the cursor to the next record that verifies,
 * or to the end; what is passed over counts as lost.  RB_OVERRUN, or RB_EMPTY: nothing is ahead. */
int rb_reader_skip(rb_reader *reader);
/* Whether the end of the ring is ahead although no record stands at the cursor. */
int rb_reader_is_stuck(const rb_reader *reader);

typedef struct rb_scan {
    uint64_t count;             /* good records from the start */
    uint64_t good_bytes;        /* where the first bad one begins, or the end */
    uint64_t first_offset, last_offset;
    uint64_t first_timestamp_ns, last_timestamp_ns;
    uint64_t bad_length;        /* span of the bad record if its header can be believed, else 0 */
} rb_scan;

/* Walks records in `bytes` (32-aligned, no padding records) up to the first that does not verify.
 * RB_OK when all did, RB_CORRUPT else. */
int rb_scan_records(const uint8_t *bytes, uint64_t length, uint32_t epoch, rb_scan *out);

/* Copies, without the GIL: a copy by Python of some megabytes would keep it for a millisecond. */
void rb_copy(uint8_t *to, const uint8_t *from, uint64_t length);

/* crc32c, continued from `seed` (0 to begin): for headers and footers that Python packs. */
uint32_t rb_crc32c_of(uint32_t seed, const uint8_t *bytes, uint64_t length);

/* Takes the first bytes of these into *crc, which is the checksum of zlib and not crc32c.  How many: almost
 * all, or none where the processor does no better than zlib. */
uint64_t rb_crc32_fold(uint32_t *crc, const uint8_t *bytes, uint64_t length);
