/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoder of archives: builds records from columns, bit for bit as they were in the ring.
 *
 * The columns have passed a checksum.  Every length and end is still checked before memory is accessed.
 */
#include "archive/archive.h"

#include <string.h>

typedef struct bytes {
    const uint8_t *at;
    uint32_t length;
} bytes;

typedef struct row {
    bytes key, properties, payload, verbatim;
    uint64_t offset, position, span, timestamp_ns;
    uint32_t length, payload_position, key_hash;
    uint16_t flags;
} row;

typedef struct join {
    const rb_archive_rows *in;
    rb_joined *out;
    rb_joined done;       /* so far */
    uint64_t position;    /* behind the row before, wanted or not */
    uint64_t next_offset; /* these two continue the last stretch, */
    uint64_t next_position;
    bool open; /* if it may be continued */
} join;

static bool is_set(const uint8_t *bitmap, uint64_t index)
{
    return bitmap == NULL || bitmap[index >> 3] >> (index & 7) & 1;
}

static bool cut(const int32_t *ends, const uint8_t *column, uint64_t size, uint64_t index, bytes *out)
{
    int64_t begin = ends[index], end = ends[index + 1];
    if (begin < 0 || begin > end || (uint64_t)end > size)
        return false;
    *out = (bytes){size ? column + begin : NULL, (uint32_t)(end - begin)};
    return true;
}

/* The parts of a row, and the sizes that follow from them. */
static bool read_row(const rb_archive_rows *in, uint64_t index, row *out)
{
    const rb_decode_columns *columns = in->columns;
    uint64_t topic = (uint64_t)(int64_t)in->topic[index];
    if (topic >= in->topics || !cut(columns->key_ends, columns->key, in->key_bytes, topic, &out->key) ||
        !cut(columns->properties_ends, columns->properties, in->properties_bytes, index, &out->properties) ||
        !cut(columns->payload_ends, columns->payload, in->payload_bytes, index, &out->payload) ||
        !cut(in->verbatim_ends, in->verbatim, in->verbatim_bytes, index, &out->verbatim))
        return false;
    out->key_hash = in->topic_hash[topic];
    out->offset = (uint64_t)columns->offset[index];
    out->timestamp_ns = (uint64_t)columns->timestamp_ns[index];
    out->flags = (uint16_t)columns->flags[index];
    uint64_t before = (uint64_t)out->key.length + out->properties.length;
    if (out->key.length > UINT16_MAX || before + out->payload.length > INT32_MAX)
        return false;
    out->payload_position = rb_payload_position(out->key.length, out->properties.length);
    out->length = out->payload_position + out->payload.length;
    out->span = out->verbatim.length ? out->verbatim.length : rb_span(out->length);
    return out->span % RB_RECORD_ALIGN == 0;
}

/* A record that is kept verbatim has its own key: the key in the column may be masked. */
static bool read_verbatim(row *source)
{
    rb_record header;
    rb_parts parts;
    uint64_t ignored;
    if (source->verbatim.length == 0)
        return true;
    if (rb_record_at(source->verbatim.at, source->verbatim.length, &header, &parts, &ignored) != source->span)
        return false;
    source->key = (bytes){source->verbatim.at + RB_RECORD_HEADER_BYTES, header.key_length};
    source->flags = header.flags;
    return header.offset == source->offset;
}

static void put(uint8_t *to, bytes from)
{
    if (from.length)
        memcpy(to, from.at, from.length);
}

static void write_record(const row *source, uint32_t epoch, uint8_t *out)
{
    if (source->verbatim.length) {
        put(out, source->verbatim);
        return;
    }
    uint32_t properties_at = RB_RECORD_HEADER_BYTES + source->key.length;
    uint32_t parts_end = properties_at + source->properties.length;
    rb_record header = {.length = source->length,
                        .offset = source->offset,
                        .timestamp_ns = source->timestamp_ns,
                        .key_hash = source->key_hash,
                        .key_length = (uint16_t)source->key.length,
                        .flags = source->flags};
    memcpy(out, &header, sizeof header);
    put(out + RB_RECORD_HEADER_BYTES, source->key);
    put(out + properties_at, source->properties);
    memset(out + parts_end, 0, source->payload_position - parts_end);
    put(out + source->payload_position, source->payload);
    memset(out + source->length, 0, source->span - source->length);
    uint32_t covered = source->flags & RB_FLAG_UNCHECKED ? source->payload_position : source->length;
    uint32_t crc = rb_record_crc(&header, out, covered, epoch);
    memcpy(out + offsetof(rb_record, crc), &crc, sizeof crc);
}

/* Continues the last stretch with a row, or begins one.  False: there is no room. */
static bool stretch(join *state, const row *next)
{
    rb_joined *out = state->out;
    bool single = next->flags & RB_FLAG_UNCHECKED;
    if (!state->open || single || next->offset != state->next_offset ||
        next->position != state->next_position) {
        if (out->out != NULL && state->done.stretches == out->stretches)
            return false;
        if (out->out != NULL)
            out->stretch[state->done.stretches] = (rb_stretch){state->done.rows, 0, next->offset,
                                                               next->position};
        state->done.stretches++;
    }
    if (out->out != NULL)
        out->stretch[state->done.stretches - 1].count++;
    state->open = !single;
    state->next_offset = next->offset + 1;
    state->next_position = next->position + next->span;
    return true;
}

static bool add(join *state, const row *next)
{
    rb_joined *out = state->out;
    if (!stretch(state, next))
        return false;
    if (out->out != NULL) {
        if (state->done.rows == out->rows || next->span > out->bytes - state->done.bytes)
            return false;
        write_record(next, state->in->epoch, out->out + state->done.bytes);
        out->place[state->done.rows + 1] = (uint32_t)((state->done.bytes + next->span) / RB_RECORD_ALIGN);
    }
    state->done.rows++;
    state->done.bytes += next->span;
    return true;
}

static bool hash_topics(const rb_archive_rows *in)
{
    bytes key;
    for (uint64_t topic = 0; topic < in->topics; topic++) {
        if (!cut(in->columns->key_ends, in->columns->key, in->key_bytes, topic, &key))
            return false;
        in->topic_hash[topic] = rb_crc32c(0, key.at, key.length);
    }
    return true;
}

int rb_archive_join(const rb_archive_rows *rows, const uint8_t *key, uint32_t key_length, rb_joined *joined)
{
    join state = {.in = rows, .out = joined};
    row next;
    if (joined->out == NULL && !hash_topics(rows))
        return RB_CORRUPT;
    for (uint64_t index = 0; index < rows->rows; index++) {
        if (!read_row(rows, index, &next) || !read_verbatim(&next))
            return RB_CORRUPT;
        if (is_set(rows->position_there, index))
            state.position = (uint64_t)rows->position[index];
        next.position = state.position;
        state.position += next.span;
        bool wanted = key == NULL || (next.key.length == key_length &&
                                      (key_length == 0 || memcmp(next.key.at, key, key_length) == 0));
        if (wanted && !add(&state, &next))
            return RB_CORRUPT;
    }
    joined->rows = state.done.rows;
    joined->bytes = state.done.bytes;
    joined->stretches = state.done.stretches;
    return RB_OK;
}
