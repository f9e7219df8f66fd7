/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes by a match: the options of all matching subscriptions of a session become one route, or two.
 *
 * The highest QoS counts [MQTT-3.3.4-2], all Subscription Identifiers are sent [MQTT-3.3.4-4], and RETAIN is
 * sent as published if any subscription requests that.  Two routes are needed when some subscriptions are
 * no-local and some are not (routes.c).  edge/engine/subscription_options.py has the same rules for single
 * subscriptions.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define IDENTIFIER_PROPERTY 0x0b
#define PROPERTY_MAX_BYTES 5u /* the property identifier, and a Variable Byte Integer of up to four bytes */

/* Append the property of an identifier, as in a PUBLISH.  Returns the end. */
static uint8_t *property(uint8_t *to, uint64_t identifier)
{
    if (identifier == 0)
        return to;
    *to++ = IDENTIFIER_PROPERTY;
    for (; identifier > 0x7f; identifier >>= 7)
        *to++ = (uint8_t)(identifier | 0x80);
    *to++ = (uint8_t)identifier;
    return to;
}

/* Add one route for the subscriptions in the list that begins at `first`: all, or those without no-local. */
static bool route_of(mq_engine *engine, const mq_match *match, mq_topic *topic, uint32_t first, bool own,
                     uint32_t mark)
{
    uint32_t merged = mark, qos = 0, count = 0;
    for (uint32_t i = first + 1; i != 0; i = match->entries[i - 1].next)
        count++;
    uint8_t few[8 * PROPERTY_MAX_BYTES], *bytes = count <= 8 ? few
                                                             : malloc((size_t)count * PROPERTY_MAX_BYTES);
    if (bytes == NULL)
        return false;
    uint8_t *end = bytes;
    for (uint32_t i = first + 1; i != 0; i = match->entries[i - 1].next) {
        uint64_t options = match->entries[i - 1].options;
        if (own && options & MQ_OPTION_NO_LOCAL)
            continue;
        qos = (options & MQ_OPTION_QOS) > qos ? options & MQ_OPTION_QOS : qos;
        merged |= options & (MQ_OPTION_RETAIN_AS_PUBLISHED | MQ_OPTION_SHARED);
        end = property(end, options >> MQ_OPTION_IDS_SHIFT);
    }
    uint32_t number = end == bytes ? 0 : mq_subscription_ids_take(engine, 0, bytes, (uint32_t)(end - bytes));
    mq_session *session = mq_slab_get(&engine->sessions, match->entries[first].session);
    bool added = (number != 0 || end == bytes) && session != NULL &&
                 mq_route_add(engine, topic, session, merged | qos | number << MQ_OPTION_IDS_SHIFT);
    if (number != 0)
        mq_subscription_ids_drop(engine, number);
    if (bytes != few)
        free(bytes);
    return added;
}

static bool routes_of(mq_engine *engine, const mq_match *match, mq_topic *topic, uint32_t first)
{
    bool others = false, own = false; /* some are no-local; some are not */
    for (uint32_t i = first + 1; i != 0; i = match->entries[i - 1].next)
        *(match->entries[i - 1].options & MQ_OPTION_NO_LOCAL ? &others : &own) = true;
    if (!others)
        return route_of(engine, match, topic, first, false, 0);
    return route_of(engine, match, topic, first, false, MQ_OPTION_NO_LOCAL) &&
           (!own || route_of(engine, match, topic, first, true, MQ_OPTION_OWN_ONLY));
}

/* Link the entries of each session, in the order of the match.  session->matched is the first of them. */
static void link_sessions(mq_engine *engine, const mq_match *match)
{
    engine->match_number++;
    for (uint32_t i = 0; i < match->entry_count; i++) {
        mq_match_entry *entry = &match->entries[i];
        mq_session *session = mq_slab_get(&engine->sessions, entry->session);
        entry->next = entry->last = 0;
        if (session == NULL)
            continue;
        if (session->match_number != engine->match_number) {
            session->match_number = engine->match_number;
            session->matched = i;
            entry->last = i + 1;
        } else {
            mq_match_entry *first = &match->entries[session->matched];
            match->entries[first->last - 1].next = i + 1;
            first->last = i + 1;
        }
    }
}

void mq_match_without(mq_engine *engine, mq_match *match, const void *sessions, uint32_t count)
{
    if (count == 0)
        return;
    engine->match_number++;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t handle;
        memcpy(&handle, (const char *)sessions + (size_t)i * sizeof handle, sizeof handle);
        mq_session *session = mq_slab_get(&engine->sessions, handle);
        if (session != NULL)
            session->match_number = engine->match_number;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < match->entry_count; i++) {
        const mq_session *session = mq_slab_get(&engine->sessions, match->entries[i].session);
        if (session != NULL && session->match_number != engine->match_number)
            match->entries[kept++] = match->entries[i];
    }
    match->entry_count = kept;
}

bool mq_match_routes(mq_engine *engine, const mq_match *match, mq_topic *topic)
{
    link_sessions(engine, match);
    for (uint32_t i = 0; i < match->entry_count; i++)
        if (match->entries[i].last != 0 && !routes_of(engine, match, topic, i))
            return false;
    return true;
}
