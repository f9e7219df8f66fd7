/* SPDX-License-Identifier: Apache-2.0
 *
 * Hash tables that grow and shrink a bucket at a time (extendible hashing).
 *
 * A directory has a pointer to a bucket for each value of the last bits of a hash.  A bucket is a small table
 * of its own: open addressing with linear probing by the first bits of a hash, and at most three quarters
 * full.  A removal shifts back the entries after it, so there are no tombstones.  A full bucket is split in
 * two.  Two buckets of the same split become one when a removal leaves them together a quarter full, so a
 * table that becomes empty has one bucket.  An addition or removal thus moves the entries of about one
 * bucket, and touches as much fresh memory.  A table that doubled in one step made all clients wait for
 * milliseconds.
 *
 * The directory is doubled by copying 8 bytes for about 100 entries, and never shrinks.  Its size is bounded
 * by the number of entries, even if many of them have the same hash.
 */
#include "mqtt/table.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_MAX (MQ_BUCKET_SLOTS / 4 * 3) /* of a bucket */
#define MERGED_MAX (MQ_BUCKET_SLOTS / 4)    /* of two buckets that become one */
#define DEPTH_MAX 24u                       /* the other bits of a hash find the slot */

_Static_assert(MQ_BUCKET_SLOTS == 1u << (32 - DEPTH_MAX), "a slot is found by the bits above the depth");

static mq_bucket *bucket_of(const mq_table *table, uint32_t hash)
{
    return table->buckets[hash & ((1u << table->depth) - 1)];
}

static void put(mq_bucket *bucket, mq_slot slot)
{
    uint32_t at = mq_slot_home(slot.hash);
    while (bucket->slots[at].item != NULL)
        at = (at + 1) % MQ_BUCKET_SLOTS;
    bucket->slots[at] = slot;
    bucket->count++;
}

/* Make `bucket` that of all hashes that end with the last bits of `hash`. */
static void direct(mq_table *table, mq_bucket *bucket, uint32_t hash)
{
    uint32_t step = 1u << bucket->depth;
    for (uint32_t i = hash & (step - 1); i < 1u << table->depth; i += step)
        table->buckets[i] = bucket;
}

static bool open_table(mq_table *table)
{
    mq_bucket **buckets = malloc(sizeof *buckets);
    if (buckets == NULL || (buckets[0] = calloc(1, sizeof(mq_bucket))) == NULL) {
        free(buckets);
        return false;
    }
    table->buckets = buckets;
    return true;
}

static bool directory_grow(mq_table *table)
{
    size_t count = (size_t)1 << table->depth;
    mq_bucket **buckets = NULL;
    if (table->depth < DEPTH_MAX && count <= table->count)
        buckets = realloc(table->buckets, 2 * count * sizeof *buckets);
    if (buckets == NULL)
        return false;
    memcpy(buckets + count, buckets, count * sizeof *buckets);
    table->buckets = buckets;
    table->depth++;
    return true;
}

static bool split(mq_table *table, mq_bucket *bucket, uint32_t hash)
{
    if (bucket->depth == table->depth && !directory_grow(table))
        return false;
    mq_bucket *other = calloc(1, sizeof *other), old = *bucket;
    if (other == NULL)
        return false;
    uint32_t bit = 1u << old.depth;
    *bucket = (mq_bucket){.depth = old.depth + 1};
    other->depth = bucket->depth;
    for (uint32_t i = 0; i < MQ_BUCKET_SLOTS; i++)
        if (old.slots[i].item != NULL)
            put(old.slots[i].hash & bit ? other : bucket, old.slots[i]);
    direct(table, other, hash | bit);
    return true;
}

bool mq_table_add(mq_table *table, uint32_t hash, void *item)
{
    if (table->buckets == NULL && !open_table(table))
        return false;
    mq_bucket *bucket;
    while ((bucket = bucket_of(table, hash))->count == COUNT_MAX)
        if (!split(table, bucket, hash))
            return false;
    put(bucket, (mq_slot){.item = item, .hash = hash});
    table->count++;
    return true;
}

/* Merge the bucket of `hash` with the other one of its split, if both have few entries. */
static void merge(mq_table *table, uint32_t hash)
{
    mq_bucket *bucket = bucket_of(table, hash);
    if (bucket->depth == 0)
        return;
    mq_bucket *other = bucket_of(table, hash ^ 1u << (bucket->depth - 1));
    if (other->depth != bucket->depth || bucket->count + other->count > MERGED_MAX)
        return;
    for (uint32_t i = 0; i < MQ_BUCKET_SLOTS; i++)
        if (other->slots[i].item != NULL)
            put(bucket, other->slots[i]);
    bucket->depth--;
    direct(table, bucket, hash);
    free(other);
}

void mq_table_remove(mq_table *table, uint32_t hash, const void *item)
{
    mq_bucket *bucket = bucket_of(table, hash);
    mq_slot *slots = bucket->slots;
    uint32_t hole = mq_slot_home(hash);
    while (slots[hole].item != item)
        hole = (hole + 1) % MQ_BUCKET_SLOTS;
    for (uint32_t at = (hole + 1) % MQ_BUCKET_SLOTS; slots[at].item != NULL;
         at = (at + 1) % MQ_BUCKET_SLOTS) {
        uint32_t distance = (at - mq_slot_home(slots[at].hash)) % MQ_BUCKET_SLOTS;
        if (distance >= (at - hole) % MQ_BUCKET_SLOTS) { /* its home is not after the hole */
            slots[hole] = slots[at];
            hole = at;
        }
    }
    slots[hole].item = NULL;
    bucket->count--;
    table->count--;
    merge(table, hash);
}

void mq_table_free(mq_table *table, void (*release)(void *item))
{
    if (table->buckets == NULL)
        return;
    for (uint32_t i = 1u << table->depth; i-- > 0;) { /* a bucket's first place comes last */
        mq_bucket *bucket = table->buckets[i];
        if (i >> bucket->depth != 0)
            continue;
        for (uint32_t at = 0; release != NULL && at < MQ_BUCKET_SLOTS; at++)
            if (bucket->slots[at].item != NULL)
                release(bucket->slots[at].item);
        free(bucket);
    }
    free(table->buckets);
    *table = (mq_table){0};
}
