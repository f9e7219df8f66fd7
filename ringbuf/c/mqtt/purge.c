/* SPDX-License-Identifier: Apache-2.0
 *
 * What waits in a queue for which topics, and taking some of it back: when rules change, a client is not sent
 * what it may not have any more, though it was queued while it might.
 *
 * What is taken back keeps its place, as an entry without a record, so that nothing has to move.
 */
#include "frame.h"

/* The topic that the record of `entry` is for, or MQ_NO_TOPIC: another has its place in the table by now. */
uint32_t mq_entry_topic(mq_engine *engine, const mq_entry *entry)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, entry->topic);
    mq_frame frame;
    if (topic == NULL || !(topic->item.generation & 1))
        return MQ_NO_TOPIC;
    if (mq_look(engine, entry, true, &frame) != MQ_BUILT)
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
