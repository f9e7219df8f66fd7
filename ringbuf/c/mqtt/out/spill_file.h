/* SPDX-License-Identifier: Apache-2.0
 *
 * The spill file: copies of records that rings have overwritten and sessions still need.  The file is next to
 * the rings, in shared memory, and outlives the broker as they do.  Only the broker reads and writes it
 * (0600).
 *
 * The file is a sequence of units of 64 KiB.  Little-endian.
 *
 *   unit 0    header: mq_spill_header at 0, and the same bytes again at MQ_SPILL_COPY_AT, so that damage of
 *             one is repaired.  The first is written first; both are written when the file is opened
 *   others    extents of one or more units.  An extent begins with an mq_extent_header, followed by copies.
 *             A copy that needs more than a quarter of a unit has its own extent, of which only the pages in
 *             use have memory
 *
 * A copy identifies its record by the name and epoch of its ring and the position in the ring.  No two
 * records ever have the same three.  A copy found in the file is therefore valid, whatever the age of the
 * file.
 *
 * Commit.  All other bytes of a copy are stored before its length, and the word after the copy is zero before
 * that.  A broker that is killed between any two instructions therefore leaves complete copies.  A copy is in
 * the file before its ring may overwrite the record.  An extent is reused only after the journal records that
 * no session needs its copies (mq_spill_maintain).
 *
 * Memory is allocated before it is accessed: a full file system gives an error, which publishers get, and not
 * a signal.
 *
 * Rule for changes: raise MQ_SPILL_VERSION.  A file of another version is not read; its copies are lost, and
 * reported.
 */
#ifndef BRIM_SPILL_FILE_H
#define BRIM_SPILL_FILE_H

#define MQ_SPILL_MAGIC "BRIMSPIL"
#define MQ_SPILL_VERSION 2u
#define MQ_UNIT_BYTES 65536u
#define MQ_SPILL_COPY_AT (MQ_UNIT_BYTES / 2) /* position of the header's copy, in another page */
#define MQ_LARGE_BYTES (MQ_UNIT_BYTES / 4) /* a longer copy has its own extent */

typedef struct mq_spill_header {
    uint8_t magic[8];
    uint32_t version, unit_bytes;
    uint32_t epoch; /* epoch of the session journal that it belongs to */
    uint32_t seed;  /* random: no payload can imitate a copy */
    uint32_t crc;   /* crc32c of the bytes before */
} mq_spill_header;

typedef struct mq_extent_header {
    uint32_t units; /* stored last; 0: the extent is free */
    uint32_t check; /* crc32c of `units`, seeded with the header's seed */
    uint32_t used;  /* bytes, with this header; the last copy may lie beyond */
    uint32_t zeros;
} mq_extent_header;

typedef struct mq_spilled {
    uint32_t length; /* total length, a multiple of 8; stored last, with release.  0: no copy follows */
    uint32_t crc;    /* crc32c of bytes 8 .. 24 and 56 .. length, seeded with the header's seed */
    uint64_t position;
    uint32_t epoch;
    uint16_t name_length, zeros;
    mq_blob blob; /* below byte 56: used by the running broker; then record, ring name, zeros */
} mq_spilled;

_Static_assert(offsetof(mq_spill_header, crc) == 24, "crc at 24");
_Static_assert(sizeof(mq_extent_header) == 16, "an extent's header is 16 bytes");
_Static_assert(offsetof(mq_spilled, position) == 8, "position at 8");
_Static_assert(offsetof(mq_spilled, epoch) == 16, "epoch at 16");
_Static_assert(offsetof(mq_spilled, name_length) == 20, "name_length at 20");
_Static_assert(offsetof(mq_spilled, blob) == 24, "the blob at 24");
_Static_assert(offsetof(mq_spilled, blob.record) == 56, "the record at 56");

typedef enum mq_extent_state {
    MQ_EXTENT_FREE = 0, /* no memory */
    MQ_EXTENT_SPARE,    /* memory without copies */
    MQ_EXTENT_USED,
    MQ_EXTENT_RETIRED, /* no session needs its copies; the journal may not record that yet */
    MQ_EXTENT_INSIDE   /* a unit of an extent after its first */
} mq_extent_state;

typedef struct mq_extent {      /* at the index of its first unit */
    uint32_t units, used, live; /* bytes: with the header; of copies that sessions need */
    uint8_t state;
    bool small;  /* has several copies */
    bool victim; /* its copies are being moved */
} mq_extent;

typedef struct mq_spill {
    uint8_t *base; /* of the mapping; NULL: no file, copies are on the heap */
    uint64_t bytes;
    int fd;
    bool open;   /* false: the file is not changed */
    bool headed; /* the header is written */
    uint32_t seed, epoch;
    mq_extent *extents;
    uint32_t extents_capacity, top; /* units in the file */
    uint32_t filling;           /* extent in use for small copies; 0: none */
    uint32_t first_free;        /* no lower unit is free */
    mq_list spares, retired;    /* extents; with room for all that `extents` has room for */
    uint64_t live, dead;        /* bytes of copies that sessions need, and no longer need */
    int error;                  /* errno of the last allocation, if it failed */
    uint64_t retry_ms, probe_ms;
    bool compacting;
    uint32_t cursor;       /* position of compaction in the sessions */
    uint64_t begun, tried; /* `dead` at the begin of compaction, and at the end of one without effect */
    uint64_t *index; /* restart: file positions of copies, by record; open addressing; 0: free */
    uint32_t index_capacity, index_count;
} mq_spill;

static inline bool mq_spill_has(const mq_spill *spill, const mq_blob *blob)
{
    return (uint64_t)((const uint8_t *)blob - spill->base) < spill->bytes && spill->base != NULL;
}

static inline mq_spilled *mq_spilled_of(mq_blob *blob)
{
    return (mq_spilled *)(void *)((uint8_t *)blob - offsetof(mq_spilled, blob));
}

static inline uint32_t mq_extent_of(const mq_spill *spill, const mq_blob *blob)
{
    return (uint32_t)((uint64_t)((const uint8_t *)blob - spill->base) / MQ_UNIT_BYTES);
}

/* spill_file.c */
typedef enum mq_spill_opened {
    MQ_SPILL_NEW,
    MQ_SPILL_FOUND,
    MQ_SPILL_UNUSABLE, /* of another broker or version, or damaged: left unchanged */
    MQ_SPILL_FAILED   /* errno */
} mq_spill_opened;
/* Take over `fd`, unless the file is unusable or the call failed.  `known`: epochs of journals that it may
 * belong to; the first is the current one. */
mq_spill_opened mq_spill_open(mq_engine *engine, int fd, const uint32_t *known, uint32_t known_count);
/* Leave the file unchanged from now on.  Returns the bytes of copies in it that sessions need. */
uint64_t mq_spill_close(mq_engine *engine);
void mq_spill_free(mq_engine *engine);        /* only when no entry points to a copy */
bool mq_spill_stuck(const mq_engine *engine); /* true if an allocation has just failed */
/* Reserve room for a copy of a record of `length` bytes, to be filled and then committed or aborted.  NULL:
 * no room, or `ring` has no name. */
mq_blob *mq_spill_reserve(mq_engine *engine, const mq_ring *ring, uint64_t position, uint32_t length);
void mq_spill_commit(mq_engine *engine, mq_blob *blob);
void mq_spill_abort(mq_engine *engine, mq_blob *blob);
/* copies to another place of the file; NULL: no room */
mq_blob *mq_spill_copy(mq_engine *engine, mq_blob *blob);
void mq_spill_release(mq_engine *engine, mq_blob *blob);  /* when no entry points to it */
void mq_spill_retire(mq_engine *engine, uint32_t extent);
bool mq_spilled_verifies(const mq_spill *spill, const mq_spilled *copy, uint32_t length);
int mq_spill_read(const mq_spill *spill, uint64_t place, void *to, uint64_t length); /* 0, or -1: errno */
/* First unit from `unit` on with memory, or UINT32_MAX. */
uint32_t mq_spill_next_memory(const mq_spill *spill, uint32_t unit);
void mq_spill_punch(mq_engine *engine, uint32_t unit, uint32_t units);
bool mq_spill_adopt(mq_engine *engine, uint32_t unit, mq_extent extent); /* false: no memory, with errno */
/* Reclaim extents, and compact; called when the journal has all events. */
void mq_spill_maintain(mq_engine *engine);
uint64_t mq_spill_due(const mq_engine *engine); /* milliseconds until mq_spill_maintain() must be called */

/* spill_index.c: a restart */
bool mq_spill_scan(mq_engine *engine); /* false: errno */
mq_blob *mq_spill_find(const mq_engine *engine, const mq_ring *ring, uint64_t position);
void mq_spill_take(mq_engine *engine, mq_blob *blob, uint64_t origin); /* adds a reference of an entry */
void mq_spill_drop_unused(mq_engine *engine); /* free the copies that no session needs */

/* spill_compact.c */
bool mq_spill_compacts(const mq_engine *engine); /* true if compaction is due or in progress */
void mq_spill_compact(mq_engine *engine);        /* runs one slice */

/* spill.c */
/* Prepare the append of at most `overwrite_bytes` more bytes to an own ring.  False: no room for copies of
 * the records that would be overwritten, so the append must not happen. */
bool mq_spill_own(mq_engine *engine, uint32_t index, uint64_t overwrite_bytes);
/* Check the copies after records were read from a producer ring. */
void mq_spill_producer(mq_engine *engine, uint32_t index);
void mq_spill_add_session(mq_engine *engine, mq_session *session);
/* A copy on the heap, counted as spilled, without a reference yet.  NULL: no memory. */
mq_blob *mq_blob_of(mq_engine *engine, const void *record, uint32_t length);
void mq_blob_done(mq_engine *engine, mq_blob *blob);

#endif
