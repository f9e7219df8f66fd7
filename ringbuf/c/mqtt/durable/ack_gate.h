/* SPDX-License-Identifier: Apache-2.0
 *
 * Effects of a ring's durability on the engine: the time of acknowledgements, the refusal of publishers, and
 * the time at which subscribers get a record.
 */
#ifndef BRIM_MQTT_ACK_GATE_H
#define BRIM_MQTT_ACK_GATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mq_engine mq_engine;

typedef struct mq_pending_record { /* a hidden record, not routed until it is durable */
    uint64_t position;
    uint64_t topic, publisher; /* handles; publisher 0: not a client */
    struct mq_owner *owner;    /* charged for the room promised for the retained message; NULL: none */
    struct mq_author *author;  /* publisher of the retained message; NULL: none */
} mq_pending_record;

typedef struct mq_ack_gate {
    uint8_t event;   /* MQ_GATE_*: event that acknowledgements of its records wait for */
    uint8_t refusal; /* reason code for publishers while its log takes no records; 0: none */
    bool visible_when_durable; /* records are routed when durable, not when committed */
    uint64_t refused_since_ms;
    uint64_t upstream;           /* sinks have, or reported as lost, all records below this offset */
    uint64_t lost_from, lost_to; /* lost offsets, among those that publishers still wait for */
    mq_pending_record *pending_visibility; /* circular buffer of pending_room, a power of two; NULL: none */
    uint32_t pending_first, pending_count, pending_room;
} mq_ack_gate;

typedef enum mq_ack_status { /* state of a record whose acknowledgement waits */
    MQ_ACK_WAITS,
    MQ_ACK_DONE,
    MQ_ACK_REFUSED, /* refused: MQTT 5 has a reason code for it */
    MQ_ACK_LOST     /* the publisher must send it again */
} mq_ack_status;

struct mq_ring;
struct mq_message;
struct mq_topic;

/* Reason code for refusing publishers to `source` now; 0: they are not refused. */
uint8_t mq_refusal(const mq_engine *engine, const struct mq_ring *source);
void mq_refuse_publishers(mq_engine *engine, uint32_t index, uint8_t reason); /* reason 0 ends the refusal */
/* Store that the sinks have all records below `offset`, except the offsets lost_from .. lost_to - 1. */
void mq_upstream_moved(mq_engine *engine, uint32_t index, uint64_t offset, uint64_t lost_from,
                       uint64_t lost_to);
/* Value of mq_ack.waits_for for the last appended record. */
uint64_t mq_ack_waits_for(const struct mq_ring *source);
mq_ack_status mq_ack_status_of(const mq_engine *engine, const struct mq_ring *source,
                               uint64_t waits_for);

/* Prepare the append of a record, which overwrites at most `room` bytes, to a source that hides records.
 * RB_OK: the record can be remembered, and no hidden record is overwritten; RB_FULL. */
int mq_pending_reserve(mq_engine *engine, uint32_t index, uint64_t room);
void mq_pending_add(mq_engine *engine, struct mq_ring *source, struct mq_topic *topic,
                    const struct mq_message *message);
/* Position up to which an own source's records have been routed. */
uint64_t mq_visible_position(const struct mq_ring *source);
/* Retain and route the records that have become durable.  Sets engine->visible_pending if more than one
 * turn's remain. */
void mq_make_durable_visible(mq_engine *engine);

#endif
