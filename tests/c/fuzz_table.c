/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table against a list, through growth and shrinking, and where memory is lacking.  For libFuzzer.
 *
 *   input   byte 0: the hash: even keeps few of its bits, so that many items have the same one
 *           then steps of four bytes: verb, first key (two bytes), number of keys in units of 8.  The verb's
 *           bit 0 adds or removes them, bit 1 walks down; its upper bits, unless 0, are the number of the
 *           next allocation that fails
 *
 * Each key is found once if it is there, and otherwise not.  No two buckets of a split have few items
 * together.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "mqtt/table.h"
#include "failing_memory.h"
#include "must.h"

#define KEYS 4096u

typedef struct world {
    mq_table table;
    bool few_hashes, held[KEYS];
    uint16_t items[KEYS]; /* an item is the place of its key */
    uint32_t count;
} world;

static uint32_t released;

/* The last bits select buckets and the first ones slots: each may be few. */
static uint32_t hash_of(const world *world, uint32_t key)
{
    const uint64_t seed[2] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9};
    uint32_t hash = (uint32_t)(rb_hash(seed, &key, sizeof key) >> 16);
    return world->few_hashes ? hash & 0xc000001fu : hash;
}

static void key_agrees(world *world, uint32_t key)
{
    mq_probe probe = mq_table_probe(&world->table, hash_of(world, key));
    uint32_t found = 0;
    for (const uint16_t *item; (item = mq_probe_next(&probe)) != NULL;)
        found += item == &world->items[key];
    must(found == world->held[key], "a key is found once if it is there");
}

/* No two buckets of the same split have few items together, and each has its place. */
static void buckets_agree(const world *world)
{
    const mq_table *table = &world->table;
    for (uint32_t i = 0; table->buckets != NULL && i < 1u << table->depth; i++) {
        const mq_bucket *bucket = table->buckets[i], *other = NULL;
        must(bucket->depth <= table->depth && bucket == table->buckets[i & ((1u << bucket->depth) - 1)],
             "a bucket has all its places");
        if (bucket->depth > 0)
            other = table->buckets[i ^ 1u << (bucket->depth - 1)];
        must(other == NULL || other->depth != bucket->depth || bucket->count == 0 || other->count == 0 ||
                 bucket->count + other->count > MQ_BUCKET_SLOTS / 4,
             "buckets with few items become one");
    }
}

static void add(world *world, uint32_t key)
{
    if (world->held[key])
        return;
    uint32_t may_fail = fails_in;
    bool added = mq_table_add(&world->table, hash_of(world, key), &world->items[key]);
    must(added || may_fail > 0 || world->few_hashes, "an item is added if there is memory");
    world->held[key] = added;
    world->count += added;
}

static void remove_key(world *world, uint32_t key)
{
    key_agrees(world, key);
    if (!world->held[key])
        return;
    mq_table_remove(&world->table, hash_of(world, key), &world->items[key]);
    world->held[key] = false;
    world->count--;
}

static void step(world *world, const uint8_t *step)
{
    uint32_t first = step[1] | (uint32_t)step[2] << 8;
    fails_in = step[0] >> 2;
    for (uint32_t i = 0; i < step[3] * 8u; i++) {
        uint32_t key = (step[0] & 2 ? first - i : first + i) % KEYS;
        (step[0] & 1 ? add : remove_key)(world, key);
        key_agrees(world, key);
    }
    fails_in = 0;
    must(world->table.count == world->count, "items are counted");
    buckets_agree(world);
}

static void release(void *item)
{
    released += item != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static world world;
    world.few_hashes = size > 0 && data[0] % 2 == 0;
    for (size_t i = 1; i + 3 < size; i += 4)
        step(&world, data + i);
    for (uint32_t key = 0; key < KEYS; key++)
        key_agrees(&world, key);
    if (size % 4 < 2) { /* one by one */
        for (uint32_t key = 0; key < KEYS; key++)
            remove_key(&world, key);
        must(world.table.buckets == NULL || world.table.buckets[0]->depth == 0, "a split is undone");
    }
    released = 0;
    mq_table_free(&world.table, release);
    must(released == world.count, "each item that is left is released once");
    memset(&world, 0, sizeof world);
    return 0;
}
