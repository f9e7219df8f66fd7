/* SPDX-License-Identifier: Apache-2.0
 *
 * Scan of a segment's bytes for verified extents; most of the work of a recovery.
 *
 * An extent's checksum covers its header and body, and each record's own checksum covers the record.  Both
 * are checked while the body is in the cache.  The scan stops at bytes that do not verify;
 * persistence/segment/scan.py decides about them.
 */
#include "scan/scan.h"

#include <string.h>

typedef struct extent_header { /* persistence/segment/format.py */
    uint32_t length, crc, ring_id, ring_epoch;
    uint64_t ring_position, durable_position;
} extent_header;

#define HEADER_BYTES 32u
#define COVERED_AT 8u

_Static_assert(sizeof(extent_header) == HEADER_BYTES, "an extent's header is 32 bytes");
_Static_assert(offsetof(extent_header, ring_id) == COVERED_AT, "what the checksum covers begins at 8");

static inline bool could_be(const extent_header *header, uint64_t bytes_left)
{
    return header->length != 0 && header->length % RB_RECORD_ALIGN == 0 && bytes_left >= HEADER_BYTES &&
           header->length <= bytes_left - HEADER_BYTES;
}

/* Verify the checksum of the copied header and of the body in place. */
static bool verifies(const extent_header *header, const uint8_t *extent, uint32_t seed)
{
    uint32_t crc = rb_crc32c(seed, &header->ring_id, HEADER_BYTES - COVERED_AT);
    return rb_crc32c(crc, extent + HEADER_BYTES, header->length) == header->crc;
}

/* Fill `out` from the records of a body, and collect them if requested and all are good. */
static void walk_records(const uint8_t *body, uint64_t place, rb_extent *out, rb_walk *walk)
{
    uint64_t at = 0, bad_length, collected = walk->records;
    rb_record header;
    rb_parts parts;
    out->earliest_ns = UINT64_MAX;
    while (at < out->length) {
        uint64_t span = rb_record_at(body + at, out->length - at, &header, &parts, &bad_length);
        if (span == 0 || !rb_record_verifies(&header, &parts, body + at, out->ring_epoch))
            return;
        if (out->count == 0)
            out->first_offset = header.offset;
        else if (header.offset != out->first_offset + out->count)
            return;
        out->count++;
        out->earliest_ns = header.timestamp_ns < out->earliest_ns ? header.timestamp_ns : out->earliest_ns;
        out->latest_ns = header.timestamp_ns > out->latest_ns ? header.timestamp_ns : out->latest_ns;
        if (walk->key_hash != NULL) {
            walk->key_hash[collected] = header.key_hash;
            walk->record_place[collected++] = (uint32_t)((place + at) / RB_RECORD_ALIGN);
        }
        at += span;
    }
    out->whole = out->first_offset + out->count > out->first_offset; /* offsets do not wrap */
    walk->records = out->whole ? collected : walk->records;
}

static bool full(const rb_walk *walk, uint64_t length)
{
    return walk->extents == walk->extents_capacity ||
           (walk->key_hash != NULL && walk->records_capacity - walk->records < length / RB_RECORD_ALIGN);
}

int rb_extents_walk(const uint8_t *bytes, uint64_t length, uint64_t begin, rb_walk *walk)
{
    for (;;) {
        uint64_t at = walk->place - begin, left = at < length ? length - at : 0;
        uint64_t bytes_left = walk->place < walk->end ? walk->end - walk->place : 0;
        extent_header header;
        if (bytes_left < HEADER_BYTES)
            return RB_WALK_END;
        walk->wanted_bytes = HEADER_BYTES;
        if (left < HEADER_BYTES)
            return RB_WALK_MORE;
        memcpy(&header, bytes + at, sizeof header);
        if (!could_be(&header, bytes_left))
            return RB_WALK_BAD;
        walk->wanted_bytes = HEADER_BYTES + (uint64_t)header.length;
        if (left < walk->wanted_bytes)
            return RB_WALK_MORE;
        if (full(walk, header.length))
            return RB_WALK_FULL;
        if (!verifies(&header, bytes + at, walk->seed))
            return RB_WALK_BAD;
        rb_extent *out = &walk->extent[walk->extents++];
        *out = (rb_extent){.place = walk->place,
                           .ring_position = header.ring_position,
                           .durable_position = header.durable_position,
                           .record = walk->records,
                           .length = header.length,
                           .ring_id = header.ring_id,
                           .ring_epoch = header.ring_epoch};
        if (header.ring_id != 0)
            walk_records(bytes + at + HEADER_BYTES, walk->place + HEADER_BYTES, out, walk);
        walk->place += walk->wanted_bytes;
        if (header.durable_position > walk->durable_position)
            walk->durable_position = header.durable_position;
        if (!out->whole)
            return RB_WALK_LOOK;
    }
}

/* Fast check before the checksum.  It rejects zeros and nearly all bytes of an earlier use of the file: the
 * durable position must be at or above the segment's base and not beyond the extent itself. */
static inline bool plausible(const extent_header *header, uint64_t place, uint64_t end, uint64_t base)
{
    return could_be(header, end - place) && header->durable_position >= base &&
           header->durable_position - base <= place;
}

int rb_extents_search(const uint8_t *bytes, uint64_t length, uint64_t begin, uint64_t base, rb_walk *walk)
{
    extent_header header;
    for (; walk->place < walk->end && walk->end - walk->place >= HEADER_BYTES;
         walk->place += RB_RECORD_ALIGN) {
        uint64_t at = walk->place - begin, left = at < length ? length - at : 0;
        if (left < HEADER_BYTES)
            return RB_WALK_END;
        memcpy(&header, bytes + at, sizeof header);
        if (!plausible(&header, walk->place, walk->end, base))
            continue;
        walk->wanted_bytes = HEADER_BYTES + (uint64_t)header.length;
        if (left < walk->wanted_bytes)
            return RB_WALK_MORE;
        if (verifies(&header, bytes + at, walk->seed))
            return RB_WALK_LOOK;
    }
    return RB_WALK_END;
}
