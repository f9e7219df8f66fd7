/* SPDX-License-Identifier: Apache-2.0
 *
 * Copy of the records of extents from a segment, verified during the copy: the input of an archive.
 */
#include "archive/archive.h"

#include <string.h>

#define HEADER_BYTES 32u
#define CRC_AT 4u /* persistence/segment/format.py */
#define COVERED_AT 8u

static void add_to_run(rb_bodies *state, const rb_rows *rows, uint64_t row)
{
    rb_run *last = state->runs ? &state->run[state->runs - 1] : NULL;
    uint64_t offset = rows->first_offset[row], position = rows->ring_position[row];
    if (last == NULL || last->first_offset + last->count != offset ||
        last->position + last->length != position) {
        last = &state->run[state->runs++];
        *last = (rb_run){.first_offset = offset, .position = position};
    }
    last->count += rows->count[row];
    last->length += rows->length[row];
}

int rb_bodies_copy(const rb_rows *rows, const uint8_t *bytes, uint64_t length, uint64_t begin, uint32_t seed,
                   rb_bodies *state)
{
    for (; state->row < state->row_end; state->row++) {
        uint64_t body = rows->length[state->row], at = rows->place[state->row] - HEADER_BYTES - begin;
        uint32_t stored_length, crc;
        if (at > length || length - at < HEADER_BYTES + body)
            return RB_OK;
        memcpy(&stored_length, bytes + at, sizeof stored_length);
        memcpy(&crc, bytes + at + CRC_AT, sizeof crc);
        if (stored_length != body || body > state->capacity - state->filled ||
            rb_crc32c(seed, bytes + at + COVERED_AT, HEADER_BYTES - COVERED_AT + body) != crc)
            return RB_CORRUPT;
        memcpy(state->out + state->filled, bytes + at + HEADER_BYTES, body);
        state->filled += body;
        add_to_run(state, rows, state->row);
    }
    return RB_OK;
}
