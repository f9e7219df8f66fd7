/* SPDX-License-Identifier: Apache-2.0
 *
 * Replays: delivery of retained messages to a new subscription.
 *
 * There may be a million messages, so they are not queued.  A replay is a cursor over the topics; the next
 * message is looked up when output and window have room for it.  A replay costs a session the filter, or a
 * short list of its topics, for any number of retained messages.
 *
 * Retained messages are numbered (the offset of the copy).  A delivery ends at the number that was the newest
 * at its start, so later messages come only by the route.  No message comes twice or out of order.
 *
 * A session has at most one replay per filter; a repeated subscription restarts it.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define SCAN_MAX 16384u /* topics checked in one turn */

static mq_replay **place_of(mq_session *session, const void *filter, uint32_t length)
{
    mq_replay **place = &session->replays;
    while (*place != NULL &&
           ((*place)->filter_length != length || memcmp((*place)->filter, filter, length) != 0))
        place = &(*place)->next;
    return place;
}

static void take_out(mq_engine *engine, mq_replay **place)
{
    mq_replay *replay = *place;
    *place = replay->next;
    if (replay->tag >> MQ_TAG_IDS_SHIFT)
        mq_subscription_ids_drop(engine, replay->tag >> MQ_TAG_IDS_SHIFT);
    free(replay->topics);
    free(replay);
}

bool mq_replay_begin(mq_engine *engine, mq_session *session, uint32_t tag, const mq_replay_scope *scope)
{
    mq_replay *replay = malloc(sizeof *replay + scope->filter_length);
    uint32_t *topics = scope->topics == NULL ? NULL : malloc((scope->count + 1) * sizeof *topics);
    if (replay == NULL || (scope->topics != NULL && topics == NULL)) {
        free(replay);
        free(topics);
        return false;
    }
    if (topics != NULL)
        memcpy(topics, scope->topics, scope->count * sizeof *topics);
    *replay = (mq_replay){.tag = tag,
                          .topics = topics,
                          .count = topics != NULL ? scope->count : engine->topics.made,
                          .until = engine->retained_number,
                          .filter_length = scope->filter_length};
    memcpy(replay->filter, scope->filter, scope->filter_length);
    if (tag >> MQ_TAG_IDS_SHIFT)
        mq_subscription_ids_at(engine, tag >> MQ_TAG_IDS_SHIFT)->references++;
    mq_replay_end(engine, session, scope->filter, scope->filter_length);
    mq_replay **last = &session->replays;
    while (*last != NULL)
        last = &(*last)->next;
    *last = replay;
    if (session->connection != NULL)
        mq_connection_touch(engine, session->connection);
    return true;
}

void mq_replay_end(mq_engine *engine, mq_session *session, const void *filter, uint32_t length)
{
    mq_replay **place = place_of(session, filter, length);
    if (*place != NULL)
        take_out(engine, place);
}

void mq_replays_clear(mq_engine *engine, mq_session *session)
{
    while (session->replays != NULL)
        take_out(engine, &session->replays);
}

/* Remove the retained message of `topic` if it has expired.  True if it had. */
static bool remove_expired(mq_engine *engine, mq_topic *topic)
{
    if (!mq_is_expired(engine, &topic->retained->record))
        return false;
    engine->counters.dropped[MQ_DROP_EXPIRED]++;
    mq_retained_forget(engine, topic);
    return true;
}

/* True if the retained message of `topic` belongs to the replay, expired or not. */
static bool is_in_replay(const mq_session *session, const mq_replay *replay, const mq_topic *topic)
{
    const mq_blob *blob = topic->item.generation & 1 ? topic->retained : NULL;
    if (blob == NULL || blob->withheld || blob->record.offset > replay->until)
        return false;
    if (replay->topics == NULL &&
        !mq_filter_matches(replay->filter, replay->filter_length, (const char *)topic->name, topic->length))
        return false;
    return !(replay->tag & MQ_TAG_NO_LOCAL && blob->publisher == mq_handle(&session->item));
}

/* List the remaining topics of each replay, so that Python can authorize them.  Without memory a replay
 * ends. */
void mq_replays_list(mq_engine *engine, mq_session *session)
{
    for (mq_replay **place = &session->replays, *replay; (replay = *place) != NULL;) {
        uint32_t made = replay->topics != NULL ? 0 : replay->count,
                 *topics = malloc((made + 1) * sizeof *topics);
        if (topics == NULL) {
            take_out(engine, place);
            continue;
        }
        place = &replay->next;
        if (replay->topics != NULL) {
            free(topics);
            continue;
        }
        uint32_t count = 0;
        for (uint32_t i = replay->at; i < made; i++) {
            mq_topic *topic = mq_slab_at(&engine->topics, i);
            if (is_in_replay(session, replay, topic) && !remove_expired(engine, topic))
                topics[count++] = i;
        }
        replay->topics = topics;
        replay->at = 0;
        replay->count = count;
    }
}

void mq_replays_purge(mq_session *session, const mq_denied *denied)
{
    for (mq_replay *replay = session->replays; replay != NULL; replay = replay->next) {
        uint32_t kept = replay->at;
        for (uint32_t i = replay->at; replay->topics != NULL && i < replay->count; i++)
            if (!(denied->bits[replay->topics[i] / 8] >> replay->topics[i] % 8 & 1))
                replay->topics[kept++] = replay->topics[i];
        if (replay->topics != NULL)
            replay->count = kept;
    }
}

static mq_entry entry_of(const mq_replay *replay, const mq_topic *topic)
{
    uint32_t qos = topic->retained->record.flags & RB_FLAG_QOS, granted = replay->tag & MQ_TAG_QOS;
    return (mq_entry){.where = (uint64_t)(uintptr_t)topic->retained,
                      .topic = topic->item.index,
                      .tag = (replay->tag & ~0xffu) | MQ_TAG_RETAIN | (qos < granted ? qos : granted)};
}

mq_found mq_replay_find(mq_engine *engine, mq_session *session, mq_entry *out)
{
    for (uint32_t looked = 0; session->replays != NULL; looked++) {
        mq_replay *replay = session->replays;
        if (replay->at == replay->count) {
            take_out(engine, &session->replays);
            continue;
        }
        if (looked == SCAN_MAX)
            return MQ_FOUND_LATER;
        uint32_t index = replay->topics == NULL ? replay->at : replay->topics[replay->at];
        mq_topic *topic = mq_slab_at(&engine->topics, index);
        if (topic != NULL && is_in_replay(session, replay, topic) && !remove_expired(engine, topic)) {
            *out = entry_of(replay, topic);
            return MQ_FOUND;
        }
        replay->at++;
    }
    return MQ_FOUND_NONE;
}

void mq_replay_advance(mq_engine *engine, mq_session *session, const mq_entry *entry)
{
    session->replays->at++;
    mq_where_blob(entry->where)->references++;
    if (entry->tag >> MQ_TAG_IDS_SHIFT)
        mq_subscription_ids_at(engine, entry->tag >> MQ_TAG_IDS_SHIFT)->references++;
}
