/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of a segment from anywhere through the walk, the sorting and the packing of scan/.  For libFuzzer.
 *
 *   input   byte 0: bit 0: the rest is packed rows, else extents; bit 1: checksums of extents and records are
 *           made right first, so that the walk gets behind them; bit 2: the file is said to end later
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scan/scan.h"
#include "must.h"

#define ROOM 512u
#define SEED 7u

static uint32_t word_at(const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static void mend_records(uint8_t *body, uint64_t length, uint32_t epoch)
{
    rb_record header;
    rb_parts parts;
    uint64_t at = 0, span, bad_length;
    while (at < length && (span = rb_record_at(body + at, length - at, &header, &parts, &bad_length)) != 0) {
        uint32_t end = header.flags & RB_FLAG_UNCHECKED ? parts.payload_position : header.length;
        uint32_t crc = rb_crc32c(epoch, body + at + 8, end - 8);
        memcpy(body + at + 4, &crc, sizeof crc);
        at += span;
    }
}

static void mend(uint8_t *bytes, uint64_t size)
{
    for (uint64_t at = 0; at + 32 <= size;) {
        uint32_t length = word_at(bytes + at);
        if (length == 0 || length % 32 != 0 || length > size - at - 32) {
            at += 32;
            continue;
        }
        mend_records(bytes + at + 32, length, word_at(bytes + at + 12));
        uint32_t crc = rb_crc32c(SEED, bytes + at + 8, 24 + (size_t)length);
        memcpy(bytes + at + 4, &crc, sizeof crc);
        at += 32 + (uint64_t)length;
    }
}

static uint64_t columns[2][8][ROOM];

static rb_rows rows_in(int n)
{
    return (rb_rows){.first_offset = columns[n][0],
                     .count = columns[n][1],
                     .place = columns[n][2],
                     .length = columns[n][3],
                     .ring_position = columns[n][4],
                     .mark_offset = columns[n][5],
                     .mark_place = columns[n][6],
                     .mark_time = columns[n][7],
                     .marks_capacity = ROOM,
                     .mark_bytes = 256};
}

static void packs(const rb_rows *rows, uint64_t count, uint64_t end)
{
    static uint8_t packed[ROOM * RB_PACKED_ROW_MAX_BYTES];
    rb_rows again = rows_in(1);
    uint64_t length = rb_rows_pack(rows, count, packed);
    must(length <= count * RB_PACKED_ROW_MAX_BYTES, "rows fit the room they are promised");
    must(rb_rows_unpack(packed, length, count, end, &again) == RB_OK, "packed rows come back");
    for (int i = 0; i < 5; i++)
        must(memcmp(columns[0][i], columns[1][i], count * sizeof(uint64_t)) == 0, "as they were");
}

static void unpack(const uint8_t *data, size_t size)
{
    rb_rows rows = rows_in(0);
    uint64_t count = size > 0 ? data[0] : 0, end = size > 1 ? (uint64_t)data[1] << 10 : 0;
    if (size < 2 || rb_rows_unpack(data + 2, size - 2, count, end, &rows) != RB_OK)
        return;
    for (uint64_t i = 0; i < count; i++)
        must(rows.place[i] + rows.length[i] <= end && rows.count[i] > 0, "rows lie within the file");
    packs(&rows, count, end);
}

static void sort(rb_walk *walk, uint64_t end)
{
    static uint32_t order[ROOM], scratch[ROOM], slots[4 * ROOM], topics[2 * 8192], places[8192];
    static uint64_t sorted[8192], other[8192];
    static rb_group groups[ROOM];
    int64_t made = rb_extents_group(walk->extent, walk->extents, order, scratch, slots, 4 * ROOM, groups,
                                    ROOM);
    uint64_t grouped = 0, whole = 0;
    must(made >= 0, "there is room for every group");
    for (int64_t g = 0; g < made; g++) {
        rb_rows rows = rows_in(0);
        grouped += groups[g].count;
        if (rb_extents_gather(walk->extent, order + groups[g].first, groups[g].count, &rows) == RB_OK)
            packs(&rows, groups[g].count, end);
        int64_t count = rb_topics_sort(walk->extent, order + groups[g].first, groups[g].count, walk->key_hash,
                                       walk->record_place, sorted, other, 8192);
        must(count >= 0, "there is room for every record");
        uint64_t found = rb_topics_split(sorted, (uint64_t)count, topics, places);
        for (uint64_t i = 1; i < found; i++)
            must(topics[2 * i] > topics[2 * i - 2], "hashes rise");
    }
    for (uint64_t i = 0; i < walk->extents; i++)
        whole += walk->extent[i].whole;
    must(grouped == whole, "every whole extent is in one group");
}

static void walk_over(const uint8_t *bytes, size_t size, uint64_t end)
{
    static rb_extent extents[ROOM];
    static uint32_t hashes[8192], record_places[8192];
    rb_walk walk = {.end = end,
                    .extent = extents,
                    .extents_capacity = ROOM,
                    .key_hash = hashes,
                    .record_place = record_places,
                    .records_capacity = 8192,
                    .seed = SEED};
    uint64_t last = 0;
    for (;;) {
        int stop = rb_extents_walk(bytes, size, 0, &walk);
        must(walk.place >= last && walk.place <= end, "a walk goes on, and not beyond the end");
        last = walk.place;
        if (stop == RB_WALK_LOOK)
            continue;
        if (stop != RB_WALK_BAD)
            break;
        walk.place += 32;
        if (rb_extents_search(bytes, size, 0, 0, &walk) != RB_WALK_LOOK)
            break;
    }
    for (uint64_t i = 0; i < walk.extents; i++)
        must(extents[i].place + 32 + extents[i].length <= size, "extents lie within the bytes");
    sort(&walk, end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t how = data[0];
    uint8_t *bytes = malloc(size > 1 ? size - 1
                                     : 1); /* of exactly that size: what is read beyond it is found */
    must(bytes != NULL, "there is memory");
    memcpy(bytes, data + 1, size - 1);
    if (how & 1) {
        unpack(bytes, size - 1);
    } else {
        if (how & 2)
            mend(bytes, size - 1);
        walk_over(bytes, size - 1, size - 1 + (how & 4 ? 4096 : 0));
    }
    free(bytes);
    return 0;
}
