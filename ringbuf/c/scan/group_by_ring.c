/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of the mixed extents of many rings in a segment into rows per ring: one counting sort for any
 * number of rings.
 */
#include "scan/scan.h"

#include <string.h>

#define NO_GROUP UINT32_MAX
#define HEADER_BYTES 32u

static inline bool is_of(const rb_group *group, const rb_extent *extent)
{
    return group->ring_id == extent->ring_id && group->ring_epoch == extent->ring_epoch;
}

/* The slot of the extent's group, or the empty slot for it.  Half of the slots are empty. */
static uint64_t slot_of(const rb_extent *extent, const uint32_t *slots, uint64_t mask, const rb_group *groups)
{
    uint64_t at = (extent->ring_id * 0x9e3779b97f4a7c15u ^ extent->ring_epoch * 0xc2b2ae3d27d4eb4fu) >> 20;
    for (;; at++) {
        uint32_t group = slots[at & mask];
        if (group == NO_GROUP || is_of(&groups[group], extent))
            return at & mask;
    }
}

int64_t rb_extents_group(const rb_extent *extents, uint64_t count, uint32_t *order, uint32_t *scratch,
                         uint32_t *slots, uint64_t slots_room, rb_group *groups, uint64_t groups_room)
{
    uint32_t group_count = 0, last = 0;
    memset(slots, 0xff, slots_room * sizeof *slots);
    for (uint64_t i = 0; i < count; i++) {
        if (!extents[i].whole)
            continue;
        if (group_count == 0 || !is_of(&groups[last], &extents[i])) {
            uint64_t slot = slot_of(&extents[i], slots, slots_room - 1, groups);
            if (slots[slot] == NO_GROUP) {
                if (group_count == groups_room)
                    return RB_FULL;
                groups[group_count] = (rb_group){.ring_id = extents[i].ring_id,
                                                 .ring_epoch = extents[i].ring_epoch};
                slots[slot] = group_count++;
            }
            last = slots[slot];
        }
        groups[last].count++;
        scratch[i] = last;
    }
    uint64_t first = 0;
    for (uint32_t g = 0; g < group_count; g++) {
        groups[g].first = first;
        first += groups[g].count;
        groups[g].count = 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (!extents[i].whole)
            continue;
        rb_group *group = &groups[scratch[i]];
        order[group->first + group->count++] = (uint32_t)i;
    }
    return group_count;
}

/* Add a mark, or raise the last one.  False: no room. */
static inline bool mark(rb_rows *rows, const rb_extent *extent)
{
    uint64_t latest = extent->latest_ns, place = extent->place + HEADER_BYTES, last = rows->marks - 1;
    if (rows->marks > 0 && rows->mark_time[last] > latest)
        latest = rows->mark_time[last];
    if (rows->marks > 0 && rows->since_mark < rows->mark_bytes) {
        rows->mark_time[last] = latest;
        rows->since_mark += extent->length;
        return true;
    }
    if (rows->marks == rows->marks_capacity)
        return false;
    rows->since_mark = extent->length;
    rows->mark_offset[rows->marks] = extent->first_offset;
    rows->mark_place[rows->marks] = place;
    rows->mark_time[rows->marks++] = latest;
    return true;
}

int rb_extents_gather(const rb_extent *extents, const uint32_t *order, uint64_t count, rb_rows *rows)
{
    for (uint64_t i = 0; i < count; i++) {
        const rb_extent *extent = &extents[order[i]];
        if (extent->first_offset < rows->end_offset || !mark(rows, extent))
            return RB_INVALID;
        rows->first_offset[i] = extent->first_offset;
        rows->count[i] = extent->count;
        rows->place[i] = extent->place + HEADER_BYTES;
        rows->length[i] = extent->length;
        rows->ring_position[i] = extent->ring_position;
        rows->end_offset = extent->first_offset + extent->count;
        if (rows->records == 0 || extent->earliest_ns < rows->earliest_ns)
            rows->earliest_ns = extent->earliest_ns;
        rows->records += extent->count;
    }
    return RB_OK;
}
