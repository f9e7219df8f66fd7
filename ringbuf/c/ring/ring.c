/* SPDX-License-Identifier: Apache-2.0
 *
 * Header of a ring: creation, check, and the values that both sides read.  No system calls and no allocation:
 * all functions work on the caller's memory.
 */
#include "ring/ring.h"

#include <string.h>

static uint32_t geometry_crc(const rb_geometry *geometry)
{
    const uint64_t magic = RB_MAGIC;
    const uint8_t *bytes = (const uint8_t *)geometry;
    uint32_t crc = rb_crc32c(0, &magic, sizeof magic);
    return rb_crc32c(crc, bytes + sizeof magic, offsetof(rb_geometry, crc) - sizeof magic);
}

uint64_t rb_chunk_bytes(uint64_t capacity)
{
    uint64_t chunk = capacity / RB_INDEX_ENTRIES;
    return chunk < RB_CHUNK_MIN_BYTES ? RB_CHUNK_MIN_BYTES : chunk;
}

bool rb_capacity_fits(uint64_t capacity)
{
    return capacity >= RB_CAPACITY_MIN_BYTES && capacity <= (uint64_t)1 << 32 &&
           (capacity & (capacity - 1)) == 0;
}

uint32_t rb_abi_word(void)
{
    return RB_ABI_WORD;
}

int rb_format(void *memory, uint64_t capacity_bytes, uint32_t epoch, uint64_t first_offset, const char *name,
              uint64_t created_ns, uint32_t identity)
{
    if (!rb_capacity_fits(capacity_bytes))
        return RB_INVALID;
    rb_header *header = memory;
    rb_geometry *geometry = &header->geometry;
    geometry->format_version = RB_FORMAT_VERSION;
    geometry->abi_word = RB_ABI_WORD;
    geometry->header_bytes = RB_HEADER_BYTES;
    geometry->epoch = epoch;
    geometry->capacity_bytes = capacity_bytes;
    geometry->chunk_bytes = rb_chunk_bytes(capacity_bytes);
    geometry->created_ns = created_ns;
    geometry->first_offset = first_offset;
    geometry->identity = identity;
    strncpy(geometry->name, name, RB_NAME_MAX_BYTES);
    geometry->name[RB_NAME_MAX_BYTES] = '\0';
    geometry->crc = geometry_crc(geometry);
    atomic_store_explicit(&header->end.pair[0].offset, first_offset, memory_order_relaxed);
    for (int i = 0; i < RB_INDEX_ENTRIES; i++)
        atomic_store_explicit(&header->index[i].position, RB_NO_POSITION, memory_order_relaxed);
    /* pairs with the acquire in rb_inspect(): a reader that sees the magic sees the other fields */
    atomic_store_explicit(&geometry->magic, RB_MAGIC, memory_order_release);
    return RB_OK;
}

static bool geometry_holds(const rb_geometry *geometry)
{
    return atomic_load_explicit(&geometry->magic, memory_order_relaxed) == RB_MAGIC &&
           geometry->crc == geometry_crc(geometry);
}

void rb_geometry_copy(void *memory)
{
    rb_header *header = memory;
    memcpy(&header->copy, &header->geometry, sizeof header->copy);
}

int rb_geometry_mend(void *memory)
{
    rb_header *header = memory;
    if (geometry_holds(&header->geometry) || !geometry_holds(&header->copy))
        return 0;
    memcpy((uint8_t *)&header->geometry + sizeof header->geometry.magic,
           (const uint8_t *)&header->copy + sizeof header->copy.magic,
           sizeof header->copy - sizeof header->copy.magic);
    /* pairs with the acquire in rb_inspect() */
    atomic_store_explicit(&header->geometry.magic, RB_MAGIC, memory_order_release);
    return 1;
}

#define VERSION_BEFORE 1u /* version without an identity */

int rb_upgrade(void *memory, uint32_t identity)
{
    rb_header *header = memory;
    rb_geometry geometry;
    if (!geometry_holds(&header->geometry) || header->geometry.format_version != VERSION_BEFORE)
        return 0;
    memcpy(&geometry, &header->geometry, sizeof geometry);
    geometry.format_version = RB_FORMAT_VERSION;
    geometry.identity = identity;
    geometry.crc = geometry_crc(&geometry);
    memcpy(&header->copy, &geometry, sizeof geometry); /* first: if killed now, one of the two stays valid */
    atomic_thread_fence(memory_order_seq_cst);
    memcpy((uint8_t *)&header->geometry + sizeof geometry.magic,
           (const uint8_t *)&geometry + sizeof geometry.magic, sizeof geometry - sizeof geometry.magic);
    return 1;
}

int rb_format_cursors(void *memory, const void *ring)
{
    rb_cursors *cursors = memory;
    const rb_geometry *geometry = &((const rb_header *)ring)->geometry;
    cursors->format_version = RB_FORMAT_VERSION;
    cursors->abi_word = RB_ABI_WORD;
    cursors->created_ns = geometry->created_ns;
    cursors->identity = geometry->identity;
    /* pairs with the acquire in rb_inspect_cursors() */
    atomic_store_explicit(&cursors->magic, RB_CURSORS_MAGIC, memory_order_release);
    return RB_OK;
}

int rb_inspect(const void *memory, uint64_t file_bytes, rb_ring_info *info)
{
    const rb_geometry *shared = memory; /* an rb_header need not be aligned here: it may be Python's bytes */
    memset(info, 0, sizeof *info);
    if (file_bytes < RB_HEADER_BYTES ||
        /* pairs with the release in rb_format() */
        atomic_load_explicit(&shared->magic, memory_order_acquire) != RB_MAGIC)
        return RB_WRONG_FORMAT;
    rb_geometry geometry;
    memcpy(&geometry, shared, sizeof geometry);
    info->format_version = geometry.format_version;
    info->abi_word = geometry.abi_word;
    if (geometry.format_version != RB_FORMAT_VERSION || geometry.abi_word != RB_ABI_WORD)
        return RB_WRONG_FORMAT;
    if (geometry.crc != geometry_crc(&geometry) || geometry.header_bytes != RB_HEADER_BYTES ||
        !rb_capacity_fits(geometry.capacity_bytes) ||
        geometry.chunk_bytes != rb_chunk_bytes(geometry.capacity_bytes))
        return RB_CORRUPT;
    info->capacity_bytes = geometry.capacity_bytes;
    info->chunk_bytes = geometry.chunk_bytes;
    info->created_ns = geometry.created_ns;
    info->first_offset = geometry.first_offset;
    info->epoch = geometry.epoch;
    memcpy(info->name, geometry.name, sizeof info->name);
    info->name[sizeof info->name - 1] = '\0';
    return file_bytes - RB_HEADER_BYTES != geometry.capacity_bytes ? RB_CORRUPT : RB_OK;
}

int rb_inspect_cursors(const void *memory, uint64_t file_bytes, const void *ring)
{
    const rb_cursors *cursors = memory;
    const rb_geometry *geometry = &((const rb_header *)ring)->geometry;
    if (file_bytes < RB_CURSORS_BYTES ||
        /* pairs with the release in rb_format_cursors() */
        atomic_load_explicit(&cursors->magic, memory_order_acquire) != RB_CURSORS_MAGIC)
        return RB_WRONG_FORMAT;
    if (cursors->format_version != RB_FORMAT_VERSION || cursors->abi_word != RB_ABI_WORD)
        return RB_WRONG_FORMAT;
    bool same = cursors->created_ns == geometry->created_ns && cursors->identity == geometry->identity;
    return same ? RB_OK : RB_CORRUPT;
}

/* Bounded, because a hostile writer in another process may change the count forever.  The reader then gets a
 * pair of two moments, and its next read reports the mismatch. */
#define END_TRIES 1000
/* No ring gets so far.  Sums of such numbers have at most 64 bits, as reports require. */
#define IMPOSSIBLE_BITS 56

void rb_end_read(const rb_header *header, uint64_t *position, uint64_t *offset)
{
    for (int tries = 0; tries < END_TRIES; tries++) {
        /* pairs with the release in end_store() */
        uint64_t count = atomic_load_explicit(&header->end.count, memory_order_acquire);
        *position = atomic_load_explicit(&header->end.pair[count & 1].position, memory_order_relaxed);
        *offset = atomic_load_explicit(&header->end.pair[count & 1].offset, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire); /* pairs with the fence that follows end_store() */
        if (atomic_load_explicit(&header->end.count, memory_order_relaxed) == count)
            break;
    }
    *position &= ~(uint64_t)(RB_RECORD_ALIGN - 1);
}

int rb_extremes_read(const void *memory, uint64_t bytes, rb_extremes *out)
{
    rb_reader reader;
    const rb_header *header = memory;
    if (rb_reader_open(&reader, memory, bytes, NULL, -1, false) != RB_OK)
        return RB_CORRUPT;
    out->end_position = reader.cursor;
    out->end_offset = reader.offset;
    if (out->end_position >> IMPOSSIBLE_BITS || out->end_offset >> IMPOSSIBLE_BITS)
        return RB_CORRUPT;
    rb_seek_oldest(&reader);
    /* The writer may be hostile, or have lapped the ring since: the differences are those of a ring. */
    bool within = reader.cursor <= out->end_position && out->end_position - reader.cursor <= reader.capacity;
    out->oldest_position = within ? reader.cursor : out->end_position;
    out->oldest_offset = within && reader.offset <= out->end_offset ? reader.offset : out->end_offset;
    out->durable_position = atomic_load_explicit(&header->durable,
                                                 memory_order_acquire); /* rb_durable_store() */
    out->reserve_position = atomic_load_explicit(&header->granted, memory_order_relaxed);
    return RB_OK;
}

void rb_readers_wake(rb_header *header, rb_cursors *local_cursors, rb_cursors *cursors)
{
    rb_notify(&header->wake, &local_cursors->sleepers);
    rb_notify(&header->wake, &cursors->sleepers);
}

void rb_durable_store(void *memory, void *cursors, void *local_cursors, uint64_t position)
{
    rb_header *header = memory;
    /* pairs with the acquire of each thread that waits for durability: the log's sync comes before */
    atomic_store_explicit(&header->durable, position, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in rb_prepare() */
    rb_notify(&header->durable_wake, &header->durable_sleepers);
    if (atomic_load_explicit(&header->visible_when_durable, memory_order_relaxed))
        rb_readers_notify(header, local_cursors, cursors);
}

void rb_visible_when_durable_set(void *memory, int yes)
{
    atomic_store_explicit(&((rb_header *)memory)->visible_when_durable, yes != 0, memory_order_relaxed);
}

#define WHY_BITS 8
#define MS_NS 1000000ull

void rb_refuse(void *memory, uint32_t why, uint64_t now_ns)
{
    _Atomic uint64_t *word = &((rb_header *)memory)->refusal;
    uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
    uint64_t since = before != 0 ? before >> WHY_BITS : now_ns / MS_NS; /* a new cause keeps the start time */
    atomic_store_explicit(word, why != 0 ? since << WHY_BITS | why : 0, memory_order_relaxed);
}

uint32_t rb_refusal(const rb_header *header, uint64_t now_ns, uint64_t patience_ns)
{
    uint64_t word = atomic_load_explicit(&header->refusal, memory_order_relaxed);
    uint64_t since = word >> WHY_BITS, now = now_ns / MS_NS, why = word & (((uint64_t)1 << WHY_BITS) - 1);
    if (why == 0 || why >= RB_REFUSALS)
        return 0;
    /* a `since` in the future is from before a restart of the machine, or from another clock */
    return since > now || now - since >= patience_ns / MS_NS ? (uint32_t)why : 0;
}

void rb_refused_count(rb_header *header, uint32_t why)
{
    uint64_t count = atomic_load_explicit(&header->refused[why], memory_order_relaxed); /* one writer */
    atomic_store_explicit(&header->refused[why], count + 1, memory_order_relaxed);
}

int rb_is_refused(const void *memory)
{
    return atomic_load_explicit(&((const rb_header *)memory)->refusal, memory_order_relaxed) != 0;
}

uint64_t rb_refused(const void *memory, uint32_t why)
{
    const rb_header *header = memory;
    return why < RB_REFUSALS ? atomic_load_explicit(&header->refused[why], memory_order_relaxed) : 0;
}

rb_slot *rb_slot_of(void *cursors, int slot)
{
    if (cursors == NULL || slot < 0 || slot >= RB_REMOTE_SLOTS)
        return NULL;
    return &((rb_cursors *)cursors)->slot[slot];
}

int rb_slot_read(const void *cursors, int slot, rb_slot_info *out)
{
    const rb_slot *slot_words = rb_slot_of((void *)cursors, slot);
    if (slot_words == NULL)
        return RB_INVALID;
    out->state = atomic_load_explicit(&slot_words->state, memory_order_acquire); /* rb_reader_open() */
    out->cursor = atomic_load_explicit(&slot_words->cursor, memory_order_relaxed);
    out->offset = atomic_load_explicit(&slot_words->offset, memory_order_relaxed);
    out->lost = atomic_load_explicit(&slot_words->lost, memory_order_relaxed);
    out->pid = slot_words->pid;
    memcpy(out->name, slot_words->name, sizeof out->name);
    out->name[sizeof out->name - 1] = '\0';
    return RB_OK;
}

void rb_slot_name(void *cursors, int slot, const char *name, uint32_t pid)
{
    rb_slot *slot_words = rb_slot_of(cursors, slot);
    if (slot_words == NULL)
        return;
    slot_words->pid = pid;
    memset(slot_words->name, 0, sizeof slot_words->name);
    strncpy(slot_words->name, name, sizeof slot_words->name - 1);
}

void rb_slot_free(void *cursors, int slot)
{
    rb_slot *slot_words = rb_slot_of(cursors, slot);
    if (slot_words != NULL) /* pairs with the acquire in slot_limit(): a freed slot blocks no writer */
        atomic_store_explicit(&slot_words->state, RB_SLOT_FREE, memory_order_release);
}
