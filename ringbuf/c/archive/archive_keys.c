/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of a segment: each once, with the windows that it is in, and then its rank.
 *
 * A table of open addressing with linear probing over indices, at most half full, and one arena of names; so
 * a million keys cost some 40 bytes each and their names.  Keys come from clients: the hash is seeded.
 */
#include "archive.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 1024u
#define ENTRIES_MIN 256u
#define NAMES_MIN 65536u
#define WINDOW_BITS 64

typedef struct rb_key {
    uint64_t place;   /* in the arena */
    uint64_t windows; /* bit n: in window n modulo 64 */
    uint32_t hash, length, rank;
} rb_key;

struct rb_keys {
    uint64_t seed;
    uint32_t *table; /* index + 1; 0: free */
    uint64_t table_room;
    rb_key *entries;
    uint64_t count, entries_room;
    uint8_t *names;
    uint64_t names_bytes, names_room;
    uint32_t *by_rank; /* NULL: no ranks yet */
};

rb_keys *rb_keys_new(uint64_t seed)
{
    rb_keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL)
        return NULL;
    keys->seed = seed;
    keys->table = calloc(TABLE_MIN, sizeof *keys->table);
    keys->entries = malloc(ENTRIES_MIN * sizeof *keys->entries);
    keys->names = malloc(NAMES_MIN);
    keys->table_room = TABLE_MIN, keys->entries_room = ENTRIES_MIN, keys->names_room = NAMES_MIN;
    if (keys->table == NULL || keys->entries == NULL || keys->names == NULL) {
        rb_keys_free(keys);
        return NULL;
    }
    return keys;
}

void rb_keys_free(rb_keys *keys)
{
    if (keys == NULL)
        return;
    free(keys->table);
    free(keys->entries);
    free(keys->names);
    free(keys->by_rank);
    free(keys);
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Folded multiplication, 8 bytes a step. */
static uint32_t hash_of(const rb_keys *keys, const uint8_t *name, uint32_t length)
{
    uint64_t hash = keys->seed ^ length, word = 0;
    for (; length >= 8; length -= 8, name += 8) {
        memcpy(&word, name, 8);
        hash = mix(hash ^ word, keys->seed | 1) ^ hash >> 32;
    }
    word = 0;
    memcpy(&word, name, length);
    return (uint32_t)(mix(hash ^ word, 0x9e3779b97f4a7c15u) >> 16);
}

/* Where the key is in the table, or the free place where it belongs. */
static uint64_t slot_of(const rb_keys *keys, uint32_t hash, const uint8_t *name, uint32_t length)
{
    uint64_t mask = keys->table_room - 1, at = hash & mask;
    for (; keys->table[at] != 0; at = (at + 1) & mask) {
        const rb_key *key = &keys->entries[keys->table[at] - 1];
        if (key->hash == hash && key->length == length && memcmp(keys->names + key->place, name, length) == 0)
            break;
    }
    return at;
}

static int grow_table(rb_keys *keys)
{
    uint64_t room = keys->table_room * 2;
    uint32_t *table = calloc(room, sizeof *table);
    if (table == NULL)
        return RB_INVALID;
    for (uint64_t i = 0; i < keys->count; i++) {
        uint64_t at = keys->entries[i].hash & (room - 1);
        while (table[at] != 0)
            at = (at + 1) & (room - 1);
        table[at] = (uint32_t)(i + 1);
    }
    free(keys->table);
    keys->table = table, keys->table_room = room;
    return RB_OK;
}

/* Room for one more key of `length` bytes. */
static int make_room(rb_keys *keys, uint32_t length)
{
    if (keys->count >= UINT32_MAX - 1)
        return RB_INVALID;
    if (keys->count == keys->entries_room) {
        rb_key *entries = realloc(keys->entries, keys->entries_room * 2 * sizeof *entries);
        if (entries == NULL)
            return RB_INVALID;
        keys->entries = entries, keys->entries_room *= 2;
    }
    if (keys->names_bytes + length > keys->names_room) {
        uint64_t room = (keys->names_room + length) * 2;
        uint8_t *names = realloc(keys->names, room);
        if (names == NULL)
            return RB_INVALID;
        keys->names = names, keys->names_room = room;
    }
    return keys->count * 2 < keys->table_room ? RB_OK : grow_table(keys);
}

static int enter(rb_keys *keys, const uint8_t *name, uint32_t length, uint32_t window)
{
    uint32_t hash = hash_of(keys, name, length);
    uint64_t at = slot_of(keys, hash, name, length);
    if (keys->table[at] == 0) {
        if (make_room(keys, length) != RB_OK)
            return RB_INVALID;
        at = slot_of(keys, hash, name, length);
        memcpy(keys->names + keys->names_bytes, name, length);
        keys->entries[keys->count] = (rb_key){.place = keys->names_bytes, .hash = hash, .length = length};
        keys->names_bytes += length;
        keys->table[at] = (uint32_t)++keys->count;
    }
    keys->entries[keys->table[at] - 1].windows |= (uint64_t)1 << window % WINDOW_BITS;
    return RB_OK;
}

int rb_keys_enter(rb_keys *keys, const uint8_t *bytes, uint64_t length, uint32_t epoch, uint32_t window)
{
    rb_record header;
    rb_parts parts;
    uint64_t ignored;
    if (keys->by_rank != NULL)
        return RB_INVALID;
    for (uint64_t at = 0, span; at < length; at += span) {
        span = rb_record_at(bytes + at, length - at, &header, &parts, &ignored);
        if (span == 0 || !rb_record_verifies(&header, &parts, bytes + at, epoch))
            return RB_CORRUPT;
        if (enter(keys, bytes + at + RB_RECORD_HEADER_BYTES, header.key_length, window) != RB_OK)
            return RB_INVALID;
    }
    return RB_OK;
}

static int compare(const void *a, const void *b, void *context)
{
    const rb_keys *keys = context;
    const rb_key *left = &keys->entries[*(const uint32_t *)a], *right = &keys->entries[*(const uint32_t *)b];
    uint32_t shared = left->length < right->length ? left->length : right->length;
    int order = memcmp(keys->names + left->place, keys->names + right->place, shared);
    return order != 0 ? order : (left->length > right->length) - (left->length < right->length);
}

uint64_t rb_keys_rank(rb_keys *keys)
{
    if (keys->by_rank != NULL)
        return keys->count;
    keys->by_rank = malloc((keys->count + 1) * sizeof *keys->by_rank);
    if (keys->by_rank == NULL)
        return 0;
    for (uint32_t i = 0; i < keys->count; i++)
        keys->by_rank[i] = i;
    qsort_r(keys->by_rank, keys->count, sizeof *keys->by_rank, compare, keys);
    for (uint32_t i = 0; i < keys->count; i++)
        keys->entries[keys->by_rank[i]].rank = i;
    return keys->count;
}

int64_t rb_keys_find(const rb_keys *keys, const uint8_t *name, uint32_t length)
{
    uint64_t at = slot_of(keys, hash_of(keys, name, length), name, length);
    if (keys->by_rank == NULL || keys->table[at] == 0)
        return -1;
    return keys->entries[keys->table[at] - 1].rank;
}

uint64_t rb_keys_page(const rb_keys *keys, uint64_t first, uint8_t *page, uint64_t room, uint64_t *length)
{
    uint64_t count = 0, bytes = 0;
    *length = 0;
    if (keys->by_rank == NULL)
        return 0;
    for (uint64_t i = first; i < keys->count; i++, count++) {
        uint64_t more = RB_ARCHIVE_NAME_BYTES + keys->entries[keys->by_rank[i]].length;
        if (bytes + more > room)
            break;
        bytes += more;
    }
    uint8_t *name = page + count * RB_ARCHIVE_NAME_BYTES;
    for (uint64_t i = 0; i < count; i++) {
        const rb_key *key = &keys->entries[keys->by_rank[first + i]];
        ar_put(page, count, 0, 2, i, key->length);
        ar_put(page, count, 2, 8, i, key->windows);
        memcpy(name, keys->names + key->place, key->length);
        name += key->length;
    }
    *length = bytes;
    return count;
}
