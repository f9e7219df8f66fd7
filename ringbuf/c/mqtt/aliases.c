/* SPDX-License-Identifier: Apache-2.0
 *
 * Topic aliases towards a client that takes some: the first PUBLISH to a topic names it and its alias, those
 * after it the alias alone.
 *
 * A connection has at most MQ_ALIASES_OUT_MAX, in sets of WAYS; a topic belongs to one set, and there takes
 * the alias that was not used for longest.  So it is a few comparisons, whatever the client publishes or asks
 * for, and a topic that is busy keeps its alias.  Nothing has to be told to the client when an alias changes
 * hands: the PUBLISH that does it says so.
 */
#include "frame.h"

#include <stdlib.h>

#define WAYS 8u

static uint32_t alias_count(const mq_connection *connection)
{
    return connection->alias_max < MQ_ALIASES_OUT_MAX ? connection->alias_max : MQ_ALIASES_OUT_MAX;
}

/* The topic of `entry`, if the message is still for what that names now. */
static const mq_topic *topic_of(const mq_engine *engine, const mq_entry *entry, const mq_frame *frame)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, entry->topic);
    return topic != NULL && topic->item.generation & 1 && topic->length == frame->topic_length &&
                   memcmp(topic->name, frame->topic, topic->length) == 0
               ? topic
               : NULL;
}

void mq_alias_choose(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                     mq_frame *frame)
{
    uint32_t count = alias_count(connection), sets = count < WAYS ? 1 : count / WAYS;
    uint32_t first = entry->topic % sets * WAYS, end = count - first < WAYS ? count : first + WAYS;
    const mq_topic *topic = topic_of(engine, entry, frame);
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
