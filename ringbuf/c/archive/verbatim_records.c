/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbatim records: those that cannot be rebuilt bit for bit from their columns.  A local producer may fill
 * padding and key hash with any bytes under a valid checksum.
 */
#include "archive/archive.h"

#include <string.h>

#include "base/utf8.h"

static bool is_zeros(const uint8_t *bytes, uint64_t length)
{
    uint8_t any = 0;
    for (uint64_t i = 0; i < length; i++)
        any |= bytes[i];
    return any == 0;
}

static void set_bit(uint8_t *bitmap, uint64_t bit)
{
    bitmap[bit >> 3] |= (uint8_t)(1u << (bit & 7));
}

static void add_topic(uint8_t *filter, uint32_t hash)
{
    set_bit(filter, hash % (8 * RB_TOPIC_FILTER_BYTES));
    set_bit(filter, (hash >> 13) % (8 * RB_TOPIC_FILTER_BYTES));
}

/* True if rb_archive_join() builds the record from its columns as it stands. */
static bool is_plain(const rb_record *header, const rb_parts *parts, uint32_t key_hash, const uint8_t *record,
                     uint64_t span)
{
    const uint8_t *key = record + RB_RECORD_HEADER_BYTES;
    uint32_t parts_end = parts->properties_position + parts->properties_length;
    return header->key_hash == key_hash && header->timestamp_ns <= INT64_MAX &&
           is_zeros(record + parts_end, parts->payload_position - parts_end) &&
           is_zeros(record + header->length, span - header->length) && rb_is_utf8(key, header->key_length);
}

static void mask(const rb_decode_columns *columns, uint64_t row, const rb_record *header)
{
    uint8_t *key = columns->key + columns->key_ends[row];
    if (!rb_is_utf8(key, header->key_length))
        memset(key, '?', header->key_length);
    if (header->timestamp_ns > INT64_MAX)
        columns->timestamp_ns[row] = INT64_MAX;
}

static void keep(const uint8_t *record, uint64_t span, uint64_t row, uint64_t at, rb_odd *out)
{
    memcpy(out->verbatim + at, record, span);
    set_bit(out->there, row);
}

int rb_archive_odd(const uint8_t *bytes, const rb_decode_sizes *sizes, const rb_decode_columns *columns,
                   rb_odd *out)
{
    rb_record header;
    rb_parts parts;
    uint64_t at = 0, odd = 0, filled = 0, ignored;
    bool fill = out->ends != NULL;
    for (uint64_t row = 0; row < sizes->rows; row++) {
        const uint8_t *record = bytes + at;
        uint64_t span = rb_record_at(record, sizes->consumed_bytes - at, &header, &parts, &ignored);
        if (span == 0 || header.offset > INT64_MAX)
            return RB_INVALID;
        uint32_t key_hash = rb_crc32c(0, record + RB_RECORD_HEADER_BYTES, header.key_length);
        add_topic(out->filter, key_hash);
        if (!is_plain(&header, &parts, key_hash, record, span)) {
            if (fill && span > out->bytes - filled)
                return RB_INVALID;
            if (fill)
                keep(record, span, row, filled, out);
            mask(columns, row, &header);
            filled += span;
            odd++;
        }
        if (fill)
            out->ends[row + 1] = (int32_t)filled;
        out->earliest_ns = header.timestamp_ns < out->earliest_ns ? header.timestamp_ns : out->earliest_ns;
        out->latest_ns = header.timestamp_ns > out->latest_ns ? header.timestamp_ns : out->latest_ns;
        at += span;
    }
    out->rows = odd;
    out->bytes = filled;
    return filled <= INT32_MAX ? RB_OK : RB_INVALID;
}
