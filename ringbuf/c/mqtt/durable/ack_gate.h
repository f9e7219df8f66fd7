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

typedef struct mq_hidden_record { /* a hidden record, not routed until it is durable */
    uint64_t position;
    uint64_t topic, publisher; /* handles; publisher 0: not a client */
    struct mq_owner *owner;    /* quota owner of the reserved space of the retained message; NULL: none */
    struct mq_author *author;  /* publisher of the retained message; NULL: none */
} mq_hidden_record;

typedef struct mq_ack_gate {
    uint8_t event;   /* MQ_GATE_*: event that acknowledgements of its records wait for */
    uint8_t refusal; /* reason code for publishers while its log takes no records; 0: none */
    bool visible_when_durable; /* records are routed when durable, not when committed */
    uint64_t refused_since_ms;
    bool upstream_reported; /* the sinks have reported their progress */
    uint64_t upstream_end;  /* offset below which they have all records, or lost them */
    mq_hidden_record *hidden_records; /* circular buffer; NULL: none */
    uint32_t hidden_first, hidden_count, hidden_capacity; /* capacity: a power of two */
} mq_ack_gate;

typedef enum mq_ack_status { /* state of a record whose acknowledgement waits */
    MQ_ACK_WAITS,
    MQ_ACK_DONE,
    MQ_ACK_REFUSED, /* refused: MQTT 5 has a reason code for it */
    MQ_ACK_LOST     /* the publisher must send it again */
} mq_ack_status;

struct mq_ack;
struct mq_connection;
struct mq_ring;
struct mq_message;
struct mq_session;
struct mq_topic;

/* Reason code for refusing publishers to `ring` now; 0: they are not refused. */
uint8_t mq_refusal(const mq_engine *engine, const struct mq_ring *ring);
void mq_refuse_publishers(mq_engine *engine, uint32_t index, uint8_t reason); /* reason 0 ends the refusal */
/* Find the time at which the next ring begins to refuse.  Acknowledgements that wait for its log then get the
 * refusal. */
void mq_refusals_step(mq_engine *engine);
/* Store that the sinks have all records below offset `end`, except those reported as lost. */
void mq_upstream_progress(mq_engine *engine, uint32_t index, uint64_t end);
/* Store that the sinks will never have the records from offset `from` to `to` - 1. */
void mq_upstream_lost(mq_engine *engine, uint32_t index, uint64_t from, uint64_t to);
/* mq_ack.waits_for of an acknowledgement that waits for all records in the ring now: the end of the ring, as
 * an offset (MQ_GATE_UPSTREAM) or as a position. */
uint64_t mq_ack_waits_for(const struct mq_ring *ring);
/* False while a ring that lost a topic to another ring is not durable up to that move. */
bool mq_moves_are_durable(mq_engine *engine);
mq_ack_status mq_ack_status_of(const mq_engine *engine, const struct mq_ring *ring,
                               uint64_t waits_for);

/* receipts.c */
typedef struct mq_receipt { /* a QoS 2 message that a client sent, and the sinks may not have */
    uint64_t offset;        /* of its record */
    uint16_t ring, identifier;
} mq_receipt;
typedef struct mq_receipts mq_receipts; /* of one session */
struct mq_receipts {
    struct mq_session *session;
    mq_receipts *next, **link; /* list of all sessions with receipts; `link` points here */
    uint32_t count, capacity;
    mq_receipt at[]; /* in the order of their PUBLISHes */
};

bool mq_receipt_add(mq_engine *engine, struct mq_session *session, mq_receipt receipt); /* false: no memory */
const mq_receipt *mq_receipt_find(const struct mq_session *session, uint16_t identifier); /* NULL: none */
void mq_receipt_drop(struct mq_session *session, uint16_t identifier);
void mq_receipts_forget(struct mq_session *session, uint32_t ring); /* 0: all */
/* Drop the receipts of records that the sinks have. */
void mq_receipts_drop_stored(mq_engine *engine, uint32_t ring);
/* Free the identifiers of lost records. */
void mq_receipts_lost(mq_engine *engine, uint32_t ring, uint64_t from, uint64_t to);

/* Prepare the append of a record, which overwrites at most `overwrite_bytes`, to a ring that hides records.
 * RB_OK: the record can be remembered, and no hidden record is overwritten; RB_FULL. */
int mq_hidden_reserve(mq_engine *engine, uint32_t index, uint64_t overwrite_bytes);
void mq_hidden_add(mq_engine *engine, struct mq_ring *ring, struct mq_topic *topic,
                   const struct mq_message *message);
/* Position up to which an own ring's records have been routed. */
uint64_t mq_visible_position(const struct mq_ring *ring);
/* Retain and route the records that have become durable.  Sets engine->visible_pending if more than one
 * turn's remain. */
void mq_make_durable_visible(mq_engine *engine);

#endif
