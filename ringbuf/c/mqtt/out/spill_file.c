/* SPDX-License-Identifier: Apache-2.0
 *
 * The spill file (spill_file.h): its memory, and storing, moving and freeing single copies.
 *
 * Memory.  An extent gets its memory when it is taken, and returns it when no session needs its copies.  A
 * few extents of one unit keep theirs for reuse.  The last of these is reserved for compaction, so that a
 * full file system can still be compacted.
 */
#include "mqtt/mqtt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define SPARES_MAX 16u
#define RECLAIM_MAX 64u /* extents freed per turn */
#define RETRY_MS 5u
#define PROBE_MS 200u
#define BESIDE_BYTES (64ull << 20) /* address space beyond that for the limit */
#define TIMES 8u                   /* largest ratio of address space to bytes of copies */
#define SMALLEST_BYTES (16ull << 20)

#define WORD(pointer) ((_Atomic uint32_t *)(void *)(pointer))

/* ---- places ---- */

static uint8_t *unit_at(const mq_spill *spill, uint32_t unit)
{
    return spill->base + (uint64_t)unit * MQ_UNIT_BYTES;
}

static mq_extent_header *header_of(const mq_spill *spill, uint32_t unit)
{
    return (mq_extent_header *)(void *)unit_at(spill, unit);
}

/* Store a word that marks the preceding bytes as complete.  The release has no partner in this process: a
 * broker that starts after this one was killed reads the bytes stored before the word. */
static void store_last(void *at, uint32_t word)
{
    atomic_store_explicit(WORD(at), word, memory_order_release);
}

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
}

static uint64_t memory_of(const mq_extent *extent)
{
    return extent->small ? MQ_UNIT_BYTES : whole_pages(extent->used);
}

/* ---- memory ---- */

/* Store the result of an allocation; error 0: there is room. */
static void failed(mq_engine *engine, int error)
{
    engine->spill.error = error;
    engine->spill.retry_ms = engine->now_ms + RETRY_MS;
    engine->spill.probe_ms = engine->now_ms + PROBE_MS;
    engine->counters.spill_errno = (uint64_t)error;
}

/* Allocate memory for `bytes` of the extent at `unit`.  False with mq_spill.error set. */
static bool memory_take(mq_engine *engine, uint32_t unit, uint64_t bytes)
{
    int error;
    do
        error = posix_fallocate(engine->spill.fd, (off_t)unit * MQ_UNIT_BYTES, (off_t)bytes);
    while (error == EINTR);
    failed(engine, error);
    engine->counters.spill_file_bytes += error == 0 ? bytes : 0;
    return error == 0;
}

/* Free the memory.  A file system that cannot punch holes keeps it for the next extent here. */
void mq_spill_punch(mq_engine *engine, uint32_t unit, uint32_t units)
{
    fallocate(engine->spill.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)unit * MQ_UNIT_BYTES,
              (off_t)units * MQ_UNIT_BYTES);
}

static bool header_write(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    mq_spill_header header = {
        .version = MQ_SPILL_VERSION, .unit_bytes = MQ_UNIT_BYTES, .epoch = spill->epoch, .seed = spill->seed};
    memcpy(header.magic, MQ_SPILL_MAGIC, sizeof header.magic);
    header.crc = rb_crc32c(0, &header, offsetof(mq_spill_header, crc));
    spill->headed = pwrite(spill->fd, &header, sizeof header, 0) == (ssize_t)sizeof header &&
                    pwrite(spill->fd, &header, sizeof header, MQ_SPILL_COPY_AT) == (ssize_t)sizeof header;
    return spill->headed;
}

/* ---- extents ---- */

static bool table_grow(mq_spill *spill, uint32_t top)
{
    if (top <= spill->extents_capacity)
        return true;
    uint32_t capacity = spill->extents_capacity ? spill->extents_capacity : 64;
    while (capacity < top)
        capacity *= 2;
    if (!mq_list_reserve(&spill->retired, capacity) || !mq_list_reserve(&spill->spares, SPARES_MAX))
        return false;
    mq_extent *extents = realloc(spill->extents, capacity * sizeof *extents);
    if (extents == NULL)
        return false;
    memset(extents + spill->extents_capacity, 0, (capacity - spill->extents_capacity) * sizeof *extents);
    spill->extents = extents;
    spill->extents_capacity = capacity;
    return true;
}

/* Find `units` consecutive free units.  Returns the first, or 0. */
static uint32_t run_find(mq_spill *spill, uint32_t units)
{
    uint32_t run = 0, unit = spill->first_free;
    uint64_t units_max = spill->bytes / MQ_UNIT_BYTES;
    while (unit < spill->top && spill->extents[unit].state != MQ_EXTENT_FREE)
        unit++;
    spill->first_free = unit;
    for (; unit < spill->top && run < units; unit++)
        run = spill->extents[unit].state == MQ_EXTENT_FREE ? run + 1 : 0;
    uint32_t first = unit - run;
    if ((uint64_t)first + units > units_max || !table_grow(spill, first + units))
        return 0;
    return first;
}

/* Store the length of an extent with its check word.  A broker killed between the two stores leaves an extent
 * that is searched for copies; any copies found there are valid. */
static void store_units(const mq_spill *spill, mq_extent_header *header, uint32_t units)
{
    uint32_t check = rb_crc32c(spill->seed, &units, sizeof units);
    if (units == 0)
        store_last(&header->units, 0);
    store_last(&header->check, check);
    store_last(&header->units, units);
}

/* Begin to use the extent at `unit`, which has memory, for copies. */
static void extent_begin(mq_spill *spill, uint32_t unit, uint32_t units, bool small)
{
    mq_extent_header *header = header_of(spill, unit);
    store_last(header + 1, 0); /* no copy follows yet */
    header->used = sizeof *header;
    header->zeros = 0;
    store_units(spill, header, units);
    for (uint32_t i = 1; i < units; i++)
        spill->extents[unit + i].state = MQ_EXTENT_INSIDE;
    spill->extents[unit] = (mq_extent){
        .units = units, .used = sizeof *header, .state = MQ_EXTENT_USED, .small = small};
    if (spill->top < unit + units)
        spill->top = unit + units;
}

/* Get an extent with memory for `bytes`, without copies.  0: no room. */
static uint32_t extent_fresh(mq_engine *engine, uint64_t bytes)
{
    mq_spill *spill = &engine->spill;
    uint32_t units = (uint32_t)((bytes + MQ_UNIT_BYTES - 1) / MQ_UNIT_BYTES), unit = run_find(spill, units);
    if (unit == 0)
        failed(engine, ENOSPC); /* the address space is used up */
    return unit != 0 && memory_take(engine, unit, whole_pages(bytes)) ? unit : 0;
}

static bool spare_add(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    uint32_t unit = extent_fresh(engine, MQ_UNIT_BYTES);
    if (unit == 0)
        return false;
    if (spill->top < unit + 1)
        spill->top = unit + 1;
    spill->extents[unit] = (mq_extent){.units = 1, .state = MQ_EXTENT_SPARE};
    mq_list_add(&spill->spares, unit);
    return true;
}

/* Get one unit with memory.  The last spare is only for compaction (`moves`).  0: no room. */
static uint32_t unit_take(mq_engine *engine, bool moves)
{
    mq_spill *spill = &engine->spill;
    if (spill->spares.count == 0)
        spare_add(engine);
    if (spill->spares.count > (moves ? 0u : 1u))
        return (uint32_t)spill->spares.at[--spill->spares.count];
    return spill->spares.count == 0 ? 0 : extent_fresh(engine, MQ_UNIT_BYTES);
}

/* Close the extent for small copies, which is full. */
static void filling_done(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    uint32_t unit = spill->filling;
    spill->filling = 0;
    if (unit != 0 && spill->extents[unit].live == 0)
        mq_spill_retire(engine, unit);
}

void mq_spill_retire(mq_engine *engine, uint32_t unit)
{
    mq_spill *spill = &engine->spill;
    mq_extent *extent = &spill->extents[unit];
    spill->dead -= extent->used - sizeof(mq_extent_header);
    spill->tried = spill->tried < spill->dead ? spill->tried : spill->dead;
    extent->state = MQ_EXTENT_RETIRED;
    extent->victim = false;
    mq_list_add(&spill->retired, unit);
}

static void reclaim(mq_engine *engine, uint32_t unit)
{
    mq_spill *spill = &engine->spill;
    mq_extent *extent = &spill->extents[unit];
    uint32_t units = extent->units;
    store_units(spill, header_of(spill, unit), 0);
    if (extent->small && spill->spares.count < SPARES_MAX) {
        *extent = (mq_extent){.units = 1, .state = MQ_EXTENT_SPARE};
        mq_list_add(&spill->spares, unit);
        return;
    }
    engine->counters.spill_file_bytes -= memory_of(extent);
    mq_spill_punch(engine, unit, units);
    for (uint32_t i = 0; i < units; i++)
        spill->extents[unit + i] = (mq_extent){.state = MQ_EXTENT_FREE};
    if (unit < spill->first_free)
        spill->first_free = unit;
}

/* ---- copies ---- */

static uint32_t span_of(uint32_t record_length, uint32_t name_length)
{
    return (uint32_t)(offsetof(mq_spilled, blob.record) + record_length + name_length + 7) & ~7u;
}

bool mq_spill_stuck(const mq_engine *engine)
{
    const mq_spill *spill = &engine->spill;
    return spill->error != 0 && spill->spares.count <= 1 && engine->now_ms < spill->retry_ms;
}

/* Reserve `span` bytes for a copy.  NULL: no room. */
static mq_spilled *find_space(mq_engine *engine, uint32_t span, bool moves)
{
    mq_spill *spill = &engine->spill;
    if (!spill->headed && (!memory_take(engine, 0, MQ_UNIT_BYTES) || !header_write(engine)))
        return NULL;
    if (span > MQ_LARGE_BYTES) {
        uint64_t bytes = sizeof(mq_extent_header) + (uint64_t)span;
        uint32_t unit = extent_fresh(engine, bytes);
        if (unit == 0)
            return NULL;
        extent_begin(spill, unit, (uint32_t)((bytes + MQ_UNIT_BYTES - 1) / MQ_UNIT_BYTES), false);
        return (mq_spilled *)(void *)(unit_at(spill, unit) + sizeof(mq_extent_header));
    }
    if (spill->filling != 0 && spill->extents[spill->filling].used + span > MQ_UNIT_BYTES)
        filling_done(engine);
    if (spill->filling == 0) {
        uint32_t unit = unit_take(engine, moves);
        if (unit == 0)
            return NULL;
        extent_begin(spill, unit, 1, true);
        spill->filling = unit;
    }
    return (mq_spilled *)(void *)(unit_at(spill, spill->filling) + spill->extents[spill->filling].used);
}

mq_blob *mq_spill_reserve(mq_engine *engine, const mq_ring *ring, uint64_t position, uint32_t length)
{
    if (!engine->spill.open || ring->ring_name_length == 0 || mq_spill_stuck(engine))
        return NULL;
    uint32_t span = span_of(length, ring->ring_name_length);
    mq_spilled *copy = find_space(engine, span, false);
    if (copy == NULL)
        return NULL;
    copy->position = position;
    copy->epoch = ring->epoch;
    copy->name_length = ring->ring_name_length;
    copy->zeros = 0;
    copy->blob = (mq_blob){.bytes = span, .spilled = true};
    uint8_t *behind = (uint8_t *)&copy->blob.record + length;
    memcpy(behind, ring->ring_name, ring->ring_name_length);
    memset(behind + ring->ring_name_length, 0, (uint8_t *)copy + span - behind - ring->ring_name_length);
    return &copy->blob;
}

static uint32_t crc_of(const mq_spill *spill, const mq_spilled *copy, uint32_t length)
{
    uint32_t crc = rb_crc32c(spill->seed, &copy->position, offsetof(mq_spilled, blob) - 8);
    return rb_crc32c(crc, &copy->blob.record, length - offsetof(mq_spilled, blob.record));
}

bool mq_spilled_verifies(const mq_spill *spill, const mq_spilled *copy, uint32_t length)
{
    return copy->crc == crc_of(spill, copy, length);
}

void mq_spill_commit(mq_engine *engine, mq_blob *blob)
{
    mq_spill *spill = &engine->spill;
    mq_spilled *copy = mq_spilled_of(blob);
    uint32_t span = blob->bytes;
    uint32_t unit = mq_extent_of(spill, blob);
    mq_extent *extent = &spill->extents[unit];
    copy->crc = crc_of(spill, copy, span);
    if (extent->small && extent->used + span + sizeof(uint32_t) <= MQ_UNIT_BYTES)
        store_last((uint8_t *)copy + span, 0); /* no copy follows yet */
    store_last(&copy->length, span);
    extent->used += span;
    store_last(&header_of(spill, unit)->used, extent->used);
    extent->live += span;
    spill->live += span;
    engine->counters.spilled_bytes += span;
    engine->counters.spilled_records++;
}

void mq_spill_abort(mq_engine *engine, mq_blob *blob)
{
    mq_spill *spill = &engine->spill;
    uint32_t unit = mq_extent_of(spill, blob);
    if (spill->extents[unit].small)
        return;
    spill->extents[unit].used += blob->bytes; /* its memory is returned */
    spill->dead += blob->bytes;
    mq_spill_retire(engine, unit);
}

mq_blob *mq_spill_copy(mq_engine *engine, mq_blob *blob)
{
    mq_spilled *copy = find_space(engine, blob->bytes, true);
    if (copy == NULL)
        return NULL;
    memcpy(&copy->position, &mq_spilled_of(blob)->position, blob->bytes - offsetof(mq_spilled, position));
    copy->blob.references = 0;
    mq_spill_commit(engine, &copy->blob);
    return &copy->blob;
}

void mq_spill_release(mq_engine *engine, mq_blob *blob)
{
    mq_spill *spill = &engine->spill;
    uint32_t unit = mq_extent_of(spill, blob), span = blob->bytes;
    mq_blob *moved = mq_where_blob(blob->moved_to);
    engine->counters.spilled_bytes -= span;
    engine->counters.spilled_records--;
    spill->live -= span;
    spill->extents[unit].live -= span;
    spill->dead += span;
    if (spill->extents[unit].live == 0 && unit != spill->filling)
        mq_spill_retire(engine, unit);
    if (moved != NULL)
        mq_blob_done(engine, moved);
}

/* ---- maintenance ---- */

/* Try again to allocate, so that counters do not show a failure that is over. */
static void probe(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    spill->probe_ms = engine->now_ms + PROBE_MS;
    if (spill->spares.count < SPARES_MAX)
        spare_add(engine);
}

void mq_spill_maintain(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    if (!spill->open)
        return;
    for (uint32_t i = 0; i < RECLAIM_MAX && spill->retired.count > 0; i++)
        reclaim(engine, (uint32_t)spill->retired.at[--spill->retired.count]);
    if (spill->error != 0 && engine->now_ms >= spill->probe_ms)
        probe(engine);
    if (mq_spill_compacts(engine))
        mq_spill_compact(engine);
}

uint64_t mq_spill_due(const mq_engine *engine)
{
    const mq_spill *spill = &engine->spill;
    if (!spill->open)
        return MQ_NEVER;
    if (spill->retired.count > 0 || mq_spill_compacts(engine))
        return 1;
    return spill->error == 0                   ? MQ_NEVER
           : spill->probe_ms <= engine->now_ms ? 1
                                               : spill->probe_ms - engine->now_ms;
}

/* ---- reading back ---- */

int mq_spill_read(const mq_spill *spill, uint64_t place, void *to, uint64_t length)
{
    uint8_t *at = to;
    while (length > 0) {
        ssize_t got = pread(spill->fd, at, length, (off_t)place);
        if (got < 0 && errno != EINTR)
            return -1;
        if (got == 0) { /* the file was shortened */
            memset(at, 0, length);
            return 0;
        }
        at += got > 0 ? got : 0;
        place += got > 0 ? (uint64_t)got : 0;
        length -= got > 0 ? (uint64_t)got : 0;
    }
    return 0;
}

/* If the file system cannot report holes, every unit counts as having memory. */
uint32_t mq_spill_next_memory(const mq_spill *spill, uint32_t unit)
{
    off_t at = lseek(spill->fd, (off_t)unit * MQ_UNIT_BYTES, SEEK_DATA);
    if (at >= 0)
        return (uint32_t)(at / MQ_UNIT_BYTES);
    return errno != ENXIO && lseek(spill->fd, 0, SEEK_END) > (off_t)unit * MQ_UNIT_BYTES ? unit : UINT32_MAX;
}

/* Adopt an extent of a found file.  A copied file may have holes for zeros, so memory is allocated before any
 * byte is accessed. */
bool mq_spill_adopt(mq_engine *engine, uint32_t unit, mq_extent extent)
{
    mq_spill *spill = &engine->spill;
    if (!table_grow(spill, unit + extent.units) || !memory_take(engine, unit, memory_of(&extent)))
        return false;
    for (uint32_t i = 1; i < extent.units; i++)
        spill->extents[unit + i].state = MQ_EXTENT_INSIDE;
    spill->extents[unit] = extent;
    if (spill->top < unit + extent.units)
        spill->top = unit + extent.units;
    return true;
}

/* ---- opening and closing ---- */

/* Map address space for the limit and for gaps between copies.  False with errno. */
static bool map(mq_engine *engine, int fd)
{
    mq_spill *spill = &engine->spill;
    off_t end = lseek(fd, 0, SEEK_END);
    uint64_t least = end < 0 ? 0 : ((uint64_t)end + MQ_UNIT_BYTES - 1) / MQ_UNIT_BYTES * MQ_UNIT_BYTES,
             wanted = (engine->limits.spill_max_bytes * TIMES + BESIDE_BYTES) / MQ_UNIT_BYTES * MQ_UNIT_BYTES;
    void *base = MAP_FAILED;
    for (uint64_t bytes = wanted; base == MAP_FAILED && bytes >= SMALLEST_BYTES; bytes /= 2) {
        spill->bytes = bytes > least ? bytes : least;
        base = mmap(NULL, spill->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (base == MAP_FAILED)
        return false;
    spill->base = base;
    spill->fd = fd;
    return true;
}

static bool is_known(const mq_spill_header *header, const uint32_t *known, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (known[i] == header->epoch)
            return true;
    return false;
}

static mq_spill_opened header_read_at(int fd, off_t place, const uint32_t *known, uint32_t count,
                                      mq_spill_header *out)
{
    ssize_t length = pread(fd, out, sizeof *out, place);
    if (length < 0)
        return MQ_SPILL_FAILED;
    bool zeros = true;
    for (ssize_t i = 0; i < length; i++)
        zeros &= ((const uint8_t *)out)[i] == 0;
    if (zeros && lseek(fd, 0, SEEK_END) <= MQ_UNIT_BYTES)
        return MQ_SPILL_NEW; /* the header was never written */
    bool holds = length == (ssize_t)sizeof *out && memcmp(out->magic, MQ_SPILL_MAGIC, 8) == 0 &&
                 out->version == MQ_SPILL_VERSION && out->unit_bytes == MQ_UNIT_BYTES &&
                 out->crc == rb_crc32c(0, out, offsetof(mq_spill_header, crc));
    return holds && is_known(out, known, count) ? MQ_SPILL_FOUND : MQ_SPILL_UNUSABLE;
}

/* Read the header, or its copy if the header is damaged.  MQ_SPILL_NEW: the file is empty. */
static mq_spill_opened header_read(int fd, const uint32_t *known, uint32_t count, mq_spill_header *out)
{
    mq_spill_opened opened = header_read_at(fd, 0, known, count, out);
    return opened == MQ_SPILL_UNUSABLE ? header_read_at(fd, MQ_SPILL_COPY_AT, known, count, out) : opened;
}

mq_spill_opened mq_spill_open(mq_engine *engine, int fd, const uint32_t *known, uint32_t known_count)
{
    mq_spill *spill = &engine->spill;
    mq_spill_header header;
    mq_spill_opened opened = header_read(fd, known, known_count, &header);
    if (opened == MQ_SPILL_UNUSABLE || opened == MQ_SPILL_FAILED)
        return opened;
    if (!map(engine, fd) || !table_grow(spill, 1))
        return MQ_SPILL_FAILED;
    spill->epoch = known[0];
    spill->seed = opened == MQ_SPILL_FOUND ? header.seed : rb_crc32c(0, engine->seed, sizeof engine->seed);
    spill->top = spill->first_free = 1;
    spill->extents[0] = (mq_extent){.units = 1, .live = 1, .state = MQ_EXTENT_USED};
    spill->open = true;
    engine->counters.spill_file_bytes = opened == MQ_SPILL_FOUND ? MQ_UNIT_BYTES : 0;
    if (opened == MQ_SPILL_FOUND && (!header_write(engine) || !mq_spill_scan(engine))) {
        int error = errno;
        spill->fd = -1; /* the caller keeps it */
        mq_spill_free(engine);
        errno = error;
        return MQ_SPILL_FAILED;
    }
    return opened;
}

uint64_t mq_spill_close(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    if (spill->open)
        close(spill->fd);
    spill->open = false;
    return spill->live;
}

void mq_spill_free(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    if (spill->open && spill->fd >= 0)
        close(spill->fd);
    if (spill->base != NULL)
        munmap(spill->base, spill->bytes);
    free(spill->extents);
    free(spill->spares.at);
    free(spill->retired.at);
    free(spill->index);
    *spill = (mq_spill){.fd = -1};
}
