/* SPDX-License-Identifier: Apache-2.0
 *
 * The only writer of a ring.  Order of calls: claim, fill, commit; then rb_announce_end() for one or many
 * records.
 *
 * A writer may be killed at any instruction.  The next writer still finds an exact state:
 *   - The length of a record is the last store to it (commit).  With it, the record is complete.
 *   - The word of the next length is set to 0 before that (invariant 1 of layout.h).
 *   - The index entry of a chunk is written before its record is committed.  If the commit never happens, the
 *     next writer puts a record with the same offset at the same place, and the entry is correct again.
 */
#include "ring/ring.h"

#include <string.h>

#define WORD(pointer) ((_Atomic uint32_t *)(void *)(pointer))

static uint8_t *at(const rb_writer *writer, uint64_t position)
{
    return writer->data + (position & writer->mask);
}

/* ---- limits that blocking readers set for the writer ---- */

/* Position up to which the slot permits writing.  Its words are read once.  A cursor outside the ring blocks
 * nothing: no record is ahead of the tail, and records behind the ring are already overwritten. */
static uint64_t slot_limit(const rb_writer *writer, const rb_slot *slot)
{
    /* pairs with the release in rb_reader_open() */
    if (atomic_load_explicit(&slot->state, memory_order_acquire) != RB_SLOT_BLOCKING)
        return UINT64_MAX;
    /* pairs with the release in rb_reader_store_progress(): the reader's last reads of released bytes precede
     * our writes */
    uint64_t cursor = atomic_load_explicit(&slot->cursor, memory_order_acquire);
    if (cursor > writer->tail || cursor + writer->capacity < writer->reserve)
        return UINT64_MAX;
    return cursor + writer->capacity;
}

static uint64_t slots_limit(const rb_writer *writer, const rb_slot *slots, uint64_t which)
{
    uint64_t least = UINT64_MAX;
    for (; which != 0; which &= which - 1) {
        uint64_t limit = slot_limit(writer, &slots[__builtin_ctzll(which)]);
        least = limit < least ? limit : least;
    }
    return least;
}

/* Let an evicted slot block again when another blocking reader takes it: the new reader has not stalled. */
static void blocking_slots_refill(rb_writer *writer)
{
    for (int i = 0; i < RB_REMOTE_SLOTS; i++)
        if (atomic_load_explicit(&writer->cursors->slot[i].state, memory_order_relaxed) != RB_SLOT_EVICTED)
            atomic_fetch_or_explicit(&writer->blocking_slots, (uint64_t)1 << i, memory_order_relaxed);
}

/* True if a blocking reader was placed, or the set of blocking slots was changed, since the last call. */
static bool blocking_slots_changed(rb_writer *writer)
{
    /* both pair with the release in place() of reader.c */
    uint64_t local_joined = atomic_load_explicit(&writer->local_cursors->joined, memory_order_acquire);
    uint64_t joined = atomic_load_explicit(&writer->cursors->joined, memory_order_acquire);
    if (joined != writer->joined && !writer->only_admitted)
        blocking_slots_refill(writer);
    uint64_t blocking = atomic_load_explicit(&writer->blocking_slots, memory_order_relaxed);
    bool same = local_joined == writer->local_joined && joined == writer->joined &&
                blocking == writer->blocking_seen;
    writer->local_joined = local_joined;
    writer->joined = joined;
    writer->blocking_seen = blocking;
    return !same;
}

/* Cursors only rise unless a reader is placed.  A permission therefore stays valid until the next
 * placement. */
static bool readers_permit(rb_writer *writer, uint64_t to)
{
    if (!blocking_slots_changed(writer) && to <= writer->permitted)
        return true;
    uint64_t local = slots_limit(writer, writer->local_cursors->slot, ((uint64_t)1 << RB_LOCAL_SLOTS) - 1);
    uint64_t remote = slots_limit(writer, writer->cursors->slot, writer->blocking_seen);
    writer->permitted = local < remote ? local : remote;
    return to <= writer->permitted;
}

/* Store the position of the next record.  A fence follows before the next call (in reserve_try or
 * rb_announce_end), so that a reader never combines halves of two pairs. */
static void end_store(rb_writer *writer)
{
    rb_end *end = &writer->header->end;
    uint64_t count = writer->end_count + 1;
    atomic_store_explicit(&end->pair[count & 1].position, writer->tail, memory_order_relaxed);
    atomic_store_explicit(&end->pair[count & 1].offset, writer->offset, memory_order_relaxed);
    /* pairs with the acquire in rb_end_read() */
    atomic_store_explicit(&end->count, count, memory_order_release);
    writer->end_count = count;
}

/* True if records were committed since the end was stored. */
static bool end_lags(const rb_writer *writer)
{
    const rb_end *end = &writer->header->end;
    return atomic_load_explicit(&end->pair[writer->end_count & 1].position, memory_order_relaxed) !=
           writer->tail;
}

/* Announce that everything below `to` - capacity will be overwritten, check that no blocking reader holds it,
 * and take it.  Two scans are needed, because a reader may join between the first scan and the store.  The
 * reader stores its cursor, fences, then reads reserve; the writer stores reserve, fences, then reads the
 * cursors.  One of them sees the other.  If the writer sees the reader, it takes nothing.  The reader must
 * not look lapped then, so it checks its reads against `granted`.  The end is stored first, so that it never
 * points below the watermark during a batch longer than the ring. */
static bool reserve_try(rb_writer *writer, uint64_t to)
{
    if (!readers_permit(writer, to))
        return false;
    end_store(writer);
    atomic_store_explicit(&writer->header->reserve, to, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in place() of reader.c */
    if (!readers_permit(writer, to)) {
        atomic_store_explicit(&writer->header->reserve, writer->reserve, memory_order_release);
        return false;
    }
    writer->reserve = to;
    atomic_store_explicit(&writer->header->granted, to, memory_order_relaxed);
    /* pairs with the fence in rb_reader_holds(): a reader of a byte written after this sees granted */
    atomic_thread_fence(memory_order_release);
    return true;
}

static bool reserve_advance(rb_writer *writer, uint64_t need)
{
    uint64_t whole_chunks = (need + writer->chunk - 1) & ~(writer->chunk - 1);
    return reserve_try(writer, whole_chunks) || (whole_chunks != need && reserve_try(writer, need));
}

void rb_writer_select_blocking(rb_writer *writer, int only_admitted)
{
    writer->only_admitted = only_admitted;
    atomic_store_explicit(&writer->blocking_slots, only_admitted ? 0 : UINT64_MAX, memory_order_relaxed);
}

int rb_writer_admit(rb_writer *writer, int slot)
{
    if (slot < 0 || slot >= RB_REMOTE_SLOTS)
        return RB_INVALID;
    atomic_fetch_or_explicit(&writer->blocking_slots, (uint64_t)1 << slot, memory_order_relaxed);
    return RB_OK;
}

int rb_writer_evict(rb_writer *writer, int slot)
{
    if (slot < 0 || slot >= RB_REMOTE_SLOTS)
        return RB_INVALID;
    atomic_fetch_and_explicit(&writer->blocking_slots, ~((uint64_t)1 << slot), memory_order_relaxed);
    /* pairs with the acquire in was_evicted() of reader.c */
    atomic_store_explicit(&writer->cursors->slot[slot].state, RB_SLOT_EVICTED, memory_order_release);
    return RB_OK;
}

/* ---- claim, commit, abort ---- */

/* Position that must be reserved before a record of `span` can be written, including the zero length word
 * after it.  *pad is the number of bytes to skip at the end of the ring. */
static uint64_t claim_need(const rb_writer *writer, uint64_t span, uint64_t *pad)
{
    uint64_t to_end = writer->capacity - (writer->tail & writer->mask);
    *pad = span > to_end ? to_end : 0;
    return writer->tail + *pad + span + RB_RECORD_ALIGN;
}

int rb_evict_stalled(rb_writer *writer, uint64_t length, uint32_t prefix)
{
    uint64_t pad, need = claim_need(writer, rb_span(rb_payload_position(prefix, 0) + length), &pad);
    int evicted = 0;
    for (uint64_t slots = atomic_load_explicit(&writer->blocking_slots, memory_order_relaxed); slots != 0;
         slots &= slots - 1) {
        int slot = __builtin_ctzll(slots);
        if (slot_limit(writer, &writer->cursors->slot[slot]) < need) {
            rb_writer_evict(writer, slot);
            evicted++;
        }
    }
    return evicted;
}

/* Take memory up to `need`.  RB_OK or RB_FULL. */
static int space_take(rb_writer *writer, uint64_t need)
{
    if (reserve_advance(writer, need))
        return RB_OK;
    if (end_lags(writer)) /* within a batch: the blocking reader may sleep before it */
        rb_announce_end(writer);
    rb_wakeup *wakeup = atomic_load_explicit(&writer->wakeup, memory_order_acquire); /* rb_writer_wakeup() */
    if (wakeup != NULL)
        rb_wakeup_need_space(wakeup);
    return RB_FULL;
}

/* rb_can_claim() for a record of *span bytes after *pad bytes of padding. */
static inline int claim_check(rb_writer *writer, uint64_t length, uint32_t prefix, uint64_t *span,
                              uint64_t *pad)
{
    uint64_t total = rb_payload_position(prefix, 0) + length;
    if (writer->claimed)
        return RB_PENDING;
    if (length > writer->largest || total > writer->largest)
        return RB_TOO_LARGE;
    *span = rb_span(total);
    uint64_t need = claim_need(writer, *span, pad);
    return need <= writer->reserve ? RB_OK : space_take(writer, need);
}

int rb_can_claim(rb_writer *writer, uint64_t length, uint32_t prefix)
{
    uint64_t span, pad;
    return claim_check(writer, length, prefix, &span, &pad);
}

static void store_length(const rb_writer *writer, uint64_t position, uint32_t length, memory_order order)
{
    atomic_store_explicit(WORD(at(writer, position)), length, order);
}

/* A padding record is committed on its own: the chain stays intact if the next claim is never committed. */
static void pad_to_end(rb_writer *writer, uint64_t pad)
{
    uint64_t next = writer->tail + pad;
    store_length(writer, next, 0, memory_order_relaxed);
    /* pairs with the acquire in rb_read() */
    store_length(writer, writer->tail, RB_PADDING_BIT | (uint32_t)pad, memory_order_release);
    writer->tail = next;
}

static void leave_step(rb_writer *writer, uint64_t chunk)
{
    /* pairs with the release in rb_writer_commit_index() */
    rb_commit_index *commit_index = atomic_load_explicit(&writer->commit_index, memory_order_acquire);
    if (commit_index == NULL)
        return;
    rb_step *step = &commit_index->step[chunk & (RB_INDEX_ENTRIES - 1)];
    step->offset = writer->offset;
    step->before_ns = writer->newest_ns;
    step->plain_from = writer->plain_from;
    /* pairs with the acquire in step_ahead(): the step's fields and all earlier records are visible */
    atomic_store_explicit(&step->position, writer->tail, memory_order_release);
}

static void leave_tail(rb_writer *writer)
{
    /* pairs with the release in rb_writer_commit_index() */
    rb_commit_index *commit_index = atomic_load_explicit(&writer->commit_index, memory_order_acquire);
    if (commit_index == NULL)
        return;
    uint64_t count = atomic_load_explicit(&commit_index->count, memory_order_relaxed) + 1;
    rb_tail *tail = &commit_index->tail[count & 1];
    /* pairs with the fence in tail_read(): the last count is visible before its pair is overwritten */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&tail->position, writer->tail, memory_order_relaxed);
    atomic_store_explicit(&tail->offset, writer->offset, memory_order_relaxed);
    atomic_store_explicit(&tail->before_ns, writer->newest_ns, memory_order_relaxed);
    atomic_store_explicit(&tail->plain_from, writer->plain_from, memory_order_relaxed);
    /* pairs with the acquire in tail_read(): all earlier records are visible */
    atomic_store_explicit(&commit_index->count, count, memory_order_release);
}

static void index_chunk(rb_writer *writer, uint64_t timestamp_ns)
{
    if (writer->tail < writer->indexed)
        return;
    uint64_t chunk = writer->tail / writer->chunk, entries = writer->capacity / writer->chunk;
    rb_index_entry *entry = &writer->header->index[chunk & (entries - 1)];
    atomic_store_explicit(&entry->position, RB_NO_POSITION, memory_order_relaxed);
    /* pairs with the fence in index_read(): the old position is cleared before its fields change */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&entry->offset, writer->offset, memory_order_relaxed);
    atomic_store_explicit(&entry->timestamp_ns, timestamp_ns, memory_order_relaxed);
    /* pairs with the acquire in index_read() */
    atomic_store_explicit(&entry->position, writer->tail, memory_order_release);
    leave_step(writer, chunk);
    writer->indexed = (chunk + 1) * writer->chunk;
}

/* Write the header (without length), key and properties, and zeros in all bytes that neither they nor the
 * payload will fill: no leftover memory may leave the process.  The length word stays 0 throughout.
 *
 * The last three header fields are stored together, because the checksum reads them as one word.  A load that
 * combines several stores must wait until all of them are done. */
static uint32_t write_prefix(rb_writer *writer, const rb_key *key, uint64_t span, uint16_t flags,
                             uint64_t timestamp_ns)
{
    uint8_t *bytes = at(writer, writer->tail);
    rb_record *record = (rb_record *)bytes;
    uint32_t prefix = key->length + key->properties_length, payload = rb_payload_position(prefix, 0);
    if (span > RB_RECORD_ALIGN)
        memset(bytes + span - RB_RECORD_ALIGN, 0, RB_RECORD_ALIGN);
    flags &= (uint16_t)~(RB_FLAG_PROPERTIES | RB_FLAG_UNCHECKED);
    if (key->properties_length > 0)
        flags |= RB_FLAG_PROPERTIES;
    uint64_t last = key->hash | (uint64_t)key->length << 32 | (uint64_t)flags << 48;
    record->offset = writer->offset;
    record->timestamp_ns = timestamp_ns;
    memcpy(&record->key_hash, &last, sizeof last);
    if (prefix == 0)
        return payload;
    memset(bytes + payload - 8, 0, 8);
    memcpy(bytes + RB_RECORD_HEADER_BYTES, key->bytes, key->length);
    if (key->properties_length > 0)
        memcpy(bytes + RB_RECORD_HEADER_BYTES + key->length, key->properties, key->properties_length);
    return payload;
}

int rb_claim(rb_writer *writer, const rb_key *key, uint64_t length, uint16_t flags, uint64_t timestamp_ns,
             uint8_t **payload)
{
    uint64_t span, pad;
    int result = claim_check(writer, length, key->length + key->properties_length, &span, &pad);
    if (result != RB_OK)
        return result;
    if (pad)
        pad_to_end(writer, pad);
    writer->claimed = write_prefix(writer, key, span, flags, timestamp_ns);
    writer->claim_at = writer->tail;
    writer->claim_bytes = length;
    writer->claim_ns = timestamp_ns;
    index_chunk(writer, timestamp_ns);
    *payload = at(writer, writer->tail) + writer->claimed;
    return RB_OK;
}

void rb_commit(rb_writer *writer, uint64_t actual, bool checked)
{
    uint8_t *bytes = at(writer, writer->tail);
    rb_record *record = (rb_record *)bytes;
    uint32_t length = writer->claimed + (uint32_t)actual;
    uint64_t span = rb_span(length);
    if (!checked)
        record->flags |= RB_FLAG_UNCHECKED;
    if (actual != writer->claim_bytes)
        memset(bytes + length, 0, span - length); /* the claim wrote its zeros after a longer payload */
    uint32_t covered = checked ? length : writer->claimed;
    record->crc = rb_record_crc(record, bytes, covered, writer->crc_seed);
    store_length(writer, writer->tail + span, 0, memory_order_relaxed);
    /* the commit; pairs with the acquire in rb_read() */
    store_length(writer, writer->tail, length, memory_order_release);
    writer->tail += span;
    writer->offset++;
    writer->claimed = 0;
    writer->newest_ns = writer->claim_ns;
    if (!checked)
        writer->plain_from = writer->tail;
}

void rb_abort(rb_writer *writer)
{
    writer->claimed = 0;
}

void rb_announce_end(rb_writer *writer)
{
    end_store(writer);
    leave_tail(writer);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in rb_prepare() */
    rb_readers_notify(writer->header, writer->local_cursors, writer->cursors);
    rb_wakeup *wakeup = atomic_load_explicit(&writer->wakeup, memory_order_acquire); /* rb_writer_wakeup() */
    if (wakeup != NULL)
        rb_wakeup_signal(wakeup, writer->wakeup_index);
}

int rb_append(rb_writer *writer, const rb_key *key, const void *payload, uint64_t length, uint16_t flags,
              uint64_t timestamp_ns)
{
    uint8_t *to;
    int result = rb_claim(writer, key, length, flags, timestamp_ns, &to);
    if (result != RB_OK)
        return result;
    memcpy(to, payload, length);
    rb_commit(writer, length, true);
    return RB_OK;
}

/* ---- taking over ---- */

/* Step over one committed record or padding at the tail.  False at the end of the chain. */
static bool recover_step(rb_writer *writer)
{
    const uint8_t *bytes = at(writer, writer->tail);
    uint64_t to_lap_end = writer->capacity - (writer->tail & writer->mask);
    rb_record header;
    rb_parts parts;
    memcpy(&header, bytes, sizeof header);
    if (header.length == 0)
        return false;
    if (header.length & RB_PADDING_BIT) {
        uint64_t pad = header.length & ~RB_PADDING_BIT; /* a gap marker belongs to an older lap */
        writer->tail += pad == to_lap_end ? pad : 0;
        return pad == to_lap_end;
    }
    if (header.length < RB_RECORD_HEADER_BYTES || header.length > writer->largest ||
        header.offset != writer->offset || rb_record_parts(&header, bytes, to_lap_end, &parts) != RB_OK ||
        !rb_record_verifies(&header, &parts, bytes, writer->epoch))
        return false;
    writer->tail += rb_span(header.length);
    writer->offset++;
    return true;
}

static void recover_index(rb_writer *writer)
{
    uint64_t chunk = writer->tail / writer->chunk, entries = writer->capacity / writer->chunk;
    const rb_index_entry *entry = &writer->header->index[chunk & (entries - 1)];
    uint64_t position = atomic_load_explicit(&entry->position, memory_order_relaxed);
    bool has_entry = position != RB_NO_POSITION && position / writer->chunk == chunk;
    writer->indexed = (chunk + has_entry) * writer->chunk;
}

int rb_writer_open(rb_writer *writer, void *memory, uint64_t bytes, void *cursors, void *local_cursors)
{
    rb_header *header = memory;
    memset(writer, 0, sizeof *writer);
    if (bytes < RB_HEADER_BYTES)
        return RB_CORRUPT;
    uint64_t capacity = *(const volatile uint64_t *)&header->geometry.capacity_bytes; /* read once */
    if (!rb_capacity_fits(capacity) || bytes - RB_HEADER_BYTES < capacity)
        return RB_CORRUPT;
    writer->header = header;
    writer->data = (uint8_t *)memory + RB_HEADER_BYTES;
    writer->cursors = cursors;
    writer->local_cursors = local_cursors;
    writer->capacity = capacity;
    writer->mask = capacity - 1;
    writer->chunk = rb_chunk_bytes(capacity);
    writer->largest = writer->capacity / 4;
    writer->epoch = writer->crc_seed = header->geometry.epoch;
    atomic_store_explicit(&header->durable_sleepers, 0, memory_order_relaxed); /* from a dead process */
    atomic_store_explicit(&header->log_blocked_from, 0, memory_order_relaxed);
    atomic_store_explicit(&writer->blocking_slots, UINT64_MAX, memory_order_relaxed);
    writer->end_count = atomic_load_explicit(&header->end.count, memory_order_relaxed);
    rb_end_read(header, &writer->tail, &writer->offset);
    writer->reserve = atomic_load_explicit(&header->granted, memory_order_relaxed);
    /* announced by the last writer, but never taken */
    atomic_store_explicit(&header->reserve, writer->reserve, memory_order_release);
    if (writer->tail > writer->reserve || writer->reserve > writer->tail + writer->capacity)
        return RB_CORRUPT;
    while (writer->tail + RB_RECORD_ALIGN <= writer->reserve && recover_step(writer))
        ;
    if (writer->reserve > 0)
        store_length(writer, writer->tail, 0, memory_order_relaxed);
    recover_index(writer);
    writer->plain_from = writer->tail; /* unknown for earlier records */
    rb_announce_end(writer);
    return RB_OK;
}
