/* SPDX-License-Identifier: Apache-2.0
 *
 * A PUBLISH on its way out, between being found and being written: what deliver.c, frame.c and aliases.c
 * share.
 */
#ifndef BRIM_MQTT_FRAME_H
#define BRIM_MQTT_FRAME_H

#include "mqtt.h"

typedef enum mq_built {
    MQ_BUILT,
    MQ_FULL_WINDOW, /* an acknowledgement must come first */
    MQ_LATER,       /* what comes next was not found yet: others have their turn first */
    MQ_NO_ROOM,     /* what is in the output should be sent first */
    MQ_NO_MEMORY,
    MQ_COLD,      /* the log has it; nothing of this session goes before it */
    MQ_OVERRUN,   /* the record is gone */
    MQ_FORGED,    /* a foreign record is not what it was when it was routed */
    MQ_DENIED,    /* it was taken back, and counted then */
    MQ_EXPIRED,   /* its Message Expiry Interval has passed */
    MQ_TOO_LARGE, /* for this client */
} mq_built;

typedef struct mq_frame {
    /* The message, where it lies. */
    const uint8_t *topic, *payload, *properties; /* those without their length and the expiry interval */
    uint32_t topic_length, payload_length, properties_length;
    bool expires;
    uint32_t remaining_s;     /* of the expiry interval */
    const mq_source *foreign; /* whose record must be looked at again after copying; NULL: not foreign */
    /* The frame, for one connection. */
    const mq_grant *grant; /* whose subscription identifiers go along; NULL: none */
    uint32_t added;        /* bytes of properties, with what is not the message's */
    uint32_t length;       /* what follows the fixed header */
    uint16_t alias;        /* 0: none */
    bool alias_is_known;   /* the client has it: the topic stays away */
} mq_frame;

/* Finds the record of `entry`: the message of the frame. */
mq_built mq_look(mq_engine *engine, const mq_entry *entry, bool again, mq_frame *out);
/* Finds the record of `entry` and works out its frame for `connection`.  MQ_BUILT, or why not.  `again`: it
 * was sent before, so it may be late. */
mq_built mq_frame_plan(mq_engine *engine, mq_connection *connection, const mq_entry *entry, bool again,
                       mq_frame *out);
/* Writes it behind the output, where there is room for mq_frame_bytes(). */
mq_built mq_frame_put(mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                      const mq_frame *frame, uint16_t identifier, bool again);

#define MQ_FRAME_HEAD_MAX 5u /* first byte and the longest remaining length */

static inline uint32_t mq_variable_bytes(uint32_t value)
{
    return value < 1u << 7 ? 1 : value < 1u << 14 ? 2 : value < 1u << 21 ? 3 : 4;
}

static inline uint32_t mq_frame_bytes(const mq_frame *frame)
{
    return 1 + mq_variable_bytes(frame->length) + frame->length;
}

/* aliases.c */
/* Which alias the frame may use.  Nothing has changed until mq_alias_given() says that it was built. */
void mq_alias_choose(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                     mq_frame *frame);
void mq_alias_given(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                    const mq_frame *frame);

#endif
