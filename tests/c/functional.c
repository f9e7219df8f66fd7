/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring from C alone, on plain memory: what every machine and every sanitizer must agree on.
 *
 *     functional              checks itself; status 0
 *     functional dump FILE    besides, writes the bytes of a ring with every kind of record to FILE: the
 *                             golden ones
 *     functional scan FILE    reads such a file, made elsewhere, and checks every record of it
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"

/* A second copy, for the ways of making a checksum that this machine does not choose. */
#define rb_crc32c way_crc32c
#define rb_crc32c_copy way_crc32c_copy
#define rb_crc32c_of way_crc32c_of
#define rb_crc32_fold way_crc32_fold
uint32_t rb_crc32c(uint32_t seed, const void *data, size_t length);
uint32_t rb_crc32c_copy(uint32_t seed, void *to, const void *from, size_t length);
uint32_t rb_crc32c_of(uint32_t seed, const uint8_t *bytes, uint64_t length);
uint64_t rb_crc32_fold(uint32_t *crc, const uint8_t *bytes, uint64_t length);
#include "base/crc32c.c"
#undef rb_crc32c
#undef rb_crc32c_copy
#undef rb_crc32c_of
#undef rb_crc32_fold

#define CAPACITY RB_CAPACITY_MIN_BYTES
#define RING_BYTES (RB_HEADER_BYTES + CAPACITY)
#define EPOCH 0x01020304u
#define FIRST 1000u
#define MADE_NS 1700000000000000000u
#define IDENTITY 0x5eed1e55u
#define DUMP_BYTES (RING_BYTES + RB_CURSORS_BYTES)

#define CHECK(condition)                                                   \
    do {                                                                   \
        if (!(condition)) {                                                \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

static _Alignas(4096) uint8_t memory[DUMP_BYTES], other[DUMP_BYTES];
static rb_cursors own_slots;
static rb_writer writer;

static uint8_t *cursors_of(uint8_t *at)
{
    return at + RING_BYTES;
}

static void begin(void)
{
    memset(memory, 0, sizeof memory);
    CHECK(rb_format(memory, CAPACITY, EPOCH, FIRST, "golden-0", MADE_NS, IDENTITY) == RB_OK);
    CHECK(rb_format_cursors(cursors_of(memory), memory) == RB_OK);
    CHECK(rb_writer_open(&writer, memory, RING_BYTES, cursors_of(memory), &own_slots) == RB_OK);
}

static rb_key key_of(const char *text, const char *properties, uint32_t properties_length)
{
    uint32_t length = (uint32_t)strlen(text);
    return (rb_key){.bytes = text,
                    .length = length,
                    .hash = rb_crc32c(0, text, length),
                    .properties = properties,
                    .properties_length = properties_length};
}

static void put(const char *text, const char *properties, uint32_t properties_length, const void *payload,
                uint64_t length, uint16_t flags)
{
    rb_key key = key_of(text, properties, properties_length);
    CHECK(rb_append(&writer, &key, payload, length, flags, MADE_NS + writer.offset) == RB_OK);
    rb_announce_end(&writer);
}

/* A payload whose bytes count, filled in place and cut short. */
static void put_in_place(uint64_t claimed, uint64_t actual)
{
    rb_key key = key_of("in/place", NULL, 0);
    uint8_t *payload;
    CHECK(rb_claim(&writer, &key, claimed, 0, MADE_NS + writer.offset, &payload) == RB_OK);
    for (uint64_t i = 0; i < claimed; i++)
        payload[i] = (uint8_t)i;
    rb_commit(&writer, actual, actual <= RB_CHECKED_IN_PLACE_MAX_BYTES);
    rb_announce_end(&writer);
}

static void put_every_kind(void)
{
    put("", NULL, 0, "", 0, 0);
    put("plant/1/temp", NULL, 0, "21.5", 4, RB_FLAG_RETAIN | 1);
    put("plant/2/temp", "\x05\x02\x00\x00\x00\x3c", 6, "22.5", 4, RB_FLAG_EXPIRY | 2);
    put("12345678", NULL, 0, "a payload that begins right behind its key", 42, 0);
    put_in_place(100, 33);
    put_in_place(5000, 4500);
    put("last", NULL, 0, "end", 3, 0);
}

static void read_every_kind(uint8_t *from)
{
    rb_reader reader;
    rb_view view;
    static const uint32_t lengths[] = {0, 4, 4, 42, 33, 4500, 3};
    CHECK(rb_reader_open(&reader, from, RING_BYTES, NULL, -1, false) == RB_OK);
    reader.verify = true;
    rb_seek_oldest(&reader);
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        CHECK(rb_read(&reader, &view) == RB_OK);
        CHECK(view.header.offset == FIRST + i && view.header.timestamp_ns == MADE_NS + FIRST + i);
        CHECK(view.parts.payload_length == lengths[i]);
        CHECK((view.parts.payload_position & 7) == 0);
    }
    CHECK(rb_read(&reader, &view) == RB_EMPTY && rb_peek(&reader) == RB_EMPTY);
}

/* Laps, padding, seeks; and the losses reported to a reader that was overtaken. */
static void go_round(void)
{
    rb_reader reader;
    rb_view view;
    uint8_t payload[700];
    rb_reader_open(&reader, memory, RING_BYTES, NULL, -1, false);
    uint64_t from = reader.offset;
    for (uint32_t i = 0; i < 1000; i++) {
        memset(payload, (int)(writer.offset & 0xff), sizeof payload);
        put("round", NULL, 0, payload, 1 + writer.offset * 37 % sizeof payload, 0);
    }
    CHECK(rb_read(&reader, &view) == RB_OVERRUN && reader.lost == reader.offset - from);
    reader.verify = true;
    uint64_t oldest = reader.offset;
    while (rb_read(&reader, &view) == RB_OK) {
        const uint8_t *bytes = view.bytes + view.parts.payload_position;
        CHECK(bytes[0] == (view.header.offset & 0xff) && bytes[view.parts.payload_length - 1] == bytes[0]);
    }
    CHECK(reader.offset == writer.offset && reader.cursor == writer.tail);
    for (uint64_t offset = oldest; offset < writer.offset; offset += 7) {
        CHECK(rb_seek_offset(&reader, offset) == RB_OK && rb_read(&reader, &view) == RB_OK);
        CHECK(view.header.offset == offset);
        rb_seek_time(&reader, MADE_NS + offset);
        CHECK(reader.offset == offset);
    }
    CHECK(rb_seek_offset(&reader, 0) == RB_OVERRUN && reader.offset == oldest);
}

static void hold_back(void)
{
    rb_reader own, foreign;
    rb_view view;
    rb_key key = key_of("gate", NULL, 0);
    CHECK(rb_reader_open(&own, memory, RING_BYTES, &own_slots, 3, true) == RB_OK);
    CHECK(rb_reader_open(&foreign, memory, RING_BYTES, (rb_cursors *)cursors_of(memory), 63, true) == RB_OK);
    uint64_t first = own.offset;
    while (rb_append(&writer, &key, "x", 1, 0, 1) == RB_OK)
        ;
    CHECK(rb_can_claim(&writer, 1, 4) == RB_FULL && rb_evict_stalled(&writer, 1, 4) == 1);
    CHECK(rb_read(&foreign, &view) == RB_EVICTED && rb_can_claim(&writer, 1, 4) == RB_FULL);
    while (rb_read(&own, &view) == RB_OK)
        CHECK(view.header.offset == first++);
    rb_reader_release(&own, own.cursor);
    CHECK(rb_can_claim(&writer, 1, 4) == RB_OK && first == writer.offset);
    rb_reader_close(&own);
    rb_reader_close(&foreign);
}

static void take_over(void)
{
    rb_key key = key_of("orphan", NULL, 0);
    uint8_t *payload;
    uint64_t offset = writer.offset;
    CHECK(rb_append(&writer, &key, "committed", 9, 0, 1) == RB_OK);
    CHECK(rb_claim(&writer, &key, 100, 0, 1, &payload) == RB_OK);
    memset(payload, 0xff, 100);
    /* as after a kill */
    CHECK(rb_writer_open(&writer, memory, RING_BYTES, cursors_of(memory), &own_slots) == RB_OK);
    CHECK(writer.offset == offset + 1);
    put("", NULL, 0, "next", 4, 0);
}

static void wait_a_little(void)
{
    rb_reader reader;
    CHECK(rb_reader_open(&reader, memory, RING_BYTES, &own_slots, 0, false) == RB_OK);
    CHECK(rb_reader_wait(&reader, 1000, 1000000) == RB_TIMEOUT);
    put("", NULL, 0, "x", 1, 0);
    CHECK(rb_reader_wait(&reader, 0, INT64_MAX) == RB_OK);
    rb_reader_close(&reader);
}

/* The check value of RFC 3720, the lanes of long buffers, and any split of them. */
static void checksum(void)
{
    static uint8_t bytes[10000];
    CHECK(rb_crc32c(0, "123456789", 9) == 0xe3069283u);
    for (uint32_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 31 + (i >> 8));
    uint32_t slow = 0;
    for (uint32_t i = 0; i < sizeof bytes; i++)
        slow = rb_crc32c(slow, bytes + i, 1);
    CHECK(rb_crc32c(0, bytes, sizeof bytes) == slow);
    for (uint32_t split = 0; split < sizeof bytes; split += 97)
        CHECK(rb_crc32c(rb_crc32c(0, bytes, split), bytes + split, sizeof bytes - split) == slow);
}

/* Copied to and from any place in a line, with nothing written outside of it: the same sum, by any way. */
static void checksum_of_a_copy(void)
{
    static uint8_t from[9000], to[9100];
    for (uint32_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 31 + (i >> 8));
    for (uint32_t length = 0; length < 8900; length += 1 + length / 9) {
        uint32_t skew = length % 67, place = length % 71, slow = ~by_table(~7u, from + skew, length);
        memset(to, 0xa5, sizeof to);
        CHECK(rb_crc32c_copy(7, to + place, from + skew, length) == slow);
        CHECK(memcmp(to + place, from + skew, length) == 0);
        for (uint32_t i = 0; i < sizeof to; i++)
            CHECK((i >= place && i < place + length) || to[i] == 0xa5);
        CHECK(rb_crc32c(7, from + skew, length) == slow);
        CHECK(~copy_in_pieces(~7u, to, from + skew, length) == slow);
#ifdef HARDWARE
        CHECK(!hardware_here() || ~by_hardware(~7u, from + skew, length) == slow);
#endif
    }
}

/* A header as Python has read it: its bytes are aligned to 8 only. */
static void header_is_inspected_in_any_place(void)
{
    rb_ring_info facts;
    begin();
    memcpy(other + 8, memory, RB_HEADER_BYTES);
    CHECK(rb_inspect(other + 8, RING_BYTES, &facts) == RB_OK && facts.epoch == EPOCH);
}

/* Whole pages or not: what stands before and after the cleared memory stays. */
static void memory_is_cleared(void)
{
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE), bytes = 4 * page;
    uint8_t *pages = aligned_alloc(page, bytes);
    CHECK(pages != NULL);
    for (uint32_t begin = 0; begin < 2 * page; begin += page / 2)
        for (uint32_t end = begin; end <= bytes; end += page / 2) {
            memset(pages, 0xa5, bytes);
            rb_memory_clear(pages + begin, end - begin);
            for (uint32_t i = 0; i < bytes; i++)
                CHECK(pages[i] == (i >= begin && i < end ? 0 : 0xa5));
        }
    free(pages);
}

static void file(const char *name, const char *mode)
{
    FILE *it = fopen(name, mode);
    CHECK(it != NULL);
    if (mode[0] == 'w')
        CHECK(fwrite(memory, 1, DUMP_BYTES, it) == DUMP_BYTES);
    else
        CHECK(fread(other, 1, DUMP_BYTES, it) == DUMP_BYTES);
    CHECK(fclose(it) == 0);
}

int main(int count, char **arguments)
{
    rb_ring_info facts;
    begin();
    put_every_kind();
    read_every_kind(memory);
    if (count == 3 && strcmp(arguments[1], "dump") == 0)
        file(arguments[2], "wb");
    if (count == 3 && strcmp(arguments[1], "scan") == 0) {
        file(arguments[2], "rb");
        CHECK(rb_inspect(other, RING_BYTES, &facts) == RB_OK);
        CHECK(facts.epoch == EPOCH && facts.first_offset == FIRST);
        CHECK(rb_inspect_cursors(cursors_of(other), RB_CURSORS_BYTES, other) == RB_OK);
        read_every_kind(other);
    }
    go_round();
    hold_back();
    take_over();
    wait_a_little();
    checksum();
    checksum_of_a_copy();
    header_is_inspected_in_any_place();
    memory_is_cleared();
    return 0;
}
