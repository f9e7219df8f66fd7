/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of log segments into tables (scan/), as Python sees it.  Declarations only, as in ringbuf_api.h.
 */

/* ---- extents in bytes (verify_extents.c) ---------------------------------------------------------- */

/* One valid extent.  Its format is defined in persistence/segment/format.py. */
typedef struct rb_extent {
    uint64_t place;              /* position of its header in the file */
    uint64_t ring_position, durable_position;
    uint64_t first_offset, count; /* of the good records at its begin */
    uint64_t earliest_ns, latest_ns;
    uint64_t record;             /* index of its first record among the collected ones */
    uint32_t length;             /* of its body */
    uint32_t ring_id, ring_epoch;
    uint32_t whole;              /* 1: the body has only good records with dense offsets */
} rb_extent;

/* A scan of a file that is passed in pieces. */
typedef struct rb_walk {
    uint64_t place;            /* position of the next extent in the file */
    uint64_t end;              /* end of the file, or of the part to be scanned */
    uint64_t wanted_bytes;     /* at RB_WALK_MORE: bytes needed from `place` on */
    uint64_t durable_position; /* the highest seen */
    rb_extent *extent;         /* output; `extents` of `extents_capacity` are filled */
    uint64_t extents, extents_capacity;
    uint32_t *key_hash;        /* of each record of whole extents, and its position / 32; NULL: not needed */
    uint32_t *record_place;
    uint64_t records, records_capacity;
    uint32_t seed;             /* of the segment */
} rb_walk;

enum { /* cause for the end of a scan call */
    RB_WALK_END = 1, /* at `end`: no extent fits in the rest */
    RB_WALK_MORE,    /* the bytes end before the extent at `place`, if any */
    RB_WALK_BAD,     /* the bytes at `place` do not verify */
    RB_WALK_LOOK,    /* after a valid extent that is a catalogue or not whole: the last one filled */
    RB_WALK_FULL     /* no room left for another extent, or for its records */
};

/* Scan valid extents in `bytes`, `length` of them, which are at `begin` in the file; begin <= walk->place.
 * Every length in them is read once and clamped. */
int rb_extents_walk(const uint8_t *bytes, uint64_t length, uint64_t begin, rb_walk *walk);

/* Move walk->place to the first place at or after it where an extent could be: its fields fit a segment whose
 * base is `base`.  RB_WALK_LOOK: the extent verifies.  RB_WALK_MORE: `bytes` does not have all of it.
 * RB_WALK_END: `bytes` has none; place is then the first one not checked.  Fills no output. */
int rb_extents_search(const uint8_t *bytes, uint64_t length, uint64_t begin, uint64_t base, rb_walk *walk);

/* ---- extents by ring (group_by_ring.c) ----------------------------------------------------------------- */

typedef struct rb_group {
    uint32_t ring_id, ring_epoch;
    uint64_t first, count; /* its extents are order[first .. first + count], in file order */
} rb_group;

/* Sort `count` extents by ring and epoch, without those that are not whole.  `order` and `scratch` have room
 * for `count`; `slots` has room for `slots_room` (a power of two, at least 2 * groups_room).  Returns the
 * number of groups, in order of first appearance, or RB_FULL for more than groups_room. */
int64_t rb_extents_group(const rb_extent *extents, uint64_t count, uint32_t *order, uint32_t *scratch,
                         uint32_t *slots, uint64_t slots_room, rb_group *groups, uint64_t groups_room);

/* Rows of one ring and epoch, column by column, and marks among them. */
typedef struct rb_rows {
    uint64_t *first_offset, *count, *place, *length, *ring_position;
    uint64_t *mark_offset, *mark_place, *mark_time;
    uint64_t marks, marks_capacity;    /* in: number of marks already there */
    uint64_t mark_bytes;           /* of records between two of them */
    uint64_t since_mark;           /* in and out: bytes of records since the last mark */
    uint64_t end_offset;           /* in: lower limit of the rows; out: their end */
    uint64_t records;              /* in and out: number of records */
    uint64_t earliest_ns;          /* in and out; undefined while records is 0 */
} rb_rows;

/* Append the extents of a group as rows, from index 0 on.  RB_OK, or RB_INVALID: their offsets do not rise,
 * or the marks have no room; the output is then undefined. */
int rb_extents_gather(const rb_extent *extents, const uint32_t *order, uint64_t count, rb_rows *rows);

/* ---- compressed rows (row_codec.c) ------------------------------------------------------------------ */

/* Encode `count` rows of whole extents in the form of a footer (persistence/segment/footer.py).  Returns the
 * number of bytes, at most RB_PACKED_ROW_MAX_BYTES per row. */
enum { RB_PACKED_ROW_MAX_BYTES = 48 };
uint64_t rb_rows_pack(const rb_rows *rows, uint64_t count, uint8_t *out);

/* Decode `count` rows from `length` bytes.  RB_OK, or RB_CORRUPT: another number of rows, rows out of order,
 * or rows beyond the first `end` bytes of the file. */
int rb_rows_unpack(const uint8_t *bytes, uint64_t length, uint64_t count, uint64_t end, rb_rows *rows);

/* ---- records by topic (by_topic.c) --------------------------------------------------------------- */

/* Records of a group, sorted by the hash of their keys, then by position, as (hash << 32 | position / 32).
 * `sorted` and `scratch` have room for `capacity` each.  Returns the number of records, or RB_FULL. */
int64_t rb_topics_sort(const rb_extent *extents, const uint32_t *order, uint64_t count,
                       const uint32_t *key_hash, const uint32_t *record_place, uint64_t *sorted,
                       uint64_t *scratch, uint64_t capacity);

/* Split the sorted records into `topics` (hash, and index of its first position) and `places`.  Both have
 * room for `count` (topics: two words each).  Returns the number of topics. */
uint64_t rb_topics_split(const uint64_t *sorted, uint64_t count, uint32_t *topics, uint32_t *places);

/* Find positions, rising, of records in a scan that collects them: of a ring and epoch, with that hash of
 * their key, after the position `behind`.  Extents that end at `offset` or before are skipped.  Returns the
 * number stored in `places`, at most `capacity`. */
uint64_t rb_walk_find(const rb_walk *walk, uint32_t ring_id, uint32_t epoch, uint32_t hash, uint64_t offset,
                      uint64_t behind, uint64_t *places, uint64_t capacity);
