/* SPDX-License-Identifier: Apache-2.0
 *
 * A window of records into columns: what compresses well beside its like.
 *
 * Two passes over the records, with a counting sort between them: the first finds the key of each, which
 * gives all of them their places in key order; the second writes.  What a reader can work out is left out:
 * offsets (dense), the hash of the key, padding, and the checksum.  A record that would not come back bit by
 * bit is stored as it stands (RB_ARCHIVE_VERBATIM).
 */
#include "archive.h"

#include <string.h>

typedef struct split {
    const rb_keys *keys;
    const uint8_t *bytes;
    const rb_archive_run *runs;
    uint64_t run_count, records, ranks;
    uint64_t *spots;    /* by record, where it is in `bytes` */
    uint64_t *by_order; /* by place in key order, the record */
    uint64_t *counts;   /* by rank, then where its records begin in key order */
    uint8_t *head;
    uint64_t earliest, latest; /* timestamps */
} split;

static bool zeros(const uint8_t *bytes, const uint8_t *end)
{
    while (bytes < end)
        if (*bytes++ != 0)
            return false;
    return true;
}

/* Whether a reader makes the same bytes of header fields, key and body again. */
static bool is_plain(const rb_record *header, const rb_parts *parts, const uint8_t *record)
{
    const uint8_t *key = record + RB_RECORD_HEADER_BYTES;
    return header->key_hash == rb_crc32c(0, key, header->key_length) &&
           zeros(record + parts->properties_position + parts->properties_length,
                 record + parts->payload_position) &&
           zeros(record + header->length, record + rb_span(header->length));
}

/* Keys and times of one run, whose records must be dense and verify. */
static bool look_at(split *it, const rb_archive_run *run, uint64_t begin, uint64_t row, uint64_t *time)
{
    rb_record header;
    rb_parts parts;
    uint64_t at = 0, ignored;
    for (uint64_t i = 0; i < run->count; i++, row++) {
        const uint8_t *record = it->bytes + begin + at;
        uint64_t span = rb_record_at(record, run->length - at, &header, &parts, &ignored);
        if (span == 0 || header.offset != run->first_offset + i ||
            !rb_record_verifies(&header, &parts, record, run->epoch))
            return false;
        int64_t rank = rb_keys_find(it->keys, record + RB_RECORD_HEADER_BYTES, header.key_length);
        if (rank < 0 || (uint64_t)rank >= it->ranks)
            return false;
        it->counts[rank + 1]++;
        it->spots[row] = begin + at;
        ar_put(it->head, it->records, AR_KEY, 4, row, (uint64_t)rank);
        ar_put(it->head, it->records, AR_TIME, 8, row, ar_zigzag(header.timestamp_ns - *time));
        *time = header.timestamp_ns;
        it->earliest = *time < it->earliest ? *time : it->earliest;
        it->latest = *time > it->latest ? *time : it->latest;
        at += span;
    }
    return at == run->length;
}

static bool look(split *it)
{
    uint64_t begin = 0, row = 0, time = 0;
    memset(it->counts, 0, (it->ranks + 1) * sizeof *it->counts);
    for (uint64_t i = 0; i < it->run_count; i++) {
        const rb_archive_run *run = &it->runs[i];
        if (run->count > it->records - row || !look_at(it, run, begin, row, &time))
            return false;
        begin += run->length;
        row += run->count;
    }
    return row == it->records;
}

static void sort(split *it)
{
    for (uint64_t rank = 0; rank < it->ranks; rank++)
        it->counts[rank + 1] += it->counts[rank];
    for (uint64_t row = 0; row < it->records; row++) {
        uint64_t rank = ar_get(it->head, it->records, AR_KEY, 4, row);
        it->by_order[it->counts[rank]++] = row;
    }
}

/* Writes what is in key order of one record; bytes of its body. */
static uint64_t write(split *it, uint64_t order, uint8_t *body)
{
    const uint8_t *record = it->bytes + it->spots[it->by_order[order]];
    rb_record header;
    rb_parts parts;
    uint64_t ignored, span = rb_record_at(record, UINT64_MAX, &header, &parts, &ignored), length = span;
    uint32_t flags = header.flags | RB_ARCHIVE_VERBATIM;
    if (is_plain(&header, &parts, record)) {
        flags = header.flags;
        memcpy(body, record + parts.properties_position, parts.properties_length);
        memcpy(body + parts.properties_length, record + parts.payload_position, parts.payload_length);
        length = parts.properties_length + (uint64_t)parts.payload_length;
    } else {
        memcpy(body, record, span);
    }
    ar_put(it->head, it->records, AR_FLAGS, 2, order, flags);
    ar_put(it->head, it->records, AR_LENGTH, 4, order, header.length);
    ar_put(it->head, it->records, AR_BESIDE, 4, order, (uint32_t)(header.length - (uint32_t)length));
    return length;
}

int rb_archive_split(const rb_keys *keys, uint64_t ranks, const uint8_t *bytes, const rb_archive_run *runs,
                     uint64_t run_count, uint64_t records, uint64_t block_bytes, rb_archive_columns *out)
{
    split it = {.keys = keys,
                .bytes = bytes,
                .runs = runs,
                .run_count = run_count,
                .records = records,
                .ranks = ranks,
                .spots = out->scratch,
                .by_order = out->scratch + records,
                .counts = out->scratch + 2 * records,
                .head = out->head,
                .earliest = UINT64_MAX};
    if (!look(&it))
        return RB_CORRUPT;
    out->first_timestamp_ns = it.earliest, out->last_timestamp_ns = it.latest;
    sort(&it);
    uint64_t cut = 0;
    out->body_bytes = out->cut_count = 0;
    for (uint64_t order = 0; order < records; order++) {
        out->body_bytes += write(&it, order, out->body + out->body_bytes);
        if (out->body_bytes - cut >= block_bytes || order == records - 1)
            out->cuts[out->cut_count++] = cut = out->body_bytes;
    }
    return RB_OK;
}
