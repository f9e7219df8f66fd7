/* SPDX-License-Identifier: Apache-2.0
 *
 * Which records of a segment are of which topic: places, sorted by the hash of the key.
 *
 * A counting sort by digits of the hash, the least significant first.  It is stable, and records come in the
 * order of their places, so those of a topic stay in it.
 */
#include "scan.h"

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
                       uint64_t *scratch, uint64_t room)
{
    uint64_t made = 0;
    for (uint64_t i = 0; i < count; i++) {
        const rb_extent *extent = &extents[order[i]];
        if (extent->count > room - made)
            return RB_FULL;
        for (uint64_t r = extent->record; r < extent->record + extent->count; r++)
            scratch[made++] = (uint64_t)key_hash[r] << 32 | record_place[r];
    }
    sort_by_digit(scratch, sorted, made, 32);
    sort_by_digit(sorted, scratch, made, 32 + DIGIT_BITS);
    sort_by_digit(scratch, sorted, made, 32 + 2 * DIGIT_BITS);
    return (int64_t)made;
}

uint64_t rb_topics_split(const uint64_t *sorted, uint64_t count, uint32_t *topics, uint32_t *places)
{
    uint64_t made = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t hash = (uint32_t)(sorted[i] >> 32);
        if (i == 0 || hash != (uint32_t)(sorted[i - 1] >> 32)) {
            topics[2 * made] = hash;
            topics[2 * made + 1] = (uint32_t)i;
            made++;
        }
        places[i] = (uint32_t)sorted[i];
    }
    return made;
}
