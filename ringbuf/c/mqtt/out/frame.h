/* SPDX-License-Identifier: Apache-2.0
 *
 * A PUBLISH frame between planning and writing: shared by deliver.c, frame.c and topic_aliases.c.
 */
#ifndef BRIM_MQTT_FRAME_H
#define BRIM_MQTT_FRAME_H

#include "mqtt/mqtt.h"

typedef enum mq_built {
    MQ_BUILT,
    MQ_FULL_WINDOW, /* the in-flight window is full */
    MQ_LATER,       /* the next message is not found yet: other connections are served first */
    MQ_OUTPUT_FULL,     /* the output must be sent first */
    MQ_NO_MEMORY,
    MQ_ONLY_IN_LOG, /* only the log has the record; this session waits for it */
    MQ_OVERRUN,   /* the record was overwritten */
    MQ_FORGED,    /* a producer's record has changed since it was routed */
    MQ_DENIED,    /* the entry was removed, and counted then */
    MQ_EXPIRED,   /* the Message Expiry Interval has passed */
    MQ_TOO_LARGE, /* exceeds the Maximum Packet Size of this client */
} mq_built;

typedef struct mq_frame {
    /* The message, in place. */
    const uint8_t *topic, *payload, *properties; /* properties without their length and the expiry interval */
    uint32_t topic_length, payload_length, properties_length;
    uint64_t timestamp_ns; /* of its record; 0: unknown */
    bool expires;
    uint32_t remaining_s;     /* of the expiry interval */
    const mq_ring *producer;  /* ring whose record must be checked after copying; NULL: own record */
    /* The frame, for one connection. */
    const mq_subscription_ids *ids; /* its subscription identifiers are added; NULL: none */
    uint32_t added;        /* bytes of properties, including those not from the message */
    uint32_t length;       /* bytes after the fixed header */
    uint16_t alias;        /* 0: none */
    bool alias_is_known;   /* the client knows the alias: the topic is omitted */
} mq_frame;

/* Find the record of `entry` and fill the message of the frame. */
mq_built mq_message_plan(mq_engine *engine, const mq_entry *entry, bool again, mq_frame *out);
/* Find the record of `entry` and plan its frame for `connection`.  MQ_BUILT, or another result.  `again`: the
 * message was sent before, so it is sent even if it has expired. */
mq_built mq_frame_plan(mq_engine *engine, mq_connection *connection, const mq_entry *entry, bool again,
                       mq_frame *out);
/* Write the frame after the other output, which has room for mq_frame_bytes(). */
mq_built mq_frame_put(mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                      const mq_frame *frame, uint16_t identifier, bool again);

/* Add the age of a record, at its delivery, to counters.delivery: of the first delivery after each reading of
 * the clock and of every 64th.  So the cost of a clock is paid for few messages at a high rate, and each
 * message counts at a low rate. */
void mq_delivery_measure(mq_engine *engine, uint64_t timestamp_ns);

static inline void mq_delivery_sample(mq_engine *engine, uint64_t timestamp_ns)
{
    if (engine->measured_ns != engine->now_ns || (engine->counters.delivered & 63) == 0)
        mq_delivery_measure(engine, timestamp_ns);
}

#define MQ_FRAME_HEAD_MAX 5u /* first byte and the longest remaining length */

static inline uint32_t mq_variable_bytes(uint32_t value)
{
    return value < 1u << 7 ? 1 : value < 1u << 14 ? 2 : value < 1u << 21 ? 3 : 4;
}

static inline uint32_t mq_frame_bytes(const mq_frame *frame)
{
    return 1 + mq_variable_bytes(frame->length) + frame->length;
}

/* topic_aliases.c */
/* Choose the alias of the frame.  The state changes only in mq_alias_given(), after the frame is built. */
void mq_alias_choose(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                     mq_frame *frame);
void mq_alias_given(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                    const mq_frame *frame);

#endif
