/* SPDX-License-Identifier: Apache-2.0
 *
 * Columns of a window back into records, bit by bit as they stood in the ring; only those that are wanted,
 * and out of no more blocks than they need.
 *
 * The columns passed a checksum, which says that they are what was written, not that who wrote them was
 * right: every rank, place and length is checked again before memory is touched.
 */
#include "archive.h"

#include <string.h>

#define LENGTH_MAX UINT32_MAX

static uint64_t key_at(const rb_archive_window *window, uint64_t row)
{
    return ar_get(window->head, window->records, AR_KEY, 4, row);
}

static uint64_t length_at(const rb_archive_window *window, uint64_t order)
{
    return ar_get(window->head, window->records, AR_LENGTH, 4, order);
}

static uint64_t time_step(const rb_archive_window *window, uint64_t row)
{
    return ar_unzigzag(ar_get(window->head, window->records, AR_TIME, 8, row));
}

/* order: the counting sort of whoever wrote the window, done again. */
static bool open_order(const rb_archive_window *window, uint64_t *counts)
{
    memset(counts, 0, (window->ranks + 1) * sizeof *counts);
    for (uint64_t row = 0; row < window->records; row++) {
        uint64_t rank = key_at(window, row);
        if (rank >= window->ranks)
            return false;
        counts[rank + 1]++;
    }
    for (uint64_t rank = 0; rank < window->ranks; rank++)
        counts[rank + 1] += counts[rank];
    for (uint64_t row = 0; row < window->records; row++)
        window->order[row] = (uint32_t)counts[key_at(window, row)]++;
    return true;
}

static bool open_bodies(const rb_archive_window *window)
{
    uint64_t place = 0, end = window->cut_count ? window->cuts[window->cut_count - 1] : 0;
    for (uint64_t order = 0; order < window->records; order++) {
        uint64_t beside = ar_get(window->head, window->records, AR_BESIDE, 4, order);
        window->bodies[order] = place;
        place += (uint32_t)(length_at(window, order) - beside);
    }
    window->bodies[window->records] = place;
    return place == end;
}

static bool open_positions(const rb_archive_window *window)
{
    uint64_t row = 0;
    for (uint64_t i = 0; i < window->run_count; i++) {
        const rb_archive_run *run = &window->runs[i];
        uint64_t bytes = 0;
        if (run->count > window->records - row)
            return false;
        for (uint64_t end = row + run->count; row < end; row++) {
            window->positions[row] = run->position + bytes;
            bytes += rb_span(length_at(window, window->order[row]));
        }
        if (bytes != run->length)
            return false;
    }
    return row == window->records;
}

int rb_archive_open(rb_archive_window *window, uint64_t *scratch)
{
    if (window->records > UINT32_MAX)
        return RB_CORRUPT;
    bool fits = open_order(window, scratch) && open_bodies(window) && open_positions(window);
    return fits ? RB_OK : RB_CORRUPT;
}

/* The index of the first of `count` rising ends that lies above `place`. */
static uint64_t part_of(const uint64_t *ends, uint64_t count, uint64_t place)
{
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (ends[middle] > place)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool is_wanted(const rb_archive_window *window, const rb_archive_wanted *wanted, uint64_t row)
{
    return wanted->rank < 0 || key_at(window, row) == (uint64_t)wanted->rank;
}

void rb_archive_needs(const rb_archive_window *window, const rb_archive_wanted *wanted, uint64_t limit_bytes,
                      uint8_t *blocks, uint8_t *pages, rb_archive_needed *out)
{
    uint64_t row = wanted->first, last = wanted->end < window->records ? wanted->end : window->records;
    *out = (rb_archive_needed){0};
    for (; row < last; row++) {
        if (!is_wanted(window, wanted, row))
            continue;
        uint64_t order = window->order[row], span = rb_span(length_at(window, order));
        if (out->records > 0 && out->bytes + span > limit_bytes)
            break;
        out->bytes += span;
        out->records++;
        uint64_t page = part_of(window->pages, window->page_count, key_at(window, row));
        uint64_t block = part_of(window->cuts, window->cut_count, window->bodies[order]);
        if (page < window->page_count)
            pages[page] = 1;
        if (block < window->cut_count)
            blocks[block] = 1;
    }
    out->end = row;
}

int rb_archive_name_ends(const uint8_t *page, uint64_t length, uint64_t count, uint32_t *ends)
{
    uint64_t end = 0;
    if (count > length / RB_ARCHIVE_NAME_BYTES)
        return RB_CORRUPT;
    for (uint64_t i = 0; i < count; i++) {
        end += ar_get(page, count, 0, 2, i);
        if (end > LENGTH_MAX)
            return RB_CORRUPT;
        ends[i] = (uint32_t)end;
    }
    return count * RB_ARCHIVE_NAME_BYTES + end == length ? RB_OK : RB_CORRUPT;
}

/* ---- restoring ---- */

typedef struct join {
    const rb_archive_window *window;
    const rb_archive_parts *parts;
    uint8_t *out;
    uint64_t room, at; /* bytes of `out` */
    rb_archive_stretch *stretches;
    uint64_t stretch_room, count;
    uint64_t next_row; /* the row that would continue the last stretch; */
    bool last_alone;   /* and whether nothing may */
} join;

static const uint8_t *name_at(const join *it, uint64_t rank, uint32_t *length)
{
    const rb_archive_window *window = it->window;
    uint64_t page = part_of(window->pages, window->page_count, rank);
    if (page == window->page_count || it->parts->pages[page] == NULL || it->parts->name_ends[page] == NULL)
        return NULL;
    uint64_t first = page ? window->pages[page - 1] : 0, count = window->pages[page] - first;
    const uint32_t *ends = it->parts->name_ends[page];
    uint32_t begin = rank > first ? ends[rank - first - 1] : 0;
    *length = ends[rank - first] - begin;
    return it->parts->pages[page] + count * RB_ARCHIVE_NAME_BYTES + begin;
}

static const uint8_t *body_at(const join *it, uint64_t order, uint64_t *length)
{
    static const uint8_t none[1];
    const rb_archive_window *window = it->window;
    uint64_t begin = window->bodies[order];
    *length = window->bodies[order + 1] - begin;
    uint64_t block = part_of(window->cuts, window->cut_count, begin);
    if (*length == 0)
        return none;
    if (block == window->cut_count || begin + *length > window->cuts[block] ||
        it->parts->blocks[block] == NULL)
        return NULL;
    return it->parts->blocks[block] + begin - (block ? window->cuts[block - 1] : 0);
}

/* The bytes of a MQTT 5 property list with its length in front, or 0: there is none that fits. */
static uint64_t properties_of(const uint8_t *body, uint64_t room)
{
    uint64_t value = 0;
    for (uint64_t i = 0; i < 4 && i < room; i++) {
        value |= (uint64_t)(body[i] & 0x7f) << 7 * i;
        if (!(body[i] & 0x80))
            return value <= room - i - 1 ? value + i + 1 : 0;
    }
    return 0;
}

/* Writes the plain record that `header` begins, with its checksum. */
static bool join_plain(rb_record *header, uint32_t epoch, const uint8_t *name, const uint8_t *body,
                       uint64_t body_bytes, uint8_t *out)
{
    uint64_t properties = 0, span = rb_span(header->length);
    if (header->flags & RB_FLAG_PROPERTIES && (properties = properties_of(body, body_bytes)) == 0)
        return false;
    if (properties > LENGTH_MAX / 2)
        return false;
    uint64_t payload = rb_payload_position(header->key_length, (uint32_t)properties);
    if (payload + body_bytes - properties != header->length)
        return false;
    uint64_t key_end = RB_RECORD_HEADER_BYTES + (uint64_t)header->key_length, filled = key_end + properties;
    memcpy(out + RB_RECORD_HEADER_BYTES, name, header->key_length);
    memcpy(out + key_end, body, properties);
    memset(out + filled, 0, payload - filled);
    memcpy(out + payload, body + properties, body_bytes - properties);
    memset(out + header->length, 0, span - header->length);
    header->key_hash = rb_crc32c(0, name, header->key_length);
    uint32_t crc = rb_crc32c(epoch, &header->offset, RB_RECORD_HEADER_BYTES - offsetof(rb_record, offset));
    uint64_t end = header->flags & RB_FLAG_UNCHECKED ? payload : header->length;
    header->crc = rb_crc32c(crc, out + RB_RECORD_HEADER_BYTES, end - RB_RECORD_HEADER_BYTES);
    memcpy(out, header, sizeof *header);
    return true;
}

/* Enters a restored record into the last stretch, or into one of its own. */
static bool note(join *it, uint64_t row, uint64_t run, uint64_t begin, uint64_t span, const rb_record *header)
{
    bool alone = header->flags & RB_FLAG_UNCHECKED;
    rb_archive_stretch *last = it->count ? &it->stretches[it->count - 1] : NULL;
    if (last != NULL && row == it->next_row && run == last->run && !alone && !it->last_alone) {
        last->length += span;
        last->count++;
        last->last_timestamp_ns = header->timestamp_ns;
    } else {
        if (it->count == it->stretch_room)
            return false;
        it->stretches[it->count++] = (rb_archive_stretch){.place = begin,
                                                          .length = span,
                                                          .run = run,
                                                          .first_offset = header->offset,
                                                          .count = 1,
                                                          .position = it->window->positions[row],
                                                          .first_timestamp_ns = header->timestamp_ns,
                                                          .last_timestamp_ns = header->timestamp_ns};
    }
    it->next_row = row + 1;
    it->last_alone = alone;
    return true;
}

static bool join_one(join *it, uint64_t row, uint64_t run, uint64_t offset, uint64_t time)
{
    const rb_archive_window *window = it->window;
    uint64_t order = window->order[row], body_bytes;
    uint32_t name_bytes = 0, flags = (uint32_t)ar_get(window->head, window->records, AR_FLAGS, 2, order);
    rb_record header = {.length = (uint32_t)length_at(window, order),
                        .offset = offset,
                        .timestamp_ns = time,
                        .flags = (uint16_t)(flags & ~(uint32_t)RB_ARCHIVE_VERBATIM)};
    uint64_t span = rb_span(header.length);
    const uint8_t *name = name_at(it, key_at(window, row), &name_bytes);
    const uint8_t *body = body_at(it, order, &body_bytes);
    if (name == NULL || body == NULL)
        return true; /* not given: a part that is damaged */
    if (span == 0 || span > it->room - it->at || name_bytes > UINT16_MAX)
        return false;
    header.key_length = (uint16_t)name_bytes;
    if (flags & RB_ARCHIVE_VERBATIM) {
        if (body_bytes != span)
            return false;
        memcpy(it->out + it->at, body, span);
    } else if (!join_plain(&header, window->runs[run].epoch, name, body, body_bytes, it->out + it->at)) {
        return false;
    }
    it->at += span;
    return note(it, row, run, it->at - span, span, &header);
}

int64_t rb_archive_restore(const rb_archive_window *window, const rb_archive_wanted *wanted,
                           const rb_archive_parts *parts, uint8_t *out, uint64_t room,
                           rb_archive_stretch *stretches, uint64_t stretch_room)
{
    join it = {.window = window,
               .parts = parts,
               .out = out,
               .room = room,
               .stretches = stretches,
               .stretch_room = stretch_room};
    uint64_t row = 0, time = 0, last = wanted->end < window->records ? wanted->end : window->records;
    for (uint64_t run = 0; run < window->run_count && row < last; run++) {
        uint64_t first = row, end = first + window->runs[run].count;
        for (; row < end && row < last; row++) {
            time += time_step(window, row);
            if (row < wanted->first || !is_wanted(window, wanted, row))
                continue;
            if (!join_one(&it, row, run, window->runs[run].first_offset + row - first, time))
                return RB_CORRUPT;
        }
    }
    return (int64_t)it.count;
}
