/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations for Python of archive/: records of a segment into columns, beyond those of decode_api.h, and
 * columns back into records.  Declarations only, as in ringbuf_api.h.
 *
 * A record is rebuilt from its columns: length, checksum, key hash and zero padding follow from them.  A
 * record that differs from this is kept whole in one more column, "verbatim".
 */

/* ---- extents into records (segment_bodies.c) ---------------------------------------------------- */

typedef struct rb_run { /* records without a gap in their offsets and ring positions */
    uint64_t first_offset, count, position, length;
} rb_run;

typedef struct rb_bodies {
    uint64_t row, row_end; /* the next row; the row after the last one */
    uint8_t *out;          /* bodies, without gaps between them */
    uint64_t filled, capacity;
    rb_run *run; /* room for row_end - row of them */
    uint64_t runs;
} rb_bodies;

/* Copy the bodies of rows whose extents lie whole in `bytes`, which stand at the place `begin` of a segment
 * with that seed, and add them to runs.  Stops at the first extent that does not; `state` says where.
 * RB_OK, or RB_CORRUPT: an extent does not verify, or there is no room for it. */
int rb_bodies_copy(const struct rb_rows *rows, const uint8_t *bytes, uint64_t length, uint64_t begin,
                   uint32_t seed, rb_bodies *state);

/* ---- records kept verbatim (verbatim_records.c) ------------------------------------------------- */

#define RB_TOPIC_FILTER_BYTES 1024

typedef struct rb_odd {
    uint64_t rows, bytes; /* kept verbatim, and their spans */
    uint64_t earliest_ns, latest_ns; /* in and out */
    uint8_t *filter;   /* Bloom filter of the keys: of the crc32c of each, bits 0 to 12 and 13 to 25 are the
                        * numbers of two bits that are set; RB_TOPIC_FILTER_BYTES, which only grow in bits */
    int32_t *ends;     /* rows + 1 of all records; NULL: only count */
    uint8_t *verbatim; /* `bytes` */
    uint8_t *there;    /* bitmap */
} rb_odd;

/* Find records that rb_archive_join() would build differently, among those that rb_decode_fill() has taken
 * apart; fill the column if `out->ends` is set.  In `columns` an invalid UTF-8 key is masked by '?', and a
 * time beyond 63 bits becomes the highest.  RB_OK, or RB_INVALID: an offset is beyond 63 bits. */
int rb_archive_odd(const uint8_t *bytes, const struct rb_decode_sizes *sizes,
                   const struct rb_decode_columns *columns, rb_odd *out);

/* ---- columns into records (columns_to_records.c) ------------------------------------------------- */

typedef struct rb_archive_rows {
    uint64_t rows;
    uint32_t epoch;
    const struct rb_decode_columns *columns; /* offset, timestamp_ns, flags; properties, payload with their
                                              * ends; key, key_ends: of the different topics */
    const int32_t *topic;                    /* of each row, the index among the different ones */
    uint64_t topics;
    uint32_t *topic_hash; /* room for `topics`; filled here */
    uint64_t key_bytes, properties_bytes, payload_bytes, verbatim_bytes; /* of their buffers */
    const int32_t *verbatim_ends;
    const uint8_t *verbatim;
    const int64_t *position;       /* in the ring, of the first record and where there is a gap */
    const uint8_t *position_there; /* bitmap, or NULL: all rows have one */
} rb_archive_rows;

/* Records without a gap, either all covered by their own checksums or a single one with flag UNCHECKED. */
typedef struct rb_stretch {
    uint64_t row, count; /* the first, among those joined */
    uint64_t first_offset, position;
} rb_stretch;

typedef struct rb_joined {
    uint64_t rows, bytes, stretches; /* in: the rooms, if `out` is set; out: how many there are */
    uint8_t *out;                    /* NULL: only count */
    uint32_t *place;                 /* rows + 1: where each record begins in `out`, in units of 32 bytes */
    rb_stretch *stretch;
} rb_joined;

/* Build the records, or only those with the key, if it is not NULL.  RB_OK, or RB_CORRUPT: the columns do
 * not fit their buffers or each other, or there is more than room for. */
int rb_archive_join(const rb_archive_rows *rows, const uint8_t *key, uint32_t key_length, rb_joined *joined);
