/* SPDX-License-Identifier: Apache-2.0
 *
 * A reader of a ring: a cursor.  It never writes to the ring, only to its slot.
 *
 * A plain reader may be lapped.  It reads first and checks `granted` afterwards (a sequence lock).  If the
 * writer was permitted to overwrite the place by then, the data read is discarded.  Every length is checked
 * against the ring before use, so garbage is harmless.
 *
 * A blocking reader stores its released position in its slot.  The writer stays within one ring length of it.
 */
#include "ring/ring.h"

#include <string.h>

#define WORD(pointer) ((const _Atomic uint32_t *)(const void *)(pointer))

static const uint8_t *at(const rb_reader *reader, uint64_t position)
{
    return reader->data + (position & reader->mask);
}

void rb_reader_store_progress(rb_reader *reader, uint64_t released)
{
    reader->released = reader->stored_released = released;
    if (reader->slot == NULL || reader->closed)
        return;
    atomic_store_explicit(&reader->slot->offset, reader->offset, memory_order_relaxed);
    atomic_store_explicit(&reader->slot->lost, reader->lost, memory_order_relaxed);
    /* pairs with the acquire in slot_limit(): this reader's reads of the released bytes are done */
    atomic_store_explicit(&reader->slot->cursor, released, memory_order_release);
}

/* A store that the writer reads costs both sides a cache miss, so it is made once per chunk.  A writer that
 * waits for space still gets it: this reader then has more than a chunk to read. */
void rb_reader_store_progress_lazily(rb_reader *reader, uint64_t released)
{
    reader->released = released;
    if (released - reader->stored_released >= reader->chunk)
        rb_reader_store_progress(reader, released);
}

void rb_reader_release(rb_reader *reader, uint64_t position)
{
    if (position > reader->released && position <= reader->cursor)
        rb_reader_store_progress(reader, position);
}

/* Put the cursor at `position`.  True if the position is still safe; the slot of a blocking reader then
 * blocks. */
static bool place(rb_reader *reader, uint64_t position, uint64_t offset)
{
    reader->cursor = position;
    reader->offset = offset;
    rb_reader_store_progress(reader, position);
    if (reader->blocks_writer)
        /* pairs with the acquire in blocking_slots_changed(): the cursor precedes the count */
        atomic_fetch_add_explicit(reader->joined, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the first fence in reserve_try() */
    return atomic_load_explicit(&reader->header->reserve, memory_order_relaxed) <=
           position + reader->capacity;
}

/* A few tries are enough: at each failure the writer has moved by more than a chunk meanwhile.  A hostile
 * writer can make all tries fail; no loop here waits for it to stop. */
#define PLACE_TRIES 64

void rb_seek_latest(rb_reader *reader)
{
    uint64_t position, offset;
    for (int tries = 0; tries < PLACE_TRIES; tries++) {
        rb_end_read(reader->header, &position, &offset);
        if (place(reader, position, offset))
            return;
    }
}

typedef struct index_entry { /* copy of an rb_index_entry */
    uint64_t position, offset, timestamp_ns;
} index_entry;

/* Read the index entry of the first record that begins in `chunk`.  False if there is none, or it changed
 * meanwhile. */
static bool index_read(const rb_reader *reader, uint64_t chunk, index_entry *out)
{
    uint64_t entries = reader->capacity / reader->chunk;
    const rb_index_entry *entry = &reader->header->index[chunk & (entries - 1)];
    /* pairs with the release in index_chunk() */
    out->position = atomic_load_explicit(&entry->position, memory_order_acquire);
    out->offset = atomic_load_explicit(&entry->offset, memory_order_relaxed);
    out->timestamp_ns = atomic_load_explicit(&entry->timestamp_ns, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire); /* pairs with the fence in index_chunk() */
    return out->position / reader->chunk == chunk && out->position % RB_RECORD_ALIGN == 0 &&
           atomic_load_explicit(&entry->position, memory_order_relaxed) == out->position;
}

static uint64_t oldest_safe(const rb_reader *reader)
{
    uint64_t reserve = atomic_load_explicit(&reader->header->reserve, memory_order_relaxed);
    return reserve > reader->capacity ? reserve - reader->capacity : 0;
}

static int read_next(rb_reader *reader, rb_view *out, bool hide);
static int next_length(const rb_reader *reader, uint64_t *position, uint32_t *word);
static int pass_gap(rb_reader *reader, uint32_t length);

typedef bool (*entry_test)(const index_entry *entry, uint64_t wanted);

/* Find the first index entry that is safe to read; with a test, the last entry before the first one that
 * fails the test.  False if there is no entry. */
static bool index_find(const rb_reader *reader, entry_test test, uint64_t wanted, index_entry *out)
{
    uint64_t floor = oldest_safe(reader), first = floor / reader->chunk, end, unused;
    bool any = false;
    rb_end_read(reader->header, &end, &unused);
    for (uint64_t chunk = first;
         chunk <= first + reader->capacity / reader->chunk && chunk * reader->chunk <= end; chunk++) {
        index_entry entry;
        if (!index_read(reader, chunk, &entry) || entry.position < floor)
            continue;
        if (any && !test(&entry, wanted))
            break;
        *out = entry;
        any = true;
        if (test == NULL)
            break;
    }
    return any;
}

void rb_seek_oldest(rb_reader *reader)
{
    for (int tries = 0; tries < PLACE_TRIES; tries++) {
        index_entry entry;
        if (!index_find(reader, NULL, 0, &entry))
            break;
        if (place(reader, entry.position, entry.offset))
            return;
    }
    rb_seek_latest(reader);
}

static bool offset_not_after(const index_entry *entry, uint64_t wanted)
{
    return entry->offset <= wanted;
}

static bool time_before(const index_entry *entry, uint64_t wanted)
{
    return entry->timestamp_ns < wanted;
}

int rb_seek_offset(rb_reader *reader, uint64_t offset)
{
    uint64_t position, end;
    index_entry entry;
    rb_view view;
    rb_end_read(reader->header, &position, &end);
    if (offset > end) {
        rb_seek_latest(reader);
        return offset == reader->offset ? RB_OK : RB_EMPTY;
    }
    if (offset == end && place(reader, position, end)) /* use this end: a later one may be past the offset */
        return RB_OK;
    if (!index_find(reader, offset_not_after, offset, &entry) || entry.offset > offset ||
        !place(reader, entry.position, entry.offset)) {
        rb_seek_oldest(reader);
        return reader->offset == offset ? RB_OK : RB_OVERRUN;
    }
    while (reader->offset < offset) {
        int result = read_next(reader, &view, false);
        if (result == RB_GAP && reader->cursor - entry.position <= reader->capacity)
            continue;
        if (result != RB_OK)
            return result == RB_EMPTY || result == RB_GAP ? RB_CORRUPT : result;
    }
    uint32_t length;
    uint64_t ahead = reader->cursor;
    if (next_length(reader, &ahead, &length) == RB_GAP) { /* the wanted record is the first one of the gap */
        reader->cursor = ahead;
        pass_gap(reader, length);
    }
    rb_reader_store_progress(reader, reader->cursor);
    return reader->offset == offset ? RB_OK : RB_OVERRUN;
}

void rb_seek_time(rb_reader *reader, uint64_t timestamp_ns)
{
    index_entry entry;
    rb_view view;
    if (!index_find(reader, time_before, timestamp_ns, &entry) ||
        !place(reader, entry.position, entry.offset))
        rb_seek_oldest(reader);
    uint64_t begin = reader->cursor;
    for (int laps = 0; laps < PLACE_TRIES;) {
        uint64_t cursor = reader->cursor, offset = reader->offset;
        int result = read_next(reader, &view, false);
        if (result == RB_GAP && cursor - begin <= reader->capacity)
            continue;
        if (result == RB_OVERRUN) {
            laps++;
            continue;
        }
        if (result == RB_OK && view.header.timestamp_ns >= timestamp_ns) {
            reader->cursor = cursor;
            reader->offset = offset;
        }
        if (result != RB_OK || view.header.timestamp_ns >= timestamp_ns)
            break;
    }
    rb_reader_store_progress(reader, reader->cursor);
}

int rb_reader_open(rb_reader *reader, const void *memory, uint64_t bytes, rb_cursors *slots, int slot,
                   bool blocks_writer)
{
    const rb_header *header = memory;
    memset(reader, 0, sizeof *reader);
    uint64_t capacity =
        *(const volatile uint64_t *)&header->geometry.capacity_bytes; /* read once: it may be hostile */
    if (!rb_capacity_fits(capacity) || bytes < RB_HEADER_BYTES || bytes - RB_HEADER_BYTES < capacity)
        return RB_CORRUPT;
    reader->header = header;
    reader->data = (const uint8_t *)memory + RB_HEADER_BYTES;
    reader->capacity = capacity;
    reader->mask = capacity - 1;
    reader->chunk = rb_chunk_bytes(capacity);
    reader->epoch = reader->crc_seed = header->geometry.epoch;
    reader->slot = rb_slot_of(slots, slot);
    reader->blocks_writer = blocks_writer && reader->slot != NULL;
    if (reader->slot != NULL) {
        reader->sleepers = &slots->sleepers;
        reader->sleeper_bit = (uint64_t)1 << slot;
        reader->joined = &slots->joined;
        rb_seek_latest(reader);
        /* pairs with the acquire in slot_limit(): the cursor is stored before the slot blocks */
        atomic_store_explicit(&reader->slot->state, reader->blocks_writer ? RB_SLOT_BLOCKING : RB_SLOT_PLAIN,
                              memory_order_release);
    }
    rb_seek_latest(reader);
    return RB_OK;
}

void rb_reader_close(rb_reader *reader)
{
    if (reader->slot != NULL && !reader->closed)
        atomic_store_explicit(&reader->slot->state, RB_SLOT_FREE, memory_order_release); /* slot_limit() */
    reader->closed = true; /* the pointers stay: another thread may still wait with them */
}

static bool was_evicted(const rb_reader *reader)
{
    /* pairs with the release in rb_writer_evict() */
    return reader->blocks_writer &&
           atomic_load_explicit(&reader->slot->state, memory_order_acquire) != RB_SLOT_BLOCKING;
}

static int lapped(rb_reader *reader)
{
    uint64_t was = reader->offset;
    rb_seek_oldest(reader);
    if (reader->offset > was)
        reader->lost += reader->offset - was;
    rb_reader_store_progress(reader, reader->cursor);
    return RB_OVERRUN;
}

/* Read the length word at *position, and move *position past padding.  RB_OK, RB_GAP (the word of a gap
 * marker), RB_EMPTY, RB_OVERRUN, RB_CORRUPT. */
static int next_length(const rb_reader *reader, uint64_t *position, uint32_t *word)
{
    for (int laps = 0; laps < 2; laps++) {
        /* pairs with the release in rb_commit() and pad_to_end() */
        uint32_t length = atomic_load_explicit(WORD(at(reader, *position)), memory_order_acquire);
        if (!rb_reader_holds(reader, *position))
            return RB_OVERRUN;
        *word = length;
        if (!(length & RB_PADDING_BIT))
            return length ? RB_OK : RB_EMPTY;
        if (length & RB_GAP_BIT)
            return RB_GAP;
        uint64_t to_lap_end = reader->capacity - (*position & reader->mask);
        if ((length & ~RB_PADDING_BIT) != to_lap_end)
            break;
        *position += to_lap_end;
    }
    return RB_CORRUPT;
}

/* Position from which the log must not take records yet; RB_NO_POSITION: the log may take all.  The log is
 * the reader with `for_log`. */
static uint64_t log_limit(const rb_reader *reader)
{
    /* pairs with the release in log_limit_store(): it is stored before the commit of the record */
    uint64_t word = atomic_load_explicit(&reader->header->log_blocked_from, memory_order_acquire);
    return word == 0 ? RB_NO_POSITION : word - 1;
}

/* True if the ring shows only durable records and the record at `position` is not durable.  The log syncs
 * whole records, so a record that begins below `durable` is durable to its end. */
static bool is_hidden(const rb_reader *reader, uint64_t position)
{
    if (reader->for_log)
        return log_limit(reader) <= position;
    return atomic_load_explicit(&reader->header->visible_when_durable, memory_order_relaxed) &&
           /* pairs with the release in rb_durable_store() */
           atomic_load_explicit(&reader->header->durable, memory_order_acquire) <= position;
}

int rb_peek(const rb_reader *reader)
{
    uint64_t position = reader->cursor;
    uint32_t length;
    if (was_evicted(reader))
        return RB_EVICTED;
    int result = next_length(reader, &position, &length);
    if (result == RB_GAP)
        result = RB_OK; /* rb_read() will report the gap */
    return result == RB_OK && is_hidden(reader, position) ? RB_EMPTY : result;
}

/* Step over the gap marker at the cursor.  It replaces records that were damaged when the ring was taken
 * over. */
static int pass_gap(rb_reader *reader, uint32_t length)
{
    rb_gap gap;
    uint64_t position = reader->cursor;
    int result = rb_gap_at(at(reader, position), length, reader->capacity - (position & reader->mask),
                           reader->epoch, &gap);
    if (!rb_reader_holds(reader, position))
        return lapped(reader);
    if (result != RB_OK || gap.offset != reader->offset)
        return RB_CORRUPT;
    reader->cursor += gap.span;
    reader->offset += gap.count;
    reader->lost += gap.count;
    return RB_GAP;
}

/* Read the record at the cursor; hidden records only if not `hide`.  RB_GAP: the cursor has passed a gap. */
static int read_next(rb_reader *reader, rb_view *out, bool hide)
{
    uint32_t length;
    if (was_evicted(reader))
        return RB_EVICTED;
    int result = next_length(reader, &reader->cursor, &length);
    if ((result == RB_OK || result == RB_GAP) && hide && is_hidden(reader, reader->cursor))
        return RB_EMPTY;
    if (result == RB_GAP)
        return pass_gap(reader, length);
    if (result != RB_OK)
        return result == RB_OVERRUN ? lapped(reader) : result;
    uint64_t to_lap_end = reader->capacity - (reader->cursor & reader->mask);
    out->position = reader->cursor;
    out->bytes = at(reader, reader->cursor);
    memcpy(&out->header, out->bytes, sizeof out->header);
    out->header.length = length;
    bool whole = length >= RB_RECORD_HEADER_BYTES &&
                 rb_record_parts(&out->header, out->bytes, to_lap_end, &out->parts) == RB_OK &&
                 out->header.offset == reader->offset &&
                 (!reader->verify ||
                  rb_record_verifies(&out->header, &out->parts, out->bytes, reader->epoch));
    if (!rb_reader_holds(reader, out->position))
        return lapped(reader);
    if (!whole)
        return RB_CORRUPT;
    reader->cursor += rb_span(length);
    reader->offset++;
    return RB_OK;
}

int rb_read(rb_reader *reader, rb_view *out)
{
    int result = read_next(reader, out, true);
    if (result != RB_GAP)
        return result;
    rb_reader_store_progress_lazily(reader, reader->blocks_writer ? reader->released : reader->cursor);
    return RB_OVERRUN;
}

/* ---- ranges ---- */

/* A range is contiguous in memory.  A record at the start of the ring therefore never continues one, even if
 * the record before it filled the ring exactly. */
static bool continues(const rb_reader *reader, const rb_range *range, const rb_view *view, bool alone)
{
    return !alone && !(view->header.flags & RB_FLAG_UNCHECKED) && (view->position & reader->mask) != 0 &&
           view->position == range->position + range->length;
}

#define AHEAD_BYTES 2048 /* prefetch distance: the data is in the cache of the writer's core, or in none */

/* True if the log must not take some records yet.  It then reads records one by one. */
static bool blocks_any(const rb_reader *reader)
{
    return reader->for_log && log_limit(reader) != RB_NO_POSITION;
}

/* End of the records of this lap that the reader may see. */
static uint64_t visible_end(const rb_reader *reader)
{
    uint64_t lap = (reader->cursor | reader->mask) + 1;
    if (reader->for_log || !atomic_load_explicit(&reader->header->visible_when_durable, memory_order_relaxed))
        return lap;
    /* pairs with the release in rb_durable_store() */
    uint64_t durable = atomic_load_explicit(&reader->header->durable, memory_order_acquire);
    return durable < lap ? durable : lap;
}

typedef struct step_copy {
    uint64_t position, offset, before_ns, plain_from;
} step_copy;

#define TAIL_TRIES 4

/* Read the end of the published records.  False if the writer changes it all the time. */
static bool tail_read(const rb_commit_index *commit_index, step_copy *out)
{
    for (int i = 0; i < TAIL_TRIES; i++) {
        /* pairs with the release in leave_tail() */
        uint64_t count = atomic_load_explicit(&commit_index->count, memory_order_acquire);
        const rb_tail *tail = &commit_index->tail[count & 1];
        *out = (step_copy){
            .position = atomic_load_explicit(&tail->position, memory_order_relaxed),
            .offset = atomic_load_explicit(&tail->offset, memory_order_relaxed),
            .before_ns = atomic_load_explicit(&tail->before_ns, memory_order_relaxed),
            .plain_from = atomic_load_explicit(&tail->plain_from, memory_order_relaxed),
        };
        atomic_thread_fence(memory_order_acquire); /* pairs with the fence in leave_tail() */
        if (atomic_load_explicit(&commit_index->count, memory_order_relaxed) == count)
            return true;
    }
    return false;
}

/* Find the first step of this lap after the next `limit` bytes, or the last one before, with only checked
 * records up to it.  False if no step helps.  *is_tail: no record is published after it. */
static bool step_ahead(const rb_reader *reader, uint64_t limit, uint64_t end, step_copy *out, bool *is_tail)
{
    if (reader->commit_index == NULL)
        return false;
    uint64_t wanted = reader->cursor + limit, last = (end - 1) / reader->chunk;
    bool has_tail = tail_read(reader->commit_index, out) && out->position > reader->cursor;
    *is_tail = has_tail && out->position < end && out->position <= wanted + 2 * reader->chunk &&
               out->plain_from <= reader->cursor;
    if (*is_tail)
        return true;
    if (has_tail && out->position / reader->chunk < last)
        last = out->position / reader->chunk;
    if (wanted / reader->chunk + 1 < last)
        last = wanted / reader->chunk + 1;
    bool has_step = false;
    for (uint64_t chunk = reader->cursor / reader->chunk + 1; chunk <= last; chunk++) {
        const rb_step *step = &reader->commit_index->step[chunk & (RB_INDEX_ENTRIES - 1)];
        /* pairs with the release in leave_step() */
        uint64_t position = atomic_load_explicit(&step->position, memory_order_acquire);
        if (position / reader->chunk != chunk) /* no record begins in the chunk, or not yet */
            continue;
        if (position >= end || position > wanted + limit || step->plain_from > reader->cursor)
            break;
        *out = (step_copy){position, step->offset, step->before_ns, step->plain_from};
        has_step = true;
        if (position >= wanted)
            break;
    }
    return has_step;
}

/* The checks of read_next().  A record without properties needs only its header. */
static inline bool is_whole(const rb_record *header, const uint8_t *bytes, uint64_t to_lap_end)
{
    rb_parts parts;
    if (header->flags & (RB_FLAGS_CRITICAL | RB_FLAG_PROPERTIES))
        return rb_record_parts(header, bytes, to_lap_end, &parts) == RB_OK;
    return header->length <= to_lap_end && rb_payload_position(header->key_length, 0) <= header->length;
}

/* Extend the range by up to about `limit` bytes of checked records of this lap; read_next() handles all
 * others.  The commit index covers most of them; the rest is read record by record.  Checks that hold for all
 * at once are made at the end.  Returns the number of bytes, or RB_OVERRUN.  *all: no record is published
 * after them. */
static int64_t extend(rb_reader *reader, rb_range *range, uint64_t limit, bool *all)
{
    *all = false;
    if (blocks_any(reader))
        return 0;
    uint64_t position = reader->cursor, offset = reader->offset, end = visible_end(reader);
    uint64_t time = range->last_timestamp_ns, stop = position + limit < end ? position + limit : end;
    step_copy step;
    if (step_ahead(reader, limit, end, &step, all)) {
        position = step.position;
        offset = step.offset;
        time = step.before_ns;
    }
    while (position < stop && !*all) {
        const uint8_t *bytes = at(reader, position);
        __builtin_prefetch(bytes + AHEAD_BYTES);
        rb_record header;
        /* pairs with the release in rb_commit() and pad_to_end() */
        uint32_t length = atomic_load_explicit(WORD(bytes), memory_order_acquire);
        memcpy(&header, bytes, sizeof header);
        header.length = length; /* 0: not committed; is_whole() then fails */
        if (length & RB_PADDING_BIT || header.offset != offset || header.flags & RB_FLAG_UNCHECKED ||
            !is_whole(&header, bytes, reader->capacity - (position & reader->mask)))
            break;
        position += rb_span(length);
        offset++;
        time = header.timestamp_ns;
    }
    if (!rb_reader_holds(reader, range->position))
        return lapped(reader);
    if (blocks_any(reader)) { /* again: it is stored before the blocked record is committed */
        *all = false;
        return 0;
    }
    uint64_t added = position - reader->cursor;
    range->length += added;
    range->count += offset - reader->offset;
    range->last_timestamp_ns = time;
    reader->cursor = position;
    reader->offset = offset;
    return (int64_t)added;
}

int rb_reader_ranges(rb_reader *reader, uint64_t limit_bytes, rb_range *out, int ranges_max)
{
    uint64_t total = 0;
    int count = 0;
    bool alone = true; /* the last range is one unchecked record */
    bool all = false;
    while (total < limit_bytes && !all) {
        rb_view view;
        uint64_t cursor = reader->cursor, offset = reader->offset, lost = reader->lost;
        int result = read_next(reader, &view, true);
        if (result == RB_GAP && count > 0) { /* the next call reports it */
            reader->cursor = cursor;
            reader->offset = offset;
            reader->lost = lost;
            break;
        }
        if (result == RB_EMPTY || (result != RB_OK && count > 0 && result != RB_OVERRUN))
            break;
        if (result != RB_OK) /* an overrun invalidates the earlier ranges, too */
            return result == RB_GAP ? RB_OVERRUN : result;
        if (count == 0 || !continues(reader, &out[count - 1], &view, alone)) {
            if (count == ranges_max) {
                reader->cursor = cursor;
                reader->offset = offset;
                break;
            }
            out[count++] = (rb_range){.position = view.position, .first_offset = view.header.offset,
                                      .first_timestamp_ns = view.header.timestamp_ns};
            alone = view.header.flags & RB_FLAG_UNCHECKED;
        }
        rb_range *range = &out[count - 1];
        range->length += rb_span(view.header.length);
        range->count++;
        range->last_timestamp_ns = view.header.timestamp_ns;
        total += rb_span(view.header.length);
        if (alone || reader->verify || (reader->cursor & reader->mask) == 0 || total >= limit_bytes)
            continue;
        int64_t added = extend(reader, range, limit_bytes - total, &all);
        if (added < 0)
            return (int)added;
        total += (uint64_t)added;
    }
    return count;
}
