/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of scan/: segments of the log into tables.  Declarations only, as in ringbuf_api.h.
 */

/* ---- extents in bytes (walk.c) ----------------------------------------------------------------- */

/* One valid extent; its bytes are defined in persistence/format.py. */
typedef struct rb_extent {
    uint64_t place;              /* of its header, in the file */
    uint64_t ring_position, durable_position;
    uint64_t first_offset, count; /* of the good records that it begins with */
    uint64_t earliest_ns, latest_ns;
    uint64_t record;             /* the number of its first one among the records collected */
    uint32_t length;             /* of its body */
    uint32_t ring_id, ring_epoch;
    uint32_t whole;              /* 1: the body is good records with dense offsets and nothing else */
} rb_extent;

/* A walk over a file that is handed over piece by piece. */
typedef struct rb_walk {
    uint64_t place;            /* where the next extent is looked for, in the file */
    uint64_t end;              /* where the file ends, or what is looked at of it */
    uint64_t wanted_bytes;     /* at RB_WALK_MORE: as many from `place` on are needed */
    uint64_t durable_position; /* the highest seen */
    rb_extent *extent;         /* where extents go; `extents` of `extents_room` are filled */
    uint64_t extents, extents_room;
    uint32_t *key_hash;        /* of each record of whole extents, and its place / 32; NULL: not wanted */
    uint32_t *record_place;
    uint64_t records, records_room;
    uint32_t seed;             /* of the segment */
} rb_walk;

enum { /* where a walk stops */
    RB_WALK_END = 1, /* at `end`: no extent fits in what is left */
    RB_WALK_MORE,    /* the bytes at hand end before the extent at `place` does, if there is one */
    RB_WALK_BAD,     /* what is at `place` does not verify */
    RB_WALK_LOOK,    /* behind a valid extent that is a catalogue or not whole: the last one filled */
    RB_WALK_FULL     /* no room left for another extent, or for its records */
};

/* Walks valid extents in `bytes`, `length` of them, that stand at `begin` in the file; begin <= walk->place.
 * Every length in them is read once and clamped. */
int rb_extents_walk(const uint8_t *bytes, uint64_t length, uint64_t begin, rb_walk *walk);

/* Moves walk->place to the first place from there on where an extent could be: its fields fit a segment
 * whose base is `base`.  RB_WALK_LOOK: it verifies.  RB_WALK_MORE: it is not all in `bytes`.  RB_WALK_END:
 * there is none in `bytes`; place is then the first that has not been looked at.  Fills nothing. */
int rb_extents_search(const uint8_t *bytes, uint64_t length, uint64_t begin, uint64_t base, rb_walk *walk);

/* ---- extents by ring (group.c) ----------------------------------------------------------------- */

typedef struct rb_group {
    uint32_t ring_id, ring_epoch;
    uint64_t first, count; /* order[first .. first + count] are its extents, as they stand in the file */
} rb_group;

/* Sorts `count` extents by ring and epoch, those that are not whole left out.  `order` has room for `count`,
 * and so has `scratch`; `slots` has room for `slots_room` (a power of two, at least 2 * groups_room).
 * How many groups, in the order in which they appear, or RB_FULL: there are more than groups_room. */
int64_t rb_extents_group(const rb_extent *extents, uint64_t count, uint32_t *order, uint32_t *scratch,
                         uint32_t *slots, uint64_t slots_room, rb_group *groups, uint64_t groups_room);

/* Rows of one ring and epoch, column by column, and marks among them. */
typedef struct rb_rows {
    uint64_t *first_offset, *count, *place, *length, *ring_position;
    uint64_t *mark_offset, *mark_place, *mark_time;
    uint64_t marks, marks_room;    /* in: as many stand there already */
    uint64_t mark_bytes;           /* of records between two of them */
    uint64_t since_mark;           /* in and out: bytes of records from the last one on */
    uint64_t end_offset;           /* in: none of the rows begins before it; out: where they end */
    uint64_t records;              /* in and out: counted */
    uint64_t earliest_ns;          /* in and out; of no meaning while records is 0 */
} rb_rows;

/* Appends the extents of a group as rows, from index 0 on.  RB_OK, or RB_INVALID: their offsets do not rise,
 * or there is no room for the marks; then what was filled means nothing. */
int rb_extents_gather(const rb_extent *extents, const uint32_t *order, uint64_t count, rb_rows *rows);

/* ---- rows in few bytes (rows.c) ---------------------------------------------------------------- */

/* `count` rows of whole extents as they stand in a footer (persistence/footer.py).  How many bytes, of which
 * there are at most RB_PACKED_ROW_MAX_BYTES a row. */
enum { RB_PACKED_ROW_MAX_BYTES = 48 };
uint64_t rb_rows_pack(const rb_rows *rows, uint64_t count, uint8_t *out);

/* `count` rows out of `length` bytes.  RB_OK, or RB_CORRUPT: it is not as many, or they are not in order, or
 * not within the first `end` bytes of the file. */
int rb_rows_unpack(const uint8_t *bytes, uint64_t length, uint64_t count, uint64_t end, rb_rows *rows);

/* ---- records by topic (by_topic.c) --------------------------------------------------------------- */

/* The records of a group, sorted by the hash of their keys, then by place, as (hash << 32 | place / 32).
 * `sorted` and `scratch` have room for `room` each.  How many, or RB_FULL. */
int64_t rb_topics_sort(const rb_extent *extents, const uint32_t *order, uint64_t count,
                       const uint32_t *key_hash, const uint32_t *record_place, uint64_t *sorted,
                       uint64_t *scratch, uint64_t room);

/* What was sorted as `topics` (hash, and index of its first place) and `places`; both have room for `count`
 * (topics: two words each).  How many topics. */
uint64_t rb_topics_split(const uint64_t *sorted, uint64_t count, uint32_t *topics, uint32_t *places);

/* Places, rising, of records of a walk that collects them: of a ring and epoch, with that hash of their key,
 * behind the place `behind`; extents that end at `offset` or before are passed over.  How many were put into
 * `places`, at most `room`. */
uint64_t rb_walk_find(const rb_walk *walk, uint32_t ring_id, uint32_t epoch, uint32_t hash, uint64_t offset,
                      uint64_t behind, uint64_t *places, uint64_t room);
