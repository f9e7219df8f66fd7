/* SPDX-License-Identifier: Apache-2.0
 *
 * Types: topics, the routes to sessions that get their records, and grants.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_TOPIC_H
#define BRIM_MQTT_TOPIC_H

/* ---- grants ---- */

typedef struct mq_grant { /* its number: index + 1 */
    mq_item item;
    uint32_t references; /* by routes, queue entries, and whoever has just taken it */
    uint32_t next;       /* of those with the same place in engine->grant_table: index + 1; 0: the last */
    uint32_t length;
    uint64_t hash;
    uint64_t group;       /* session of the shared subscription that it is for; 0: none */
    uint8_t *identifiers; /* Subscription Identifier properties, as they stand in a PUBLISH */
} mq_grant;

#define MQ_GRANTS_MAX 0xffff00u /* what the upper 24 bits of a tag can name, in whole chunks of a slab */

/* ---- topics ---- */

typedef struct mq_route {
    mq_session *session;
    uint32_t generation;
    uint32_t tag;
} mq_route;

typedef struct mq_topic {
    mq_item item;
    uint16_t length;
    uint16_t source; /* where its records are written */
    bool reserved;   /* not for clients */
    bool used;       /* since the hand of the clock last passed */
    bool changed;    /* what it retains, or that it retains nothing any more: in engine->retained_changed */
    uint32_t key_hash;
    uint32_t unshown; /* records of it that wait until they are durable: it is not forgotten */
    uint64_t hash;
    uint8_t *name;
    mq_route *routes;
    uint32_t route_count, route_room;
    mq_blob *retained;
    mq_owner *owner; /* whose message made it known; NULL: none */
} mq_topic;

#endif
