/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery of a reader from damage in a ring that has a writer: skips the damage and counts the lost records.
 * Damage from an earlier writer is repaired before any reader opens the ring (check.c).
 */
#include "ring/ring.h"

#include <string.h>

#define SEARCH_TIMES 4 /* times the capacity: limit for bytes of failed checksums */

static const uint8_t *at(const rb_reader *reader, uint64_t position)
{
    return reader->data + (position & reader->mask);
}

int rb_reader_is_stuck(const rb_reader *reader)
{
    uint64_t end, offset;
    uint32_t length;
    rb_end_read(reader->header, &end, &offset);
    if (end <= reader->cursor || offset <= reader->offset)
        return false;
    memcpy(&length, at(reader, reader->cursor), sizeof length); /* below the end all is committed */
    return length == 0 && rb_reader_holds(reader, reader->cursor);
}

/* True if a record that verifies stands at `position` and its offset can follow the cursor's. */
static bool can_follow(const rb_reader *reader, uint64_t position, uint64_t *budget, rb_record *header)
{
    rb_parts parts;
    uint64_t bad;
    const uint8_t *bytes = at(reader, position);
    if (rb_record_at(bytes, reader->capacity - (position & reader->mask), header, &parts, &bad) == 0 ||
        header->offset < reader->offset || header->length > *budget ||
        header->offset - reader->offset > (position - reader->cursor) / RB_RECORD_ALIGN)
        return false;
    *budget -= header->length;
    return rb_record_verifies(header, &parts, bytes, reader->epoch) && rb_reader_holds(reader, position);
}

int rb_reader_skip_damage(rb_reader *reader)
{
    uint64_t end, end_offset;
    rb_record header = {0};
    rb_end_read(reader->header, &end, &end_offset);
    if (end <= reader->cursor || end_offset <= reader->offset || end - reader->cursor > reader->capacity)
        return RB_EMPTY;
    uint64_t position = reader->cursor + RB_RECORD_ALIGN, budget = reader->capacity * SEARCH_TIMES;
    while (position < end && !can_follow(reader, position, &budget, &header))
        position += RB_RECORD_ALIGN;
    uint64_t offset = position < end ? header.offset : end_offset;
    reader->lost += offset - reader->offset;
    reader->cursor = position < end ? position : end;
    reader->offset = offset;
    return RB_OVERRUN;
}
