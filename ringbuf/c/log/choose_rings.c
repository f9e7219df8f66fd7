/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection of rings: records are taken in turns, so that a busy ring does not block the others.
 */
#include "log/log.h"

#define WORDS (RB_WAKEUP_RINGS / 64)

int rb_log_add(rb_log *log, rb_log_ring *ring)
{
    rb_log_inside *in = log->inside;
    if (ring->index >= RB_WAKEUP_RINGS || in->rings[ring->index] != NULL)
        return RB_INVALID;
    in->rings[ring->index] = ring;
    ring->catches_up = 1;
    in->pending[ring->index / 64] |= (uint64_t)1 << ring->index % 64;
    if (ring->index > in->highest)
        in->highest = ring->index;
    rb_wakeup_urgent(in->wakeup, ring->index, ring->on_disk);
    return RB_OK;
}

void rb_log_resume(rb_log *log, rb_log_ring *ring)
{
    ring->leaving = 0;
    ring->catches_up = 1;
    log->inside->pending[ring->index / 64] |= (uint64_t)1 << ring->index % 64;
}

void rb_log_remove(rb_log *log, rb_log_ring *ring)
{
    rb_log_inside *in = log->inside;
    if (ring->index < RB_WAKEUP_RINGS && in->rings[ring->index] == ring)
        in->rings[ring->index] = NULL;
}

bool rb_log_pending(const rb_log *log)
{
    for (uint32_t word = 0; word <= log->inside->highest / 64; word++)
        if (log->inside->pending[word] != 0)
            return true;
    return false;
}

static void harvest(rb_log_inside *in)
{
    for (uint32_t word = 0; word < WORDS; word++)
        in->pending[word] |= rb_wakeup_take(in->wakeup, word);
    atomic_thread_fence(memory_order_seq_cst); /* log_wakeup.h: the rings are checked after this */
}

/* Update the time of the next sync for a ring with waiting records. */
static void update_due(rb_log *log, const rb_log_ring *ring)
{
    int64_t due = ring->waits_since + ring->interval_ns;
    if (ring->on_disk || ring->taken - ring->durable >= ring->sync_bytes)
        due = 0;
    if (due < log->due_ns)
        log->due_ns = due;
}

void rb_log_update_deadlines(rb_log *log)
{
    log->due_ns = INT64_MAX;
    for (uint64_t i = log->extents_synced; i < log->extents_queued; i++) {
        const rb_log_ring *ring = rb_log_extent_at(log, i)->ring;
        if (ring != NULL)
            update_due(log, ring);
    }
}

void rb_log_update_taken(rb_log *log, rb_log_ring *ring, int64_t now)
{
    rb_log_inside *in = log->inside;
    if (ring->waits_since < 0)
        ring->waits_since = now;
    update_due(log, ring);
    *(ring->on_disk ? &in->urgent_at : &in->lazy_at) = now;
    log->active_at = now;
}

/* Take records of a ring.  Returns the bytes; *more: the ring may have more. */
static uint64_t take_from(rb_log *log, rb_log_ring *ring, int64_t now, bool *more)
{
    rb_range ranges[RB_LOG_RANGES_MAX];
    uint64_t length = 0;
    *more = false;
    if (ring->leaving)
        return 0;
    if (!rb_log_reserve(log, RB_LOG_RANGES_MAX)) {
        *more = true;
        return 0;
    }
    int count = rb_reader_ranges(ring->reader, log->extent_bytes, ranges, RB_LOG_RANGES_MAX);
    if (count == 0 && rb_reader_is_stuck(ring->reader))
        count = RB_CORRUPT;
    if (count < 0) {
        ring->trouble = count;
        ring->leaving = 1;
        log->troubles = 1;
        return 0;
    }
    for (int i = 0; i < count; i++) {
        rb_log_push(log, ring, &ranges[i]);
        length += ranges[i].length;
    }
    if (count > 0)
        rb_log_update_taken(log, ring, now);
    uint64_t share = length / (ring->reader->capacity / 256);
    if (share > log->inside->largest_share)
        log->inside->largest_share = share;
    ring->catches_up = ring->catches_up && count > 0;
    /* The ranges also end in front of damage, which the next call reports. */
    *more = ring->catches_up || (count > 0 && (rb_peek(ring->reader) != RB_EMPTY ||
                                               rb_reader_is_stuck(ring->reader)));
    return length;
}

uint64_t rb_log_take(rb_log *log, int64_t now, uint64_t limit)
{
    rb_log_inside *in = log->inside;
    uint64_t total = 0;
    harvest(in);
    uint32_t rings = in->highest + 1, first = in->turn < rings ? in->turn : 0;
    bool any = true;
    while (any && total < limit && !in->short_of_memory) {
        any = false;
        for (uint32_t step = 0; step < rings && total < limit; step++) {
            uint32_t index = first + step < rings ? first + step : first + step - rings;
            if (in->pending[index / 64] == 0 && index % 64 == 0 && step + 64 <= rings &&
                index + 64 <= rings) {
                step += 63; /* no pending ring among these 64 */
                continue;
            }
            uint64_t bit = (uint64_t)1 << index % 64;
            if (!(in->pending[index / 64] & bit))
                continue;
            bool more = false;
            if (in->rings[index] != NULL)
                total += take_from(log, in->rings[index], now, &more);
            if (!more)
                in->pending[index / 64] &= ~bit;
            any |= more;
            in->turn = index + 1;
        }
        first = in->turn < rings ? in->turn : 0;
    }
    if (!rb_log_pending(log)) /* otherwise the next call continues with the rings without a turn */
        in->turn = 0;
    return total;
}
