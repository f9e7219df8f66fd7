/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads on one ring, for sanitizers: a writer, blocking readers that must see all, one that takes runs by
 * the writer's commit index, plain readers that come and go, and one that joins in the past meanwhile.
 *
 *     stress RECORDS [blocking]      with `blocking`, no reader is ever lapped
 *
 * Under ThreadSanitizer run it with `blocking`: then nothing may race.  Plain readers race by design (a
 * sequence lock: they read first, and look afterwards whether that counts), which is outside of what it can
 * judge.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"

#define CAPACITY RB_CAPACITY_MIN_BYTES
#define FOLLOWS_AT 3 /* own slot of the reader that follows the commit_index */
#define RING_BYTES (RB_HEADER_BYTES + CAPACITY)
#define BLOCKING 3
#define PLAIN 2
#define PAYLOAD_MAX 500

static _Alignas(4096) uint8_t ring[RING_BYTES], cursors[RB_CURSORS_BYTES];
static rb_cursors own;
static rb_commit_index commit_index;
static uint64_t records;
static _Atomic bool over;
static _Atomic uint64_t lost, joined;

static void wrong(const char *what, uint64_t offset)
{
    printf("%s at offset %llu\n", what, (unsigned long long)offset);
    exit(1);
}

static uint32_t payload_make(uint64_t offset, uint8_t *out)
{
    uint32_t length = (uint32_t)(offset * 37 % PAYLOAD_MAX);
    memset(out, (int)(offset & 0xff), length);
    return length;
}

static void *write_all(void *unused)
{
    rb_writer writer;
    rb_key key = {.bytes = "key", .length = 3};
    uint8_t payload[PAYLOAD_MAX];
    if (rb_writer_open(&writer, ring, RING_BYTES, cursors, &own) != RB_OK)
        wrong("no writer", 0);
    rb_writer_commit_index(&writer, &commit_index);
    while (writer.offset < records) {
        uint32_t length = payload_make(writer.offset, payload);
        int result = rb_append(&writer, &key, payload, length, 0, writer.offset);
        if (result == RB_FULL)
            result = rb_writer_wait(&writer, length, 3, 1000000000);
        else if (result == RB_OK && writer.offset % 5 == 0)
            rb_announce_end(&writer);
        if (result != RB_OK && result != RB_TIMEOUT)
            wrong("refused", writer.offset);
    }
    rb_announce_end(&writer);
    return unused;
}

/* True if the record is intact; a plain reader checks afterwards that it was not overwritten. */
static bool judge(const rb_reader *reader, const rb_view *view)
{
    uint8_t expected[PAYLOAD_MAX];
    uint32_t length = payload_make(view->header.offset, expected);
    bool same = view->parts.payload_length == length &&
                memcmp(view->bytes + view->parts.payload_position, expected, length) == 0;
    return same || (!reader->blocks_writer && !rb_reader_holds(reader, view->position));
}

static void *read_blocking(void *number)
{
    rb_reader reader;
    rb_view view;
    int slot = (int)(intptr_t)number;
    rb_reader_open(&reader, ring, RING_BYTES, slot % 2 ? &own : (rb_cursors *)cursors, slot, true);
    if (reader.offset != 0)
        wrong("joined late", reader.offset);
    joined++;
    while (reader.offset < records) {
        uint64_t expected = reader.offset;
        int result = rb_read(&reader, &view);
        if (result == RB_EMPTY) {
            rb_reader_wait(&reader, 2000, 1000000000);
            continue;
        }
        if (result != RB_OK || view.header.offset != expected || !judge(&reader, &view))
            wrong("a blocking reader was told wrong", expected);
        rb_reader_release(&reader, reader.cursor);
    }
    rb_reader_close(&reader);
    return NULL;
}

static void *follow(void *unused)
{
    rb_reader reader;
    rb_range found[4];
    rb_reader_open(&reader, ring, RING_BYTES, &own, FOLLOWS_AT, true);
    rb_reader_commit_index(&reader, &commit_index);
    joined++;
    for (uint64_t offset = 0; offset < records;) {
        int count = rb_reader_ranges(&reader, RB_CHUNK_MIN_BYTES / 2 + offset % 8192, found, 4);
        if (count == 0)
            rb_reader_wait(&reader, 2000, 1000000000);
        for (int i = 0; i < count; i++) {
            rb_scan scan;
            int result = rb_scan_records(reader.data + (found[i].position & reader.mask), found[i].length,
                                         reader.epoch, &scan);
            if (result != RB_OK || scan.first_offset != offset || scan.count != found[i].count ||
                scan.last_timestamp_ns != found[i].last_timestamp_ns)
                wrong("who follows was told wrong", offset);
            offset += scan.count;
        }
        if (count < 0)
            wrong("who follows got lost", offset);
        rb_reader_release(&reader, reader.cursor);
    }
    rb_reader_close(&reader);
    return unused;
}

static void *read_plain(void *unused)
{
    rb_reader reader;
    rb_view view;
    rb_reader_open(&reader, ring, RING_BYTES, NULL, -1, false);
    for (uint64_t turns = 0; !over; turns++) {
        uint64_t before = reader.offset;
        int result = rb_read(&reader, &view);
        if (result == RB_OK && !judge(&reader, &view))
            wrong("a plain reader was told wrong", view.header.offset);
        if (result == RB_CORRUPT || reader.offset < before)
            wrong("a plain reader got lost", before);
        if (turns % 1000 == 999)
            rb_seek_oldest(&reader);
    }
    lost += reader.lost;
    return unused;
}

/* Joins at the oldest record, blocking, and reads some: once in, nothing may be missing. */
static void *replay(void *unused)
{
    rb_reader reader;
    rb_view view;
    while (!over) {
        rb_reader_open(&reader, ring, RING_BYTES, &own, 7, true);
        rb_seek_oldest(&reader);
        for (int i = 0; i < 50; i++) {
            int result = rb_read(&reader, &view);
            if (result != RB_EMPTY && (result != RB_OK || !judge(&reader, &view)))
                wrong("a replay was told wrong", reader.offset);
            rb_reader_release(&reader, reader.cursor);
        }
        rb_reader_close(&reader);
    }
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t threads[BLOCKING + PLAIN + 1], writer, follower;
    bool blocking = count > 2 && strcmp(arguments[2], "blocking") == 0;
    int started = 0;
    records = count > 1 ? strtoull(arguments[1], NULL, 10) : 100000;
    rb_format(ring, CAPACITY, 1, 0, "stress", 1, 1);
    rb_format_cursors(cursors, ring);
    for (; started < BLOCKING; started++)
        pthread_create(&threads[started], NULL, read_blocking, (void *)(intptr_t)started);
    pthread_create(&follower, NULL, follow, NULL);
    while (joined < BLOCKING + 1)
        ;
    for (int i = 0; !blocking && i < PLAIN; i++)
        pthread_create(&threads[started++], NULL, read_plain, NULL);
    pthread_create(&threads[started++], NULL, replay, NULL);
    pthread_create(&writer, NULL, write_all, NULL);
    pthread_join(writer, NULL);
    pthread_join(follower, NULL);
    for (int i = 0; i < BLOCKING; i++)
        pthread_join(threads[i], NULL);
    over = true;
    for (int i = BLOCKING; i < started; i++)
        pthread_join(threads[i], NULL);
    printf("%llu records, %llu lost to plain readers\n", (unsigned long long)records,
           (unsigned long long)lost);
    return 0;
}
