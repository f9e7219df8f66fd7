/* SPDX-License-Identifier: Apache-2.0
 *
 * Hash table of items that clients add, with bounded work for each addition and removal (table.c).
 *
 * An item is added with its hash and found by it; the caller compares keys.  Several items may have the same
 * hash, but no key is added twice.  The hash must be keyed (base/hash.h), and all its 32 bits must be good.
 */
#ifndef BRIM_MQTT_TABLE_H
#define BRIM_MQTT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MQ_BUCKET_SLOTS 256u /* of a bucket, a power of two */

typedef struct mq_slot {
    void *item; /* NULL: free */
    uint32_t hash;
} mq_slot;

typedef struct mq_bucket { /* the items whose hashes have the same last `depth` bits */
    uint32_t count, depth;
    mq_slot slots[MQ_BUCKET_SLOTS];
} mq_bucket;

typedef struct mq_table { /* zeros: an empty table */
    mq_bucket **buckets;  /* 2^depth of them, by the last bits of a hash */
    uint32_t count, depth;
} mq_table;

typedef struct mq_probe { /* search for the items with a hash */
    const mq_slot *slots; /* NULL: the table is empty */
    uint32_t hash, at;
} mq_probe;

static inline uint32_t mq_slot_home(uint32_t hash)
{
    return hash >> 24; /* directories are too small to select buckets by these bits too */
}

static inline mq_probe mq_table_probe(const mq_table *table, uint32_t hash)
{
    return (mq_probe){
        .slots = table->buckets == NULL ? NULL : table->buckets[hash & ((1u << table->depth) - 1)]->slots,
        .hash = hash,
        .at = mq_slot_home(hash)};
}

/* Next item with the hash; NULL: no more. */
static inline void *mq_probe_next(mq_probe *probe)
{
    while (probe->slots != NULL) {
        const mq_slot *slot = &probe->slots[probe->at];
        if (slot->item == NULL)
            break;
        probe->at = (probe->at + 1) % MQ_BUCKET_SLOTS;
        if (slot->hash == probe->hash)
            return slot->item;
    }
    return NULL;
}

bool mq_table_add(mq_table *table, uint32_t hash, void *item); /* false: no memory; nothing has changed */
void mq_table_remove(mq_table *table, uint32_t hash, const void *item); /* the item is in the table */
void mq_table_free(mq_table *table, void (*release)(void *item)); /* calls `release`, unless NULL, for each */

#endif
