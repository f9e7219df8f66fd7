/* SPDX-License-Identifier: Apache-2.0
 *
 * Effects of a ring's durability on the engine: the time of acknowledgements, the refusal of publishers, and
 * the time at which subscribers get a record.
 */
#ifndef BRIM_MQTT_LEVELS_H
#define BRIM_MQTT_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mq_engine mq_engine;

typedef struct mq_unshown { /* a hidden record, not routed until it is durable */
    uint64_t position;
    uint64_t topic, publisher; /* handles; publisher 0: not a client */
    struct mq_owner *owner;    /* charged for the room promised for the retained message; NULL: none */
    struct mq_author *author;  /* publisher of the retained message; NULL: none */
} mq_unshown;

typedef struct mq_level {
    uint8_t gate;    /* MQ_GATE_*: event that acknowledgements of its records wait for */
    uint8_t refusal; /* reason code for publishers while its log takes no records; 0: none */
    bool hides;      /* records are routed when durable, not when committed */
    uint64_t refused_since_ms;
    uint64_t upstream;           /* sinks have, or reported as lost, all records below this offset */
    uint64_t lost_from, lost_to; /* lost offsets, among those that publishers still wait for */
    mq_unshown *unshown;         /* circular buffer of unshown_room, a power of two; NULL: none */
    uint32_t unshown_first, unshown_count, unshown_room;
} mq_level;

typedef enum mq_reach { /* state of a record whose acknowledgement is held */
    MQ_REACH_WAITS,
    MQ_REACH_DONE,
    MQ_REACH_REFUSED, /* refused: MQTT 5 has a reason code for it */
    MQ_REACH_LOST     /* the publisher must send it again */
} mq_reach;

struct mq_source;
struct mq_message;
struct mq_topic;

/* Reason code for refusing publishers to `source` now; 0: they are not refused. */
uint8_t mq_level_refusal(const mq_engine *engine, const struct mq_source *source);
void mq_level_refuse(mq_engine *engine, uint32_t index, uint8_t reason); /* reason 0 ends the refusal */
/* Store that the sinks have all records below `offset`, except the offsets lost_from .. lost_to - 1. */
void mq_level_upstream(mq_engine *engine, uint32_t index, uint64_t offset, uint64_t lost_from,
                       uint64_t lost_to);
/* Value of mq_ack.durable for the last appended record. */
uint64_t mq_level_end(const struct mq_source *source);
mq_reach mq_level_reach(const mq_engine *engine, const struct mq_source *source, uint64_t durable);

/* Prepare the append of a record, which overwrites at most `room` bytes, to a source that hides records.
 * RB_OK: the record can be remembered, and no hidden record is overwritten; RB_FULL. */
int mq_unshown_reserve(mq_engine *engine, uint32_t index, uint64_t room);
void mq_unshown_add(mq_engine *engine, struct mq_source *source, struct mq_topic *topic,
                    const struct mq_message *message);
/* Position up to which an own source's records have been routed. */
uint64_t mq_level_shown(const struct mq_source *source);
/* Retain and route the records that have become durable.  Sets engine->show_pending if more than one turn's
 * remain. */
void mq_show(mq_engine *engine);

#endif
