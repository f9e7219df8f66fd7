/* SPDX-License-Identifier: Apache-2.0
 *
 * Format of a record in a ring, a segment and a drained file.  This is its only definition; Python gets the
 * positions from the struct rb_record of ringbuf_api.h, which has the header's fields in this order.
 *
 *   byte  size  field
 *      0     4  length          header + key + properties + padding to 8 + payload, in bytes, without the
 *                               padding to 32 that follows; stored last, with release.  0: no record yet.
 *                               Bit 31: a padding record, which fills a ring up to its end; the lower
 *                               31 bits are its span, the rest of its header and body is undefined.
 *      4     4  crc32c          of bytes 8 .. length, or of bytes 8 .. payload position if flag UNCHECKED
 *                               is set; seeded with the ring's epoch
 *      8     8  offset          number of the record in its partition, dense from 0
 *     16     8  timestamp_ns    wall clock at the claim, ns since 1970
 *     24     4  key_hash        crc32c of the key, seeded with 0
 *     28     2  key_length      0 .. 65535
 *     30     2  flags           RB_FLAG_*
 *     32        key             UTF-8 topic, as bytes
 *               properties      if flag PROPERTIES: MQTT 5 properties in wire form, beginning with the
 *                               Variable Byte Integer of their length
 *               zeros           up to a multiple of 8, counted from byte 0 of the record
 *               payload         the rest, up to length
 *
 * A record begins at a multiple of 32 and occupies a span of `length` rounded up to 32.  Little-endian.
 *
 * The payload is aligned to 8 so that a subscriber can view it as an array of doubles without a copy.
 * The epoch seeds the checksum so that foreign bytes never verify: bytes of another ring, of an earlier use
 * of a recycled file, or of a payload that imitates a record.
 * Rule for changes: a new optional part gets a flag.  Readers refuse a record with an unknown flag of
 * RB_FLAGS_CRITICAL.  Any other change raises RB_FORMAT_VERSION in layout.h and the versions of the segment
 * and the drained file, and adds golden bytes under tests/golden.
 */
#ifndef BRIM_RECORD_H
#define BRIM_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringbuf_api.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Brim's formats are little-endian and are mapped, not parsed: this machine cannot run it"
#endif

_Static_assert(sizeof(rb_record) == RB_RECORD_HEADER_BYTES, "the record header is 32 bytes");
_Static_assert(offsetof(rb_record, crc) == 4, "crc at 4");
_Static_assert(offsetof(rb_record, offset) == 8, "offset at 8");
_Static_assert(offsetof(rb_record, timestamp_ns) == 16, "timestamp_ns at 16");
_Static_assert(offsetof(rb_record, key_hash) == 24, "key_hash at 24");
_Static_assert(offsetof(rb_record, key_length) == 28, "key_length at 28");
_Static_assert(offsetof(rb_record, flags) == 30, "flags at 30");

#define RB_PADDING_BIT 0x80000000u

/* Gap marker, only in a ring: replaces records that were damaged and could not be restored.
 *
 *   byte  size  field
 *      0     4  length     RB_PADDING_BIT | RB_GAP_BIT | the span in bytes, a multiple of 32, below 2^30
 *      4     4  crc32c     of bytes 8 .. 32 and 0 .. 4, seeded with the ring's epoch
 *      8     8  offset     of the first lost record
 *     16     8  count      number of lost records
 *     24     8  zeros
 *     32        at each further multiple of 32: a marker with count 0 that leads to the same end
 *
 * A marker never reaches beyond the end of the ring.  Padding is shorter than 2^30, so its bit 30 is 0. */
#define RB_GAP_BIT 0x40000000u

typedef struct rb_gap {
    uint64_t span, offset, count;
} rb_gap;

void rb_gap_put(uint8_t *bytes, uint32_t epoch, rb_gap gap);
/* Read the marker at `bytes`, whose length word is `length`, with `bytes_left` bytes left in the ring.
 * Returns RB_OK or RB_CORRUPT. */
int rb_gap_at(const uint8_t *bytes, uint32_t length, uint64_t bytes_left, uint32_t epoch, rb_gap *out);

/* Bytes that a padding record or a gap marker occupies. */
static inline uint64_t rb_filler_span(uint32_t length)
{
    return length & (length & RB_GAP_BIT ? RB_GAP_BIT - 1 : RB_PADDING_BIT - 1);
}

/* Bytes that a record of `length` occupies in a ring or segment. */
static inline uint64_t rb_span(uint64_t length)
{
    return (length + (RB_RECORD_ALIGN - 1)) & ~(uint64_t)(RB_RECORD_ALIGN - 1);
}

/* Position of the payload, from byte 0 of the record. */
static inline uint32_t rb_payload_position(uint32_t key_length, uint32_t properties_length)
{
    return (RB_RECORD_HEADER_BYTES + key_length + properties_length + 7u) & ~7u;
}

/* CRC-32C of `length` bytes at `data`, continued from `seed` (0 to begin). */
uint32_t rb_crc32c(uint32_t seed, const void *data, size_t length);
/* CRC-32C as above, of bytes that are also copied from `from` to `to`.  The two areas must not overlap. */
uint32_t rb_crc32c_copy(uint32_t seed, void *to, const void *from, size_t length);

/* Positions of the parts of a record at `bytes` with `bytes_left` bytes left.  `header` is a copy of its
 * header.  Returns RB_OK, or RB_CORRUPT if a part exceeds `length` or `bytes_left`.  Never reads past
 * `bytes_left`. */
typedef struct rb_parts {
    uint32_t properties_position, properties_length;
    uint32_t payload_position, payload_length;
} rb_parts;
int rb_record_parts(const rb_record *header, const uint8_t *bytes, uint64_t bytes_left, rb_parts *out);

/* Read the header and parts of the record at `bytes`, which is not padding.  Returns its span, or 0 if its
 * lengths exceed `bytes_left`.  With 0, *bad_length is the span in its header if that fits `bytes_left`,
 * otherwise 0. */
uint64_t rb_record_at(const uint8_t *bytes, uint64_t bytes_left, rb_record *header, rb_parts *parts,
                      uint64_t *bad_length);

/* Checksum of the record at `bytes` up to `covered`, which is its length, or its payload position if flag
 * UNCHECKED is set.  `header` is its header, in place or a copy. */
static inline uint32_t rb_record_crc(const rb_record *header, const uint8_t *bytes, uint32_t covered,
                                     uint32_t epoch)
{
    const uint32_t from = offsetof(rb_record, offset);
    if ((const uint8_t *)header == bytes) /* the writer: one run is faster */
        return rb_crc32c(epoch, bytes + from, covered - from);
    uint32_t crc = rb_crc32c(epoch, &header->offset, RB_RECORD_HEADER_BYTES - from);
    return rb_crc32c(crc, bytes + RB_RECORD_HEADER_BYTES, covered - RB_RECORD_HEADER_BYTES);
}

/* True if the checksum of the record at `bytes` is correct.  Lengths must have passed rb_record_parts(). */
int rb_record_verifies(const rb_record *header, const rb_parts *parts, const uint8_t *bytes, uint32_t epoch);

#endif
