/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the files that read packets: the packet, the properties, and the functions of each file.
 *
 *   parser.c         bytes -> packets; passes each to its file, or to Python
 *   connect.c        CONNECT -> its fields (connect.h)
 *   publish.c        PUBLISH -> record
 *   acl_cache.c      topic of a PUBLISH, and the permission of the client to publish to it
 *   acl_rules.c      rules for that permission (acl_rules.h)
 *   topic_aliases.c  topic aliases of a client
 *   acks.c           acknowledgements of both directions
 *   rate_limit.c     publish rate limits of a client and of a tenant
 *   properties.c     MQTT 5 properties: check, and conversion for a record
 *   received_ids.c   identifiers received with QoS 2
 *
 * A function that returns true has consumed the packet.  After false the packet stays in the input, and the
 * connection has stopped or was closed.
 */
#ifndef BRIM_MQTT_PACKETS_H
#define BRIM_MQTT_PACKETS_H

#include "base/utf8.h"
#include "mqtt/mqtt.h"
#include "mqtt/in/reason_codes.h"

enum { /* types: bits 7-4 of the first byte */
    MQ_CONNECT = 1,
    MQ_PUBLISH = 3,
    MQ_PUBACK,
    MQ_PUBREC,
    MQ_PUBREL,
    MQ_PUBCOMP,
    MQ_PINGREQ = 12,
    MQ_PINGRESP,
    MQ_DISCONNECT = 14
};

typedef struct mq_packet {
    const uint8_t *start, *body;
    uint32_t length; /* of the body */
    uint8_t first;
} mq_packet;

/* Write a Variable Byte Integer.  Returns the end. */
static inline uint8_t *mq_variable_put(uint8_t *to, uint32_t value)
{
    for (; value > 0x7f; value >>= 7)
        *to++ = (uint8_t)(value | 0x80);
    *to++ = (uint8_t)value;
    return to;
}

static inline uint32_t mq_uint16_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

/* parser.c */
/* closes the connection; returns false */
bool mq_refuse(mq_engine *engine, mq_connection *connection, uint32_t cause);
/* Queue an event for Python, which continues after `skip` bytes.  Returns false. */
bool mq_yield_to_python(mq_engine *engine, mq_connection *connection, mq_event event, uint32_t skip);

/* publish.c */
bool mq_on_publish(mq_engine *engine, mq_connection *connection, const mq_packet *packet);

/* acks.c */
bool mq_on_acknowledgement(mq_engine *engine, mq_connection *connection, const mq_packet *packet);
/* Send a PUBACK or PUBREC, or queue it until its record is durable; `ring` 0: no record stored. */
void mq_acknowledge(mq_engine *engine, mq_connection *connection, mq_ack ack);
/* True if `identifier` waits for its PUBACK or PUBREC. */
bool mq_ack_waits(const mq_connection *connection, uint16_t identifier);
/* Number of waiting acknowledgements at which reading from the client pauses. */
uint32_t mq_acks_max(const mq_engine *engine, const mq_connection *connection);
/* Continue a connection that is paused for its waiting acknowledgements, if it may continue now. */
void mq_acks_retry(mq_engine *engine, mq_connection *connection);
/* Free a QoS 2 identifier.  False if it was already free. */
bool mq_exchange_end(mq_engine *engine, mq_connection *connection, uint16_t identifier);
/* Free the identifier of a lost record, which the client must send again. */
void mq_received_lost(mq_engine *engine, mq_session *session, uint16_t identifier);

/* acl_cache.c */
/* True if `topic` is the one for which connection->last_allowed was computed. */
static inline bool mq_is_last(const mq_engine *engine, const mq_connection *connection, const mq_topic *topic)
{
    return topic != NULL && topic == connection->last_topic &&
           topic->item.generation == connection->last_generation && connection->policy == engine->policy;
}
/* True if the client's permission for a topic needs no Python. */
bool mq_decides_permission(mq_engine *engine, mq_connection *connection);
/* Find the topic `name` and set connection->last_allowed.  NULL: Python must decide. */
mq_topic *mq_topic_named(mq_engine *engine, mq_connection *connection, const uint8_t *name, uint32_t length);
/* The topic, if the client may publish to it by the cached answers; NULL: Python must decide. */
mq_topic *mq_topic_admit(mq_engine *engine, mq_connection *connection, mq_topic *topic);

/* topic_aliases.c */
/* Meaning of a topic alias, 1 .. limits.alias_max; NULL: not set. */
mq_alias *mq_alias_find(const mq_connection *connection, uint32_t alias);
mq_topic *mq_alias_topic(mq_engine *engine, mq_connection *connection, mq_alias *alias);
/* Set the topic alias to `name`.  False: no memory. */
bool mq_alias_set(mq_connection *connection, uint32_t alias, const uint8_t *name, uint32_t length);
void mq_alias_refuse(mq_alias *alias, uint8_t reason); /* set to a refused name, which is not stored */

/* rate_limit.c */
bool mq_rate_admits(mq_engine *engine, mq_connection *connection); /* false: the connection is paused */
void mq_rate_pay(mq_connection *connection);                       /* charge a consumed message */

/* properties.c */
typedef struct mq_properties {
    const uint8_t *end;    /* end of the properties */
    const uint8_t *stored; /* as in a record; NULL: none.  Valid until the next call */
    uint32_t stored_length;
    uint32_t flags;     /* RB_FLAG_PROPERTIES, RB_FLAG_EXPIRY */
    uint16_t alias;     /* 0: none */
    bool text;          /* Payload Format Indicator 1 */
    bool subscriptions; /* has a Subscription Identifier, which clients must not send */
} mq_properties;
/* Parse the properties of a PUBLISH in at .. end.  0, or MQ_CLOSE_*. */
uint32_t mq_properties_of_publish(mq_engine *engine, const uint8_t *at, const uint8_t *end,
                                  mq_properties *out);
/* Check the properties of an acknowledgement, which fill at .. end.  0, or MQ_CLOSE_*. */
uint32_t mq_properties_of_ack(const uint8_t *at, const uint8_t *end);

/* True for an MQTT string: UTF-8 without U+0000 [MQTT-1.5.4-1, 1.5.4-2]. */
static inline bool mq_is_string(const uint8_t *at, uint32_t length)
{
    return memchr(at, 0, length) == NULL && rb_is_utf8(at, length);
}

#endif
