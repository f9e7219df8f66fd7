/* SPDX-License-Identifier: Apache-2.0
 *
 * The record: what a ring, a segment and a drained file hold.  Defined here and nowhere else;
 * Python learns sizes and offsets from the constants of ringbuf_api.h.
 *
 *   byte  size  field
 *      0     4  length          header + key + properties + padding to 8 + payload, in bytes, without the
 *                               padding to 32 that follows; stored last, with release.  0: not there.
 *                               Bit 31: a padding record, that fills a ring up to its end; the lower
 *                               31 bits are its span, the rest of its header and body mean nothing.
 *      4     4  crc32c          of bytes 8 .. length, or of bytes 8 .. payload position if flag UNCHECKED
 *                               is set; seeded with the ring's epoch
 *      8     8  offset          number of the record in its partition, dense from 0
 *     16     8  timestamp_ns    wall clock when the room was claimed, ns since 1970
 *     24     4  key_hash        crc32c of the key, seeded with 0
 *     28     2  key_length      0 .. 65535
 *     30     2  flags           RB_FLAG_*
 *     32        key             UTF-8 topic, as bytes
 *               properties      if flag PROPERTIES: MQTT 5 properties in wire form, the Variable Byte
 *                               Integer of their length first
 *               zeros           up to a multiple of 8, counted from byte 0 of the record
 *               payload         the rest, up to length
 *
 * A record begins at a multiple of 32 and takes a span of `length` rounded up to 32.  Little-endian.
 *
 * Why 8 before the payload: a subscriber views a payload as an array of doubles without a copy.
 * Why the epoch seeds the checksum: bytes of another ring, of an earlier life of a recycled file, or a
 * payload that imitates a record never verify.
 *
 * Rule for change: a new optional part takes a flag, and readers refuse flags they do not know in
 * RB_FLAGS_CRITICAL.  Any other change raises RB_FORMAT_VERSION in layout.h, the version of the segment
 * and of the drained file, and adds golden bytes under tests/golden.
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

typedef struct rb_record {
    uint32_t length;
    uint32_t crc;
    uint64_t offset;
    uint64_t timestamp_ns;
    uint32_t key_hash;
    uint16_t key_length;
    uint16_t flags;
} rb_record;

_Static_assert(sizeof(rb_record) == RB_RECORD_HEADER_BYTES, "the record header is 32 bytes");
_Static_assert(offsetof(rb_record, crc) == 4, "crc at 4");
_Static_assert(offsetof(rb_record, offset) == 8, "offset at 8");
_Static_assert(offsetof(rb_record, timestamp_ns) == 16, "timestamp_ns at 16");
_Static_assert(offsetof(rb_record, key_hash) == 24, "key_hash at 24");
_Static_assert(offsetof(rb_record, key_length) == 28, "key_length at 28");
_Static_assert(offsetof(rb_record, flags) == 30, "flags at 30");

#define RB_PADDING_BIT 0x80000000u

/* A gap marker, in a ring only: in the place of records that were damaged and could not be restored.
 *
 *   byte  size  field
 *      0     4  length     RB_PADDING_BIT | RB_GAP_BIT | the span in bytes, a multiple of 32, below 2^30
 *      4     4  crc32c     of bytes 8 .. 32 and 0 .. 4, seeded with the ring's epoch
 *      8     8  offset     of the first record that is lost
 *     16     8  count      records lost
 *     24     8  zeros
 *     32        at each further multiple of 32 a marker without records that leads to the same end
 *
 * It never reaches beyond the end of the ring.  Padding is shorter than 2^30, so its bit 30 is 0. */
#define RB_GAP_BIT 0x40000000u

typedef struct rb_gap {
    uint64_t span, offset, count;
} rb_gap;

void rb_gap_put(uint8_t *bytes, uint32_t epoch, rb_gap gap);
/* The marker at `bytes`, whose length word is `length`, in a ring of which `room` bytes are left.  RB_OK,
 * RB_CORRUPT. */
int rb_gap_at(const uint8_t *bytes, uint32_t length, uint64_t room, uint32_t epoch, rb_gap *out);

/* Bytes that padding or a gap marker takes. */
static inline uint64_t rb_filler_span(uint32_t length)
{
    return length & (length & RB_GAP_BIT ? RB_GAP_BIT - 1 : RB_PADDING_BIT - 1);
}

/* Bytes a record of `length` takes in a ring or segment. */
static inline uint64_t rb_span(uint64_t length)
{
    return (length + (RB_RECORD_ALIGN - 1)) & ~(uint64_t)(RB_RECORD_ALIGN - 1);
}

/* Where the payload begins, from byte 0 of the record. */
static inline uint32_t rb_payload_position(uint32_t key_length, uint32_t properties_length)
{
    return (RB_RECORD_HEADER_BYTES + key_length + properties_length + 7u) & ~7u;
}

/* crc32c of `length` bytes at `data`, continued from `seed` (0 to begin). */
uint32_t rb_crc32c(uint32_t seed, const void *data, size_t length);
/* The same of bytes that are copied to `to` on the way, which overlaps them nowhere. */
uint32_t rb_crc32c_copy(uint32_t seed, void *to, const void *from, size_t length);

/* The parts of a record whose header has been copied to `header`, at `bytes` with `room` bytes to go.
 * RB_OK, or RB_CORRUPT if any length of it reaches beyond `length` or `room`.  Never reads past `room`. */
typedef struct rb_parts {
    uint32_t properties_position, properties_length;
    uint32_t payload_position, payload_length;
} rb_parts;
int rb_record_parts(const rb_record *header, const uint8_t *bytes, uint64_t room, rb_parts *out);

/* The record at `bytes`, not a padding one, with its parts.  Its span, or 0 if its lengths reach beyond
 * `room`; *bad_length is then the span that it claims, if that at least fits, else 0. */
uint64_t rb_record_at(const uint8_t *bytes, uint64_t room, rb_record *header, rb_parts *parts,
                      uint64_t *bad_length);

/* Whether the checksum of the record at `bytes` holds.  Lengths must have passed rb_record_parts(). */
int rb_record_verifies(const rb_record *header, const rb_parts *parts, const uint8_t *bytes, uint32_t epoch);

#endif
