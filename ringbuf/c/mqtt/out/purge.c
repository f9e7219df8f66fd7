/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics of queued messages, and their removal: after a change of the rules, a client does not get messages
 * that it may not receive any more, even if they were queued before.
 *
 * Expired messages are not removed here: frame.c skips them when their turn comes.
 * A removed entry keeps its place, without a record, so that no entry has to move.
 *
 * An entry may have no topic of the table: a restart found its record only in the log, or another topic has
 * the place in the table.  Such an entry is not removed by its topic.  Python decides about it by name when
 * the record is in memory: for a record of the log, when it was read (log_backfill.c).
 */
#include "mqtt/out/frame.h"

static bool is_of_producer(const mq_engine *engine, const mq_entry *entry)
{
    const mq_ring *ring = engine->rings[mq_where_ring(entry->where)];
    return ring != NULL && ring->kind == MQ_RING_OF_PRODUCER;
}

/* Topic of the record of `entry`; MQ_NO_TOPIC if the record cannot be read now, or has another topic.
 * Delivery checks the names of a producer's records. */
static uint32_t topic_of(mq_engine *engine, const mq_entry *entry)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, entry->topic);
    mq_frame frame;
    if (topic == NULL || !(topic->item.generation & 1))
        return MQ_NO_TOPIC;
    if (is_of_producer(engine, entry))
        return entry->topic;
    if (mq_message_plan(engine, entry, true, &frame) != MQ_BUILT)
        return MQ_NO_TOPIC;
    bool is_same = topic->length == frame.topic_length &&
                   memcmp(topic->name, frame.topic, topic->length) == 0;
    return is_same ? entry->topic : MQ_NO_TOPIC;
}

uint32_t mq_queue_topics(mq_engine *engine, const mq_session *session, uint32_t *out)
{
    uint32_t count = 0;
    mq_walk walk = {0};
    while (session->queue_count > 0 && mq_queue_next(session, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        if (entry.where == MQ_NOWHERE)
            continue;
        uint32_t topic = topic_of(engine, &entry);
        if (topic != MQ_NO_TOPIC)
            out[count++] = topic;
        else if (!is_of_producer(engine, &entry)) /* those keep the topic by which they were routed */
            mq_entry_set_topic(walk.at, MQ_NO_TOPIC);
    }
    return count;
}

bool mq_queue_next_unnamed(mq_engine *engine, const mq_session *session, bool before_log, mq_walk *walk,
                           mq_frame *frame)
{
    while (session->queue_count > 0 && mq_queue_next(session, walk)) {
        mq_entry entry = mq_entry_at(walk->at);
        if (before_log && mq_is_only_in_log(engine, &entry))
            return false;
        if (entry.topic == MQ_NO_TOPIC_PACKED && entry.where != MQ_NOWHERE &&
            mq_message_plan(engine, &entry, true, frame) == MQ_BUILT)
            return true;
    }
    return false;
}

void mq_queue_resolve_name(mq_engine *engine, mq_session *session, const mq_walk *walk,
                           const mq_frame *frame, bool is_denied)
{
    mq_entry entry = mq_entry_at(walk->at);
    const mq_topic *topic = mq_topic_find(engine, frame->topic, frame->topic_length);
    if (is_denied) {
        mq_entry_drop(engine, session, &entry, MQ_DROP_DENIED);
        mq_entry_take_back(walk->at);
    } else if (topic != NULL) {
        mq_entry_set_topic(walk->at, topic->item.index);
    }
}

uint32_t mq_purge(mq_engine *engine, mq_session *session, const uint8_t *denied)
{
    uint32_t count = 0;
    mq_walk walk = {0};
    while (mq_queue_next(session, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        if (entry.where == MQ_NOWHERE)
            continue;
        uint32_t topic = topic_of(engine, &entry);
        if (topic == MQ_NO_TOPIC || !(denied[topic / 8] >> topic % 8 & 1))
            continue;
        mq_entry_drop(engine, session, &entry, MQ_DROP_DENIED);
        mq_entry_take_back(walk.at);
        count++;
    }
    return count;
}
