/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents: from a run in a ring to bytes in the segment, and to a durable position.
 */
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_FIRST 256

static const uint8_t zeros[RB_DISK_PAGE_BYTES + EXTENT_HEADER_BYTES];

bool rb_log_reserve(rb_log *log, uint64_t count)
{
    rb_log_inside *in = log->inside;
    if (log->extents_queued + count <= in->room)
        return true;
    uint64_t room = in->room == 0 ? LIST_FIRST : 2 * in->room;
    pthread_mutex_lock(&in->lock);
    rb_log_extent *list = realloc(in->list, room * sizeof *list);
    if (list != NULL) {
        in->list = list;
        in->room = room;
    }
    pthread_mutex_unlock(&in->lock);
    in->short_of_memory = list == NULL;
    return list != NULL;
}

void rb_log_push(rb_log *log, rb_log_ring *ring, const rb_range *range)
{
    rb_log_extent *extent = &log->inside->list[log->extents_queued++];
    *extent = (rb_log_extent){
        .body = ring->reader->data + (range->position & ring->reader->mask),
        .length = range->length,
        .position = range->position,
        .first_offset = range->first_offset,
        .count = range->count,
        .first_timestamp_ns = range->first_timestamp_ns,
        .last_timestamp_ns = range->last_timestamp_ns,
        .ring = ring,
        .ring_id = ring->ring_id,
        .epoch = ring->epoch,
    };
    log->unsynced_bytes += extent_bytes(extent);
    if (log->inside->oldest_at == 0)
        log->inside->oldest_at = rb_log_now();
}

static void add_time(rb_log_times *times, int64_t took_ns)
{
    uint64_t took = took_ns < 0 ? 0 : (uint64_t)took_ns, us = took / 1000;
    int bucket = us == 0 ? 0 : 64 - __builtin_clzll(us);
    times->counts[bucket < RB_LOG_BUCKETS ? bucket : RB_LOG_BUCKETS - 1]++;
    times->count++;
    times->total_ns += took;
    if (took > times->max_ns)
        times->max_ns = took;
}

/* ---- writing ---- */

/* Fill the header.  Its checksum does not include the body yet. */
static void header_of(const rb_log *log, const rb_log_extent *extent, extent_header *header)
{
    *header = (extent_header){
        .length = (uint32_t)extent->length,
        .ring_id = extent->ring_id,
        .ring_epoch = extent->epoch,
        .ring_position = extent->position,
        .durable_position = log->durable_position,
    };
    uint32_t covered = EXTENT_HEADER_BYTES - offsetof(extent_header, ring_id);
    header->crc = rb_crc32c(log->seed, &header->ring_id, covered);
}

/* Number of extents for the next write, and their bytes. */
static int batch_of(const rb_log *log, uint64_t *bytes)
{
    int count = 0;
    uint64_t size = 0, left = log->room > log->end ? log->room - log->end : 0;
    for (uint64_t i = log->extents_written; i < log->extents_queued && count < RB_LOG_EXTENTS_MOST; i++) {
        uint64_t next = extent_bytes(&log->inside->list[i]);
        bool alone = count == 0 && log->end == log->first_place; /* an extent larger than any segment */
        if ((size + next > left && !alone) || (count > 0 && size + next > log->write_bytes))
            break;
        size += next;
        count++;
    }
    *bytes = size;
    return count;
}

/* Number of zero bytes after the write: at least one header's length, and up to the end of the page if no
 * earlier write began that page.  A page that is written completely need not be read first. */
static uint32_t zeros_behind(const rb_log *log, uint64_t end)
{
    if (log->end / RB_DISK_PAGE_BYTES == end / RB_DISK_PAGE_BYTES && log->end % RB_DISK_PAGE_BYTES != 0)
        return EXTENT_HEADER_BYTES;
    uint32_t to_page = (uint32_t)(RB_DISK_PAGE_BYTES - end % RB_DISK_PAGE_BYTES) % RB_DISK_PAGE_BYTES;
    return to_page >= EXTENT_HEADER_BYTES ? to_page : to_page + EXTENT_HEADER_BYTES;
}

/* Write headers, bodies and zeros through the page cache in one call. */
static int64_t write_pieces(rb_log *log, const rb_log_extent *batch, int count, uint64_t end)
{
    rb_log_inside *in = log->inside;
    rb_log_piece *piece = in->pieces;
    for (int i = 0; i < count; i++) {
        extent_header *header = &in->headers[i];
        header_of(log, &batch[i], header);
        header->crc = rb_crc32c(header->crc, batch[i].body, batch[i].length);
        *piece++ = (rb_log_piece){header, EXTENT_HEADER_BYTES};
        *piece++ = (rb_log_piece){(void *)(uintptr_t)batch[i].body, batch[i].length};
    }
    *piece++ = (rb_log_piece){(void *)(uintptr_t)zeros, zeros_behind(log, end)};
    return rb_disk_write(log, in->pieces, (int)(piece - in->pieces), log->end);
}

static int64_t write_staged(rb_log *log, const rb_log_extent *batch, int count)
{
    int result = 0;
    for (int i = 0; i < count && result == 0; i++) {
        extent_header header;
        header_of(log, &batch[i], &header);
        result = rb_direct_extent(log, &header, batch[i].body);
    }
    return result;
}

static int failed(rb_log *log, int64_t result, bool sync)
{
    log->error = (int32_t)-result;
    log->failed_sync = sync;
    return RB_LOG_FAILED;
}

static int write_batch(rb_log *log, int count, uint64_t bytes)
{
    rb_log_extent *batch = &log->inside->list[log->extents_written];
    uint64_t place = log->end;
    for (int i = 0; i < count; i++) {
        batch[i].place = place;
        place += extent_bytes(&batch[i]);
    }
    int64_t started = rb_log_now();
    int64_t result = rb_direct(log) ? write_staged(log, batch, count)
                                    : write_pieces(log, batch, count, place);
    if (result < 0)
        return failed(log, result, false);
    add_time(&log->write, rb_log_now() - started);
    log->extents_written += (uint64_t)count;
    log->end = place;
    log->proven = log->durable_position;
    log->extents += (uint64_t)count;
    log->written_bytes += bytes;
    return RB_LOG_DONE;
}

static const uint8_t filler_body[2 * RB_DISK_PAGE_BYTES] = {
    0x80}; /* a catalogue without entries: an empty map */

/* End a direct sync at a block boundary, so that no block is written twice and durable bytes are never
 * written again.  A catalogue fills the block; zeros do if none fits before the end of the segment. */
static int finish_block(rb_log *log)
{
    uint64_t bytes = log->base + log->end - log->durable_position;
    uint64_t align = bytes < RB_DISK_BATCH_BYTES ? log->inside->disk.block_bytes : RB_DISK_PAGE_BYTES;
    uint64_t fill = (align - log->end % align) % align;
    if (fill > 0 && fill < 2 * EXTENT_HEADER_BYTES)
        fill += align;
    if (fill == 0 || log->end + fill > log->room)
        return rb_direct_flush(log);
    const rb_log_extent filler = {.body = filler_body, .length = fill - EXTENT_HEADER_BYTES};
    int result = (int)write_staged(log, &filler, 1);
    if (result != 0)
        return result;
    log->end += fill;
    log->written_bytes += fill;
    return rb_direct_flush(log);
}

int rb_log_write_all(rb_log *log)
{
    if (log->inside->short_of_memory)
        return failed(log, -ENOMEM, false);
    while (log->extents_written < log->extents_queued) {
        uint64_t bytes;
        int count = batch_of(log, &bytes);
        if (count == 0)
            return RB_LOG_FULL;
        int result = write_batch(log, count, bytes);
        if (result != RB_LOG_DONE)
            return result;
    }
    return RB_LOG_DONE;
}

/* ---- effects of a sync ---- */

/* Update the list before the durable positions: a reader of a durable position finds the records in the log.
 * */
static void settle_list(rb_log *log)
{
    rb_log_inside *in = log->inside;
    pthread_mutex_lock(&in->lock);
    log->durable_position = log->base + log->end;
    log->extents_settled = log->extents_written;
    in->settled_end = log->end;
    pthread_mutex_unlock(&in->lock);
}

/* Publish the ring's durable position.  The ring is released in whole chunks: offsets are found by the first
 * record of each chunk. */
static void settle_ring(rb_log_ring *ring, int64_t now)
{
    ring->waits_since = ring->taken == ring->durable ? -1 : now;
    rb_durable_store(ring->memory, ring->cursors, ring->durable);
    rb_reader_release(ring->reader, ring->durable - ring->durable % ring->reader->chunk);
}

static void settle_rings(rb_log *log, uint32_t moved, int64_t now)
{
    for (uint32_t i = 0; i < moved; i++)
        settle_ring(log->inside->moved[i], now);
}

/* Add the ring to the list for settling.  Returns the new count.  A ring usually has few extents in a round,
 * in a row.  Otherwise it may be in the list several times; a full list is settled and restarted. */
static uint32_t note_moved(rb_log *log, rb_log_ring *ring, uint32_t moved, int64_t now)
{
    rb_log_ring **rings = log->inside->moved;
    for (uint32_t i = moved; i-- > (moved > 4 ? moved - 4 : 0);)
        if (rings[i] == ring)
            return moved;
    if (moved == RB_BELL_RINGS) {
        settle_rings(log, moved, now);
        moved = 0;
    }
    rings[moved] = ring;
    return moved + 1;
}

static uint32_t settle_extents(rb_log *log, uint64_t first, int64_t now)
{
    uint32_t moved = 0;
    for (uint64_t i = first; i < log->extents_settled; i++) {
        rb_log_extent *extent = &log->inside->list[i];
        rb_log_ring *ring = extent->ring;
        log->unsynced_bytes -= extent_bytes(extent);
        log->records += extent->count;
        log->record_bytes += extent->length;
        moved = note_moved(log, ring, moved, now);
        ring->durable = extent->position + extent->length;
        ring->durable_offset = extent->first_offset + extent->count;
    }
    settle_rings(log, moved, now);
    return moved;
}

int rb_log_sync_all(rb_log *log, int64_t now)
{
    if (log->extents_settled == log->extents_written && log->base + log->end == log->durable_position)
        return RB_LOG_DONE;
    int64_t started = rb_log_now();
    int result = rb_direct(log) ? finish_block(log) : 0;
    if (result < 0)
        return failed(log, result, false);
    result = rb_disk_sync(log);
    if (result < 0)
        return failed(log, result, true);
    int64_t finished = rb_log_now();
    add_time(&log->fsync, finished - started);
    if (log->inside->oldest_at != 0)
        add_time(&log->commit, finished - log->inside->oldest_at);
    log->inside->oldest_at = log->extents_written < log->extents_queued ? started : 0;
    log->syncs++;
    log->synced_bytes += log->base + log->end - log->durable_position;
    uint64_t first = log->extents_settled;
    settle_list(log);
    uint32_t moved = settle_extents(log, first, now);
    log->due_ns = log->extents_written < log->extents_queued ? 0 : INT64_MAX;
    if (moved == 0)
        return RB_LOG_DONE;
    rb_disk_wake(log->wake_descriptor);
    return log->tells ? RB_LOG_MOVED : RB_LOG_DONE;
}

/* ---- for Python ---- */

static int copied(rb_log *log, uint64_t first, uint64_t behind, rb_log_extent *out, int room)
{
    uint64_t count = first < behind ? behind - first : 0;
    if (count > (uint64_t)room)
        count = (uint64_t)room;
    if (count > 0)
        memcpy(out, &log->inside->list[first], count * sizeof *out);
    return (int)count;
}

int rb_log_settled(rb_log *log, uint64_t first, rb_log_extent *out, int room, uint64_t *end)
{
    rb_log_inside *in = log->inside;
    pthread_mutex_lock(&in->lock);
    int count = copied(log, first, log->extents_settled, out, room);
    *end = in->settled_end;
    pthread_mutex_unlock(&in->lock);
    return count;
}

int rb_log_waiting(rb_log *log, uint64_t first, rb_log_extent *out, int room)
{
    return copied(log, log->extents_settled + first, log->extents_queued, out, room);
}
