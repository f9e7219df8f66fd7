/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of archive/: records into the columns of a window, and back.  Declarations only, as in
 * ringbuf_api.h.
 *
 * A window is some megabytes of records.  Its runs, and the records in them, keep the order of the ring
 * ("record order"); its bodies (properties and payload) stand by key, and within a key in record order ("key
 * order").  Both follow from the column of keys alone.  The layout of the columns is persistence/archive's:
 * layout.py.
 */

enum {
    RB_ARCHIVE_HEAD_BYTES = 22, /* of a record in the columns of a head */
    RB_ARCHIVE_NAME_BYTES = 10, /* of a name in a page of names, besides itself */
    RB_ARCHIVE_VERBATIM = 32768 /* 0x8000 in the column of flags: the body is all of the record's span */
};

/* ---- keys of a segment (archive_keys.c) ---- */

typedef struct rb_keys rb_keys;

/* NULL: no memory.  `seed` keeps others from making up keys that collide. */
rb_keys *rb_keys_new(uint64_t seed);
void rb_keys_free(rb_keys *keys);

/* Enters the key of each record of a run as being in that window.
 * RB_OK, RB_CORRUPT: a record does not verify, RB_INVALID: no memory, or keys have their ranks already. */
int rb_keys_enter(rb_keys *keys, const uint8_t *bytes, uint64_t length, uint32_t epoch, uint32_t window);

/* Gives each key its rank, in the order of their bytes.  How many there are; nothing is entered any more. */
uint64_t rb_keys_rank(rb_keys *keys);

/* Writes the page of names from rank `first` on: as many as fit into `room`, at least one if there is one and
 * it fits.  *length: bytes of the page.  How many names. */
uint64_t rb_keys_page(const rb_keys *keys, uint64_t first, uint8_t *page, uint64_t room, uint64_t *length);

/* ---- writing a window (archive_split.c) ---- */

/* Records of one ring and epoch without a gap between their offsets or positions. */
typedef struct rb_archive_run {
    uint64_t length; /* bytes of records; runs lie one behind the other */
    uint64_t count;  /* records */
    uint64_t first_offset;
    uint64_t position; /* of the first in its ring */
    uint32_t epoch;
} rb_archive_run;

typedef struct rb_archive_columns {
    uint64_t *scratch; /* room for 2 * records + ranks + 1 */
    uint8_t *head;     /* room for RB_ARCHIVE_HEAD_BYTES * records */
    uint8_t *body;     /* room for the bytes of all runs */
    uint64_t *cuts;    /* where each block of the body ends: room for bytes / block_bytes + 1 */
    uint64_t body_bytes;
    uint64_t cut_count;
    uint64_t first_timestamp_ns, last_timestamp_ns; /* the earliest and the latest */
} rb_archive_columns;

/* Fills the columns of a window.  A block ends with the record that takes it to `block_bytes`, or the last.
 * RB_OK, or RB_CORRUPT: a record does not verify, or its key has not been entered, or the runs are not what
 * they say. */
int rb_archive_split(const rb_keys *keys, uint64_t ranks, const uint8_t *bytes, const rb_archive_run *runs,
                     uint64_t run_count, uint64_t records, uint64_t block_bytes, rb_archive_columns *out);

/* ---- reading a window (archive_join.c) ---- */

/* A window that is read.  What it points to is the caller's, and stays while it is used. */
typedef struct rb_archive_window {
    uint64_t records;
    uint64_t ranks; /* of the whole archive */
    const uint8_t *head;
    const rb_archive_run *runs;
    uint64_t run_count;
    const uint64_t *cuts; /* where each block of the body ends */
    uint64_t cut_count;
    const uint64_t *pages; /* the rank behind the last name of each page */
    uint64_t page_count;
    uint32_t *order;     /* made by rb_archive_open(): by record, its place in key order */
    uint64_t *bodies;    /* by place in key order, where the body begins; records + 1 */
    uint64_t *positions; /* by record, its ring position */
} rb_archive_window;

/* Works out order, bodies and positions.  `scratch` has room for ranks + 1.  RB_OK, or RB_CORRUPT. */
int rb_archive_open(rb_archive_window *window, uint64_t *scratch);

/* Which records are wanted: first <= record < end, and if `rank` is not negative, of that key alone. */
typedef struct rb_archive_wanted {
    uint64_t first, end;
    int64_t rank;
} rb_archive_wanted;

typedef struct rb_archive_needed {
    uint64_t records, bytes; /* how many, and what they take once restored */
    uint64_t end;            /* the record behind the last of them */
} rb_archive_needed;

/* Those of the wanted records that fit into `limit_bytes`, at least one; and marks, in one byte for each
 * block and for each page of names, which of them they need. */
void rb_archive_needs(const rb_archive_window *window, const rb_archive_wanted *wanted, uint64_t limit_bytes,
                      uint8_t *blocks, uint8_t *pages, rb_archive_needed *out);

/* Writes where each name of a page ends, counted from the first name's first byte.  RB_OK, or RB_CORRUPT. */
int rb_archive_name_ends(const uint8_t *page, uint64_t length, uint64_t count, uint32_t *ends);

/* A stretch of restored records: dense, and either all checked or a single one with flag UNCHECKED. */
typedef struct rb_archive_stretch {
    uint64_t place, length; /* in what has been restored */
    uint64_t run;           /* its index */
    uint64_t first_offset, count, position;
    uint64_t first_timestamp_ns, last_timestamp_ns;
} rb_archive_stretch;

typedef struct rb_archive_parts { /* decompressed; NULL for what is not needed, or damaged */
    const uint8_t *const *blocks;
    const uint8_t *const *pages;
    const uint32_t *const *name_ends;
} rb_archive_parts;

/* Writes the records into `out` of `room` bytes, as they stood in the ring, and what they are into at most
 * `stretch_room` stretches; those whose block or page is NULL are left out.  How many stretches, or
 * RB_CORRUPT: columns, blocks or rooms do not fit each other. */
int64_t rb_archive_restore(const rb_archive_window *window, const rb_archive_wanted *wanted,
                           const rb_archive_parts *parts, uint8_t *out, uint64_t room,
                           rb_archive_stretch *stretches, uint64_t stretch_room);
