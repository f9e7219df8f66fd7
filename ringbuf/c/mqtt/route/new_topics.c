/* SPDX-License-Identifier: Apache-2.0
 *
 * New topics: the ring and the routes of a topic that a client publishes to for the first time.
 *
 * Python hands over the rules once: the streams (streams.c) and the limits of names.  With these rules the
 * parser makes topics without Python.
 *
 * Python still decides about a topic if its name is invalid, reserved or exceeds a limit, if the table is
 * full, if access rules decide about the client or a subscriber, if very many filters match, and while the
 * journal has little room.
 */
#include "base/utf8.h"
#include "mqtt/mqtt.h"

/* In messages: a new topic takes this much of a connection's turn, and more if its name is long. */
#define NEW_TOPIC_WORK 16u
#define LEVEL_BYTES_MIN 4u

/* See [MQTT-3.3.2-2] and [MQTT-4.7.3]. */
bool mq_name_is_ordinary(const mq_engine *engine, const char *name, uint32_t length, uint32_t visible_from)
{
    uint32_t levels = 1;
    if (length <= visible_from || length > engine->topic_max_bytes || name[visible_from] == '$')
        return false;
    for (uint32_t i = 0; i < length; i++) {
        if (name[i] == '+' || name[i] == '#' || name[i] == 0)
            return false;
        levels += name[i] == '/';
    }
    return levels <= engine->topic_levels_max && rb_is_utf8((const uint8_t *)name, length);
}

/* ---- a new topic ---- */

/* True if no rule denies the topic to a session of the match.  A group has rules of all its members. */
static bool receives(const mq_engine *engine, const mq_match *match)
{
    if (!engine->receivers_checked)
        return true;
    for (uint32_t i = 0; i < match->entry_count; i++) {
        const mq_session *session = mq_slab_get(&engine->sessions, match->entries[i].session);
        if (session != NULL && !session->receives_all)
            return false;
    }
    return true;
}

/* True if the name is ordinary for the client: the visible part, after the prefix of its tenant. */
static bool is_ordinary_for(const mq_engine *engine, const mq_connection *client, const void *name,
                            uint32_t length)
{
    uint32_t hidden = mq_hidden_bytes(client);
    return length > hidden && (hidden == 0 || memcmp(name, client->tenant->prefix, hidden) == 0) &&
           mq_name_is_ordinary(engine, name, length, hidden);
}

/* Make a topic with its routes.  NULL: Python must decide. */
static mq_topic *make(mq_engine *engine, const void *name, uint32_t length, uint16_t ring, mq_owner *owner)
{
    uint32_t work = MQ_MATCH_WORK;
    mq_match *match = &engine->match;
    mq_match_begin(engine, match, name, length);
    bool complete = mq_match_step(engine, match, &work) && !match->failed;
    engine->turn_work += NEW_TOPIC_WORK + length / LEVEL_BYTES_MIN + MQ_MATCH_WORK - work;
    mq_topic *topic = NULL;
    if (complete && receives(engine, match))
        topic = mq_topic_add(engine, name, length, ring, false);
    if (topic != NULL) {
        mq_topic_owned(engine, topic, owner);
        if (!mq_match_routes(engine, match, topic)) {
            mq_topic_free(engine, topic);
            topic = NULL;
        }
    }
    mq_match_reset(match);
    return topic;
}

mq_topic *mq_topic_new(mq_engine *engine, mq_session *session, const void *name, uint32_t length,
                       bool *exceeds_quota)
{
    bool ordinary = is_ordinary_for(engine, session->connection, name, length);
    uint16_t ring = ordinary ? mq_ring_of_partition(engine, name, length) : 0;
    if (ring == 0 || mq_journal_is_short(engine))
        return NULL;
    *exceeds_quota = !mq_owner_may(engine, session->owner, MQ_OWNED_TOPICS, 1);
    return *exceeds_quota ? NULL : make(engine, name, length, ring, session->owner);
}

mq_topic *mq_topic_restored(mq_engine *engine, const void *name, uint32_t length)
{
    uint32_t visible_from;
    mq_tenant_of_topic(engine, name, length, &visible_from);
    bool ordinary = mq_name_is_ordinary(engine, name, length, visible_from);
    uint16_t ring = ordinary ? mq_ring_of_partition(engine, name, length) : 0;
    return ring == 0 ? NULL : make(engine, name, length, ring, NULL);
}
