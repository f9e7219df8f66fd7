/* SPDX-License-Identifier: Apache-2.0
 *
 * Records as bytes, from a ring, a segment or a drained file.  Every length is treated as hostile: read once,
 * and checked against the room before use.  record.h has the layout, and computes the checksum.
 */
#include "base/record.h"

#include <stdatomic.h>
#include <string.h>

/* Length of the MQTT Variable Byte Integer at `bytes` plus the property bytes after it; 0 if they exceed
 * `bytes_left`. */
static uint32_t properties_length(const uint8_t *bytes, uint64_t bytes_left)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < 4 && i < bytes_left; i++) {
        value |= (uint32_t)(bytes[i] & 0x7f) << 7 * i;
        if (!(bytes[i] & 0x80))
            return value <= bytes_left - (i + 1) ? value + i + 1 : 0;
    }
    return 0;
}

int rb_record_parts(const rb_record *header, const uint8_t *bytes, uint64_t bytes_left, rb_parts *out)
{
    uint64_t length = header->length, prefix = RB_RECORD_HEADER_BYTES + (uint64_t)header->key_length;
    if (length > bytes_left || length < prefix || header->flags & RB_FLAGS_CRITICAL)
        return RB_CORRUPT;
    uint32_t properties = 0;
    if (header->flags & RB_FLAG_PROPERTIES) {
        properties = properties_length(bytes + prefix, length - prefix);
        if (properties == 0)
            return RB_CORRUPT;
    }
    uint32_t payload = rb_payload_position(header->key_length, properties);
    if (payload > length)
        return RB_CORRUPT;
    out->properties_position = (uint32_t)prefix;
    out->properties_length = properties;
    out->payload_position = payload;
    out->payload_length = (uint32_t)(length - payload);
    return RB_OK;
}

int rb_record_verifies(const rb_record *header, const rb_parts *parts, const uint8_t *bytes, uint32_t epoch)
{
    uint32_t end = header->flags & RB_FLAG_UNCHECKED ? parts->payload_position : header->length;
    return rb_record_crc(header, bytes, end, epoch) == header->crc;
}

uint64_t rb_record_at(const uint8_t *bytes, uint64_t bytes_left, rb_record *header, rb_parts *parts,
                      uint64_t *bad_length)
{
    *bad_length = 0;
    if (bytes_left < RB_RECORD_HEADER_BYTES)
        return 0;
    memcpy(header, bytes, sizeof *header);
    uint64_t span = rb_span(header->length);
    if (header->length < RB_RECORD_HEADER_BYTES || header->length & RB_PADDING_BIT || span > bytes_left)
        return 0;
    *bad_length = span;
    return rb_record_parts(header, bytes, bytes_left, parts) == RB_OK ? span : 0;
}

static uint32_t gap_crc(uint32_t epoch, const uint64_t words[3], uint32_t length)
{
    return rb_crc32c(rb_crc32c(epoch, words, 3 * sizeof *words), &length, sizeof length);
}

void rb_gap_put(uint8_t *bytes, uint32_t epoch, rb_gap gap)
{
    const uint64_t words[3] = {gap.offset, gap.count, 0};
    uint32_t length = RB_PADDING_BIT | RB_GAP_BIT | (uint32_t)gap.span, crc = gap_crc(epoch, words, length);
    memcpy(bytes + 8, words, sizeof words);
    memcpy(bytes + 4, &crc, sizeof crc);
    /* pairs with the acquire in next_length() of reader.c: readers may live while a ring is taken over */
    atomic_store_explicit((_Atomic uint32_t *)(void *)bytes, length, memory_order_release);
}

#define COUNT_MAX (1u << 27) /* number of 32-byte records in the largest ring */

int rb_gap_at(const uint8_t *bytes, uint32_t length, uint64_t bytes_left, uint32_t epoch, rb_gap *out)
{
    uint64_t words[3], span = rb_filler_span(length);
    uint32_t crc;
    if (span < RB_RECORD_ALIGN || span % RB_RECORD_ALIGN != 0 || span > bytes_left)
        return RB_CORRUPT;
    memcpy(words, bytes + 8, sizeof words);
    memcpy(&crc, bytes + 4, sizeof crc);
    *out = (rb_gap){span, words[0], words[1]};
    return crc == gap_crc(epoch, words, length) && words[1] <= COUNT_MAX ? RB_OK : RB_CORRUPT;
}

void rb_copy(uint8_t *to, const uint8_t *from, uint64_t length)
{
    memcpy(to, from, length);
}

int rb_scan_records(const uint8_t *bytes, uint64_t length, uint32_t epoch, rb_scan *out)
{
    memset(out, 0, sizeof *out);
    while (out->good_bytes < length) {
        rb_record header;
        rb_parts parts;
        const uint8_t *record = bytes + out->good_bytes;
        uint64_t span =
            rb_record_at(record, length - out->good_bytes, &header, &parts, &out->bad_length);
        if (span == 0 || !rb_record_verifies(&header, &parts, record, epoch))
            return RB_CORRUPT;
        if (out->count++ == 0) {
            out->first_offset = header.offset;
            out->first_timestamp_ns = header.timestamp_ns;
        }
        out->last_offset = header.offset;
        out->last_timestamp_ns = header.timestamp_ns;
        out->good_bytes += span;
    }
    out->bad_length = 0;
    return RB_OK;
}
