/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows, frames and delivery; positions of records, queue entries, and mq_push(): inline functions that run
 * once per delivery.
 */
#ifndef BRIM_QUEUE_H
#define BRIM_QUEUE_H

#include "mqtt/out/inflight.h"

/* in/received_ids.c */
bool mq_received_mark(mq_session *session, uint16_t identifier); /* false: no memory */
bool mq_received_has(const mq_session *session, uint16_t identifier);
bool mq_received_free(mq_session *session, uint16_t identifier); /* false: it was already free */

/* log_backfill.c */
/* Pause delivery to `session`: its next record is only in the log. */
void mq_wait_for_log(mq_engine *engine, mq_session *session);
bool mq_is_only_in_log(const mq_engine *engine, const mq_entry *entry);
bool mq_next_log_position(const mq_engine *engine, const mq_session *session, uint64_t *where);
/* Give `session` the records in `bytes`, which were in a ring from `position` on.  The log was read from ring
 * and position `wanted` on. */
void mq_restore_records(mq_engine *engine, mq_session *session, uint64_t wanted, uint64_t position,
                        const uint8_t *bytes, uint64_t length);
void mq_resume_delivery(mq_engine *engine, mq_session *session);

/* output_barrier.c */
void mq_output_barrier(mq_engine *engine, mq_connection *connection); /* for its next output */
/* bytes of its output that may be sent now */
uint32_t mq_sendable_bytes(mq_engine *engine, mq_connection *connection);
/* Write a packet before the output that waits.  False: the connection is closed. */
bool mq_write_ahead(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length);
void mq_output_sent(mq_connection *connection, uint32_t bytes);
/* Drop the output of a client whose CONNACK still waits for the barrier.  False: the client has its
 * CONNACK. */
bool mq_drop_unconfirmed(mq_connection *connection);
/* Make the log wait: the next record of `ring` depends on the entries in the journal by now. */
void mq_block_log(mq_engine *engine, mq_ring *ring);
/* check again: the journal's log may have synced, or the journal is closed */
void mq_reap_barrier(mq_engine *engine);

/* frame.c */
/* True if the Message Expiry Interval of a record in this process's memory has passed. */
bool mq_is_expired(const mq_engine *engine, const rb_record *record);

/* deliver.c */
/* Build frames into the connection's output, up to a sensible amount.  True: there are more. */
bool mq_fill_output(mq_engine *engine, mq_connection *connection);

static inline uint64_t mq_where(uint32_t ring, uint64_t position)
{
    return (uint64_t)ring << MQ_RING_SHIFT | position / RB_RECORD_ALIGN;
}

static inline uint32_t mq_where_ring(uint64_t where)
{
    return (uint32_t)(where >> MQ_RING_SHIFT);
}

static inline uint64_t mq_where_position(uint64_t where)
{
    return (where & (((uint64_t)1 << MQ_RING_SHIFT) - 1)) * RB_RECORD_ALIGN;
}

static inline mq_blob *mq_where_blob(uint64_t where)
{
    return (mq_blob *)(uintptr_t)where;
}

static inline mq_subscription_ids *mq_subscription_ids_at(const mq_engine *engine, uint32_t number)
{
    return mq_slab_at(&engine->subscription_ids, number - 1);
}

static inline uint8_t *mq_chunk_end(mq_chunk *chunk)
{
    return chunk->entries + chunk->capacity * MQ_ENTRY_BYTES;
}

static inline mq_entry mq_entry_at(const uint8_t *at)
{
    uint64_t rest;
    mq_entry entry;
    memcpy(&entry.where, at, sizeof entry.where);
    memcpy(&rest, at + 7, sizeof rest); /* from 7 on, so that no byte after the entry is read */
    entry.options = (uint32_t)(rest >> 8);
    entry.topic = (uint32_t)(rest >> 40);
    return entry;
}

/* Set the position of the entry's record. */
static inline void mq_entry_move(uint8_t *at, uint64_t where)
{
    memcpy(at, &where, sizeof where);
}

#define MQ_NO_TOPIC_PACKED 0xffffffu /* MQ_NO_TOPIC in an entry, which has three bytes for its topic */

static inline void mq_entry_set_topic(uint8_t *at, uint32_t topic)
{
    memcpy(at + 12, &topic, 3);
}

/* Mark the entry as removed: it has no record and needs no window. */
static inline void mq_entry_take_back(uint8_t *at)
{
    uint32_t options = MQ_OPTION_RELEASED;
    mq_entry_move(at, MQ_NOWHERE);
    memcpy(at + sizeof(uint64_t), &options, sizeof options);
}

/* The oldest entry of a non-empty queue; mq_queue_pop() removes it. */
static inline mq_entry mq_queue_front(const mq_session *session)
{
    return mq_entry_at(session->queue_out);
}

/* True if all collected entries are in the journal's ring, or no journal is open.  Dependent output may then
 * be sent. */
static inline bool mq_journal_written(mq_engine *engine)
{
    return (engine->journal.used == 0 && !engine->journal.torn) || mq_journal_flush(engine);
}

/* Queue `entry`.  Inline here because fan-out calls it most often. */
static inline void mq_push(mq_engine *engine, mq_session *session, mq_entry entry)
{
    if (session->queue_left == 0 && !mq_queue_reserve(engine, session))
        return;
    uint64_t rest = entry.options | (uint64_t)entry.topic << 32;
    memcpy(session->queue_in, &entry.where, sizeof entry.where);
    /* the last byte is zero and belongs to the next entry */
    memcpy(session->queue_in + 8, &rest, sizeof rest);
    session->queue_in += MQ_ENTRY_BYTES;
    session->queue_left--;
    session->queue_count++;
    if (mq_where_ring(entry.where) == 0)
        mq_where_blob(entry.where)->references++;
    if (entry.options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_at(engine, entry.options >> MQ_OPTION_IDS_SHIFT)->references++;
    if (session->needing_copies.fifo == NULL && entry.options & MQ_OPTION_QOS)
        mq_spill_add_session(engine, session);
    if (session->kept && entry.options & MQ_OPTION_QOS && !(entry.options & MQ_OPTION_SHARED) &&
        session->group == NULL)
        mq_journal_routed(engine, session, &entry);
    if (!session->needs_delivery) {
        session->needs_delivery = true;
        if (session->connection != NULL)
            mq_connection_touch(engine, session->connection);
    }
}

#endif
