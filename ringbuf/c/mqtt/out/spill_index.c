/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the spill file at a restart: finds all complete copies by ring, epoch and position.
 *
 * A copy is used only after its checksum was verified.  After damaged bytes the search continues within the
 * used part of the extent, so that damage costs only the copies it has hit.
 *
 * Copies have no references at first; sessions take them when they are settled (journal_replay.c).  Copies
 * without a reference after that are freed (mq_spill_drop_unused).
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define INDEX_MIN 1024u

typedef struct extent_bytes { /* bytes of one extent, read into private memory */
    uint8_t *at;
    uint64_t capacity, length;
} extent_bytes;

/* ---- index ---- */

static uint64_t hash_of(const mq_engine *engine, uint64_t position, uint32_t epoch, const uint8_t *name,
                        uint32_t name_length)
{
    uint64_t hash = position / 8 ^ (uint64_t)rb_crc32c(epoch, name, name_length) << 32 ^ engine->seed[0];
    hash = (hash ^ hash >> 32) * (engine->seed[1] | 1);
    return hash ^ hash >> 29;
}

static mq_spilled *copy_at(const mq_spill *spill, uint64_t place)
{
    return (mq_spilled *)(void *)(spill->base + place);
}

static const uint8_t *name_of(const mq_spilled *copy)
{
    return (const uint8_t *)&copy->blob.record + copy->blob.record.length;
}

static void index_put(const mq_engine *engine, uint64_t *index, uint32_t capacity, uint64_t place)
{
    const mq_spilled *copy = copy_at(&engine->spill, place);
    uint64_t at = hash_of(engine, copy->position, copy->epoch, name_of(copy), copy->name_length);
    while (index[at & (capacity - 1)] != 0)
        at++;
    index[at & (capacity - 1)] = place;
}

static bool index_add(mq_engine *engine, uint64_t place)
{
    mq_spill *spill = &engine->spill;
    if (spill->index_count >= spill->index_capacity / 2) {
        uint32_t capacity = spill->index_capacity ? spill->index_capacity * 2 : INDEX_MIN;
        uint64_t *index = calloc(capacity, sizeof *index);
        if (index == NULL)
            return false;
        for (uint32_t i = 0; i < spill->index_capacity; i++)
            if (spill->index[i] != 0)
                index_put(engine, index, capacity, spill->index[i]);
        free(spill->index);
        spill->index = index;
        spill->index_capacity = capacity;
    }
    index_put(engine, spill->index, spill->index_capacity, place);
    spill->index_count++;
    return true;
}

mq_blob *mq_spill_find(const mq_engine *engine, const mq_ring *ring, uint64_t position)
{
    const mq_spill *spill = &engine->spill;
    if (spill->index_count == 0)
        return NULL;
    uint64_t at = hash_of(engine, position, ring->epoch, ring->ring_name, ring->ring_name_length);
    for (uint64_t place; (place = spill->index[at & (spill->index_capacity - 1)]) != 0; at++) {
        mq_spilled *copy = copy_at(spill, place);
        if (copy->position == position && copy->epoch == ring->epoch &&
            copy->name_length == ring->ring_name_length &&
            memcmp(name_of(copy), ring->ring_name, ring->ring_name_length) == 0)
            return &copy->blob;
    }
    return NULL;
}

/* ---- scanning ---- */

/* Length of the copy at `bytes` with `left` bytes remaining; 0: no complete copy begins there. */
static uint32_t copy_length(const mq_spill *spill, const uint8_t *bytes, uint64_t left)
{
    mq_spilled header;
    rb_parts parts;
    if (left < sizeof header)
        return 0;
    memcpy(&header, bytes, sizeof header);
    const rb_record *record = &header.blob.record;
    uint64_t at = offsetof(mq_spilled, blob.record), ends = at + record->length + header.name_length;
    if (header.length > left || header.length % 8 != 0 || record->length < RB_RECORD_HEADER_BYTES ||
        header.name_length > RB_NAME_MAX_BYTES || ((ends + 7) & ~7ull) != header.length)
        return 0;
    if (rb_record_parts(record, bytes + at, record->length, &parts) != RB_OK)
        return 0;
    return mq_spilled_verifies(spill, (const mq_spilled *)(const void *)bytes, header.length) ? header.length
                                                                                              : 0;
}

static bool header_holds(const mq_spill *spill, const mq_extent_header *header)
{
    return header->check == rb_crc32c(spill->seed, &header->units, sizeof header->units);
}

/* End of the search for copies: the used bytes by the header, or all bytes if the header is damaged. */
static uint64_t used_of(const mq_spill *spill, const extent_bytes *extent)
{
    mq_extent_header header;
    memcpy(&header, extent->at, sizeof header);
    bool good = header_holds(spill, &header) && header.used >= sizeof header && header.used <= extent->length;
    return good ? header.used : extent->length;
}

/* Find the copies of the extent that was read.  `copy_offsets` gets their positions and *count their number.
 * Returns the position after the last one. */
static uint32_t copies_in(const mq_spill *spill, const extent_bytes *extent, uint32_t *copy_offsets,
                          uint32_t *count)
{
    uint64_t at = sizeof(mq_extent_header), end = at, used = used_of(spill, extent);
    *count = 0;
    while (at + sizeof(mq_spilled) <= extent->length) {
        uint32_t length = copy_length(spill, extent->at + at, extent->length - at);
        if (length > 0) {
            copy_offsets[(*count)++] = (uint32_t)at;
            end = at += length;
        } else if (at >= used || extent->length > MQ_UNIT_BYTES) { /* a longer extent has one copy */
            break;
        } else {
            at += 8;
        }
    }
    return (uint32_t)end;
}

/* Adopt a copy, without references yet. */
static bool copy_adopt(mq_engine *engine, uint64_t place)
{
    mq_spilled *copy = copy_at(&engine->spill, place);
    copy->blob.references = 0;
    copy->blob.bytes = copy->length & 0x1fffffffu;
    copy->blob.spilled = true;
    copy->blob.withheld = copy->blob.reserved = false;
    copy->blob.moved_to = copy->blob.origin = 0;
    copy->blob.author = NULL;
    return index_add(engine, place);
}

static bool extent_adopt(mq_engine *engine, uint32_t unit, uint32_t units, const extent_bytes *bytes)
{
    mq_spill *spill = &engine->spill;
    uint64_t units_max = bytes->length / sizeof(mq_spilled) + 1;
    uint32_t *copy_offsets = malloc(units_max * sizeof *copy_offsets), count = 0;
    if (copy_offsets == NULL)
        return false;
    mq_extent extent = {.units = units, .state = MQ_EXTENT_USED};
    extent.used = copies_in(spill, bytes, copy_offsets, &count);
    extent.small = units == 1 && (count > 1 || extent.used - sizeof(mq_extent_header) <= MQ_LARGE_BYTES);
    bool adopted = true;
    if (count == 0)
        mq_spill_punch(engine, unit, units);
    else
        adopted = mq_spill_adopt(engine, unit, extent);
    for (uint32_t i = 0; i < count && adopted; i++)
        adopted = copy_adopt(engine, (uint64_t)unit * MQ_UNIT_BYTES + copy_offsets[i]);
    spill->dead += adopted && count > 0 ? extent.used - sizeof(mq_extent_header) : 0;
    free(copy_offsets);
    return adopted;
}

static bool extent_read(const mq_spill *spill, uint32_t unit, uint32_t units, extent_bytes *out)
{
    out->length = (uint64_t)units * MQ_UNIT_BYTES;
    if (out->length > out->capacity) {
        uint8_t *at = realloc(out->at, out->length);
        if (at == NULL)
            return false;
        out->at = at;
        out->capacity = out->length;
    }
    return mq_spill_read(spill, (uint64_t)unit * MQ_UNIT_BYTES, out->at, out->length) == 0;
}

/* Units of the extent that begins at `unit`; 0: free.  An extent with a damaged header may have copies. */
static uint32_t units_of(const mq_spill *spill, uint32_t unit, const mq_extent_header *header)
{
    uint64_t units_max = spill->bytes / MQ_UNIT_BYTES - unit;
    return header_holds(spill, header) && header->units <= units_max ? header->units : 1;
}

bool mq_spill_scan(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    extent_bytes bytes = {0};
    bool done = true;
    uint64_t units_max = spill->bytes / MQ_UNIT_BYTES;
    for (uint32_t unit = 1; done && (unit = mq_spill_next_memory(spill, unit)) < units_max;) {
        mq_extent_header header;
        done = mq_spill_read(spill, (uint64_t)unit * MQ_UNIT_BYTES, &header, sizeof header) == 0;
        uint32_t units = done ? units_of(spill, unit, &header) : 0;
        if (done && units == 0)
            mq_spill_punch(engine, unit, 1);
        else if (done)
            done = extent_read(spill, unit, units, &bytes) && extent_adopt(engine, unit, units, &bytes);
        unit += units == 0 ? 1 : units;
    }
    free(bytes.at);
    return done;
}

/* ---- the end of a restart ---- */

void mq_spill_take(mq_engine *engine, mq_blob *blob, uint64_t origin)
{
    mq_spill *spill = &engine->spill;
    blob->origin = origin;
    if (blob->references++ > 0)
        return;
    spill->extents[mq_extent_of(spill, blob)].live += blob->bytes;
    spill->live += blob->bytes;
    spill->dead -= blob->bytes;
    engine->counters.spilled_bytes += blob->bytes;
    engine->counters.spilled_records++;
}

void mq_spill_drop_unused(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    free(spill->index);
    spill->index = NULL;
    spill->index_capacity = spill->index_count = 0;
    uint32_t emptiest = 0; /* takes new copies, so that restarts leave no half-empty extents */
    for (uint32_t unit = 1; spill->open && unit < spill->top; unit++) {
        const mq_extent *extent = &spill->extents[unit];
        if (extent->state != MQ_EXTENT_USED || unit == spill->filling)
            continue;
        if (extent->live == 0)
            mq_spill_retire(engine, unit);
        else if (extent->small && (emptiest == 0 || extent->used < spill->extents[emptiest].used))
            emptiest = unit;
    }
    if (spill->filling == 0)
        spill->filling = emptiest;
}
