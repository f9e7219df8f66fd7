/* SPDX-License-Identifier: Apache-2.0
 *
 * The one writer of a ring.  claim, fill, commit; then rb_end_publish() for one record or for many.
 *
 * A writer may be killed at any instruction.  What the next one finds is exact, because
 *   - a record is there when its length is, and that is the last store to it (commit);
 *   - the word where the next length will be is 0 before that (invariant 1 of layout.h);
 *   - the index entry of a chunk is written before the record is there: if that never happens, the next
 *     writer puts a record with the same offset at the same place, and the entry is true again.
 */
#include "ring.h"

#include <string.h>

#define WORD(pointer) ((_Atomic uint32_t *)(void *)(pointer))

static uint8_t *at(const rb_writer *writer, uint64_t position)
{
    return writer->data + (position & writer->mask);
}

/* ---- gates: how far readers let the writer go ---- */

/* How far the slot lets the writer go.  Its words are read once; a cursor outside the ring holds nobody back:
 * ahead of the tail there is nothing to keep, behind it is already gone. */
static uint64_t slot_limit(const rb_writer *writer, const rb_slot *slot)
{
    /* pairs with the release in rb_reader_open() */
    if (atomic_load_explicit(&slot->state, memory_order_acquire) != RB_SLOT_GATING)
        return UINT64_MAX;
    /* pairs with the release in rb_reader_tell(): its last reads of what it gave up come before our writes */
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

/* A slot that was evicted counts again when another reader gates in it: that one did nothing wrong. */
static void gates_refill(rb_writer *writer)
{
    for (int i = 0; i < RB_FOREIGN_SLOTS; i++)
        if (atomic_load_explicit(&writer->cursors->slot[i].state, memory_order_relaxed) != RB_SLOT_EVICTED)
            atomic_fetch_or_explicit(&writer->gates, (uint64_t)1 << i, memory_order_relaxed);
}

/* Whether a gating reader was placed, or another set of slots is to be heeded, since the last time. */
static bool gates_changed(rb_writer *writer)
{
    /* both pair with the release in place() of reader.c */
    uint64_t own_joined = atomic_load_explicit(&writer->header->own_joined, memory_order_acquire);
    uint64_t joined = atomic_load_explicit(&writer->cursors->joined, memory_order_acquire);
    if (joined != writer->joined && !writer->listed)
        gates_refill(writer);
    uint64_t gates = atomic_load_explicit(&writer->gates, memory_order_relaxed);
    bool same = own_joined == writer->own_joined && joined == writer->joined && gates == writer->heeded;
    writer->own_joined = own_joined;
    writer->joined = joined;
    writer->heeded = gates;
    return !same;
}

/* Cursors only rise but when a reader is placed, so what was permitted once stays so until that. */
static bool gates_permit(rb_writer *writer, uint64_t to)
{
    if (!gates_changed(writer) && to <= writer->permitted)
        return true;
    uint64_t own = slots_limit(writer, writer->header->own, ((uint64_t)1 << RB_OWN_SLOTS) - 1);
    uint64_t foreign = slots_limit(writer, writer->cursors->slot, writer->heeded);
    writer->permitted = own < foreign ? own : foreign;
    return to <= writer->permitted;
}

/* Says where the next record goes.  A fence follows before the next time (in reserve_try or
 * rb_end_publish), so that a reader never takes half of a pair for whole. */
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

/* Whether records were committed since the end was last stored. */
static bool end_lags(const rb_writer *writer)
{
    const rb_end *end = &writer->header->end;
    return atomic_load_explicit(&end->pair[writer->end_count & 1].position, memory_order_relaxed) !=
           writer->tail;
}

/* Announces that everything below `to` - capacity will be overwritten, makes sure that nobody who gates
 * still holds it, and takes it.  Two scans, because a reader may join between the first and the store: it
 * stores its cursor, fences, then looks at reserve; we store reserve, fence, then look at the cursors.  One
 * of us sees the other.  If we see the reader, nothing is taken; it must not look lapped, so what it reads
 * it holds against `granted`.  The end goes first, so that a batch longer than the ring never leaves it at
 * what was given up. */
static bool reserve_try(rb_writer *writer, uint64_t to)
{
    if (!gates_permit(writer, to))
        return false;
    end_store(writer);
    atomic_store_explicit(&writer->header->reserve, to, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in place() of reader.c */
    if (!gates_permit(writer, to)) {
        atomic_store_explicit(&writer->header->reserve, writer->reserve, memory_order_release);
        return false;
    }
    writer->reserve = to;
    atomic_store_explicit(&writer->header->granted, to, memory_order_relaxed);
    /* pairs with the fence in rb_reader_holds(): who reads a byte written after this, sees granted */
    atomic_thread_fence(memory_order_release);
    return true;
}

static bool reserve_advance(rb_writer *writer, uint64_t need)
{
    uint64_t whole_chunks = (need + writer->chunk - 1) & ~(writer->chunk - 1);
    return reserve_try(writer, whole_chunks) || (whole_chunks != need && reserve_try(writer, need));
}

void rb_writer_heed(rb_writer *writer, int only_listed)
{
    writer->listed = only_listed;
    atomic_store_explicit(&writer->gates, only_listed ? 0 : UINT64_MAX, memory_order_relaxed);
}

int rb_writer_admit(rb_writer *writer, int slot)
{
    if (slot < 0 || slot >= RB_FOREIGN_SLOTS)
        return RB_INVALID;
    atomic_fetch_or_explicit(&writer->gates, (uint64_t)1 << slot, memory_order_relaxed);
    return RB_OK;
}

int rb_writer_evict(rb_writer *writer, int slot)
{
    if (slot < 0 || slot >= RB_FOREIGN_SLOTS)
        return RB_INVALID;
    atomic_fetch_and_explicit(&writer->gates, ~((uint64_t)1 << slot), memory_order_relaxed);
    /* pairs with the acquire in gate_lost() of reader.c */
    atomic_store_explicit(&writer->cursors->slot[slot].state, RB_SLOT_EVICTED, memory_order_release);
    return RB_OK;
}

/* ---- claim, commit, abort ---- */

/* The position that must be reserved before a record of `span` can be written, with the word that ends the
 * chain after it; *pad is what has to be skipped at the end of the ring. */
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
    for (uint64_t gates = atomic_load_explicit(&writer->gates, memory_order_relaxed); gates != 0;
         gates &= gates - 1) {
        int slot = __builtin_ctzll(gates);
        if (slot_limit(writer, &writer->cursors->slot[slot]) < need) {
            rb_writer_evict(writer, slot);
            evicted++;
        }
    }
    return evicted;
}

int rb_room(rb_writer *writer, uint64_t length, uint32_t prefix)
{
    uint64_t pad, total = rb_payload_position(prefix, 0) + length;
    if (writer->claimed)
        return RB_PENDING;
    if (length > writer->largest || total > writer->largest)
        return RB_TOO_LARGE;
    uint64_t need = claim_need(writer, rb_span(total), &pad);
    if (need <= writer->reserve || reserve_advance(writer, need))
        return RB_OK;
    if (end_lags(writer)) /* in the middle of a batch: who is in the way may be asleep before it */
        rb_end_publish(writer);
    rb_bell *bell = atomic_load_explicit(&writer->bell, memory_order_acquire); /* rb_writer_bell() */
    if (bell != NULL)
        rb_bell_hurry(bell);
    return RB_FULL;
}

static void store_length(const rb_writer *writer, uint64_t position, uint32_t length, memory_order order)
{
    atomic_store_explicit(WORD(at(writer, position)), length, order);
}

/* A padding record is a commit of its own: the chain stays whole if the claim after it is never committed. */
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
    /* pairs with the release in rb_writer_trail() */
    rb_trail *trail = atomic_load_explicit(&writer->trail, memory_order_acquire);
    if (trail == NULL)
        return;
    rb_step *step = &trail->step[chunk & (RB_INDEX_ENTRIES - 1)];
    step->offset = writer->offset;
    step->before_ns = writer->newest_ns;
    step->plain_from = writer->plain_from;
    /* pairs with the acquire in step_ahead(): it and all records before it are there */
    atomic_store_explicit(&step->position, writer->tail, memory_order_release);
}

static void leave_tail(rb_writer *writer)
{
    /* pairs with the release in rb_writer_trail() */
    rb_trail *trail = atomic_load_explicit(&writer->trail, memory_order_acquire);
    if (trail == NULL)
        return;
    uint64_t count = atomic_load_explicit(&trail->count, memory_order_relaxed) + 1;
    rb_tail *tail = &trail->tail[count & 1];
    atomic_thread_fence(memory_order_release); /* pairs with the fence in tail_read(): the last count is there
                                                  before what it said holds no more */
    atomic_store_explicit(&tail->position, writer->tail, memory_order_relaxed);
    atomic_store_explicit(&tail->offset, writer->offset, memory_order_relaxed);
    atomic_store_explicit(&tail->before_ns, writer->newest_ns, memory_order_relaxed);
    atomic_store_explicit(&tail->plain_from, writer->plain_from, memory_order_relaxed);
    /* pairs with the acquire in tail_read(): all records before it are there */
    atomic_store_explicit(&trail->count, count, memory_order_release);
}

static void index_chunk(rb_writer *writer, uint64_t timestamp_ns)
{
    uint64_t chunk = writer->tail / writer->chunk, entries = writer->capacity / writer->chunk;
    if (chunk < writer->indexed)
        return;
    rb_index_entry *entry = &writer->header->index[chunk & (entries - 1)];
    atomic_store_explicit(&entry->position, RB_NO_POSITION, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* the old position is gone before its fields change */
    atomic_store_explicit(&entry->offset, writer->offset, memory_order_relaxed);
    atomic_store_explicit(&entry->timestamp_ns, timestamp_ns, memory_order_relaxed);
    /* pairs with the acquire in index_read() */
    atomic_store_explicit(&entry->position, writer->tail, memory_order_release);
    leave_step(writer, chunk);
    writer->indexed = chunk + 1;
}

/* Header (without length), key and properties, and zeros wherever no byte of those or of the payload will
 * be: what leaves the process holds no leftovers.  The length word stays 0 throughout.
 *
 * The last three header fields go in one store, because the checksum reads them back as one word at once: a
 * load that several stores must be joined for waits until all are done. */
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
    uint64_t pad;
    uint32_t prefix = key->length + key->properties_length;
    int result = rb_room(writer, length, prefix);
    if (result != RB_OK)
        return result;
    uint64_t span = rb_span(rb_payload_position(prefix, 0) + length);
    claim_need(writer, span, &pad);
    if (pad)
        pad_to_end(writer, pad);
    writer->claimed = write_prefix(writer, key, span, flags, timestamp_ns);
    writer->claim_at = writer->tail;
    writer->claim_room = length;
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
    if (actual != writer->claim_room)
        memset(bytes + length, 0, span - length); /* the claim put its zeros further on */
    uint32_t covered = checked ? length : writer->claimed;
    record->crc = rb_crc32c(writer->crc_seed, bytes + offsetof(rb_record, offset),
                            covered - offsetof(rb_record, offset));
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

/* Several threads may: the bits go before `wake` changes, and who sets one looks at `wake` before that. */
void rb_sleepers_wake(rb_header *header, rb_cursors *cursors)
{
    if (atomic_load_explicit(&header->own_sleepers, memory_order_relaxed) == 0 &&
        atomic_load_explicit(&cursors->sleepers, memory_order_relaxed) == 0)
        return;
    /* Taken back here, so that the bit of a reader that died asleep costs one system call, not one a
     * record. */
    atomic_store_explicit(&header->own_sleepers, 0, memory_order_relaxed);
    atomic_store_explicit(&cursors->sleepers, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&header->wake, 1, memory_order_seq_cst);
    rb_futex_wake(&header->wake);
}

void rb_wake(rb_writer *writer)
{
    rb_sleepers_wake(writer->header, writer->cursors);
}

void rb_end_publish(rb_writer *writer)
{
    end_store(writer);
    leave_tail(writer);
    /* pairs with the fence in rb_reader_wait(): a reader that has said it sleeps, and sees no record, is
     * seen */
    atomic_thread_fence(memory_order_seq_cst);
    rb_wake(writer);
    rb_bell *bell = atomic_load_explicit(&writer->bell, memory_order_acquire); /* rb_writer_bell() */
    if (bell != NULL)
        rb_bell_ring(bell, writer->bell_index);
}

int rb_append(rb_writer *writer, const rb_key *key, const void *payload, uint64_t length, uint16_t flags,
              uint64_t timestamp_ns)
{
    uint8_t *room;
    int result = rb_claim(writer, key, length, flags, timestamp_ns, &room);
    if (result != RB_OK)
        return result;
    memcpy(room, payload, length);
    rb_commit(writer, length, true);
    return RB_OK;
}

/* ---- taking over ---- */

/* Steps over one committed record or padding at the tail.  False: the chain ends here. */
static bool recover_step(rb_writer *writer)
{
    const uint8_t *bytes = at(writer, writer->tail);
    uint64_t room = writer->capacity - (writer->tail & writer->mask);
    rb_record header;
    rb_parts parts;
    memcpy(&header, bytes, sizeof header);
    if (header.length == 0)
        return false;
    if (header.length & RB_PADDING_BIT) {
        uint64_t pad = header.length & ~RB_PADDING_BIT; /* a gap marker is of an older lap */
        writer->tail += pad == room ? pad : 0;
        return pad == room;
    }
    if (header.length < RB_RECORD_HEADER_BYTES || header.length > writer->largest ||
        header.offset != writer->offset || rb_record_parts(&header, bytes, room, &parts) != RB_OK ||
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
    writer->indexed = position != RB_NO_POSITION && position / writer->chunk == chunk ? chunk + 1 : chunk;
}

int rb_writer_open(rb_writer *writer, void *memory, uint64_t bytes, void *cursors)
{
    rb_header *header = memory;
    memset(writer, 0, sizeof *writer);
    if (bytes < RB_HEADER_BYTES)
        return RB_CORRUPT;
    uint64_t capacity = *(const volatile uint64_t *)&header->geometry.capacity_bytes; /* once */
    if (!rb_capacity_fits(capacity) || bytes - RB_HEADER_BYTES < capacity)
        return RB_CORRUPT;
    writer->header = header;
    writer->data = (uint8_t *)memory + RB_HEADER_BYTES;
    writer->cursors = cursors;
    writer->capacity = capacity;
    writer->mask = capacity - 1;
    writer->chunk = rb_chunk_bytes(capacity);
    writer->largest = writer->capacity / 4;
    writer->epoch = writer->crc_seed = header->geometry.epoch;
    atomic_store_explicit(&header->durable_waiters, 0, memory_order_relaxed); /* of a process that died */
    atomic_store_explicit(&header->held, 0, memory_order_relaxed);
    atomic_store_explicit(&writer->gates, UINT64_MAX, memory_order_relaxed);
    writer->end_count = atomic_load_explicit(&header->end.count, memory_order_relaxed);
    rb_end_read(header, &writer->tail, &writer->offset);
    writer->reserve = atomic_load_explicit(&header->granted, memory_order_relaxed);
    /* announced, never taken */
    atomic_store_explicit(&header->reserve, writer->reserve, memory_order_release);
    if (writer->tail > writer->reserve || writer->reserve > writer->tail + writer->capacity)
        return RB_CORRUPT;
    while (writer->tail + RB_RECORD_ALIGN <= writer->reserve && recover_step(writer))
        ;
    if (writer->reserve > 0)
        store_length(writer, writer->tail, 0, memory_order_relaxed);
    recover_index(writer);
    writer->plain_from = writer->tail; /* nobody has told what is before */
    rb_end_publish(writer);
    return RB_OK;
}
