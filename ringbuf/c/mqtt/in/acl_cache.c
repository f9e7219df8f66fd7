/* SPDX-License-Identifier: Apache-2.0
 *
 * Topic of a PUBLISH, and the permission of the client to publish to it (ACL cache).
 *
 * Python, or the rules of the connection (acl_rules.h), decide once for each topic and client.  The answer is
 * cached in a table of the connection until the rules change, keyed by the topic's index and generation.  A
 * device that repeats its topic, or uses aliases, needs no hash.  Indexes are given in the order of new
 * topics, so a client can choose them; their hash is therefore keyed, as that of names.
 */
#include "base/hash.h"
#include "mqtt/in/acl_rules.h"
#include "mqtt/in/packets.h"

#include <stdlib.h>
#include <string.h>

#define RULES_PER_MESSAGE 8u /* rules that are examined in the time of a message */

static mq_acl_entry *acl_place(const mq_engine *engine, const mq_connection *connection, uint32_t topic)
{
    uint32_t mask = connection->acl_capacity - 1,
             at = (uint32_t)rb_hash_mix(topic ^ engine->seed[0], engine->seed[1] | 1) & mask;
    while (connection->acl_cache[at].topic != 0 && connection->acl_cache[at].topic != topic + 1)
        at = (at + 1) & mask;
    return &connection->acl_cache[at];
}

/* Forget all cached answers; after a change of the rules also the rules, including `trusted`. */
static void acl_cache_clear(mq_engine *engine, mq_connection *connection)
{
    if (connection->policy != engine->policy) {
        connection->trusted = false;
        free(connection->acl_rules);
        connection->acl_rules = NULL;
    }
    free(connection->acl_cache);
    connection->acl_cache = NULL;
    connection->acl_count = connection->acl_capacity = 0;
    connection->policy = engine->policy;
    connection->last_topic = NULL;
}

static bool acl_cache_grow(mq_engine *engine, mq_connection *connection)
{
    mq_acl_entry *old = connection->acl_cache;
    uint32_t old_capacity = connection->acl_capacity;
    if (old_capacity == MQ_ACL_CACHE_MAX) {
        acl_cache_clear(engine, connection);
        old = NULL;
        old_capacity = 0;
    }
    uint32_t capacity = old_capacity ? old_capacity * 2 : 4;
    mq_acl_entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL)
        return false;
    connection->acl_cache = entries;
    connection->acl_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i].topic != 0)
            *acl_place(engine, connection, old[i].topic - 1) = old[i];
    free(old);
    return true;
}

static mq_topic *last_set(mq_connection *connection, mq_topic *topic, bool allowed)
{
    connection->last_topic = topic;
    connection->last_generation = topic->item.generation;
    connection->last_allowed = allowed && !topic->reserved && mq_tenant_has(connection, topic);
    return topic;
}

/* Without memory the answer is only not cached. */
static void cache(mq_engine *engine, mq_connection *connection, const mq_topic *topic, bool allowed)
{
    if (connection->acl_count >= connection->acl_capacity / 4 * 3 && !acl_cache_grow(engine, connection))
        return;
    mq_acl_entry *place = acl_place(engine, connection, topic->item.index);
    connection->acl_count += place->topic == 0;
    *place = (mq_acl_entry){.topic = topic->item.index + 1,
                            .generation = (topic->item.generation & ~1u) | allowed};
}

static void follow_policy(mq_engine *engine, mq_connection *connection)
{
    if (connection->policy != engine->policy)
        acl_cache_clear(engine, connection);
}

void mq_authorize(mq_engine *engine, mq_connection *connection, const mq_topic *topic, bool allowed)
{
    connection->answered = true;
    follow_policy(engine, connection);
    last_set(connection, mq_slab_at(&engine->topics, topic->item.index), allowed);
    if (!connection->trusted)
        cache(engine, connection, topic, allowed);
}

void mq_acl_rules_set(mq_engine *engine, mq_connection *connection, mq_acl_rules *rules)
{
    follow_policy(engine, connection);
    free(connection->acl_rules);
    connection->acl_rules = rules;
}

bool mq_decides_permission(mq_engine *engine, mq_connection *connection)
{
    follow_policy(engine, connection);
    return connection->trusted || connection->acl_rules != NULL;
}

/* Decide by the rules of the connection, and cache the answer. */
static mq_topic *decide(mq_engine *engine, mq_connection *connection, mq_topic *topic)
{
    const mq_acl_rules *rules = connection->acl_rules;
    uint32_t from = topic->visible_from;
    bool allowed = mq_acl_rules_allow(rules, topic->name + from, topic->length - from);
    engine->turn_work += 1 + rules->count / RULES_PER_MESSAGE;
    cache(engine, connection, topic, allowed);
    return last_set(connection, topic, allowed);
}

/* Returns `topic` with connection->last_allowed set; NULL: not yet authorized for this client. */
mq_topic *mq_topic_admit(mq_engine *engine, mq_connection *connection, mq_topic *topic)
{
    follow_policy(engine, connection);
    if (connection->trusted)
        return last_set(connection, topic, true);
    const mq_acl_entry *entry = connection->acl_capacity ? acl_place(engine, connection, topic->item.index)
                                                         : NULL;
    if (entry == NULL || entry->topic == 0 || (entry->generation | 1) != topic->item.generation)
        return connection->acl_rules == NULL ? NULL : decide(engine, connection, topic);
    return last_set(connection, topic, entry->generation & 1);
}

mq_topic *mq_topic_named(mq_engine *engine, mq_connection *connection, const uint8_t *name, uint32_t length)
{
    mq_topic *topic = mq_topic_find(engine, name, length);
    return topic == NULL ? NULL : mq_topic_admit(engine, connection, topic);
}
