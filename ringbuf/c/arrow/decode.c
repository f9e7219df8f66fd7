/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of runs of records, as in drained files, into columns in Arrow's memory layout.
 *
 * Two passes: the first checks and counts every record, so that Python allocates each buffer once, at its
 * size.  The second fills the buffers.  With some megabytes per call, the second pass finds its input in the
 * cache.
 *
 * The bytes are hostile: a file from any source.  Every length is checked against its room before use.  The
 * second pass checks again, against the allocated sizes, because the bytes may be a mapped file that is still
 * being written.  Plain reads and writes of the caller's memory; no allocation, no system call.
 */
#include "arrow/decode.h"

#include <string.h>

#define COLUMN_MAX_BYTES INT32_MAX /* Arrow's 32-bit ends */

int rb_decode_measure(const uint8_t *bytes, uint64_t length, uint32_t epoch, uint64_t first_offset,
                      uint64_t rows_max, uint64_t bytes_max, rb_decode_sizes *out)
{
    rb_record header;
    rb_parts parts;
    memset(out, 0, sizeof *out);
    if (bytes_max > COLUMN_MAX_BYTES)
        bytes_max = COLUMN_MAX_BYTES;
    while (out->consumed_bytes < length && out->rows < rows_max) {
        const uint8_t *record = bytes + out->consumed_bytes;
        uint64_t span = rb_record_at(record, length - out->consumed_bytes, &header, &parts, &out->bad_length);
        bool expected = first_offset == RB_ANY_OFFSET || header.offset == first_offset + out->rows;
        if (span == 0 || !expected || !rb_record_verifies(&header, &parts, record, epoch))
            return RB_CORRUPT;
        if (out->rows > 0 && out->consumed_bytes + span > bytes_max)
            break;
        out->rows++;
        out->consumed_bytes += span;
        out->key_bytes += header.key_length;
        out->properties_bytes += parts.properties_length;
        out->payload_bytes += parts.payload_length;
    }
    out->bad_length = 0;
    return RB_OK;
}

static void set_bit(uint8_t *bitmap, uint64_t row, bool on)
{
    uint8_t mask = (uint8_t)(1u << (row & 7));
    bitmap[row >> 3] = (uint8_t)(on ? bitmap[row >> 3] | mask : bitmap[row >> 3] & ~mask);
}

/* Append `length` bytes to a column with `capacity` bytes, of which *filled are used.  False if they do not
 * fit. */
static inline bool append(int32_t *ends, uint8_t *column, uint64_t row, uint64_t *filled, uint64_t capacity,
                          const uint8_t *bytes, uint32_t length)
{
    if (length > capacity - *filled)
        return false;
    if (column != NULL) {
        memcpy(column + *filled, bytes, length);
        ends[row + 1] = (int32_t)(*filled + length);
    }
    *filled += length;
    return true;
}

static inline void fill_fixed(const rb_decode_columns *out, uint64_t row, const rb_record *header)
{
    if (out->offset != NULL)
        out->offset[row] = (int64_t)header->offset;
    if (out->timestamp_us != NULL)
        out->timestamp_us[row] = (int64_t)(header->timestamp_ns / 1000);
    if (out->timestamp_ns != NULL)
        out->timestamp_ns[row] = (int64_t)header->timestamp_ns;
    if (out->flags != NULL)
        out->flags[row] = header->flags;
    if (out->qos != NULL)
        out->qos[row] = header->flags & RB_FLAG_QOS;
    if (out->retain != NULL)
        set_bit(out->retain, row, header->flags & RB_FLAG_RETAIN);
    if (out->properties_there != NULL)
        set_bit(out->properties_there, row, header->flags & RB_FLAG_PROPERTIES);
}

int rb_decode_fill(const uint8_t *bytes, const rb_decode_sizes *sizes, const rb_decode_columns *out)
{
    rb_record header;
    rb_parts parts;
    uint64_t position = 0, keys = 0, properties = 0, payloads = 0, ignored;
    if (out->key != NULL)
        out->key_ends[0] = 0;
    if (out->properties != NULL)
        out->properties_ends[0] = 0;
    if (out->payload != NULL)
        out->payload_ends[0] = 0;
    for (uint64_t row = 0; row < sizes->rows; row++) {
        const uint8_t *record = bytes + position;
        uint64_t span = rb_record_at(record, sizes->consumed_bytes - position, &header, &parts, &ignored);
        if (span == 0 ||
            !append(out->key_ends, out->key, row, &keys, sizes->key_bytes, record + RB_RECORD_HEADER_BYTES,
                    header.key_length) ||
            !append(out->properties_ends, out->properties, row, &properties, sizes->properties_bytes,
                    record + parts.properties_position, parts.properties_length) ||
            !append(out->payload_ends, out->payload, row, &payloads, sizes->payload_bytes,
                    record + parts.payload_position, parts.payload_length))
            return RB_CORRUPT;
        fill_fixed(out, row, &header);
        position += span;
    }
    return RB_OK;
}
