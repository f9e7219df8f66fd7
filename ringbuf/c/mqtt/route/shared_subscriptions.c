/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared subscriptions: each record goes to one member of a group.
 *
 * A group has its own session in the slab, without a client.  Topics are routed to it, and records that no
 * member can take wait in its queue.  The queue therefore has the same limits, counters and storage as any
 * other.  Records that a group takes back have a second queue (`returned`), which is served first.  Both
 * count for the owner of the first member in the list.
 *
 *   a record arrives       it goes to the next member in turn that is connected and has room in its window;
 *                          otherwise QoS 1 and 2 wait in the queue, QoS 0 is dropped
 *   a member has room      it takes the waiting records (mq_share_pull, from mq_fill_output)
 *   a connection ends      its queued records and its unacknowledged QoS 1 records go back, and at once to
 *                          others; QoS 2 in flight stays with its session [MQTT-4.8.2-4]
 *
 * An entry in a member's queue keeps its QoS and RETAIN as published, in bits that otherwise only routes use:
 * the next member may have a higher QoS.
 *
 * Invariant: while a record waits in a group's queue, each connected member has no room, or its connection is
 * listed in engine->touched.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define QOS_0_MAX 1024u   /* limit of QoS 0 entries in one member's queue */
#define PUBLISHED_SHIFT 4 /* in the options of an entry: QoS and RETAIN as published */
#define PUBLISHED_RETAIN 64u

static mq_group *group_of(const mq_session *queue)
{
    return queue->group;
}

static bool is_live(const mq_member *member)
{
    return member->session->item.generation == member->generation;
}

static mq_member *member_of(const mq_group *group, const mq_session *session)
{
    for (uint32_t i = 0; i < group->count; i++)
        if (group->members[i].session == session && is_live(&group->members[i]))
            return &group->members[i];
    return NULL;
}

static void member_remove(mq_engine *engine, mq_group *group, uint32_t at)
{
    mq_subscription_ids_drop(engine, group->members[at].options >> MQ_OPTION_IDS_SHIFT);
    group->members[at] = group->members[--group->count];
}

/* ---- distribution to members ---- */

static bool can_take(const mq_member *member, uint32_t qos)
{
    const mq_session *session = member->session;
    if (session->connection == NULL || session->queue_count >= session->queue_max)
        return false;
    return qos > 0 && member->options & MQ_OPTION_QOS
               ? session->queue_count + session->in_flight < session->window
               : session->queue_count < QOS_0_MAX;
}

static mq_member *next_with_room(mq_engine *engine, mq_group *group, uint32_t qos)
{
    for (uint32_t tried = 0; tried < group->count;) {
        uint32_t at = group->next < group->count ? group->next : 0;
        if (!is_live(&group->members[at])) {
            member_remove(engine, group, at);
            continue;
        }
        group->next = at + 1;
        tried++;
        if (can_take(&group->members[at], qos))
            return &group->members[at];
    }
    return NULL;
}

static bool is_reachable(const mq_group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        if (is_live(&group->members[i]) && group->members[i].session->connection != NULL)
            return true;
    return false;
}

/* Queue `entry` for a member.  The entry has the form of the group's queue: QoS and RETAIN as published. */
static void queue_for(mq_engine *engine, const mq_member *member, mq_entry entry)
{
    uint32_t qos = entry.options & MQ_OPTION_QOS, granted = member->options & MQ_OPTION_QOS,
             retain = entry.options & MQ_OPTION_RETAIN;
    entry.options = (member->options & ~0xffu) | MQ_OPTION_SHARED | qos << PUBLISHED_SHIFT |
                    (retain ? PUBLISHED_RETAIN : 0) | (qos < granted ? qos : granted) |
                    (retain & member->options >> 3);
    mq_push(engine, member->session, entry);
}

uint32_t mq_share_published(uint32_t options)
{
    return (options >> PUBLISHED_SHIFT & MQ_OPTION_QOS) | (options & PUBLISHED_RETAIN ? MQ_OPTION_RETAIN : 0);
}

/* The entry in the form of the group's queue. */
static mq_entry as_published(mq_entry entry)
{
    entry.options = mq_share_published(entry.options);
    return entry;
}

static mq_session *waiting_queue(mq_session *queue)
{
    mq_session *returned = group_of(queue)->returned;
    return returned != NULL && returned->queue_count > 0 ? returned : queue;
}

void mq_share_route(mq_engine *engine, mq_session *queue, mq_entry entry)
{
    uint32_t qos = entry.options & MQ_OPTION_QOS;
    if (queue->kept && qos > 0)
        mq_journal_routed(engine, queue, &entry);
    const mq_member *member = waiting_queue(queue)->queue_count == 0 || qos == 0
                                  ? next_with_room(engine, group_of(queue), qos)
                                  : NULL;
    if (member != NULL)
        queue_for(engine, member, entry);
    else if (qos > 0)
        mq_push(engine, queue, entry);
    else if (is_reachable(group_of(queue))) {
        engine->counters.dropped[MQ_DROP_QUEUE]++;
        queue->dropped[MQ_DROP_QUEUE]++;
    }
}

/* Give the oldest waiting record to a member with room for it. */
static void queue_waiting_for(mq_engine *engine, mq_session *queue, const mq_member *member)
{
    mq_session *from = waiting_queue(queue);
    mq_entry entry = mq_queue_pop(engine, from);
    if (entry.where == MQ_NOWHERE) { /* overwritten; or removed, and counted then */
        engine->counters.dropped[MQ_DROP_OVERRUN] += !(entry.options & MQ_OPTION_RELEASED);
        return;
    }
    member->session->disordered = true;
    queue_for(engine, member, entry);
    mq_entry_done(engine, &entry);
}

static void distribute_waiting(mq_engine *engine, mq_session *queue)
{
    const mq_member *member;
    while (waiting_queue(queue)->queue_count > 0 &&
           (member = next_with_room(engine, group_of(queue),
                                    mq_queue_front(waiting_queue(queue)).options & MQ_OPTION_QOS)) != NULL)
        queue_waiting_for(engine, queue, member);
}

bool mq_share_pull(mq_engine *engine, mq_session *session)
{
    bool took = false;
    uint32_t first = session->share_turn++;
    for (uint32_t i = 0; i < session->shares.count; i++) {
        uint32_t at = (first + i) % session->shares.count;
        mq_session *queue = mq_slab_get(&engine->sessions, session->shares.at[at]);
        const mq_member *member = queue == NULL ? NULL : member_of(group_of(queue), session);
        while (member != NULL && waiting_queue(queue)->queue_count > 0 &&
               can_take(member, mq_queue_front(waiting_queue(queue)).options & MQ_OPTION_QOS)) {
            queue_waiting_for(engine, queue, member);
            took = true;
        }
    }
    return took;
}

/* ---- taking back ---- */

/* Take a member's record back into the group.  Without memory for a second queue it waits after the
 * others. */
static void take_back(mq_engine *engine, const mq_entry *entry)
{
    mq_session *queue = mq_slab_get(
        &engine->sessions, mq_subscription_ids_at(engine, entry->options >> MQ_OPTION_IDS_SHIFT)->group);
    mq_entry published = as_published(*entry);
    if (queue == NULL)
        return;
    mq_group *group = group_of(queue);
    if (!(published.options & MQ_OPTION_QOS)) {
        mq_share_route(engine, queue, published);
        return;
    }
    if (group->returned == NULL && (group->returned = mq_slab_take(&engine->sessions)) != NULL) {
        mq_session_owned(engine, group->returned, mq_owner_reference(queue->owner));
        group->returned->queue_max = queue->queue_max;
        group->returned->drop_newest = queue->drop_newest;
        engine->share_queues++;
    }
    mq_session *to = group->returned != NULL ? group->returned : queue;
    /* otherwise each member with room is already listed */
    bool is_first = waiting_queue(queue)->queue_count == 0;
    to->disordered = true; /* each time: a queue that falls empty is in order again */
    mq_push(engine, to, published);
    if (is_first)
        distribute_waiting(engine, queue);
}

static bool goes_back(const mq_entry *entry)
{
    return entry->where != MQ_NOWHERE && entry->options & MQ_OPTION_SHARED &&
           (entry->options & MQ_OPTION_QOS) < 2;
}

/* Filter for a member's queue: take a shared record back.  False: the record belongs to the member itself. */
static bool queued_goes_back(mq_engine *engine, const mq_entry *entry)
{
    if (!(entry->options & MQ_OPTION_SHARED))
        return false;
    take_back(engine, entry);
    mq_entry_done(engine, entry);
    return true;
}

void mq_share_return(mq_engine *engine, mq_session *session)
{
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        mq_entry *entry = n < session->sent_first ? NULL : &session->sent[n & (session->sent_capacity - 1)];
        if (entry == NULL || !goes_back(entry))
            continue;
        take_back(engine, entry);
        mq_sent_done(engine, session, entry);
    }
    mq_queue_sift(engine, session, queued_goes_back);
}

/* ---- members ---- */

mq_session *mq_share_open(mq_engine *engine, uint32_t queue_max, bool drop_newest)
{
    mq_group *group = calloc(1, sizeof *group);
    mq_session *queue = group == NULL ? NULL : mq_slab_take(&engine->sessions);
    if (queue == NULL) {
        free(group);
        return NULL;
    }
    queue->queue_max = queue_max;
    queue->drop_newest = drop_newest;
    queue->group = group;
    engine->share_queues++;
    return queue;
}

static mq_member *member_add(mq_group *group, mq_session *session)
{
    if (group->count == group->capacity) {
        uint32_t capacity = group->capacity ? group->capacity * 2 : 4;
        mq_member *members = realloc(group->members, capacity * sizeof *members);
        if (members == NULL)
            return NULL;
        group->members = members;
        group->capacity = capacity;
    }
    group->members[group->count] = (mq_member){.session = session, .generation = session->item.generation};
    return &group->members[group->count++];
}

/* Count the queues for the owner of the first member. */
static void charge_owner(mq_engine *engine, mq_session *queue)
{
    mq_group *group = group_of(queue);
    mq_owner *owner = NULL;
    for (uint32_t i = 0; i < group->count && owner == NULL; i++)
        if (is_live(&group->members[i]))
            owner = group->members[i].session->owner;
    if (owner == NULL || owner == queue->owner)
        return;
    mq_session_owned(engine, queue, mq_owner_reference(owner));
    if (group->returned != NULL)
        mq_session_owned(engine, group->returned, mq_owner_reference(owner));
}

bool mq_share_join(mq_engine *engine, mq_session *queue, mq_session *session, uint32_t options)
{
    mq_member *member = member_of(group_of(queue), session);
    if (member != NULL) {
        mq_subscription_ids_drop(engine, member->options >> MQ_OPTION_IDS_SHIFT);
    } else {
        if ((member = member_add(group_of(queue), session)) == NULL)
            return false;
        if (!mq_list_add(&session->shares, mq_handle(&queue->item))) {
            group_of(queue)->count--;
            return false;
        }
    }
    mq_subscription_ids_at(engine, options >> MQ_OPTION_IDS_SHIFT)->references++;
    member->options = options;
    session->shared = true;
    charge_owner(engine, queue);
    if (session->connection != NULL)
        mq_connection_touch(engine, session->connection);
    return true;
}

/* Records already queued for the member are still sent to it. */
void mq_share_leave(mq_engine *engine, mq_session *queue, mq_session *session)
{
    mq_group *group = group_of(queue);
    mq_member *member = member_of(group, session);
    if (member != NULL) {
        member_remove(engine, group, (uint32_t)(member - group->members));
        charge_owner(engine, queue);
    }
    for (uint32_t i = 0; i < session->shares.count; i++)
        if (session->shares.at[i] == mq_handle(&queue->item))
            session->shares.at[i] = session->shares.at[--session->shares.count];
}

void mq_share_clear(mq_engine *engine, mq_session *session)
{
    mq_group *group = session->group;
    free(session->shares.at);
    session->shares = (mq_list){0};
    session->group = NULL;
    if (group == NULL)
        return;
    engine->share_queues -= group->returned == NULL ? 1 : 2;
    while (group->count > 0)
        member_remove(engine, group, group->count - 1);
    if (group->returned != NULL) {
        mq_session_clear(engine, group->returned);
        mq_slab_give(&engine->sessions, &group->returned->item);
    }
    free(group->members);
    free(group);
}
