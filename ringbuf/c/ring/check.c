/* SPDX-License-Identifier: Apache-2.0
 *
 * Check of a ring that another writer left, before it gets a new writer: every record is verified.
 *
 *   rb_check_begin()  finds the oldest retained record, by the index and the records themselves
 *   rb_check_next()   verifies from there on, up to the end or to damage: bytes without a valid record
 *   rb_check_lose()   turns damage that the caller could not fill from a log into a gap (record.h)
 *   rb_check_end()    corrects the header where it contradicts the records
 *
 * The records decide; the header's words are checked against them.  A damaged end is replaced by the end of
 * the last record in sequence.  A damaged watermark is replaced by the other one, or by one that is safe for
 * every state of the last writer.  The index is rebuilt completely from the records.
 *
 * The time for a damaged ring is bounded: bytes read in the search for a record are counted.
 */
#include "ring/ring.h"

#include <string.h>

#define SEARCH_TIMES 4 /* times the capacity: limit for bytes of failed checksums */
/* Largest size of a claim with its padding. */
#define IN_FLIGHT(ring) ((ring)->capacity / 2 + 2 * (ring)->chunk + RB_RECORD_ALIGN)
#define PIECE_MAX_BYTES (1u << 29) /* largest span of one gap marker */

typedef struct view {
    rb_header *header;
    uint8_t *data;
    uint64_t capacity, mask, chunk;
    uint32_t epoch;
    uint64_t *budget;
} view;

typedef struct place {
    uint64_t position, offset;
} place;

/* The header's values as read before: another process may still change the header. */
static view view_of(void *memory, rb_check *check)
{
    return (view){memory,
                  (uint8_t *)memory + RB_HEADER_BYTES,
                  check->capacity,
                  check->capacity - 1,
                  rb_chunk_bytes(check->capacity),
                  check->epoch,
                  &check->budget};
}

/* Charge `bytes` to the search budget.  False if the budget is exhausted. */
static bool afford(const view *ring, uint64_t bytes)
{
    if (bytes > *ring->budget)
        return false;
    *ring->budget -= bytes;
    return true;
}

/* ---- one place ---- */

static uint64_t to_lap_end_at(const view *ring, uint64_t position)
{
    return ring->capacity - (position & ring->mask);
}

/* True if a record with these lengths can stand at `position`. */
static bool is_plausible(const view *ring, uint64_t position, rb_record *header, rb_parts *parts)
{
    uint64_t bad;
    const uint8_t *bytes = ring->data + (position & ring->mask);
    return rb_record_at(bytes, to_lap_end_at(ring, position), header, parts, &bad) != 0 &&
           header->length <= ring->capacity / 4;
}

static bool holds_record(const view *ring, uint64_t position, rb_record *header)
{
    rb_parts parts;
    return is_plausible(ring, position, header, &parts) &&
           rb_record_verifies(header, &parts, ring->data + (position & ring->mask), ring->epoch);
}

typedef enum piece_kind {
    NOTHING,
    RECORD,
    PADDING,
    GAP
} piece_kind;

/* Classify the bytes at *at as the continuation of the sequence, and move *at past them. */
static piece_kind step(const view *ring, place *at, rb_record *header)
{
    const uint8_t *bytes = ring->data + (at->position & ring->mask);
    uint64_t to_lap_end = to_lap_end_at(ring, at->position);
    memcpy(header, bytes, sizeof *header);
    if (header->length & RB_GAP_BIT && header->length & RB_PADDING_BIT) {
        rb_gap gap;
        if (rb_gap_at(bytes, header->length, to_lap_end, ring->epoch, &gap) != RB_OK ||
            gap.offset != at->offset)
            return NOTHING;
        *at = (place){at->position + gap.span, at->offset + gap.count};
        return GAP;
    }
    if (header->length & RB_PADDING_BIT) {
        if ((header->length & ~RB_PADDING_BIT) != to_lap_end)
            return NOTHING;
        at->position += to_lap_end;
        return PADDING;
    }
    if (!holds_record(ring, at->position, header) || header->offset != at->offset)
        return NOTHING;
    *at = (place){at->position + rb_span(header->length), at->offset + 1};
    return RECORD;
}

/* ---- the oldest record, and the watermark ---- */

/* True if both can be places of one ring: offsets and positions rise together, within one lap. */
static bool agree(const view *ring, place a, place b)
{
    place low = a.position <= b.position ? a : b, high = a.position <= b.position ? b : a;
    return high.position - low.position <= ring->capacity && high.offset >= low.offset &&
           high.offset - low.offset <= (high.position - low.position) / RB_RECORD_ALIGN &&
           (high.offset > low.offset) == (high.position > low.position);
}

typedef struct index_copy {
    place at[RB_INDEX_ENTRIES];
    bool verified[RB_INDEX_ENTRIES];
    uint32_t count;
} index_copy;

/* Collect the valid entries of the index; `verified` if the record there verifies. */
static void read_index(const view *ring, index_copy *out)
{
    uint64_t entries = ring->capacity / ring->chunk;
    out->count = 0;
    for (uint64_t i = 0; i < entries; i++) {
        const rb_index_entry *entry = &ring->header->index[i];
        rb_record header;
        place at = {atomic_load_explicit(&entry->position, memory_order_relaxed),
                    atomic_load_explicit(&entry->offset, memory_order_relaxed)};
        if (at.position == RB_NO_POSITION || at.position % RB_RECORD_ALIGN != 0 ||
            (at.position / ring->chunk & (entries - 1)) != i)
            continue;
        rb_parts parts;
        bool verified = is_plausible(ring, at.position, &header, &parts) && afford(ring, header.length) &&
                        holds_record(ring, at.position, &header);
        if (verified)
            at.offset = header.offset;
        out->verified[out->count] = verified;
        out->at[out->count++] = at;
    }
}

static uint32_t witnesses(const view *ring, place at)
{
    const rb_header *header = ring->header;
    const uint64_t words[] = {atomic_load_explicit(&header->end.pair[0].position, memory_order_relaxed),
                              atomic_load_explicit(&header->end.pair[1].position, memory_order_relaxed),
                              atomic_load_explicit(&header->granted, memory_order_relaxed),
                              atomic_load_explicit(&header->reserve, memory_order_relaxed)};
    uint32_t count = 0;
    for (uint32_t i = 0; i < sizeof words / sizeof *words; i++)
        count += words[i] >= at.position && words[i] - at.position <= ring->capacity + IN_FLIGHT(ring);
    return count;
}

/* Insert `at` into the first `kept` entries, which are sorted by position. */
static void keep_sorted(index_copy *index, uint32_t kept, place at, bool verified)
{
    for (; kept > 0 && index->at[kept - 1].position > at.position; kept--) {
        index->at[kept] = index->at[kept - 1];
        index->verified[kept] = index->verified[kept - 1];
    }
    index->at[kept] = at;
    index->verified[kept] = verified;
}

/* Keep the entries that agree with the entry that most others agree with.  Only a position identifies the lap
 * of a record; the record itself does not.  False if no entry leads to a record. */
static bool keep_agreeing(const view *ring, index_copy *index)
{
    uint32_t best = 0, best_score = 0;
    for (uint32_t i = 0; i < index->count; i++) {
        uint32_t score = index->verified[i] ? 1 + witnesses(ring, index->at[i]) : 0;
        for (uint32_t j = 0; score > 0 && j < index->count; j++)
            score += j != i && index->verified[j] && agree(ring, index->at[i], index->at[j]);
        if (score > best_score ||
            (score == best_score && score > 0 && index->at[i].position > index->at[best].position)) {
            best = i;
            best_score = score;
        }
    }
    place chosen = index->at[best];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < index->count && best_score > 0; i++)
        if (i == best || agree(ring, chosen, index->at[i]))
            keep_sorted(index, kept++, index->at[i], index->verified[i]);
    index->count = kept;
    return kept > 0;
}

static place header_end(const view *ring)
{
    place end;
    rb_end_read(ring->header, &end.position, &end.offset);
    return end;
}

/* True if the header's end may lie ahead of `at`, judged by offsets and positions. */
static bool is_ahead(const view *ring, place at, place end)
{
    return end.position > at.position && end.offset > at.offset && agree(ring, at, end);
}

/* Approximate end of the ring: the end of the sequence after the newest known record, or the header's end. */
static place about_end(const view *ring, const index_copy *index)
{
    place at = {0, ring->header->geometry.first_offset}, end = header_end(ring);
    rb_record header;
    for (uint32_t i = 0; i < index->count; i++)
        if (index->verified[i] && index->at[i].position >= at.position)
            at = index->at[i];
    while (step(ring, &at, &header) != NOTHING)
        ;
    return is_ahead(ring, at, end) ? end : at;
}

/* Choose check->granted.  Records below *doubtful may have been overwritten. */
static void choose_granted(const view *ring, rb_check *check, place end, uint64_t *doubtful)
{
    uint64_t granted = atomic_load_explicit(&ring->header->granted, memory_order_relaxed);
    uint64_t reserve = atomic_load_explicit(&ring->header->reserve, memory_order_relaxed);
    uint64_t lowest = end.position == 0 ? 0 : end.position + RB_RECORD_ALIGN;
    uint64_t highest = end.position + IN_FLIGHT(ring), upper;
    bool is_good = granted >= lowest && granted <= highest && granted % RB_RECORD_ALIGN == 0;
    bool other = reserve >= lowest && reserve <= highest && reserve % RB_RECORD_ALIGN == 0;
    if (is_good && other) {
        upper = granted > reserve ? granted : reserve;
        check->granted = granted < reserve ? granted : reserve;
    } else if (is_good || other) {
        upper = check->granted = is_good ? granted : reserve;
    } else {
        check->granted = (lowest + ring->chunk - 1) & ~(ring->chunk - 1);
        upper = highest;
    }
    if (check->granted != granted)
        check->rebuilt |= RB_REBUILT_WATERMARK;
    *doubtful = upper > ring->capacity ? upper - ring->capacity : 0;
}

/* True if records follow each other without damage from `at` up to `to` or beyond. */
static bool follows(const view *ring, place at, uint64_t to)
{
    rb_record header;
    while (at.position < to) {
        piece_kind kind = step(ring, &at, &header);
        if (kind == NOTHING || (kind == RECORD && header.flags & RB_FLAG_UNCHECKED))
            return false;
    }
    return true;
}

/* The first place from `from` on whose records lead exactly to `to`. */
static place before(const view *ring, uint64_t from, place to)
{
    for (uint64_t position = from; position < to.position; position += RB_RECORD_ALIGN) {
        rb_record header;
        rb_parts parts;
        place at = {position, 0};
        if (!is_plausible(ring, position, &header, &parts))
            continue;
        at.offset = header.offset;
        if (at.offset >= to.offset || !agree(ring, at, to) || !afford(ring, header.length))
            continue;
        place first = at;
        while (at.position < to.position && step(ring, &at, &header) != NOTHING)
            ;
        if (at.position == to.position && at.offset == to.offset)
            return first;
        if (at.position > position) /* records in between lead no further */
            position = at.position - RB_RECORD_ALIGN;
    }
    return to;
}

/* The oldest retained place, otherwise the end.  An index entry that leads to no record counts only if no
 * records lead past it; otherwise the entry itself was damaged. */
static place oldest_indexed(const view *ring, const index_copy *index, uint64_t floor, uint64_t doubtful,
                            place end)
{
    place verified = end, by_header = end;
    if (doubtful == 0)
        return (place){0, ring->header->geometry.first_offset};
    for (uint32_t i = index->count; i-- > 0;) {
        place at = index->at[i];
        if (at.position < floor || at.position >= end.position)
            continue;
        if (index->verified[i] && at.position < doubtful && !follows(ring, at, verified.position))
            break;
        if (index->verified[i])
            verified = at;
        else if (at.position >= doubtful)
            by_header = at;
    }
    uint64_t from = floor > doubtful ? floor : doubtful;
    place first = before(ring, from, verified);
    return by_header.position < first.position && by_header.offset < first.offset
               ? before(ring, from, by_header)
               : first;
}

/* Search without an index: the first place from `floor` on with a record that agrees with the end. */
static place found_by_search(const view *ring, uint64_t floor, place end)
{
    for (uint64_t position = floor; position < end.position; position += RB_RECORD_ALIGN) {
        rb_record header;
        rb_parts parts;
        if (!is_plausible(ring, position, &header, &parts) ||
            !agree(ring, (place){position, header.offset}, end) || !afford(ring, header.length))
            continue;
        if (holds_record(ring, position, &header))
            return (place){position, header.offset};
    }
    return end;
}

/* A ring that still has all records since its creation needs no index. */
static place oldest_without_index(const view *ring, place end, uint64_t floor)
{
    place first = {0, ring->header->geometry.first_offset};
    if (floor == 0 && end.position <= ring->capacity)
        return first;
    return found_by_search(ring, floor, end);
}

int rb_check_begin(void *memory, uint64_t bytes, rb_check *check)
{
    const rb_geometry *geometry = &((const rb_header *)memory)->geometry;
    index_copy index;
    uint64_t doubtful;
    memset(check, 0, sizeof *check);
    check->capacity = *(const volatile uint64_t *)&geometry->capacity_bytes; /* read once: hostile */
    check->epoch = geometry->epoch;
    if (!rb_capacity_fits(check->capacity) || bytes < RB_HEADER_BYTES ||
        bytes - RB_HEADER_BYTES < check->capacity)
        return RB_CORRUPT;
    check->budget = check->capacity * SEARCH_TIMES;
    view ring = view_of(memory, check);
    for (uint32_t i = 0; i < RB_INDEX_ENTRIES; i++)
        check->index_position[i] = RB_NO_POSITION;
    read_index(&ring, &index);
    bool has_index = keep_agreeing(&ring, &index);
    if (!has_index)
        index.count = 0;
    place by_header = header_end(&ring), end = has_index ? about_end(&ring, &index) : by_header;
    choose_granted(&ring, check, end, &doubtful);
    uint64_t floor = check->granted > ring.capacity ? check->granted - ring.capacity : 0;
    if (!has_index && check->rebuilt)
        return RB_CORRUPT; /* neither the index nor the end leads to a record */
    place first = has_index ? oldest_indexed(&ring, &index, floor, doubtful, end)
                            : oldest_without_index(&ring, end, floor);
    check->floor = floor;
    check->first_position = check->position = first.position;
    check->first_offset = check->offset = first.offset;
    check->end_position = by_header.position;
    check->end_offset = by_header.offset;
    return RB_OK;
}

/* ---- from record to record ---- */

static void add_to_index(const view *ring, rb_check *check, uint64_t position, const rb_record *header)
{
    uint32_t entry = (uint32_t)(position / ring->chunk & (ring->capacity / ring->chunk - 1));
    uint64_t known = check->index_position[entry];
    if (known != RB_NO_POSITION && known / ring->chunk == position / ring->chunk)
        return;
    check->index_position[entry] = position;
    check->index_offset[entry] = header->offset;
    check->index_ns[entry] = header->timestamp_ns;
}

/* Find the place after the record at `at`, if the data there confirms the record's length. */
static bool behind_itself(const view *ring, place at, place *out)
{
    rb_record header, next;
    rb_parts parts;
    if (!is_plausible(ring, at.position, &header, &parts))
        return false;
    place behind = {at.position + rb_span(header.length), at.offset + 1}, looked = behind;
    piece_kind kind = step(ring, &looked, &next);
    if (kind == PADDING)
        kind = step(ring, &looked, &next);
    *out = behind;
    return kind == RECORD;
}

/* Find the next place after `at` with a record that can follow.  False if there is none before `end`. */
static bool search(const view *ring, place at, place end, place *out)
{
    place behind;
    if (behind_itself(ring, at, &behind) && is_ahead(ring, behind, end)) {
        *out = behind;
        return true;
    }
    for (uint64_t position = at.position + RB_RECORD_ALIGN; position < end.position;
         position += RB_RECORD_ALIGN) {
        rb_record header;
        rb_parts parts;
        if (!is_plausible(ring, position, &header, &parts) || header.offset < at.offset ||
            header.offset - at.offset > (position - at.position) / RB_RECORD_ALIGN ||
            !is_ahead(ring, (place){position, header.offset}, end) || !afford(ring, header.length))
            continue;
        if (holds_record(ring, position, &header)) {
            *out = (place){position, header.offset};
            return true;
        }
    }
    return false;
}

/* Records that a killed writer has committed but not published lie after the end and are complete. */
int rb_check_next(void *memory, rb_check *check)
{
    view ring = view_of(memory, check);
    place at = {check->position, check->offset}, end = {check->end_position, check->end_offset};
    rb_record header;
    for (;;) {
        check->has_passed_end |= at.position == end.position && at.offset == end.offset;
        place before_step = at;
        piece_kind kind = step(&ring, &at, &header);
        if (kind == NOTHING)
            break;
        if (kind == RECORD) {
            add_to_index(&ring, check, before_step.position, &header);
            check->records++;
            check->unchecked += (header.flags & RB_FLAG_UNCHECKED) != 0;
        }
        check->position = at.position;
        check->offset = at.offset;
    }
    if (check->has_passed_end)
        return RB_OK;
    if (!is_ahead(&ring, at, end)) {
        check->rebuilt |= RB_REBUILT_END;
        return RB_OK;
    }
    place next = end;
    search(&ring, at, end, &next);
    check->damage_end = next.position;
    check->damage_end_offset = next.offset;
    return RB_CORRUPT;
}

/* ---- gaps ---- */

/* Write a marker over `span` bytes of one lap.  Each place inside leads to the marker's end. */
static void write_gap(const view *ring, uint64_t position, uint64_t span, place lost, uint64_t count)
{
    uint8_t *bytes = ring->data + (position & ring->mask);
    memset(bytes + sizeof(uint32_t), 0, span - sizeof(uint32_t));
    for (uint64_t at = span - RB_RECORD_ALIGN; at > 0; at -= RB_RECORD_ALIGN)
        rb_gap_put(bytes + at, ring->epoch, (rb_gap){span - at, lost.offset + count, 0});
    rb_gap_put(bytes, ring->epoch, (rb_gap){span, lost.offset, count});
}

/* Write markers over [from, to), which may wrap around the end of the ring. */
static void write_gaps(const view *ring, place from, place to)
{
    uint64_t count = to.offset - from.offset;
    while (from.position < to.position) {
        uint64_t span = to.position - from.position, to_lap_end = to_lap_end_at(ring, from.position);
        span = span < to_lap_end ? span : to_lap_end;
        span = span < PIECE_MAX_BYTES ? span : PIECE_MAX_BYTES;
        write_gap(ring, from.position, span, from, count);
        from = (place){from.position + span, from.offset + count};
        count = 0;
    }
}

void rb_check_lose(void *memory, rb_check *check)
{
    view ring = view_of(memory, check);
    place from = {check->position, check->offset}, to = {check->damage_end, check->damage_end_offset};
    write_gaps(&ring, from, to);
    check->lost += to.offset - from.offset;
    check->position = to.position;
    check->offset = to.offset;
}

/* ---- the header ---- */

static void store(rb_check *check, _Atomic uint64_t *word, uint64_t value)
{
    if (atomic_load_explicit(word, memory_order_relaxed) == value)
        return;
    if (check->lost == 0) /* otherwise the entry led to a record that is a gap now */
        check->rebuilt |= RB_REBUILT_INDEX;
    atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Store the entries of chunks with records.  Other entries are kept unless they claim a retained position. */
static void write_index(const view *ring, rb_check *check)
{
    uint64_t entries = ring->capacity / ring->chunk;
    for (uint64_t i = 0; i < entries; i++) {
        rb_index_entry *entry = &ring->header->index[i];
        uint64_t now = atomic_load_explicit(&entry->position, memory_order_relaxed);
        uint64_t position = check->index_position[i];
        if (position != RB_NO_POSITION) {
            store(check, &entry->position, position);
            store(check, &entry->offset, check->index_offset[i]);
            store(check, &entry->timestamp_ns, check->index_ns[i]);
        } else if (now != RB_NO_POSITION && now >= check->floor && now != check->position) {
            store(check, &entry->position, RB_NO_POSITION);
        }
    }
}

/* Turn leftovers of a claim or of a released record at the oldest places into gaps: no sequence leads
 * there. */
static void clear_floor(const view *ring, const rb_check *check)
{
    place first = {check->first_position, check->first_offset};
    if (check->floor > 0 && first.position > check->floor)
        write_gaps(ring, (place){check->floor, first.offset}, first);
}

void rb_check_end(void *memory, rb_check *check)
{
    view ring = view_of(memory, check);
    rb_end *end = &ring.header->end;
    write_index(&ring, check);
    clear_floor(&ring, check);
    /* no record stands after the last one: the sequence ends here */
    memset(ring.data + (check->position & ring.mask), 0, sizeof(uint32_t));
    uint64_t count = atomic_load_explicit(&end->count, memory_order_relaxed) + 1;
    atomic_store_explicit(&end->pair[count & 1].position, check->position, memory_order_relaxed);
    atomic_store_explicit(&end->pair[count & 1].offset, check->offset, memory_order_relaxed);
    /* pairs with the acquire in rb_end_read() */
    atomic_store_explicit(&end->count, count, memory_order_release);
    uint64_t lowest = check->position == 0 ? 0 : check->position + RB_RECORD_ALIGN;
    if (check->granted < lowest) /* committed but unpublished records may lie beyond */
        check->granted = lowest;
    atomic_store_explicit(&ring.header->reserve, check->granted, memory_order_relaxed);
    atomic_store_explicit(&ring.header->granted, check->granted, memory_order_relaxed);
    if (atomic_load_explicit(&ring.header->durable, memory_order_relaxed) > check->position)
        atomic_store_explicit(&ring.header->durable, check->position, memory_order_relaxed);
    rb_geometry_copy(memory);
}
