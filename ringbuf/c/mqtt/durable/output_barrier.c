/* SPDX-License-Identifier: Apache-2.0
 *
 * Output barrier for durability `disk`: protects session state against a power cut, if a log syncs the
 * journal (journal.output_waits).
 *
 * Packets to a client depend on journal entries: on a session (CONNACK), a subscription (SUBACK), an
 * identifier that is free (PUBCOMP) or in use (PUBREL, a PUBLISH of QoS 2).  Such output is sent only after
 * the journal's log has synced the entries.  The output of each connection has these parts:
 *
 *     | ahead_bytes: sent at once | barrier_bytes: sent after the sync up to barrier_at
 *     | the rest; if needs_barrier, after a later one |
 *
 * With two waiting parts, a client with constant output waits for one or two syncs, but not forever.  Output
 * without dependencies stays in order after earlier output, because it is one stream of bytes.  Only PINGRESP
 * goes ahead: a slow or broken disk must not let a client believe that the broker is dead.
 *
 * A QoS 2 message must be stored only once.  If the log lacks its identifier, a repetition by the client
 * would be stored as a new message.  A ring's log must therefore not take such a record before the journal's
 * log has its identifier.  rb_header.log_blocked_from is the limit for the log, again in two parts.  Readers
 * of the ring and subscribers do not wait for this; PUBREC waits for the ring's log anyway.
 *
 * The same limit holds for the first record of a ring, which depends on the entry with the ring's name: a
 * restart finds records for sessions only in rings that the journal names.
 */
#include "mqtt/mqtt.h"

#include <string.h>

static uint64_t synced(const mq_engine *engine)
{
    /* pairs with the release in rb_durable_store() */
    return atomic_load_explicit(&engine->journal.writer->header->durable, memory_order_acquire);
}

/* ---- output ---- */

void mq_output_barrier(mq_engine *engine, mq_connection *connection)
{
    connection->needs_barrier |= engine->journal.output_waits;
}

uint32_t mq_sendable_bytes(mq_engine *engine, mq_connection *connection)
{
    uint32_t length = connection->out.end - connection->out.start, ahead = connection->ahead_bytes, free = 0;
    if (!connection->needs_barrier && connection->barrier_bytes == 0)
        return length;
    if (!engine->journal.output_waits) { /* the journal is closed */
        connection->needs_barrier = false;
        connection->barrier_bytes = 0;
        return length;
    }
    uint64_t done = synced(engine);
    if (connection->barrier_at <= done) {
        free = connection->barrier_bytes;
        connection->barrier_bytes = 0;
    }
    if (connection->barrier_bytes == 0 && connection->needs_barrier) {
        connection->barrier_at = engine->journal.writer->tail;
        connection->needs_barrier = false;
        connection->barrier_bytes = connection->barrier_at <= done ? 0 : length - ahead;
    }
    if (connection->barrier_bytes == 0)
        return length;
    if (connection->sync_wait.fifo == NULL)
        mq_fifo_add(&engine->sync_waiters, &connection->sync_wait);
    return ahead + free;
}

bool mq_write_ahead(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length)
{
    mq_bytes *out = &connection->out;
    bool waits = connection->needs_barrier || connection->barrier_bytes > 0;
    if (!mq_write_output(engine, connection, bytes, length))
        return false;
    /* a blocked socket may have taken half a packet; one packet at a time: each moves all the output */
    if (!waits || connection->blocked || connection->unconfirmed || connection->ahead_bytes > 0)
        return true;
    memmove(out->at + out->start + length, out->at + out->start, out->end - out->start - length);
    memcpy(out->at + out->start, bytes, length);
    connection->ahead_bytes = length;
    return true;
}

void mq_output_sent(mq_connection *connection, uint32_t bytes)
{
    uint32_t ahead = bytes < connection->ahead_bytes ? bytes : connection->ahead_bytes;
    connection->ahead_bytes -= ahead;
    bytes -= ahead;
    connection->barrier_bytes -= bytes < connection->barrier_bytes ? bytes : connection->barrier_bytes;
    connection->unconfirmed &= bytes == 0;
}

bool mq_drop_unconfirmed(mq_connection *connection)
{
    if (!connection->unconfirmed)
        return false;
    connection->unconfirmed = connection->needs_barrier = false;
    connection->barrier_bytes = connection->out.start = connection->out.end = 0;
    return true;
}

static void reap_output(mq_engine *engine)
{
    uint64_t done = engine->journal.output_waits ? synced(engine) : UINT64_MAX;
    for (mq_link *link = engine->sync_waiters.first, *next; link != NULL; link = next) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, sync_wait);
        next = link->next;
        if (connection->barrier_at > done)
            continue;
        mq_fifo_leave(link);
        mq_connection_touch(engine, connection);
    }
}

/* ---- records ---- */

static const mq_log_block NO_BLOCK = {.from = RB_NO_POSITION};

static bool is_set(const mq_log_block *block)
{
    return block->from != RB_NO_POSITION;
}

/* Set the position from which the ring's log must take no records.  RB_NO_POSITION: the log may take all. */
static void log_limit_store(const mq_ring *ring, uint64_t position)
{
    /* layout.h defines the word: 0 for none, otherwise 1 + position */
    uint64_t word = position == RB_NO_POSITION ? 0 : 1 + position;
    /* pairs with the acquire in log_limit() of reader.c: the record is committed after this store, and its
     * reader loads it after the commit */
    atomic_store_explicit(&ring->writer->header->log_blocked_from, word, memory_order_release);
}

void mq_block_log(mq_engine *engine, mq_ring *ring)
{
    if (!engine->journal.output_waits || ring->ack_gate.event == MQ_GATE_NONE)
        return;
    mq_log_block block = {.from = ring->writer->tail, .journal_position = engine->journal.writer->tail};
    if (!is_set(&ring->blocked)) {
        ring->blocked = block;
        log_limit_store(ring, block.from);
        engine->blocked_rings++;
    } else if (is_set(&ring->next_blocked)) {
        ring->next_blocked.journal_position = block.journal_position;
    } else if (ring->blocked.journal_position != block.journal_position) {
        ring->next_blocked = block;
    }
}

static void unblock_log(mq_engine *engine, uint32_t index, uint64_t done)
{
    mq_ring *ring = engine->rings[index];
    if (ring->kind != MQ_RING_OWN || !is_set(&ring->blocked) || ring->blocked.journal_position > done)
        return;
    bool next_is_synced = is_set(&ring->next_blocked) && ring->next_blocked.journal_position <= done;
    ring->blocked = next_is_synced ? NO_BLOCK : ring->next_blocked;
    ring->next_blocked = NO_BLOCK;
    log_limit_store(ring, ring->blocked.from);
    engine->blocked_rings -= !is_set(&ring->blocked);
    rb_announce_end(ring->writer); /* its log may have new records to take */
}

static void reap_records(mq_engine *engine)
{
    uint64_t done = engine->journal.output_waits ? synced(engine) : UINT64_MAX;
    for (uint32_t i = 1; i < engine->ring_count; i++)
        unblock_log(engine, i, done);
}

void mq_reap_barrier(mq_engine *engine)
{
    if (engine->sync_waiters.count > 0)
        reap_output(engine);
    if (engine->blocked_rings > 0)
        reap_records(engine);
}
