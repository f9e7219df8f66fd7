/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants: the properties of a subscription that do not fit in bits: subscription identifiers, and the group
 * of a shared subscription.  A tag has 24 bits for the number of a grant, so a route or queue entry stays one
 * word for any number of identifiers.
 *
 * A grant is the set in wire form, and each set exists once.  A thousand subscribers with the same identifier
 * share it, and a client that subscribes with ever new ones leaves nothing behind.  Routes and queue entries
 * hold references; the last one frees it.
 */
#include "mqtt.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 64u

static uint32_t *place(const mq_engine *engine, uint64_t hash)
{
    return &engine->grant_table[hash & (engine->grant_room - 1)];
}

static bool table_grow(mq_engine *engine)
{
    uint32_t room = engine->grant_room ? engine->grant_room * 2 : TABLE_MIN;
    uint32_t *table = calloc(room, sizeof *table);
    if (table == NULL)
        return false;
    free(engine->grant_table);
    engine->grant_table = table;
    engine->grant_room = room;
    for (uint32_t i = 0; i < engine->grants.made; i++) {
        mq_grant *grant = mq_slab_at(&engine->grants, i);
        if (!(grant->item.generation & 1))
            continue;
        uint32_t *first = place(engine, grant->hash);
        grant->next = *first;
        *first = i + 1;
    }
    return true;
}

static mq_grant *make(mq_engine *engine, uint64_t hash, const void *identifiers, uint32_t length)
{
    if (engine->grants.live == MQ_GRANTS_MAX ||
        (engine->grants.live >= engine->grant_room && !table_grow(engine)))
        return NULL;
    uint8_t *copy = malloc(length ? length : 1);
    mq_grant *grant = copy == NULL ? NULL : mq_slab_take(&engine->grants);
    if (grant == NULL) {
        free(copy);
        return NULL;
    }
    uint32_t *first = place(engine, hash);
    memcpy(copy, identifiers, length);
    grant->identifiers = copy;
    grant->length = length;
    grant->hash = hash;
    grant->next = *first;
    *first = grant->item.index + 1;
    return grant;
}

uint32_t mq_grant_take(mq_engine *engine, uint64_t group, const void *identifiers, uint32_t length)
{
    uint64_t hash = mq_hash(engine, identifiers, length) ^ group;
    mq_grant *grant = NULL;
    for (uint32_t at = engine->grant_room ? *place(engine, hash) : 0; at != 0; at = grant->next) {
        grant = mq_slab_at(&engine->grants, at - 1);
        if (grant->hash == hash && grant->group == group && grant->length == length &&
            memcmp(grant->identifiers, identifiers, length) == 0) {
            grant->references++;
            return at;
        }
    }
    if ((grant = make(engine, hash, identifiers, length)) == NULL)
        return 0;
    grant->group = group;
    grant->references = 1;
    return grant->item.index + 1;
}

void mq_grant_drop(mq_engine *engine, uint32_t number)
{
    mq_grant *grant = mq_grant_at(engine, number);
    if (--grant->references > 0)
        return;
    uint32_t *link = place(engine, grant->hash);
    while (*link != number)
        link = &mq_grant_at(engine, *link)->next;
    *link = grant->next;
    free(grant->identifiers);
    mq_slab_give(&engine->grants, &grant->item);
}
