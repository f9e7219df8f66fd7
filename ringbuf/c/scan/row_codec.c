/* SPDX-License-Identifier: Apache-2.0
 *
 * Compressed rows of an extent table: three bytes for most rows, instead of forty in memory.
 *
 * A row stores its difference to a row that follows the one before directly.  Numbers are in base 128, least
 * significant digit first; bit 7: another digit follows:
 *
 *   gap * 4 + bits   32-byte units between the end of the row before (0 at first) and this one's header;
 *                    bit 0: an offset gap follows, bit 1: a position gap follows
 *   length           of the body, in 32-byte units
 *   count            records
 *   offset gap       offsets between the row before and this one, if there are any
 *   position gap     bytes between the two in the ring, if there are any; zigzag, modulo 2**64
 */
#include "scan/scan.h"

#define HEADER_BYTES 32u
#define UNIT RB_RECORD_ALIGN
#define NUMBER_MAX_BYTES 10u

_Static_assert(5 * NUMBER_MAX_BYTES - 2 <= RB_PACKED_ROW_MAX_BYTES, "length and gap are far below 2**63");

static uint8_t *put(uint8_t *out, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        *out++ = (uint8_t)(value | 128);
    *out++ = (uint8_t)value;
    return out;
}

uint64_t rb_rows_pack(const rb_rows *rows, uint64_t count, uint8_t *out)
{
    uint64_t place = 0, offset = 0, position = 0;
    uint8_t *at = out;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t gap = rows->place[i] - HEADER_BYTES - place;
        uint64_t offset_gap = rows->first_offset[i] - offset,
                 position_gap = rows->ring_position[i] - position;
        at = put(at, gap / UNIT << 2 | (uint64_t)(offset_gap != 0) | (uint64_t)(position_gap != 0) << 1);
        at = put(at, rows->length[i] / UNIT);
        at = put(at, rows->count[i]);
        if (offset_gap != 0)
            at = put(at, offset_gap);
        if (position_gap != 0)
            at = put(at, position_gap << 1 ^ (0 - (position_gap >> 63)));
        place = rows->place[i] + rows->length[i];
        offset = rows->first_offset[i] + rows->count[i];
        position = rows->ring_position[i] + rows->length[i];
    }
    return (uint64_t)(at - out);
}

/* Read a number and move *at past it.  *at becomes NULL if no complete number is before `end`. */
static uint64_t get(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; *at != NULL && *at < end && shift < 7 * NUMBER_MAX_BYTES; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    *at = NULL;
    return 0;
}

int rb_rows_unpack(const uint8_t *bytes, uint64_t length, uint64_t count, uint64_t end, rb_rows *rows)
{
    uint64_t place = 0, offset = 0, position = 0;
    const uint8_t *at = bytes, *last = bytes + length;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t head = get(&at, last), units = get(&at, last), records = get(&at, last);
        uint64_t offset_gap = head & 1 ? get(&at, last) : 0, zigzag = head & 2 ? get(&at, last) : 0;
        if (at == NULL || head >> 2 > end / UNIT || units == 0 || units > end / UNIT || records == 0 ||
            records > units || offset_gap > UINT64_MAX - offset || records > UINT64_MAX - offset - offset_gap)
            return RB_CORRUPT;
        rows->place[i] = place + (head >> 2) * UNIT + HEADER_BYTES;
        rows->length[i] = units * UNIT;
        if (rows->place[i] > end || rows->length[i] > end - rows->place[i])
            return RB_CORRUPT;
        rows->first_offset[i] = offset + offset_gap;
        rows->count[i] = records;
        rows->ring_position[i] = position + (zigzag >> 1 ^ (0 - (zigzag & 1)));
        place = rows->place[i] + rows->length[i];
        offset = rows->first_offset[i] + records;
        position = rows->ring_position[i] + rows->length[i];
    }
    return at == last ? RB_OK : RB_CORRUPT;
}
