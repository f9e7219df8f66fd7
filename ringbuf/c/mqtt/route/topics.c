/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics: the table of topics by name.
 *
 * The table uses open addressing with linear probing over {upper half of the hash, index + 1}, and is at most
 * three quarters full.  A removal shifts back the entries after it, so there are no tombstones.  Names come
 * from clients, so the hash is keyed against colliding names, and the number and the bytes of names are
 * bounded.  Each level may cost a node in the trie, so a name with many levels counts for more bytes.
 */
#include "base/hash.h"
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 1024u
#define LEVELS_FREE 8u /* covered by the 400 bytes of every topic */
#define LEVEL_BYTES 128u

/* ---- table ---- */

uint64_t mq_hash(const mq_engine *engine, const void *bytes, uint32_t length)
{
    return rb_hash(engine->seed, bytes, length);
}

static uint64_t table_word(const mq_topic *topic)
{
    return (topic->hash & 0xffffffff00000000u) | (topic->item.index + 1);
}

/* Home index of a word or a hash.  The topic is not read: growing the table would wait for each topic's
 * memory. */
static uint32_t table_home(const mq_engine *engine, uint64_t word)
{
    return (uint32_t)(word >> 32) & (engine->table_capacity - 1);
}

static void table_put(mq_engine *engine, uint64_t word)
{
    uint32_t mask = engine->table_capacity - 1, at = table_home(engine, word);
    while (engine->table[at] != 0)
        at = (at + 1) & mask;
    engine->table[at] = word;
}

static bool table_resize(mq_engine *engine, uint32_t capacity)
{
    uint64_t *table = calloc(capacity, sizeof *table), *old = engine->table;
    if (table == NULL)
        return false;
    uint32_t old_capacity = engine->table_capacity;
    engine->table = table;
    engine->table_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != 0)
            table_put(engine, old[i]);
    free(old);
    return true;
}

static void table_remove(mq_engine *engine, const mq_topic *topic)
{
    uint32_t mask = engine->table_capacity - 1, hole = table_home(engine, topic->hash);
    while (engine->table[hole] != table_word(topic))
        hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; engine->table[at] != 0; at = (at + 1) & mask) {
        uint32_t home = table_home(engine, engine->table[at]);
        if (((at - home) & mask) >=
            ((at - hole) & mask)) { /* its home is not after the hole: it may move there */
            engine->table[hole] = engine->table[at];
            hole = at;
        }
    }
    engine->table[hole] = 0;
}

mq_topic *mq_topic_find(const mq_engine *engine, const void *name, uint32_t length)
{
    if (engine->table_capacity == 0)
        return NULL;
    uint64_t hash = mq_hash(engine, name, length);
    uint32_t mask = engine->table_capacity - 1;
    for (uint32_t at = table_home(engine, hash); engine->table[at] != 0; at = (at + 1) & mask) {
        if ((engine->table[at] ^ hash) >> 32 != 0)
            continue;
        mq_topic *topic = mq_slab_at(&engine->topics, (uint32_t)engine->table[at] - 1);
        if (topic->length == length && memcmp(topic->name, name, length) == 0)
            return topic;
    }
    return NULL;
}

/* Bytes that a name adds to topics_bytes. */
static uint64_t name_bytes(const uint8_t *name, uint32_t length)
{
    uint32_t levels = 1;
    for (uint32_t i = 0; i < length; i++)
        levels += name[i] == '/';
    return length + (levels > LEVELS_FREE ? (uint64_t)(levels - LEVELS_FREE) * LEVEL_BYTES : 0);
}

mq_topic *mq_topic_add(mq_engine *engine, const void *name, uint32_t length, uint16_t ring, bool reserved)
{
    uint64_t bytes = name_bytes(name, length);
    if (engine->topics.live >= engine->limits.topics_max ||
        engine->counters.topics_bytes + bytes > engine->limits.topics_max_bytes ||
        (engine->topics.live >= engine->table_capacity / 4 * 3 &&
         !table_resize(engine, engine->table_capacity ? engine->table_capacity * 2 : TABLE_MIN)))
        return NULL;
    uint8_t *copy = malloc(length ? length : 1);
    mq_node *node = copy == NULL
                        ? NULL
                        : mq_trie_path(engine, engine->trie.roots[MQ_NAMES], name, length, true);
    mq_topic *topic = node == NULL ? NULL : mq_slab_take(&engine->topics);
    if (topic == NULL) {
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
    topic->used = true;
    topic->hash = mq_hash(engine, name, length);
    topic->key_hash = rb_crc32c(0, name, length);
    table_put(engine, table_word(topic));
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
    table_remove(engine, topic);
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

/* Advance the clock hand by at most `steps`.  A topic used since its last visit is spared once. */
mq_topic *mq_topic_idle(mq_engine *engine, uint32_t *steps)
{
    while (*steps > 0 && engine->topics.created > 0) {
        mq_topic *topic = mq_slab_at(&engine->topics, engine->clock_hand);
        engine->clock_hand = (engine->clock_hand + 1) % engine->topics.created;
        --*steps;
        if (!(topic->item.generation & 1) || topic->retained != NULL || topic->changed ||
            topic->pending_visibility > 0)
            continue;
        if (!topic->used)
            return topic;
        topic->used = false;
    }
    return NULL;
}

/* Two rounds: a topic spared in the first round may be found in the second. */
mq_topic *mq_topic_recyclable(mq_engine *engine)
{
    uint32_t steps = 2 * engine->topics.created;
    return mq_topic_idle(engine, &steps);
}

/* Free memory of removed topics.  Without memory for a smaller table, the table stays as it is. */
void mq_topics_trim(mq_engine *engine)
{
    uint32_t capacity = engine->table_capacity;
    while (capacity > TABLE_MIN && engine->topics.live < capacity / 8)
        capacity /= 2;
    if (capacity < engine->table_capacity)
        table_resize(engine, capacity);
    mq_slab_trim(&engine->topics);
}
