/* SPDX-License-Identifier: Apache-2.0
 *
 * What a ring's durability asks of the engine: when publishers are acknowledged, when they are refused, and
 * when subscribers are shown a record.
 */
#ifndef BRIM_MQTT_LEVELS_H
#define BRIM_MQTT_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mq_engine mq_engine;

typedef struct mq_unshown { /* a record that no power cut may undo before it is shown */
    uint64_t position;
    uint64_t topic, publisher; /* handles; publisher 0: not a client */
    struct mq_owner *owner;    /* with room promised for what it retains; NULL: none */
    struct mq_author *author;  /* likewise */
} mq_unshown;

typedef struct mq_level {
    uint8_t gate;    /* MQ_GATE_*: what acknowledgements of its records wait for */
    uint8_t refusal; /* reason code for publishers while its log takes no records; 0: it does */
    bool hides;      /* records are shown when they are durable, not when they are committed */
    uint64_t refused_since_ms;
    uint64_t upstream;           /* sinks have every record below this offset, or have said that it is lost */
    uint64_t lost_from, lost_to; /* of those that publishers still wait for, these offsets were lost */
    mq_unshown *unshown;         /* a ring of unshown_room, a power of two; NULL: none */
    uint32_t unshown_first, unshown_count, unshown_room;
} mq_level;

typedef enum mq_reach { /* how far a record has got that an acknowledgement is held for */
    MQ_REACH_WAITS,
    MQ_REACH_DONE,
    MQ_REACH_REFUSED, /* and MQTT 5 can say so */
    MQ_REACH_LOST     /* the publisher must send it again */
} mq_reach;

struct mq_source;
struct mq_message;
struct mq_topic;

/* The reason code with which publishers to `source` are refused now; 0: they are not. */
uint8_t mq_level_refusal(const mq_engine *engine, const struct mq_source *source);
void mq_level_refuse(mq_engine *engine, uint32_t index, uint8_t reason); /* 0: no longer */
/* The sinks have all below `offset`, but for the offsets lost_from .. lost_to - 1. */
void mq_level_upstream(mq_engine *engine, uint32_t index, uint64_t offset, uint64_t lost_from,
                       uint64_t lost_to);
/* What mq_ack.durable is to be for the record that was appended last. */
uint64_t mq_level_end(const struct mq_source *source);
mq_reach mq_level_reach(const mq_engine *engine, const struct mq_source *source, uint64_t durable);

/* Before a record of a source that hides is appended, which gives up `room` bytes at most.  RB_OK: it can be
 * remembered, and no record is overwritten that was not shown; RB_FULL. */
int mq_unshown_reserve(mq_engine *engine, uint32_t index, uint64_t room);
void mq_unshown_add(mq_engine *engine, struct mq_source *source, struct mq_topic *topic,
                    const struct mq_message *message);
/* Up to which position an own source's records have been routed. */
uint64_t mq_level_shown(const struct mq_source *source);
/* Retains and routes what has become durable.  Sets engine->show_pending if there is more than one turn's. */
void mq_show(mq_engine *engine);

#endif
