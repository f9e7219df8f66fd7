/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of msgpack payloads into columns (msgpack.c), as Python sees it.  Declarations only, as in
 * ringbuf_api.h.
 */

/* Column type of a field.  A long accepts integers, a double any number, binary also strings. */
enum { RB_LONG, RB_DOUBLE, RB_BOOLEAN, RB_STRING, RB_BINARY };

/* Outcome of a payload: the cause in the lower RB_UNPACK_BITS.  The bits above have the number of the field
 * for RB_UNPACK_TYPE and all causes after it. */
enum {
    RB_UNPACKED,
    RB_UNPACK_CUT,     /* not msgpack, or cut short */
    RB_UNPACK_REST,    /* bytes follow the value */
    RB_UNPACK_NO_MAP,  /* a map was required, another value was found */
    RB_UNPACK_TYPE,    /* the field cannot hold the value */
    RB_UNPACK_RANGE,   /* an integer beyond signed 64 bits */
    RB_UNPACK_TEXT,    /* a string that is not UTF-8 */
    RB_UNPACK_TWICE,   /* a duplicate key */
};
enum { RB_UNPACK_BITS = 4, RB_UNPACK_FIELDS_MAX = 64, RB_UNPACK_DEPTH_MAX = 8 };

/* One field, and its column in Arrow's layout. */
typedef struct rb_unpack_field {
    const uint8_t *path;  /* keys from the outside in, each preceded by its length in one byte */
    uint32_t path_length; /* 0: the payload is the value, and this is the only field */
    uint32_t type;        /* RB_LONG .. RB_BINARY */
    void *values;         /* rows of int64_t or double; boolean: a bitmap; otherwise `capacity` bytes */
    int32_t *ends;        /* string and binary: rows + 1 */
    uint8_t *valid;       /* bitmap */
    uint64_t capacity;        /* string and binary: the payloads' total size is always enough */
    uint64_t filled;      /* bytes of `capacity` that are used */
} rb_unpack_field;

/* Unpack `rows` payloads: number i is payloads[ends[i] .. ends[i + 1]), and ends rise from 0 or above.  A
 * missing or nil field is null; so is every field of a payload whose outcome is not RB_UNPACKED.  Keys
 * without a field are skipped.  RB_CORRUPT unless no path is the beginning of another, `count` is 1 ..
 * RB_UNPACK_FIELDS_MAX, and a path has at most RB_UNPACK_DEPTH_MAX keys.  Bitmaps: one bit per row, rounded
 * up to bytes. */
int rb_unpack(const uint8_t *payloads, const int32_t *ends, uint64_t rows, rb_unpack_field *fields,
              uint32_t count, uint16_t *outcomes);
