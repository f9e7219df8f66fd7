/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes of extents: from a run in a ring to bytes in the segment.  sync.c makes them durable.
 */
#include "log/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_FIRST 256
#define SECTOR_BYTES 512

static const uint8_t zeros[RB_DISK_PAGE_BYTES + EXTENT_HEADER_BYTES];

bool rb_log_reserve(rb_log *log, uint64_t count)
{
    rb_log_inside *in = log->inside;
    uint64_t needed = log->extents_queued - in->first + count, capacity = in->capacity;
    if (needed <= capacity)
        return true;
    while (capacity < needed)
        capacity = capacity == 0 ? LIST_FIRST : 2 * capacity;
    pthread_mutex_lock(&in->lock);
    rb_log_extent *list = realloc(in->list, capacity * sizeof *list);
    if (list != NULL) {
        in->list = list;
        in->capacity = capacity;
    }
    pthread_mutex_unlock(&in->lock);
    in->short_of_memory = list == NULL;
    return list != NULL;
}

static void push(rb_log *log, const rb_log_extent *extent)
{
    *rb_log_extent_at(log, log->extents_queued++) = *extent;
    log->unsynced_bytes += extent_bytes(extent);
    if (log->inside->oldest_at == 0)
        log->inside->oldest_at = rb_now_ns();
}

void rb_log_push(rb_log *log, rb_log_ring *ring, const rb_range *range)
{
    const rb_log_extent extent = {
        .body = ring->reader->data + (range->position & ring->reader->mask),
        .length = range->length,
        .position = range->position,
        .first_offset = range->first_offset,
        .count = range->count,
        .first_timestamp_ns = range->first_timestamp_ns,
        .last_timestamp_ns = range->last_timestamp_ns,
        .ring = ring,
        .ring_end = range->position + range->length,
        .offset_end = range->first_offset + range->count,
        .ring_id = ring->ring_id,
        .epoch = ring->epoch,
    };
    push(log, &extent);
    ring->taken = extent.ring_end;
    ring->taken_offset = extent.offset_end;
}

int rb_log_append(rb_log *log, const rb_log_extent *extents, int count, int64_t now)
{
    if (!rb_log_reserve(log, (uint64_t)count))
        return 0;
    for (int i = 0; i < count; i++) {
        push(log, &extents[i]);
        rb_log_ring *ring = extents[i].ring;
        if (ring == NULL)
            continue;
        ring->taken = extents[i].ring_end;
        ring->taken_offset = extents[i].offset_end;
        rb_log_update_taken(log, ring, now);
    }
    return 1;
}

void rb_log_drop(rb_log *log, uint32_t ring_id)
{
    rb_log_inside *in = log->inside;
    uint64_t kept = log->extents_synced;
    pthread_mutex_lock(&in->lock);
    for (uint64_t i = kept; i < log->extents_queued; i++) {
        rb_log_extent *extent = rb_log_extent_at(log, i);
        if (extent->ring != NULL && extent->ring->ring_id == ring_id)
            extent->ring = NULL;
        if (extent->ring_id == ring_id)
            log->unsynced_bytes -= extent_bytes(extent);
        else
            *rb_log_extent_at(log, kept++) = *extent;
    }
    log->extents_queued = kept;
    pthread_mutex_unlock(&in->lock);
    if (kept == log->extents_synced)
        in->oldest_at = 0;
    rb_log_update_deadlines(log);
}

void rb_log_add_time(rb_log_times *times, int64_t took_ns)
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

/* Number of extents for the next write; 0: the next one does not fit. */
static int extents_that_fit(const rb_log *log)
{
    int count = 0;
    uint64_t size = 0, left = log->capacity > log->end ? log->capacity - log->end : 0;
    for (uint64_t i = log->extents_written; i < log->extents_queued && count < RB_LOG_EXTENTS_MAX; i++) {
        uint64_t next = extent_bytes(rb_log_extent_at(log, i));
        bool alone = count == 0 && log->end == log->first_place; /* an extent larger than any segment */
        if ((size + next > left && !alone) || (count > 0 && size + next > log->write_bytes))
            break;
        size += next;
        count++;
    }
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

/* Write extents behind the last one; the new end is `end`.  0, or a negative errno. */
static int64_t put(rb_log *log, const rb_log_extent *batch, int count, uint64_t end)
{
    int64_t result = rb_direct(log) ? write_staged(log, batch, count) : write_pieces(log, batch, count, end);
    if (result < 0)
        return result;
    log->written_bytes += end - log->end;
    log->end = end;
    return 0;
}

static int write_batch(rb_log *log, int count)
{
    rb_log_extent *batch = rb_log_extent_at(log, log->extents_written);
    uint64_t place = log->end;
    for (int i = 0; i < count; i++) {
        batch[i].place = place;
        place += extent_bytes(&batch[i]);
    }
    int64_t started = rb_now_ns();
    int64_t result = put(log, batch, count, place);
    if (result < 0)
        return rb_log_failed(log, result, false);
    rb_log_add_time(&log->write, rb_now_ns() - started);
    log->extents_written += (uint64_t)count;
    log->proven = log->durable_position;
    log->extents += (uint64_t)count;
    return RB_LOG_DONE;
}

static const uint8_t filler_body[2 * RB_DISK_PAGE_BYTES] = {
    0x80}; /* a catalogue without entries: an empty map */

/* End a direct sync at a block boundary, so that no block is written twice and durable bytes are never
 * written again.  A catalogue fills the block; zeros do if none fits before the end of the segment. */
int rb_log_finish_block(rb_log *log)
{
    uint64_t bytes = log->base + log->end - log->durable_position;
    uint64_t align = bytes < RB_DISK_BATCH_BYTES ? log->inside->disk.block_bytes : RB_DISK_PAGE_BYTES;
    uint64_t fill = (align - log->end % align) % align;
    if (fill > 0 && fill < 2 * EXTENT_HEADER_BYTES)
        fill += align;
    if (fill == 0 || log->end + fill > log->capacity)
        return rb_direct_flush(log);
    const rb_log_extent filler = {.body = filler_body, .length = fill - EXTENT_HEADER_BYTES};
    int result = (int)put(log, &filler, 1, log->end + fill);
    return result == 0 ? rb_direct_flush(log) : result;
}

/* Two extents without news.  One damaged sector then does not destroy the proof. */
static const rb_log_extent proof[] = {
    {.body = filler_body, .length = SECTOR_BYTES - EXTENT_HEADER_BYTES},
    {.body = filler_body, .length = EXTENT_HEADER_BYTES},
};

int rb_log_prove(rb_log *log, const rb_log_extent *catalogues, int count)
{
    if (log->descriptor < 0)
        return RB_LOG_FULL;
    const rb_log_extent *batch = count > 0 ? catalogues : proof;
    int extents = count > 0 ? count : (int)(sizeof proof / sizeof *proof);
    uint64_t end = log->end;
    for (int i = 0; i < extents; i++)
        end += extent_bytes(&batch[i]);
    int64_t result = put(log, batch, extents, end);
    if (result == 0)
        result = rb_direct_flush(log);
    if (result < 0)
        return rb_log_failed(log, result, false);
    log->proven = log->durable_position;
    return RB_LOG_DONE;
}

int rb_log_flush(rb_log *log)
{
    int result = rb_direct_flush(log);
    return result < 0 ? rb_log_failed(log, result, false) : RB_LOG_DONE;
}

int rb_log_write(rb_log *log)
{
    if (log->inside->short_of_memory)
        return rb_log_failed(log, -ENOMEM, false);
    while (log->extents_written < log->extents_queued) {
        int count = log->descriptor < 0 ? 0 : extents_that_fit(log);
        if (count == 0)
            return RB_LOG_FULL;
        int result = write_batch(log, count);
        if (result != RB_LOG_DONE)
            return result;
    }
    return RB_LOG_DONE;
}

rb_log_extent *rb_log_waiting(rb_log *log, uint64_t number)
{
    return rb_log_extent_at(log, number);
}
