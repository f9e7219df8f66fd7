/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of a segment by topic: positions, sorted by the hash of the key.
 *
 * A counting sort by digits of the hash, least significant first.  It is stable, and records come in the
 * order of their positions, so the records of a topic keep that order.
 */
#include "scan/scan.h"

#include <stdbool.h>

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)

static void sort_by_digit(const uint64_t *from, uint64_t *to, uint64_t count, uint32_t shift)
{
    uint64_t begins[DIGITS] = {0};
    for (uint64_t i = 0; i < count; i++)
        begins[from[i] >> shift & (DIGITS - 1)]++;
    for (uint64_t digit = 0, begin = 0; digit < DIGITS; digit++) {
        uint64_t here = begins[digit];
        begins[digit] = begin;
        begin += here;
    }
    for (uint64_t i = 0; i < count; i++)
        to[begins[from[i] >> shift & (DIGITS - 1)]++] = from[i];
}

int64_t rb_topics_sort(const rb_extent *extents, const uint32_t *order, uint64_t count,
                       const uint32_t *key_hash, const uint32_t *record_place, uint64_t *sorted,
                       uint64_t *scratch, uint64_t capacity)
{
    uint64_t filled = 0;
    for (uint64_t i = 0; i < count; i++) {
        const rb_extent *extent = &extents[order[i]];
        if (extent->count > capacity - filled)
            return RB_FULL;
        for (uint64_t r = extent->record; r < extent->record + extent->count; r++)
            scratch[filled++] = (uint64_t)key_hash[r] << 32 | record_place[r];
    }
    sort_by_digit(scratch, sorted, filled, 32);
    sort_by_digit(sorted, scratch, filled, 32 + DIGIT_BITS);
    sort_by_digit(scratch, sorted, filled, 32 + 2 * DIGIT_BITS);
    return (int64_t)filled;
}

uint64_t rb_topics_split(const uint64_t *sorted, uint64_t count, uint32_t *topics, uint32_t *places)
{
    uint64_t filled = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t hash = (uint32_t)(sorted[i] >> 32);
        if (i == 0 || hash != (uint32_t)(sorted[i - 1] >> 32)) {
            topics[2 * filled] = hash;
            topics[2 * filled + 1] = (uint32_t)i;
            filled++;
        }
        places[i] = (uint32_t)sorted[i];
    }
    return filled;
}

/* Hashes compared at once, by the processor's vector instructions.  Most blocks have no match. */
#define BLOCK 64u

static bool block_has(const uint32_t *hashes, uint32_t hash)
{
    uint32_t equal = 0;
    for (uint32_t i = 0; i < BLOCK; i++)
        equal |= hashes[i] == hash;
    return equal != 0;
}

static uint64_t find_in_extent(const rb_walk *walk, const rb_extent *extent, uint32_t hash, uint64_t behind,
                               uint64_t *places, uint64_t capacity)
{
    uint64_t place_count = 0, record = extent->record, end = extent->record + extent->count;
    while (record < end && place_count < capacity) {
        if (end - record >= BLOCK && !block_has(walk->key_hash + record, hash)) {
            record += BLOCK;
            continue;
        }
        uint64_t block_end = end - record >= BLOCK ? record + BLOCK : end;
        for (; record < block_end && place_count < capacity; record++) {
            uint64_t place = (uint64_t)walk->record_place[record] * RB_RECORD_ALIGN;
            if (walk->key_hash[record] == hash && place > behind)
                places[place_count++] = place;
        }
    }
    return place_count;
}

uint64_t rb_walk_find(const rb_walk *walk, uint32_t ring_id, uint32_t epoch, uint32_t hash, uint64_t offset,
                      uint64_t behind, uint64_t *places, uint64_t capacity)
{
    uint64_t place_count = 0;
    for (uint64_t i = 0; i < walk->extents && place_count < capacity; i++) {
        const rb_extent *extent = &walk->extent[i];
        if (extent->ring_id != ring_id || extent->ring_epoch != epoch || !extent->whole ||
            extent->first_offset + extent->count <= offset || extent->place + extent->length < behind)
            continue;
        place_count += find_in_extent(walk, extent, hash, behind, places + place_count,
                                      capacity - place_count);
    }
    return place_count;
}
