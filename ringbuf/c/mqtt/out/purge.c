/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics of queued messages, and their removal: after a change of the rules, a client does not get messages
 * that it may not receive any more, even if they were queued before.
 *
 * Expired messages are not removed here: frame.c skips them when their turn comes.
 * A removed entry keeps its place, without a record, so that no entry has to move.
 */
#include "mqtt/out/frame.h"

/* Topic of the record of `entry`; MQ_NO_TOPIC if another topic has its place in the table. */
uint32_t mq_entry_topic(mq_engine *engine, const mq_entry *entry)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, entry->topic);
    mq_frame frame;
    if (topic == NULL || !(topic->item.generation & 1))
        return MQ_NO_TOPIC;
    if (mq_message_plan(engine, entry, true, &frame) != MQ_BUILT)
        return entry->topic;
    bool is_same = topic->length == frame.topic_length &&
                   memcmp(topic->name, frame.topic, topic->length) == 0;
    return is_same ? entry->topic : MQ_NO_TOPIC;
}

uint32_t mq_purge(mq_engine *engine, mq_session *session, const mq_denied *denied)
{
    uint32_t count = 0;
    mq_walk walk = {0};
    while (mq_queue_next(session, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        if (entry.where == MQ_NOWHERE)
            continue;
        uint32_t topic = mq_entry_topic(engine, &entry);
        if (topic == MQ_NO_TOPIC ? !denied->unknown : !(denied->bits[topic / 8] >> topic % 8 & 1))
            continue;
        mq_entry_drop(engine, session, &entry, MQ_DROP_DENIED);
        mq_entry_take_back(walk.at);
        count++;
    }
    return count;
}
