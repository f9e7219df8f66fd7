/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads from anyone through msgpack.c, by paths from anywhere.  For libFuzzer.
 *
 *   input   byte 0: how many fields, and then for each its type and a path of up to three bytes; the rest is
 *           payloads, each with its length in one byte in front
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrow/msgpack.h"
#include "must.h"

#define FIELDS 6u
#define ROWS 64u

static const char *const PATHS[] = {"\1a",         "\1b", "\1c",    "\1d\1a", "\1d\1b",
                                    "\1d\1c\1a", "",     "\1a\1b", "\0",     "\2a"};

/* Check the invariants of a column; they hold for any payloads. */
static void check(const rb_unpack_field *field, uint64_t rows, const uint16_t *outcomes)
{
    for (uint64_t row = 0; row < rows; row++) {
        bool there = field->valid[row >> 3] >> (row & 7) & 1;
        must(outcomes[row] == RB_UNPACKED || !there, "a payload with a mistake gives nothing");
        if (field->ends == NULL)
            continue;
        must(field->ends[row] <= field->ends[row + 1], "ends rise");
        must(there || field->ends[row] == field->ends[row + 1], "nothing has no bytes");
    }
    if (field->ends != NULL)
        must((uint64_t)field->ends[rows] == field->filled && field->filled <= field->capacity, "ends end");
}

static uint32_t prepare(rb_unpack_field *fields, const uint8_t **at, const uint8_t *end, uint64_t capacity)
{
    uint32_t count = **at % FIELDS + 1, made = 0;
    for (++*at; made < count && *at < end; made++, ++*at) {
        uint32_t type = **at % 5, bytes = type >= RB_STRING ? (uint32_t)capacity : 8 * ROWS;
        const char *path = PATHS[**at / 5 % (sizeof PATHS / sizeof *PATHS)];
        uint32_t length = *path == 0 && **at & 128 ? 1 : (uint32_t)strlen(path);
        fields[made] = (rb_unpack_field){.path = (const uint8_t *)path, .path_length = length, .type = type};
        fields[made].values = malloc(bytes + 1);
        fields[made].valid = calloc(1, ROWS / 8);
        if (type >= RB_STRING) {
            fields[made].ends = calloc(ROWS + 1, sizeof(int32_t));
            fields[made].capacity = capacity;
        }
    }
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rb_unpack_field fields[FIELDS];
    int32_t ends[ROWS + 1] = {0};
    uint16_t outcomes[ROWS];
    uint64_t rows = 0;
    const uint8_t *at = data, *end = data + size;
    if (size == 0)
        return 0;
    uint32_t count = prepare(fields, &at, end, size);
    uint8_t *payloads = malloc(size + 1);
    for (; at < end && rows < ROWS; rows++) {
        size_t length = *at++;
        if (length > (size_t)(end - at))
            length = (size_t)(end - at);
        memcpy(payloads + ends[rows], at, length);
        ends[rows + 1] = ends[rows] + (int32_t)length;
        at += length;
    }
    /* At its size, so that a byte beyond it is seen. */
    payloads = realloc(payloads, (size_t)ends[rows] + 1);
    uint8_t *exact = malloc((size_t)ends[rows]);
    memcpy(exact, payloads, (size_t)ends[rows]);
    if (rb_unpack(exact, ends, rows, fields, count, outcomes) == 0)
        for (uint32_t i = 0; i < count; i++)
            check(&fields[i], rows, outcomes);
    for (uint32_t i = 0; i < count; i++) {
        free(fields[i].values);
        free(fields[i].ends);
        free(fields[i].valid);
    }
    free(exact);
    free(payloads);
    return 0;
}
