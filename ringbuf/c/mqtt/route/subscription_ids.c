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
#include "base/hash.h"
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

static mq_subscription_ids *make(mq_engine *engine, uint32_t hash, const void *identifiers, uint32_t length)
{
    if (engine->subscription_ids.live == MQ_SUBSCRIPTION_IDS_MAX)
        return NULL;
    uint8_t *copy = malloc(length ? length : 1);
    mq_subscription_ids *ids = copy == NULL ? NULL : mq_slab_take(&engine->subscription_ids);
    if (ids == NULL || !mq_table_add(&engine->ids_table, hash, ids)) {
        if (ids != NULL)
            mq_slab_give(&engine->subscription_ids, &ids->item);
        free(copy);
        return NULL;
    }
    memcpy(copy, identifiers, length);
    ids->identifiers = copy;
    ids->length = length;
    ids->hash = hash;
    return ids;
}

uint32_t mq_subscription_ids_take(mq_engine *engine, uint64_t group, const void *identifiers, uint32_t length)
{
    uint64_t mixed = rb_hash_mix(mq_hash(engine, identifiers, length) ^ group, engine->seed[1] | 1);
    uint32_t hash = (uint32_t)(mixed >> 16);
    mq_probe probe = mq_table_probe(&engine->ids_table, hash);
    mq_subscription_ids *ids;
    while ((ids = mq_probe_next(&probe)) != NULL)
        if (ids->group == group && ids->length == length &&
            memcmp(ids->identifiers, identifiers, length) == 0) {
            ids->references++;
            return ids->item.index + 1;
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
    mq_table_remove(&engine->ids_table, ids->hash, ids);
    free(ids->identifiers);
    mq_slab_give(&engine->subscription_ids, &ids->item);
}
