/* SPDX-License-Identifier: Apache-2.0
 *
 * Subscription ids: properties of a subscription that do not fit in bits: its identifiers, and the group
 * of a shared subscription.  The options of a route or queue entry have 24 bits for the number of a set, so
 * they stay one word for any number of identifiers.
 *
 * A set is kept in wire form, and equal sets exist once.  A thousand subscribers with the same identifier
 * share it, and a client that subscribes with ever new ones leaves nothing behind.  Routes and queue entries
 * hold references; the last one frees it.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 64u

static uint32_t *place(const mq_engine *engine, uint64_t hash)
{
    return &engine->ids_table[hash & (engine->ids_capacity - 1)];
}

static bool table_grow(mq_engine *engine)
{
    uint32_t capacity = engine->ids_capacity ? engine->ids_capacity * 2 : TABLE_MIN;
    uint32_t *table = calloc(capacity, sizeof *table);
    if (table == NULL)
        return false;
    free(engine->ids_table);
    engine->ids_table = table;
    engine->ids_capacity = capacity;
    for (uint32_t i = 0; i < engine->subscription_ids.created; i++) {
        mq_subscription_ids *ids = mq_slab_at(&engine->subscription_ids, i);
        if (!(ids->item.generation & 1))
            continue;
        uint32_t *first = place(engine, ids->hash);
        ids->next = *first;
        *first = i + 1;
    }
    return true;
}

static mq_subscription_ids *make(mq_engine *engine, uint64_t hash, const void *identifiers, uint32_t length)
{
    if (engine->subscription_ids.live == MQ_SUBSCRIPTION_IDS_MAX ||
        (engine->subscription_ids.live >= engine->ids_capacity && !table_grow(engine)))
        return NULL;
    uint8_t *copy = malloc(length ? length : 1);
    mq_subscription_ids *ids = copy == NULL ? NULL : mq_slab_take(&engine->subscription_ids);
    if (ids == NULL) {
        free(copy);
        return NULL;
    }
    uint32_t *first = place(engine, hash);
    memcpy(copy, identifiers, length);
    ids->identifiers = copy;
    ids->length = length;
    ids->hash = hash;
    ids->next = *first;
    *first = ids->item.index + 1;
    return ids;
}

uint32_t mq_subscription_ids_take(mq_engine *engine, uint64_t group, const void *identifiers, uint32_t length)
{
    uint64_t hash = mq_hash(engine, identifiers, length) ^ group;
    mq_subscription_ids *ids = NULL;
    for (uint32_t at = engine->ids_capacity ? *place(engine, hash) : 0; at != 0; at = ids->next) {
        ids = mq_slab_at(&engine->subscription_ids, at - 1);
        if (ids->hash == hash && ids->group == group && ids->length == length &&
            memcmp(ids->identifiers, identifiers, length) == 0) {
            ids->references++;
            return at;
        }
    }
    if ((ids = make(engine, hash, identifiers, length)) == NULL)
        return 0;
    ids->group = group;
    ids->references = 1;
    return ids->item.index + 1;
}

void mq_subscription_ids_drop(mq_engine *engine, uint32_t number)
{
    mq_subscription_ids *ids = mq_subscription_ids_at(engine, number);
    if (--ids->references > 0)
        return;
    uint32_t *link = place(engine, ids->hash);
    while (*link != number)
        link = &mq_subscription_ids_at(engine, *link)->next;
    *link = ids->next;
    free(ids->identifiers);
    mq_slab_give(&engine->subscription_ids, &ids->item);
}
