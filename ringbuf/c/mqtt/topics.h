/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done about topics: their table, their routes, grants and groups, and what they retain.  Part of
 * mqtt.h, which has the types.
 */
#ifndef BRIM_MQTT_TOPICS_H
#define BRIM_MQTT_TOPICS_H

#include "mqtt.h"

/* grants.c */
/* The number of the grant with these Subscription Identifier properties, for a group or 0.  It counts for the
 * caller, until mq_grant_drop().  0, which stands for none: no memory. */
uint32_t mq_grant_take(mq_engine *engine, uint64_t group, const void *identifiers, uint32_t length);
void mq_grant_drop(mq_engine *engine, uint32_t number);

/* share.c.  A group is known by its queue, which is a session. */
mq_session *mq_share_open(mq_engine *engine, uint32_t queue_max, bool drop_newest); /* NULL: no memory */
bool mq_share_join(mq_engine *engine, mq_session *queue, mq_session *session, uint32_t tag);
void mq_share_leave(mq_engine *engine, mq_session *queue, mq_session *session);
void mq_share_clear(mq_engine *engine, mq_session *session); /* part of mq_session_clear() */
/* Gives a record to a member, or keeps it.  The tag of `entry`: QoS and RETAIN as published. */
void mq_share_route(mq_engine *engine, mq_session *queue, mq_entry entry);
uint32_t mq_share_published(uint32_t tag); /* QoS and RETAIN, as its message was published, of a member's */
bool mq_share_pull(mq_engine *engine, mq_session *session);   /* it has room: true, if something was there */
void mq_share_return(mq_engine *engine, mq_session *session); /* its connection has ended */

/* topics.c */
mq_topic *mq_topic_find(const mq_engine *engine, const void *name, uint32_t length);
mq_topic *mq_topic_add(mq_engine *engine, const void *name, uint32_t length, uint16_t source, bool reserved);
bool mq_filter_matches(const char *filter, uint32_t filter_length, const char *name, uint32_t name_length);
void mq_topic_free(mq_engine *engine, mq_topic *topic);
void mq_topic_owned(mq_engine *engine, mq_topic *topic, mq_owner *owner); /* it counts for `owner` */
mq_topic *
mq_topic_recyclable(mq_engine *engine); /* one that was not used lately and holds nothing; NULL: none */
mq_topic *mq_topic_idle(mq_engine *engine,
                        uint32_t *steps); /* the same, of so many places; NULL: none left */
void mq_topics_trim(mq_engine *engine);
uint64_t mq_hash(const mq_engine *engine, const void *bytes,
                 uint32_t length); /* keyed: hostile input may be hashed */

/* Appends a message of this process to its topic's ring and routes it.  RB_OK and *end, the position behind
 * it; RB_FULL: wait; RB_TIMEOUT: it has been full for too long; RB_TOO_LARGE. */
int mq_append(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t *end);
void mq_sources_pump(mq_engine *engine);
void mq_sources_tell(mq_engine *engine);

/* routes.c.  A route counts for the grant that its tag names. */
bool mq_route_add(mq_engine *engine, mq_topic *topic, mq_session *session,
                  uint32_t tag); /* it has none like it yet; false: no memory */
bool mq_route_set(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t tag);
bool mq_route_merge(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t tag);
void mq_route_drop(mq_engine *engine, mq_topic *topic, const mq_session *session);
void mq_routes_free(mq_engine *engine, mq_topic *topic);
/* Queues the record at `where` for who subscribed to its topic: how many.  Of `message` flags and publisher
 * count. */
uint32_t mq_route_record(mq_engine *engine, mq_topic *topic, uint64_t where, const mq_message *message);

/* retained.c */
/* Whether the store has room for what `message` is to retain: asked before it is stored.  What it says holds
 * until the message is retained, if that is at once, or behind mq_retained_promise(). */
bool mq_retained_fits(mq_engine *engine, const mq_topic *topic, const mq_message *message);
/* Room for a message that fits and is retained later; +1, and -1 when it is. */
void mq_retained_promise(mq_engine *engine, const mq_topic *topic, const mq_message *message, int sign);
/* Whatever the limits are: a restart puts back what was retained before.  `origin`: where its record is in a
 * ring; 0: nowhere. */
void mq_retain(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t origin);
/* What a ring is about to lose should be written down (edge/state/retained_file.py). */
void mq_retained_due(mq_engine *engine, const mq_source *source);
/* A sweep begins: over the topics that have changed since the last one, or `all` that retain something. */
void mq_retained_sweep(mq_engine *engine, bool all);
/* Of its topics, records of what they retain, padded to 32: about `most` bytes; nobody is told of them again.
 * Behind those *length bytes are *authors bytes of who has published them.  Caller frees.  NULL: no memory.
 */
uint8_t *mq_retained_changes(mq_engine *engine, uint64_t most, uint64_t *length, uint64_t *authors);
/* The next topic from `from` on of which the author of what is retained is known, among so many `places` of
 * the table; *author NULL: none of them, and the next place is returned. */
uint32_t mq_retained_author_next(mq_engine *engine, uint32_t from, uint32_t places, mq_author **author);
void mq_retained_forget(mq_engine *engine, mq_topic *topic); /* it has none, or has none any more */

/* purge.c */
typedef struct mq_denied { /* topics */
    const uint8_t *bits;   /* one for each in the table */
    bool unknown;          /* those too whose topic nobody can tell */
} mq_denied;
uint32_t mq_entry_topic(mq_engine *engine, const mq_entry *entry);
uint32_t mq_purge(mq_engine *engine, mq_session *session, const mq_denied *denied); /* how many */

/* replay.c */
typedef struct mq_replay_scope { /* which topics: those, or all that the filter matches */
    const char *filter;
    const void *topics; /* uint32; NULL: all */
    uint32_t filter_length, count;
} mq_replay_scope;
typedef enum mq_found {
    MQ_FOUND,
    MQ_FOUND_LATER, /* not yet: others have their turn first */
    MQ_FOUND_NONE
} mq_found;
bool mq_replay_begin(mq_engine *engine, mq_session *session, uint32_t tag, const mq_replay_scope *scope);
void mq_replay_end(mq_engine *engine, mq_session *session, const void *filter, uint32_t length);
void mq_replays_list(mq_engine *engine, mq_session *session);
void mq_replays_purge(mq_session *session, const mq_denied *denied);
void mq_replays_clear(mq_engine *engine, mq_session *session);
/* The next that `session` is to be sent; it stays so until mq_replay_advance(), which counts for its entry.
 */
mq_found mq_replay_find(mq_engine *engine, mq_session *session, mq_entry *out);
void mq_replay_advance(mq_engine *engine, mq_session *session, const mq_entry *entry);

#endif
