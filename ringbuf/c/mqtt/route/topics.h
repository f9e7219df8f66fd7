/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions on topics: their table, routes, subscription ids, groups and retained messages.  Part of
 * mqtt.h, which has the types.
 */
#ifndef BRIM_MQTT_TOPICS_H
#define BRIM_MQTT_TOPICS_H

#include "mqtt/mqtt.h"
#include "mqtt/route/filter.h"

/* subscription_ids.c */
/* Number of these Subscription Identifier properties, for a group or 0.  The caller holds a
 * reference until mq_subscription_ids_drop().  0: no memory. */
uint32_t mq_subscription_ids_take(mq_engine *engine, uint64_t group, const void *identifiers,
                                  uint32_t length);
void mq_subscription_ids_drop(mq_engine *engine, uint32_t number);

/* shared_subscriptions.c.  The queue of a group, a session, identifies the group. */
mq_session *mq_share_open(mq_engine *engine, uint32_t queue_max, bool drop_newest); /* NULL: no memory */
bool mq_share_join(mq_engine *engine, mq_session *queue, mq_session *session, uint32_t options);
void mq_share_leave(mq_engine *engine, mq_session *queue, mq_session *session);
void mq_share_clear(mq_engine *engine, mq_session *session); /* part of mq_session_clear() */
/* Give a record to a member, or keep it in the queue.  Options of `entry`: QoS and RETAIN as published. */
void mq_share_route(mq_engine *engine, mq_session *queue, mq_entry entry);
uint32_t mq_share_published(uint32_t options); /* QoS and RETAIN as published, of a member's entry */
/* fill a member with room; true if there was a record */
bool mq_share_pull(mq_engine *engine, mq_session *session);
/* take back the records of a member whose connection has ended */
void mq_share_return(mq_engine *engine, mq_session *session);

/* topics.c */
mq_topic *mq_topic_find(const mq_engine *engine, const void *name, uint32_t length);
mq_topic *mq_topic_add(mq_engine *engine, const void *name, uint32_t length, uint16_t ring, bool reserved);
void mq_topic_free(mq_engine *engine, mq_topic *topic);
/* Set the fields that depend on the form of the name and on the configured tenants. */
void mq_topic_classify(const mq_engine *engine, mq_topic *topic);
void mq_topic_owned(mq_engine *engine, mq_topic *topic, mq_owner *owner); /* charge it to `owner` */
/* An unused topic without a retained message, of which no producer ring has a record.  NULL: none.
 * Recyclable: in the whole table, and without `spare_produced` also one of a record in a producer ring, which
 * is dropped at its delivery.  Idle: among `steps` places. */
mq_topic *mq_topic_recyclable(mq_engine *engine, bool spare_produced);
mq_topic *mq_topic_idle(mq_engine *engine, uint32_t *steps);
uint64_t mq_hash(const mq_engine *engine, const void *bytes,
                 uint32_t length); /* keyed, so that hostile input may be hashed */

/* match_topics.c */
typedef enum mq_topics_result { MQ_TOPICS_FOUND, MQ_TOPICS_MANY, MQ_TOPICS_NO_MEMORY } mq_topics_result;
/* Indexes of the topics that a valid filter matches; the caller frees them.  MQ_TOPICS_MANY: that would need
 * more than `branches_max` branches. */
mq_topics_result mq_topics_match(mq_engine *engine, const char *filter, uint32_t length,
                                 uint64_t branches_max, uint32_t **topics, uint32_t *count);

/* new_topics.c */
/* True for a valid name of a topic, not reserved and within the limits; also as a filter.  Clients see the
 * part from `visible_from` on. */
bool mq_name_is_ordinary(const mq_engine *engine, const char *name, uint32_t length, uint32_t visible_from);
/* Make a topic that the connected client of `session` may publish to.  NULL: Python must decide, or its owner
 * may have no more topics. */
mq_topic *mq_topic_new(mq_engine *engine, mq_session *session, const void *name, uint32_t length,
                       bool *exceeds_quota);
/* Make the topic of a retained message, after a restart, for no owner.  NULL: Python must decide. */
mq_topic *mq_topic_restored(mq_engine *engine, const void *name, uint32_t length);

/* append.c */
/* Append a message to its topic's ring and route it.  RB_OK with *waits_for (mq_ack);
 * RB_FULL: wait; RB_TIMEOUT: full for longer than the queue timeout; RB_TOO_LARGE. */
int mq_append(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t *waits_for);
/* The two parts of mq_append(): find room, with its results; append where RB_OK has found it.  Between the
 * two, nothing may be appended. */
int mq_append_check(mq_engine *engine, const mq_topic *topic, const mq_message *message);
uint64_t mq_append_checked(mq_engine *engine, mq_topic *topic, const mq_message *message);

/* producer_rings.c */
void mq_producers_read(mq_engine *engine);
void mq_producers_store_progress(mq_engine *engine);

/* routes.c.  A route holds a reference to the subscription ids in its options. */
bool mq_route_add(mq_engine *engine, mq_topic *topic, mq_session *session,
                  uint32_t options); /* the session has no route there yet; false: no memory */
bool mq_route_set(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options);
bool mq_route_merge(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options);
void mq_route_drop(mq_engine *engine, mq_topic *topic, const mq_session *session);
void mq_routes_free(mq_engine *engine, mq_topic *topic);
/* Queue the record at `where` for the subscribers of its topic.  Only flags and publisher of `message` are
 * used.  Returns the number of subscribers. */
uint32_t mq_route_record(mq_engine *engine, mq_topic *topic, uint64_t where, const mq_message *message);

/* retained.c */
/* True if the store has room to retain `message`; called before the record is stored.  The answer stays valid
 * until the message is retained, either at once or after mq_retained_promise(). */
bool mq_retained_fits(mq_engine *engine, const mq_topic *topic, const mq_message *message);
/* Reserve room for a message that fits and is retained later; sign +1 to reserve, -1 when it is retained. */
void mq_retained_promise(mq_engine *engine, const mq_topic *topic, const mq_message *message, int sign);
/* Retain a message regardless of limits: a restart restores messages retained before.  `origin`: `where` of
 * its record in a ring; 0: none. */
void mq_retain(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t origin);
/* Request that retained messages of records about to be overwritten are saved
 * (edge/recovery/retained_store.py). */
void mq_retained_due(mq_engine *engine, const mq_ring *ring);
/* Begin to save the topics changed since the last one, or over `all` that retain a message. */
void mq_retained_save_begin(mq_engine *engine, bool all);
/* Records of the retained messages of the next topics to save, padded to 32: about `bytes_max` bytes; each is
 * returned once.  After these *length bytes come *authors bytes with their publishers.  Caller frees.  NULL:
 * no memory.
 */
uint8_t *mq_retained_changes(mq_engine *engine, uint64_t bytes_max, uint64_t *length, uint64_t *authors);
/* Find the next topic from `from` on whose retained message has a known author, within `places` of the table.
 * *author NULL: no topic found.  Returns the next place. */
uint32_t mq_retained_author_next(mq_engine *engine, uint32_t from, uint32_t places, mq_author **author);
void mq_retained_forget(mq_engine *engine, mq_topic *topic); /* remove the retained message, if any */

/* purge.c */
/* Get the topics of a queue, and forget the topic of each entry for which it is not certain.  Returns their
 * number. */
uint32_t mq_queue_topics(mq_engine *engine, const mq_session *session, uint32_t *out);
/* Remove the entries of the topics that the session may not receive: one bit for each topic in the table.
 * Returns their number. */
uint32_t mq_purge(mq_engine *engine, mq_session *session, const uint8_t *denied);
/* Find the next entry without a topic whose record is in memory, after `walk`; its name is in `frame`.  With
 * `before_log` the search ends at the first record that only the log has. */
struct mq_frame;
bool mq_queue_next_unnamed(mq_engine *engine, const mq_session *session, bool before_log, mq_walk *walk,
                           struct mq_frame *frame);
/* Remove that entry, or give it the topic of its name if the table has the name. */
void mq_queue_resolve_name(mq_engine *engine, mq_session *session, const mq_walk *walk,
                           const struct mq_frame *frame, bool is_denied);

/* retained_delivery.c */
typedef struct mq_retained_scope { /* `topics`, or all topics that the filter matches */
    const char *filter;
    const void *topics; /* uint32; NULL: all */
    uint32_t filter_length, count;
} mq_retained_scope;
typedef enum mq_found {
    MQ_FOUND,
    MQ_FOUND_LATER, /* not yet: other connections are served first */
    MQ_FOUND_NONE
} mq_found;
bool mq_retained_delivery_begin(mq_engine *engine, mq_session *session, uint32_t options,
                                const mq_retained_scope *scope);
void mq_retained_delivery_end(mq_engine *engine, mq_session *session, const void *filter, uint32_t length);
bool mq_retained_deliveries_arrived(const mq_session *session);
void mq_retained_deliveries_list(mq_engine *engine, mq_session *session);
void mq_retained_deliveries_purge(mq_session *session, const uint8_t *denied); /* as mq_purge() */
void mq_retained_deliveries_clear(mq_engine *engine, mq_session *session);
/* Find the next message for `session`.  It stays the next one until mq_retained_delivery_advance(),
 * which takes a reference for its entry. */
mq_found mq_retained_delivery_find(mq_engine *engine, mq_session *session, mq_entry *out);
void mq_retained_delivery_advance(mq_engine *engine, mq_session *session, const mq_entry *entry);

#endif
