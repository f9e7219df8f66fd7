/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of unpack.c: msgpack payloads into columns.  Declarations only, as in ringbuf_api.h.
 */

/* What a field becomes.  A long takes integers, a double any number, binary strings too. */
enum { RB_LONG, RB_DOUBLE, RB_BOOLEAN, RB_STRING, RB_BINARY };

/* Why a payload gave no values: in an outcome, the lower RB_UNPACK_BITS; above them, which field that is
 * about if it is RB_UNPACK_TYPE or one behind it. */
enum {
    RB_UNPACKED,
    RB_UNPACK_CUT,     /* no msgpack, or cut short */
    RB_UNPACK_REST,    /* something follows the value */
    RB_UNPACK_NO_MAP,  /* a map belongs where something else is */
    RB_UNPACK_TYPE,    /* a value that its field cannot hold */
    RB_UNPACK_RANGE,   /* an integer beyond 64 bits with a sign */
    RB_UNPACK_TEXT,    /* a string that is no UTF-8 */
    RB_UNPACK_TWICE,   /* a key that is there twice */
};
enum { RB_UNPACK_BITS = 4, RB_UNPACK_FIELDS_MAX = 64, RB_UNPACK_DEPTH_MAX = 8 };

/* One field, and where its column goes, in Arrow's layout. */
typedef struct rb_unpack_field {
    const uint8_t *path;  /* keys from the outside in, each with its length in one byte in front */
    uint32_t path_length; /* 0: the payload is the value; then there is no other field */
    uint32_t type;        /* RB_LONG .. RB_BINARY */
    void *values;         /* rows of int64_t or double; boolean: a bitmap; else `room` bytes */
    int32_t *ends;        /* string and binary: rows + 1 */
    uint8_t *valid;       /* bitmap */
    uint64_t room;        /* of string and binary: as many bytes as there are of payloads is always enough */
    uint64_t filled;      /* how many of them were */
} rb_unpack_field;

/* Unpacks `rows` payloads: number i is payloads[ends[i] .. ends[i + 1]), and ends rise from 0 or above.  What
 * is not there, or nil, is null; so is every field of a payload whose outcome is not RB_UNPACKED.  Keys that
 * no field has are passed over.  No path begins another, and `count` is 1 .. RB_UNPACK_FIELDS_MAX, with at
 * most RB_UNPACK_DEPTH_MAX keys in a path: RB_CORRUPT if not.  Bitmaps: a bit a row, rounded up to bytes. */
int rb_unpack(const uint8_t *payloads, const int32_t *ends, uint64_t rows, rb_unpack_field *fields,
              uint32_t count, uint16_t *outcomes);
