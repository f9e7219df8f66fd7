/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes: the sessions that a record of a topic goes to, with the options of each.  Filters are matched in
 * match_filters.c, once per topic.
 *
 * A route references a session by pointer and generation.  The end of a session therefore needs no search.  A
 * dead route is removed when the topic's routes are next iterated, or when a new route needs its place.
 *
 * A session has one route per topic, or two if some of its matching subscriptions are no-local and others are
 * not: one for messages of others (MQ_OPTION_NO_LOCAL), and one for its own messages (MQ_OPTION_OWN_ONLY).
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

_Static_assert((int)MQ_OPTION_RETAIN == (int)RB_FLAG_RETAIN &&
                   MQ_OPTION_RETAIN << 3 == MQ_OPTION_RETAIN_AS_PUBLISHED,
               "mq_route_record() makes one of the other by a shift");

static bool is_live(const mq_route *route)
{
    return route->session->item.generation == route->generation;
}

static bool is_to(const mq_route *route, const mq_session *session)
{
    return route->session == session && route->generation == session->item.generation;
}

static void reference_ids(mq_engine *engine, uint32_t options)
{
    if (options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_at(engine, options >> MQ_OPTION_IDS_SHIFT)->references++;
}

static void release_ids(mq_engine *engine, uint32_t options)
{
    if (options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_drop(engine, options >> MQ_OPTION_IDS_SHIFT);
}

static void route_remove(mq_engine *engine, mq_topic *topic, uint32_t at)
{
    release_ids(engine, topic->routes[at].options);
    topic->routes[at] = topic->routes[--topic->route_count];
}

static bool grow(mq_engine *engine, mq_topic *topic)
{
    for (uint32_t i = 0; i < topic->route_count;)
        if (is_live(&topic->routes[i]))
            i++;
        else
            route_remove(engine, topic, i);
    if (topic->route_count < topic->route_capacity)
        return true;
    uint32_t capacity = topic->route_capacity ? topic->route_capacity * 2 : 1;
    mq_route *routes = realloc(topic->routes, capacity * sizeof *routes);
    if (routes == NULL)
        return false;
    topic->routes = routes;
    topic->route_capacity = capacity;
    return true;
}

bool mq_route_add(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    if (topic->tenant != 0 && topic->delayed_from > 0) /* $delayed/SECONDS/$tenant/...: for no subscriber */
        return true;
    if (topic->route_count == topic->route_capacity && !grow(engine, topic))
        return false;
    topic->routes[topic->route_count++] = (mq_route){
        .session = session, .generation = session->item.generation, .options = options};
    reference_ids(engine, options);
    return true;
}

/* Replace all routes of `session` by this one. */
bool mq_route_set(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    mq_route_drop(engine, topic, session);
    return mq_route_add(engine, topic, session, options);
}

/* Merge the options of another matching subscription of `session`: the highest QoS counts [MQTT-3.3.4-2].
 * Neither may be no-local or have identifiers. */
bool mq_route_merge(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    for (uint32_t i = 0; i < topic->route_count; i++) {
        mq_route *route = &topic->routes[i];
        if (!is_to(route, session))
            continue;
        uint32_t qos = options & MQ_OPTION_QOS, route_qos = route->options & MQ_OPTION_QOS;
        route->options = ((route->options | options) & ~(uint32_t)MQ_OPTION_QOS) |
                         (qos > route_qos ? qos : route_qos);
        return true;
    }
    return mq_route_add(engine, topic, session, options);
}

void mq_route_drop(mq_engine *engine, mq_topic *topic, const mq_session *session)
{
    for (uint32_t i = 0; i < topic->route_count;)
        if (is_to(&topic->routes[i], session))
            route_remove(engine, topic, i);
        else
            i++;
}

void mq_routes_free(mq_engine *engine, mq_topic *topic)
{
    for (uint32_t i = 0; i < topic->route_count; i++)
        release_ids(engine, topic->routes[i].options);
    free(topic->routes);
    topic->routes = NULL;
    topic->route_count = topic->route_capacity = 0;
}

/* True if a message of `publisher` uses this route, which may distinguish its session from others. */
static bool is_for(const mq_route *route, const mq_session *publisher)
{
    if (!(route->options & (MQ_OPTION_NO_LOCAL | MQ_OPTION_OWN_ONLY)))
        return true;
    return (route->session == publisher) == !(route->options & MQ_OPTION_NO_LOCAL);
}

/* QoS 0 records are not queued for a disconnected session. */
uint32_t mq_route_record(mq_engine *engine, mq_topic *topic, uint64_t where, const mq_message *message)
{
    uint32_t qos = message->flags & RB_FLAG_QOS, retain = message->flags & RB_FLAG_RETAIN, matched = 0;
    bool skips_own = false;
    for (uint32_t i = 0; i < topic->route_count;) {
        mq_route route = topic->routes[i];
        if (!is_live(&route)) {
            route_remove(engine, topic, i);
            continue;
        }
        i++;
        if (!is_for(&route, message->publisher)) {
            skips_own |= route.session == message->publisher && route.session->kept;
            continue;
        }
        matched++;
        uint32_t granted = route.options & MQ_OPTION_QOS, lower = qos < granted ? qos : granted;
        uint32_t kept = route.options & (~0xffu | MQ_OPTION_OWN_ONLY); /* OWN_ONLY: for a restart */
        mq_entry entry = {.where = where,
                          .topic = topic->item.index,
                          .options = kept | (retain & route.options >> 3) | lower};
        if (route.options & MQ_OPTION_SHARED)
            mq_share_route(engine, route.session, entry);
        else if (lower > 0 || route.session->connection != NULL)
            mq_push(engine, route.session, entry);
    }
    if (skips_own && qos > 0)
        mq_journal_passed(engine, where);
    return matched;
}
