/* SPDX-License-Identifier: Apache-2.0
 *
 * Types: topics, their routes to sessions, and subscription ids.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_TOPIC_TYPES_H
#define BRIM_MQTT_TOPIC_TYPES_H

/* ---- subscription ids ---- */

typedef struct mq_subscription_ids { /* its number: index + 1 */
    mq_item item;
    uint32_t references; /* by routes, queue entries, and the caller of mq_subscription_ids_take() */
    uint32_t length;
    uint32_t hash;
    uint64_t group;       /* handle of the group's session; 0: not a shared subscription */
    uint8_t *identifiers; /* Subscription Identifier properties, as in a PUBLISH */
} mq_subscription_ids;

#define MQ_SUBSCRIPTION_IDS_MAX 0xffff00u /* 24 bits of options, in full chunks of a slab */

/* ---- topics ---- */

typedef struct mq_route {
    mq_session *session;
    uint32_t generation;
    uint32_t options;
} mq_route;

struct mq_topic {
    mq_item item;
    uint16_t length;
    uint16_t ring; /* ring to which its records are written */
    uint16_t delayed_from; /* start of TOPIC in $delayed/SECONDS/TOPIC; 0: not a delayed message */
    uint16_t visible_from; /* start of the name that access rules decide about: after `delayed_from` and the
                            * prefix of the tenant */
    uint8_t tenant;        /* number of the tenant whose clients use it (tenants.c); 0: those without one */
    bool reserved;   /* clients may not publish to it */
    bool used;       /* used since the clock hand last passed */
    bool changed;    /* in engine->retained_changed: retained message set or removed */
    uint32_t hash, key_hash;
    uint32_t hidden_records; /* that wait to become durable; they keep the topic */
    uint8_t *name;
    mq_route *routes;
    uint32_t route_count, route_capacity;
    mq_blob *retained;
    mq_owner *owner;  /* owner whose message created the topic; NULL: none */
    mq_node *node;    /* of its name in the trie */
    uint64_t produced; /* `where` of the last record that a producer ring had; 0: none */
};

#endif
