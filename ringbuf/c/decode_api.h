/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of decode.c: runs of records into columns.  Declarations only, as in ringbuf_api.h.
 */

/* What a run of records needs as columns.  Each of the three byte counts fits in 31 bits. */
typedef struct rb_decode_sizes {
    uint64_t rows;
    uint64_t consumed_bytes; /* where the next call begins; at RB_CORRUPT, where the bad record begins */
    uint64_t key_bytes, properties_bytes, payload_bytes;
    uint64_t bad_length;     /* at RB_CORRUPT: span of the bad record if its header can be believed, else 0 */
} rb_decode_sizes;

/* Counts the records at `bytes`, `length` bytes without padding records, up to the end, `rows_max` rows or
 * `bytes_max` bytes of records, but at least one if one is there.  Each must verify, and carry the offset
 * after the one before it, the first of them `first_offset`.
 * RB_OK, or RB_CORRUPT: what `out` says of the rows before the bad one holds. */
int rb_decode_measure(const uint8_t *bytes, uint64_t length, uint32_t epoch, uint64_t first_offset,
                      uint64_t rows_max, uint64_t bytes_max, rb_decode_sizes *out);

/* Where columns go, in Arrow's layout; NULL for a column that nobody wants.  Room: `rows` values (a bitmap:
 * one bit each, rounded up to whole bytes); key_ends and its kin rows + 1; the bytes as measured. */
typedef struct rb_decode_columns {
    int64_t *offset;
    int64_t *timestamp_us;
    int32_t *qos;
    uint8_t *retain;           /* bitmap */
    int32_t *key_ends;         /* needed if `key` is given; and so below */
    uint8_t *key;
    int32_t *properties_ends;
    uint8_t *properties;       /* MQTT 5 wire form, its length in front */
    uint8_t *properties_there; /* bitmap: validity */
    int32_t *payload_ends;
    uint8_t *payload;
} rb_decode_columns;

/* Fills the columns from what rb_decode_measure() has measured, and writes nothing beyond it, whatever became
 * of the bytes since.  RB_OK, or RB_CORRUPT if they are no longer what was measured. */
int rb_decode_fill(const uint8_t *bytes, const rb_decode_sizes *sizes, const rb_decode_columns *out);
