/* SPDX-License-Identifier: Apache-2.0
 *
 * Sync: makes all written extents durable (fdatasync() is in buffered_io.c), then publishes the durable
 * position of each ring.  Nothing is published before the sync of the file has returned.
 */
#include "log/log.h"

#include <string.h>

/* The list of extents changes before the durable positions: a thread that reads a durable position then also
 * finds the extents. */
static void mark_synced(rb_log *log)
{
    rb_log_inside *in = log->inside;
    pthread_mutex_lock(&in->lock);
    log->durable_position = log->base + log->end;
    log->extents_synced = log->extents_written;
    in->synced_end = log->end;
    pthread_mutex_unlock(&in->lock);
}

/* Publish the ring's durable position.  The ring is released in whole chunks: offsets are found by the first
 * record of each chunk. */
static void publish_ring(rb_log_ring *ring, int64_t now)
{
    ring->waits_since = ring->taken == ring->durable ? -1 : now;
    if (ring->memory == NULL)
        return;
    rb_durable_store(ring->memory, ring->cursors, ring->local_cursors, ring->durable);
    rb_reader_release(ring->reader, ring->durable - ring->durable % ring->reader->chunk);
}

static void publish_rings(rb_log *log, uint32_t moved, int64_t now)
{
    for (uint32_t i = 0; i < moved; i++)
        publish_ring(log->inside->moved[i], now);
}

/* Add the ring to the list of rings whose durable position must be published.  Returns the new count.  A ring
 * usually has few extents in a round, in a row.  Otherwise it may be in the list several times; a full list
 * is published and restarted. */
static uint32_t add_moved(rb_log *log, rb_log_ring *ring, uint32_t moved, int64_t now)
{
    rb_log_ring **rings = log->inside->moved;
    for (uint32_t i = moved; i-- > (moved > 4 ? moved - 4 : 0);)
        if (rings[i] == ring)
            return moved;
    if (moved == RB_WAKEUP_RINGS) {
        publish_rings(log, moved, now);
        moved = 0;
    }
    rings[moved] = ring;
    return moved + 1;
}

static uint32_t publish_extents(rb_log *log, uint64_t first, int64_t now)
{
    uint32_t moved = 0;
    for (uint64_t i = first; i < log->extents_synced; i++) {
        const rb_log_extent *extent = rb_log_extent_at(log, i);
        rb_log_ring *ring = extent->ring;
        log->unsynced_bytes -= extent_bytes(extent);
        log->records += extent->count;
        if (extent->count > 0)
            log->record_bytes += extent->length;
        if (extent->append_number > 0)
            log->synced_append = extent->append_number;
        if (ring == NULL)
            continue;
        moved = add_moved(log, ring, moved, now);
        ring->durable = extent->ring_end;
        ring->durable_offset = extent->offset_end;
    }
    publish_rings(log, moved, now);
    return moved;
}

int rb_log_sync(rb_log *log, int64_t now)
{
    if (log->extents_synced == log->extents_written && log->base + log->end == log->durable_position)
        return RB_LOG_DONE;
    int64_t started = rb_now_ns();
    int result = rb_direct(log) ? rb_log_finish_block(log) : 0;
    if (result < 0)
        return rb_log_failed(log, result, false);
    result = rb_disk_sync(log);
    if (result < 0)
        return rb_log_failed(log, result, true);
    int64_t finished = rb_now_ns();
    rb_log_add_time(&log->fsync, finished - started);
    if (log->inside->oldest_at != 0)
        rb_log_add_time(&log->commit, finished - log->inside->oldest_at);
    log->inside->oldest_at = log->extents_written < log->extents_queued ? started : 0;
    log->syncs++;
    log->synced_bytes += log->base + log->end - log->durable_position;
    uint64_t first = log->extents_synced;
    mark_synced(log);
    uint32_t moved = publish_extents(log, first, now);
    log->due_ns = log->extents_written < log->extents_queued ? 0 : INT64_MAX;
    if (moved == 0)
        return RB_LOG_DONE;
    rb_disk_wake(log->wake_descriptor);
    log->moved = log->returns_durable;
    return log->returns_durable ? RB_LOG_MOVED : RB_LOG_DONE;
}

int rb_log_synced(rb_log *log, uint64_t first, rb_log_extent *out, int capacity, uint64_t *end)
{
    rb_log_inside *in = log->inside;
    pthread_mutex_lock(&in->lock);
    uint64_t count = first < log->extents_synced ? log->extents_synced - first : 0;
    if (count > (uint64_t)capacity)
        count = (uint64_t)capacity;
    if (count > 0)
        memcpy(out, rb_log_extent_at(log, first), count * sizeof *out);
    *end = in->synced_end;
    pthread_mutex_unlock(&in->lock);
    return (int)count;
}
