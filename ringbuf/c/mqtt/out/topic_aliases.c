/* SPDX-License-Identifier: Apache-2.0
 *
 * Topic aliases towards a client that accepts them: the first PUBLISH to a topic has its name and its alias,
 * later ones have only the alias.
 *
 * A connection has at most MQ_ALIASES_OUT_MAX aliases, in sets of WAYS.  A topic belongs to one set and takes
 * the least recently used alias there.  The cost is a few comparisons, whatever the client publishes or
 * accepts, and a busy topic keeps its alias.  A reassigned alias needs no extra packet: the PUBLISH has both
 * name and alias.
 */
#include "mqtt/out/frame.h"

#include <stdlib.h>

#define WAYS 8u

static uint32_t alias_count(const mq_connection *connection)
{
    return connection->alias_max < MQ_ALIASES_OUT_MAX ? connection->alias_max : MQ_ALIASES_OUT_MAX;
}

/* Topic of `entry`, if the table's topic still has the name of the message, from byte `hidden` on. */
static const mq_topic *topic_of(const mq_engine *engine, const mq_entry *entry, const mq_frame *frame,
                                uint32_t hidden)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, entry->topic);
    return topic != NULL && topic->item.generation & 1 && topic->length == hidden + frame->topic_length &&
                   memcmp(topic->name + hidden, frame->topic, frame->topic_length) == 0
               ? topic
               : NULL;
}

void mq_alias_choose(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                     mq_frame *frame)
{
    uint32_t count = alias_count(connection), sets = count < WAYS ? 1 : count / WAYS;
    uint32_t first = entry->topic % sets * WAYS, end = count - first < WAYS ? count : first + WAYS;
    const mq_topic *topic = topic_of(engine, entry, frame, mq_hidden_bytes(connection));
    if (topic == NULL)
        return;
    if (connection->aliases_out == NULL) {
        connection->aliases_out = calloc(count, sizeof *connection->aliases_out);
        if (connection->aliases_out == NULL)
            return;
    }
    uint32_t oldest = first;
    for (uint32_t i = first; i < end; i++) {
        const mq_alias_out *held = &connection->aliases_out[i];
        if (held->topic == entry->topic && held->generation == topic->item.generation) {
            frame->alias_is_known = true;
            oldest = i;
            break;
        }
        if (held->used < connection->aliases_out[oldest].used)
            oldest = i;
    }
    frame->alias = (uint16_t)(oldest + 1);
}

void mq_alias_given(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                    const mq_frame *frame)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, entry->topic);
    connection->aliases_out[frame->alias - 1] = (mq_alias_out){
        .topic = entry->topic, .generation = topic->item.generation, .used = ++connection->alias_clock};
}
