/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that read packets share: the packet, the properties, and what each file does with them.
 *
 *   connection.c  bytes -> packets; hands each to its file, or to Python
 *   publish.c     PUBLISH -> record
 *   verdicts.c    which topic a PUBLISH names, and whether this client may
 *   acks.c        acknowledgements of both directions
 *   rate.c        how fast one client may publish
 *   properties.c  MQTT 5 properties, checked, and as a record keeps them
 *   utf8.c        what is UTF-8
 *
 * Functions that say true have consumed the packet.  False: it stays where it is, and the connection has
 * stopped, or was closed.
 */
#ifndef BRIM_MQTT_PACKETS_H
#define BRIM_MQTT_PACKETS_H

#include "mqtt.h"

enum { /* types: bits 7-4 of the first byte */
    MQ_CONNECT = 1,
    MQ_PUBLISH = 3,
    MQ_PUBACK,
    MQ_PUBREC,
    MQ_PUBREL,
    MQ_PUBCOMP,
    MQ_PINGREQ = 12,
    MQ_DISCONNECT = 14
};

enum { /* reason codes of MQTT 5, section 2.4; 0x80 and above: it failed */
    MQ_REASON_SUCCESS = 0x00,
    MQ_REASON_NO_SUBSCRIBERS = 0x10,
    MQ_REASON_REFUSED = 0x83, /* valid, but not accepted here: Implementation specific error */
    MQ_REASON_NOT_AUTHORIZED = 0x87,
    MQ_REASON_TOPIC_NAME = 0x90,
    MQ_REASON_UNKNOWN_IDENTIFIER = 0x92,
    MQ_REASON_QUOTA = 0x97,
    MQ_REASON_PAYLOAD_FORMAT = 0x99,
    MQ_REASON_FAILED = 0x80
};

typedef struct mq_packet {
    const uint8_t *start, *body;
    uint32_t length; /* of the body */
    uint8_t first;
} mq_packet;

static inline uint32_t mq_uint16_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

/* connection.c */
bool mq_refuse(mq_engine *engine, mq_connection *connection, uint32_t cause); /* closes it; false */
/* Leaves an event for Python, which goes on behind `skip` bytes; false. */
bool mq_leave(mq_engine *engine, mq_connection *connection, mq_event event, uint32_t skip);

/* publish.c */
bool mq_on_publish(mq_engine *engine, mq_connection *connection, const mq_packet *packet);

/* acks.c */
bool mq_on_acknowledgement(mq_engine *engine, mq_connection *connection, const mq_packet *packet);
/* PUBACK or PUBREC for what ends at `end` of its ring; `source` 0: nothing was stored. */
void mq_acknowledge(mq_engine *engine, mq_connection *connection, mq_ack ack);
/* Whether `identifier` waits for its PUBACK or PUBREC. */
bool mq_is_held(const mq_connection *connection, uint16_t identifier);
/* A QoS 2 identifier is free; false: it was. */
bool mq_exchange_end(mq_engine *engine, mq_connection *connection, uint16_t identifier);

/* verdicts.c */
/* Whether `topic` is the one that connection->last_allowed is about. */
static inline bool mq_is_last(const mq_engine *engine, const mq_connection *connection, const mq_topic *topic)
{
    return topic != NULL && topic == connection->last_topic &&
           topic->item.generation == connection->last_generation && connection->policy == engine->policy;
}
/* The topic that `name` is for this connection, with connection->last_allowed; NULL: Python must say. */
mq_topic *mq_topic_named(mq_engine *engine, mq_connection *connection, const uint8_t *name, uint32_t length);
/* What a topic alias stands for, 1 .. limits.alias_max; NULL: nothing yet. */
mq_alias *mq_alias_find(const mq_connection *connection, uint32_t alias);
mq_topic *mq_alias_topic(mq_engine *engine, mq_connection *connection, mq_alias *alias);
/* From now on it stands for `name`.  False: no memory. */
bool mq_alias_set(mq_connection *connection, uint32_t alias, const uint8_t *name, uint32_t length);
void mq_alias_refuse(mq_alias *alias, uint8_t reason); /* it stands for a name that is not taken: forgotten */

/* rate.c */
bool mq_rate_admits(mq_engine *engine, mq_connection *connection); /* false: it is paused */
void mq_rate_pay(mq_connection *connection);                       /* for a message that was consumed */

/* properties.c */
typedef struct mq_properties {
    const uint8_t *end;    /* what follows them */
    const uint8_t *stored; /* as a record has them; NULL: none.  Valid until the next call */
    uint32_t stored_length;
    uint32_t flags;     /* RB_FLAG_PROPERTIES, RB_FLAG_EXPIRY */
    uint16_t alias;     /* 0: none */
    bool text;          /* Payload Format Indicator 1 */
    bool subscriptions; /* a Subscription Identifier, which clients do not send */
} mq_properties;
/* The properties of a PUBLISH, in at .. end.  0, or MQ_CLOSE_*. */
uint32_t mq_properties_of_publish(mq_engine *engine, const uint8_t *at, const uint8_t *end,
                                  mq_properties *out);
/* Those of an acknowledgement, which fill at .. end. */
uint32_t mq_properties_of_ack(const uint8_t *at, const uint8_t *end);

/* utf8.c */
/* Well-formed UTF-8: shortest form, no surrogates. */
bool mq_is_utf8(const uint8_t *at, uint32_t length);
/* And without U+0000: a string of MQTT [MQTT-1.5.4-1, 1.5.4-2]. */
bool mq_is_string(const uint8_t *at, uint32_t length);

#endif
