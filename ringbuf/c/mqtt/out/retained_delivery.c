/* SPDX-License-Identifier: Apache-2.0
 *
 * Delivery of retained messages to a new subscription.
 *
 * There may be a million messages, so they are not queued.  A delivery is a cursor over the topics; the
 * next message is looked up when output and window have room for it.  A delivery costs a session the filter,
 * or a short list of its topics, for any number of retained messages.
 *
 * Retained messages are numbered (the offset of the copy).  A delivery ends at the number that was the newest
 * at its start, so later messages come only by the route.  No message comes twice or out of order.
 *
 * A session has at most one delivery per filter; a repeated subscription restarts it.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define SCAN_MAX 16384u /* topics checked in one turn */

static mq_retained_delivery **place_of(mq_session *session, const void *filter, uint32_t length)
{
    mq_retained_delivery **place = &session->retained_deliveries;
    while (*place != NULL &&
           ((*place)->filter_length != length || memcmp((*place)->filter, filter, length) != 0))
        place = &(*place)->next;
    return place;
}

static void take_out(mq_engine *engine, mq_retained_delivery **place)
{
    mq_retained_delivery *delivery = *place;
    *place = delivery->next;
    if (delivery->options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_drop(engine, delivery->options >> MQ_OPTION_IDS_SHIFT);
    free(delivery->topics);
    free(delivery);
}

bool mq_retained_delivery_begin(mq_engine *engine, mq_session *session, uint32_t options,
                                const mq_retained_scope *scope)
{
    mq_retained_delivery *delivery = malloc(sizeof *delivery + scope->filter_length);
    uint32_t *topics = scope->topics == NULL ? NULL : malloc((scope->count + 1) * sizeof *topics);
    if (delivery == NULL || (scope->topics != NULL && topics == NULL)) {
        free(delivery);
        free(topics);
        return false;
    }
    if (topics != NULL)
        memcpy(topics, scope->topics, scope->count * sizeof *topics);
    *delivery = (mq_retained_delivery){.options = options,
                                       .topics = topics,
                                       .count = topics != NULL ? scope->count : engine->topics.created,
                                       .until = engine->retained_number,
                                       .filter_length = scope->filter_length};
    memcpy(delivery->filter, scope->filter, scope->filter_length);
    if (options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_at(engine, options >> MQ_OPTION_IDS_SHIFT)->references++;
    mq_retained_delivery_end(engine, session, scope->filter, scope->filter_length);
    mq_retained_delivery **last = &session->retained_deliveries;
    while (*last != NULL)
        last = &(*last)->next;
    *last = delivery;
    if (session->connection != NULL)
        mq_connection_touch(engine, session->connection);
    return true;
}

void mq_retained_delivery_end(mq_engine *engine, mq_session *session, const void *filter, uint32_t length)
{
    mq_retained_delivery **place = place_of(session, filter, length);
    if (*place != NULL)
        take_out(engine, place);
}

void mq_retained_deliveries_clear(mq_engine *engine, mq_session *session)
{
    while (session->retained_deliveries != NULL)
        take_out(engine, &session->retained_deliveries);
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

/* True if the retained message of `topic` belongs to the delivery, expired or not. */
static bool is_in_delivery(const mq_session *session, const mq_retained_delivery *delivery,
                           const mq_topic *topic)
{
    const mq_blob *blob = topic->item.generation & 1 ? topic->retained : NULL;
    if (blob == NULL || blob->withheld || blob->record.offset > delivery->until)
        return false;
    if (delivery->topics == NULL && !mq_filter_matches(delivery->filter, delivery->filter_length,
                                                       (const char *)topic->name, topic->length))
        return false;
    return !(delivery->options & MQ_OPTION_NO_LOCAL && blob->publisher == mq_handle(&session->item));
}

/* List the remaining topics of a delivery that scans the table.  False: no memory. */
static bool list_topics(mq_engine *engine, const mq_session *session, mq_retained_delivery *delivery)
{
    uint32_t count = 0, *topics = malloc((delivery->count + 1) * sizeof *topics);
    if (topics == NULL)
        return false;
    for (uint32_t i = delivery->at; i < delivery->count; i++) {
        mq_topic *topic = mq_slab_at(&engine->topics, i);
        if (is_in_delivery(session, delivery, topic) && !remove_expired(engine, topic))
            topics[count++] = i;
    }
    delivery->topics = topics;
    delivery->at = 0;
    delivery->count = count;
    return true;
}

/* List the remaining topics of each delivery, so that Python can authorize them.  Without memory a delivery
 * ends. */
void mq_retained_deliveries_list(mq_engine *engine, mq_session *session)
{
    for (mq_retained_delivery **place = &session->retained_deliveries; *place != NULL;)
        if ((*place)->topics != NULL || list_topics(engine, session, *place))
            place = &(*place)->next;
        else
            take_out(engine, place);
}

void mq_retained_deliveries_purge(mq_session *session, const uint8_t *denied)
{
    for (mq_retained_delivery *delivery = session->retained_deliveries; delivery != NULL;
         delivery = delivery->next) {
        if (delivery->topics == NULL)
            continue;
        uint32_t kept = delivery->at;
        for (uint32_t i = delivery->at; i < delivery->count; i++)
            if (!(denied[delivery->topics[i] / 8] >> delivery->topics[i] % 8 & 1))
                delivery->topics[kept++] = delivery->topics[i];
        delivery->count = kept;
    }
}

/* True if no delivery is left, and no copy of a message is in flight.  Some copies are retained messages,
 * which a restart may lose. */
bool mq_retained_deliveries_arrived(const mq_session *session)
{
    if (session->retained_deliveries != NULL)
        return false;
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        uint64_t where = session->sent[n & (session->sent_capacity - 1)].where;
        if (where != MQ_NOWHERE && mq_where_ring(where) == 0)
            return false;
    }
    return true;
}

static mq_entry entry_of(const mq_retained_delivery *delivery, const mq_topic *topic)
{
    uint32_t qos = topic->retained->record.flags & RB_FLAG_QOS, granted = delivery->options & MQ_OPTION_QOS;
    return (mq_entry){.where = (uint64_t)(uintptr_t)topic->retained,
                      .topic = topic->item.index,
                      .options = (delivery->options & ~0xffu) | MQ_OPTION_RETAIN |
                                 (qos < granted ? qos : granted)};
}

mq_found mq_retained_delivery_find(mq_engine *engine, mq_session *session, mq_entry *out)
{
    for (uint32_t looked = 0; session->retained_deliveries != NULL; looked++) {
        mq_retained_delivery *delivery = session->retained_deliveries;
        if (delivery->at == delivery->count) {
            take_out(engine, &session->retained_deliveries);
            continue;
        }
        if (looked == SCAN_MAX)
            return MQ_FOUND_LATER;
        uint32_t index = delivery->topics == NULL ? delivery->at : delivery->topics[delivery->at];
        mq_topic *topic = mq_slab_at(&engine->topics, index);
        if (topic != NULL && is_in_delivery(session, delivery, topic) && !remove_expired(engine, topic)) {
            *out = entry_of(delivery, topic);
            return MQ_FOUND;
        }
        delivery->at++;
    }
    return MQ_FOUND_NONE;
}

void mq_retained_delivery_advance(mq_engine *engine, mq_session *session, const mq_entry *entry)
{
    session->retained_deliveries->at++;
    mq_where_blob(entry->where)->references++;
    if (entry->options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_at(engine, entry->options >> MQ_OPTION_IDS_SHIFT)->references++;
}
