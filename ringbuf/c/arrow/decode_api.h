/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of runs of records into columns (decode.c), as Python sees it.  Declarations only, as in
 * ringbuf_api.h.
 */

/* Sizes of a run of records as columns.  Each of the three byte counts fits in 31 bits. */
typedef struct rb_decode_sizes {
    uint64_t rows;
    uint64_t consumed_bytes; /* begin of the next call; at RB_CORRUPT, begin of the bad record */
    uint64_t key_bytes, properties_bytes, payload_bytes;
    uint64_t bad_length;     /* at RB_CORRUPT: span of the bad record if plausible, otherwise 0 */
} rb_decode_sizes;

#define RB_ANY_OFFSET 0xffffffffffffffff

/* Count the records at `bytes`, `length` bytes without padding records, up to the end, `rows_max` rows or
 * `bytes_max` bytes, but at least one record if one exists.  Each must verify, and offsets must be dense from
 * `first_offset`, or may be any with RB_ANY_OFFSET.  RB_OK, or RB_CORRUPT: `out` is then valid for the rows
 * before the bad one. */
int rb_decode_measure(const uint8_t *bytes, uint64_t length, uint32_t epoch, uint64_t first_offset,
                      uint64_t rows_max, uint64_t bytes_max, rb_decode_sizes *out);

/* Destination of the columns, in Arrow's layout; NULL for a column that is not needed.  Room: `rows` values
 * (bitmap: one bit each, rounded up to whole bytes); rows + 1 for the *_ends; the bytes as measured. */
typedef struct rb_decode_columns {
    int64_t *offset;
    int64_t *timestamp_us, *timestamp_ns;
    int32_t *qos, *flags;
    uint8_t *retain;           /* bitmap */
    int32_t *key_ends;         /* required if `key` is given; likewise below */
    uint8_t *key;
    int32_t *properties_ends;
    uint8_t *properties;       /* MQTT 5 wire form, its length first */
    uint8_t *properties_there; /* bitmap: validity */
    int32_t *payload_ends;
    uint8_t *payload;
} rb_decode_columns;

/* Fill the columns measured by rb_decode_measure().  Never writes beyond the measured sizes, even if the
 * bytes have changed since.  RB_OK, or RB_CORRUPT if they have. */
int rb_decode_fill(const uint8_t *bytes, const rb_decode_sizes *sizes, const rb_decode_columns *out);
