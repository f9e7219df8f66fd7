/* SPDX-License-Identifier: Apache-2.0
 *
 * Archives, for C: see archive_api.h, which has the declarations, and what the parts share.
 *
 * Plain reads and writes of memory, no system calls.  What comes from a file is hostile: every length and
 * rank is checked against its room before it is used.
 */
#ifndef BRIM_ARCHIVE_H
#define BRIM_ARCHIVE_H

#include "../record.h"

#include "archive_api.h"

/* Columns of a head, each a plane of `records` bytes for each of its bytes, the lowest first.  Keys and times
 * are in record order, the others in key order. */
enum {
    AR_KEY = 0,     /* 4: rank of the key */
    AR_TIME = 4,    /* 8: timestamp_ns less that of the record before, in zigzag */
    AR_FLAGS = 12,  /* 2: of the record, and RB_ARCHIVE_VERBATIM */
    AR_LENGTH = 14, /* 4: of the record, without the padding to 32 */
    AR_BESIDE = 18, /* 4: length less that of the body, modulo 2^32 */
    AR_END = 22
};

_Static_assert((int)AR_END == (int)RB_ARCHIVE_HEAD_BYTES, "the columns fill the head");

/* The rank of a key, or -1: it has not been entered. */
int64_t rb_keys_find(const rb_keys *keys, const uint8_t *name, uint32_t length);

static inline uint64_t ar_zigzag(uint64_t difference)
{
    return difference << 1 ^ (0 - (difference >> 63));
}

static inline uint64_t ar_unzigzag(uint64_t value)
{
    return value >> 1 ^ (0 - (value & 1));
}

/* The value of `size` bytes of row `row` in the column that begins at plane `plane`. */
static inline uint64_t ar_get(const uint8_t *head, uint64_t records, int plane, int size, uint64_t row)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value |= (uint64_t)head[(uint64_t)(plane + i) * records + row] << 8 * i;
    return value;
}

static inline void ar_put(uint8_t *head, uint64_t records, int plane, int size, uint64_t row, uint64_t value)
{
    for (int i = 0; i < size; i++)
        head[(uint64_t)(plane + i) * records + row] = (uint8_t)(value >> 8 * i);
}

#endif
