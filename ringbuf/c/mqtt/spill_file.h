/* SPDX-License-Identifier: Apache-2.0
 *
 * The spill file: copies of records that rings have overwritten and sessions still wait for.  It lies next to
 * the rings, in shared memory, and outlives the broker as they do.  Only the broker reads and writes it
 * (0600).
 *
 * The file is a row of units of 64 KiB.  Little-endian.
 *
 *   unit 0    header: mq_spill_header at 0, and the same bytes again at MQ_SPILL_COPY_AT: damage of one of
 *             them costs nothing.  The first is written first; both are written when the file is opened
 *   others    extents of one or more units.  An extent begins with an mq_extent_header; copies follow, each
 *             behind the other.  A copy that needs more than a quarter of a unit has an extent of its own,
 *             of which only the pages that it needs have memory
 *
 * A copy says itself which record it is: by the name and epoch of its ring and the position in that ring.  No
 * two records ever have the same three, so a copy that is found is true, however old the file is.
 *
 * Commit.  Everything of a copy is there before its length is, and the word behind it is zero before that. So
 * a broker that is killed between any two instructions leaves copies that are whole.  A copy is in the file
 * before its ring may overwrite the record, and an extent is used again only after the journal has that no
 * session needs its copies (mq_spill_tend).
 *
 * Memory is allocated before it is touched: a full file system is an error that publishers are told, not a
 * signal.
 *
 * Rule for change: raise MQ_SPILL_VERSION.  A file of another version is not read: its copies are lost, and
 * reported.
 */
#ifndef BRIM_SPILL_FILE_H
#define BRIM_SPILL_FILE_H

#define MQ_SPILL_MAGIC "BRIMSPIL"
#define MQ_SPILL_VERSION 2u
#define MQ_UNIT_BYTES 65536u
#define MQ_SPILL_COPY_AT (MQ_UNIT_BYTES / 2) /* of the header; pages away from it */
#define MQ_LARGE_BYTES (MQ_UNIT_BYTES / 4) /* a longer copy has an extent of its own */

typedef struct mq_spill_header {
    uint8_t magic[8];
    uint32_t version, unit_bytes;
    uint32_t epoch; /* of the journal of sessions that it belongs to */
    uint32_t seed;  /* random: no payload can imitate a copy */
    uint32_t crc;   /* crc32c of what is before */
} mq_spill_header;

typedef struct mq_extent_header {
    uint32_t units; /* stored last; 0: the extent is free */
    uint32_t check; /* crc32c of `units`, seeded with the header's seed */
    uint32_t used;  /* bytes, with this header; the last copy may lie behind that */
    uint32_t zeros;
} mq_extent_header;

typedef struct mq_spilled {
    uint32_t length; /* of all of it, a multiple of 8; stored last, with release.  0: no copy follows */
    uint32_t crc;    /* crc32c of bytes 8 .. 24 and 56 .. length, seeded with the header's seed */
    uint64_t position;
    uint32_t epoch;
    uint16_t name_length, zeros;
    mq_blob blob; /* up to byte 56 it belongs to the broker that runs; then record, name of the ring, zeros */
} mq_spilled;

_Static_assert(offsetof(mq_spill_header, crc) == 24, "crc at 24");
_Static_assert(sizeof(mq_extent_header) == 16, "an extent's header is 16 bytes");
_Static_assert(offsetof(mq_spilled, position) == 8, "position at 8");
_Static_assert(offsetof(mq_spilled, epoch) == 16, "epoch at 16");
_Static_assert(offsetof(mq_spilled, name_length) == 20, "name_length at 20");
_Static_assert(offsetof(mq_spilled, blob) == 24, "the blob at 24");
_Static_assert(offsetof(mq_spilled, blob.record) == 56, "the record at 56");

typedef enum mq_extent_state {
    MQ_EXTENT_FREE = 0, /* it has no memory */
    MQ_EXTENT_SPARE,    /* it has memory, and no copy */
    MQ_EXTENT_USED,
    MQ_EXTENT_RETIRED, /* no session needs its copies; the journal may not have that yet */
    MQ_EXTENT_INSIDE   /* a unit of an extent, but for its first */
} mq_extent_state;

typedef struct mq_extent {      /* by its first unit */
    uint32_t units, used, live; /* bytes: with the header; of copies that sessions need */
    uint8_t state;
    bool small;  /* it takes one copy behind the other */
    bool victim; /* its copies are being moved */
} mq_extent;

typedef struct mq_spill {
    uint8_t *base; /* of the mapping; NULL: there is no file, and copies are on the heap */
    uint64_t bytes;
    int fd;
    bool open;   /* false: the file stays as it is */
    bool headed; /* it has its header */
    uint32_t seed, epoch;
    mq_extent *extents;
    uint32_t extents_room, top; /* units in the file */
    uint32_t filling;           /* the extent that takes small copies; 0: none */
    uint32_t first_free;        /* no unit before it is free */
    mq_list spares, retired;    /* extents */
    uint64_t live, dead;        /* bytes of copies that sessions need, and no longer need */
    int error;                  /* errno of the last allocation, if it failed */
    uint64_t retry_ms, probe_ms;
    bool compacting;
    uint32_t cursor;       /* of compaction, over sessions */
    uint64_t begun, tried; /* `dead`, when compaction began; when one ended that brought nothing */
    uint64_t *index; /* at a restart: places of copies in the file, by record; open addressing; 0: none */
    uint32_t index_room, index_count;
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
    MQ_SPILL_FOREIGN, /* it is of another broker or version, or damaged: it was left as it is */
    MQ_SPILL_FAILED   /* errno */
} mq_spill_opened;
/* Takes `fd`, unless it is foreign or failed.  `known`: epochs of journals that it may belong to; the first
 * is today's. */
mq_spill_opened mq_spill_open(mq_engine *engine, int fd, const uint32_t *known, uint32_t known_count);
/* The file stays as it is from now on.  Bytes of copies in it that sessions need. */
uint64_t mq_spill_close(mq_engine *engine);
void mq_spill_free(mq_engine *engine);        /* no entry points to a copy */
bool mq_spill_stuck(const mq_engine *engine); /* there was no room just now */
/* Room for a copy of a record of `length` bytes, to be filled and then committed, or aborted.  NULL: there is
 * none, or the ring of `source` has no name. */
mq_blob *mq_spill_reserve(mq_engine *engine, const mq_source *source, uint64_t position, uint32_t length);
void mq_spill_commit(mq_engine *engine, mq_blob *blob);
void mq_spill_abort(mq_engine *engine, mq_blob *blob);
mq_blob *mq_spill_copy(mq_engine *engine, mq_blob *blob); /* elsewhere in the file; NULL: no room */
void mq_spill_release(mq_engine *engine, mq_blob *blob);  /* no entry points to it */
void mq_spill_retire(mq_engine *engine, uint32_t extent);
bool mq_spilled_verifies(const mq_spill *spill, const mq_spilled *copy, uint32_t length);
int mq_spill_read(const mq_spill *spill, uint64_t place, void *to, uint64_t length); /* 0, or -1: errno */
/* The first unit from `unit` on that has memory, or UINT32_MAX. */
uint32_t mq_spill_next_memory(const mq_spill *spill, uint32_t unit);
void mq_spill_punch(mq_engine *engine, uint32_t unit, uint32_t units);
bool mq_spill_adopt(mq_engine *engine, uint32_t unit, mq_extent extent); /* false: it has no memory, errno */
/* The journal has all that has happened: reclaims extents, and compacts. */
void mq_spill_tend(mq_engine *engine);
uint64_t mq_spill_due(const mq_engine *engine); /* milliseconds until mq_spill_tend() has to be called */

/* spill_index.c: a restart */
bool mq_spill_scan(mq_engine *engine); /* false: errno */
mq_blob *mq_spill_find(const mq_engine *engine, const mq_source *source, uint64_t position);
void mq_spill_take(mq_engine *engine, mq_blob *blob, uint64_t origin); /* an entry points to it from now on */
void mq_spill_settled(mq_engine *engine); /* copies that no session has asked for are freed */

/* spill_compact.c */
bool mq_spill_compacts(const mq_engine *engine); /* it is due, or under way */
void mq_spill_compact(mq_engine *engine);        /* a slice */

/* spill.c */
/* Before `room` more bytes, at most, are appended to an own source.  False: there is no room for what the
 * ring would overwrite, and nothing may be appended. */
bool mq_spill_own(mq_engine *engine, uint32_t index, uint64_t room);
/* After some were read from a foreign one. */
void mq_spill_foreign(mq_engine *engine, uint32_t index);
void mq_watch(mq_engine *engine, mq_session *session);
/* A copy on the heap, counted as spilled and not yet by who has it; NULL: no memory. */
mq_blob *mq_blob_of(mq_engine *engine, const void *record, uint32_t length);
void mq_blob_done(mq_engine *engine, mq_blob *blob);

#endif
