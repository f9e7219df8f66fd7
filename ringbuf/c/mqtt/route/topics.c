/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics: the table of topics by name.
 *
 * Names come from clients, so the hash is keyed against colliding names, and the number and the bytes of
 * names are bounded.  Each level may cost a node in the trie, so a name with many levels counts for more
 * bytes.
 */
#include "base/hash.h"
#include "mqtt/mqtt.h"
#include "mqtt/out/queue.h"

#include <stdlib.h>
#include <string.h>

#define LEVELS_FREE 8u /* covered by the 400 bytes of every topic */
#define LEVEL_BYTES 128u

uint64_t mq_hash(const mq_engine *engine, const void *bytes, uint32_t length)
{
    return rb_hash(engine->seed, bytes, length);
}

static uint32_t name_hash(const mq_engine *engine, const void *name, uint32_t length)
{
    return (uint32_t)(mq_hash(engine, name, length) >> 32);
}

mq_topic *mq_topic_find(const mq_engine *engine, const void *name, uint32_t length)
{
    mq_probe probe = mq_table_probe(&engine->topic_table, name_hash(engine, name, length));
    mq_topic *topic;
    while ((topic = mq_probe_next(&probe)) != NULL)
        if (topic->length == length && memcmp(topic->name, name, length) == 0)
            break;
    return topic;
}

/* Bytes that a name adds to topics_bytes. */
static uint64_t name_bytes(const uint8_t *name, uint32_t length)
{
    uint32_t levels = 1;
    for (uint32_t i = 0; i < length; i++)
        levels += name[i] == '/';
    return length + (levels > LEVELS_FREE ? (uint64_t)(levels - LEVELS_FREE) * LEVEL_BYTES : 0);
}

void mq_topic_classify(const mq_engine *engine, mq_topic *topic)
{
    uint32_t rest;
    topic->tenant = mq_tenant_of_topic(engine, topic->name, topic->length, &rest);
    topic->delayed_from = topic->reserved ? 0 : (uint16_t)mq_topic_delayed_from(topic->name, topic->length);
    topic->visible_from = rest > 0 ? (uint16_t)rest : topic->delayed_from;
}

mq_topic *mq_topic_add(mq_engine *engine, const void *name, uint32_t length, uint16_t ring, bool reserved)
{
    uint64_t bytes = name_bytes(name, length);
    if (engine->topics.live >= engine->limits.topics_max ||
        engine->counters.topics_bytes + bytes > engine->limits.topics_max_bytes)
        return NULL;
    uint8_t *copy = malloc(length ? length : 1);
    mq_node *node = copy == NULL
                        ? NULL
                        : mq_trie_path(engine, engine->trie.roots[MQ_NAMES], name, length, true);
    mq_topic *topic = node == NULL ? NULL : mq_slab_take(&engine->topics);
    uint32_t hash = name_hash(engine, name, length);
    if (topic == NULL || !mq_table_add(&engine->topic_table, hash, topic)) {
        if (topic != NULL)
            mq_slab_give(&engine->topics, &topic->item);
        if (node != NULL)
            mq_trie_prune(engine, node);
        free(copy);
        return NULL;
    }
    memcpy(copy, name, length);
    topic->name = copy;
    topic->node = node;
    node->value = topic->item.index + 1;
    topic->length = (uint16_t)length;
    topic->ring = ring;
    topic->reserved = reserved;
    mq_topic_classify(engine, topic);
    topic->used = true;
    topic->hash = hash;
    topic->key_hash = rb_crc32c(0, name, length);
    engine->counters.topics = engine->topics.live;
    engine->counters.topics_bytes += bytes;
    return topic;
}

void mq_topic_owned(mq_engine *engine, mq_topic *topic, mq_owner *owner)
{
    mq_owner_use(topic->owner, MQ_OWNED_TOPICS, -1);
    mq_owner_drop(engine, topic->owner);
    topic->owner = mq_owner_reference(owner);
    mq_owner_use(owner, MQ_OWNED_TOPICS, 1);
}

void mq_topic_free(mq_engine *engine, mq_topic *topic)
{
    mq_table_remove(&engine->topic_table, topic->hash, topic);
    mq_retained_forget(engine, topic);
    mq_routes_free(engine, topic);
    mq_topic_owned(engine, topic, NULL);
    engine->counters.topics_bytes -= name_bytes(topic->name, topic->length);
    topic->node->value = 0;
    mq_trie_prune(engine, topic->node);
    free(topic->name);
    mq_slab_give(&engine->topics, &topic->item);
    engine->counters.topics = engine->topics.live;
}

/* True if a producer ring still has a record of the topic.  Sessions may wait for it, and it is delivered
 * only if its name is still that of the topic. */
static bool is_in_producer_ring(const mq_engine *engine, const mq_topic *topic)
{
    const mq_ring *ring = engine->rings[mq_where_ring(topic->produced)];
    return topic->produced != 0 && ring != NULL && ring->kind == MQ_RING_OF_PRODUCER &&
           rb_reader_holds(ring->reader, mq_where_position(topic->produced));
}

/* Advance the clock hand by at most `steps`.  A topic used since its last visit is spared once. */
static mq_topic *next_unused(mq_engine *engine, uint32_t *steps, bool spare_produced)
{
    while (*steps > 0 && engine->topics.created > 0) {
        mq_topic *topic = mq_slab_at(&engine->topics, engine->clock_hand);
        engine->clock_hand = (engine->clock_hand + 1) % engine->topics.created;
        --*steps;
        if (!(topic->item.generation & 1) || topic->retained != NULL || topic->changed ||
            topic->hidden_records > 0 || engine->retained_unlisted)
            continue;
        if (!topic->used && !(spare_produced && is_in_producer_ring(engine, topic)))
            return topic;
        topic->used = false;
    }
    return NULL;
}

mq_topic *mq_topic_idle(mq_engine *engine, uint32_t *steps)
{
    return next_unused(engine, steps, true);
}

/* Two rounds: a topic spared in the first round may be found in the second. */
mq_topic *mq_topic_recyclable(mq_engine *engine, bool spare_produced)
{
    uint32_t steps = 2 * engine->topics.created;
    return next_unused(engine, &steps, spare_produced);
}
