/* SPDX-License-Identifier: Apache-2.0
 *
 * Output barrier for durability `disk`: protects session state against a power cut, if a log syncs the
 * journal (journal.vows).
 *
 * Packets to a client depend on journal entries: on a session (CONNACK), a subscription (SUBACK), an
 * identifier that is free (PUBCOMP) or in use (PUBREL, a PUBLISH of QoS 2).  Such output is sent only after
 * the journal's log has synced the entries.  The output of each connection has two parts:
 *
 *     | vowed: sent when the log has synced up to `vow_at` | the rest; if `vows`, after a later sync |
 *
 * With two parts, a client with constant output waits for one or two syncs, but not forever.  Output without
 * dependencies stays in order after earlier output, because it is one stream of bytes.
 *
 * A QoS 2 message must be stored only once.  If the log lacks its identifier, a repetition by the client
 * would be stored as a new message.  A ring's log must therefore not take such a record before the journal's
 * log has its identifier.  rb_header.held gives the limit for the log, again in two parts.  Readers of the
 * ring and subscribers do not wait for this; PUBREC waits for the ring's log anyway.
 */
#include "mqtt.h"

static uint64_t synced(const mq_engine *engine)
{
    /* pairs with the release in rb_durable_store() */
    return atomic_load_explicit(&engine->journal.writer->header->durable, memory_order_acquire);
}

/* ---- output ---- */

void mq_vow(mq_engine *engine, mq_connection *connection)
{
    connection->vows |= engine->journal.vows;
}

static void await(mq_engine *engine, mq_connection *connection)
{
    if (connection->is_vowing)
        return;
    connection->is_vowing = true;
    mq_list_add(&engine->vowing, mq_handle(&connection->item));
}

uint32_t mq_may_leave(mq_engine *engine, mq_connection *connection)
{
    uint32_t length = connection->out.end - connection->out.start, free = 0;
    if (!connection->vows && connection->vowed == 0)
        return length;
    if (!engine->journal.vows) { /* the journal is closed */
        connection->vows = false;
        connection->vowed = 0;
        return length;
    }
    uint64_t done = synced(engine);
    if (connection->vow_at <= done) {
        free = connection->vowed;
        connection->vowed = 0;
    }
    if (connection->vowed == 0 && connection->vows) {
        connection->vow_at = engine->journal.writer->tail;
        connection->vows = false;
        connection->vowed = connection->vow_at <= done ? 0 : length;
    }
    if (connection->vowed == 0)
        return length;
    await(engine, connection);
    return free;
}

void mq_has_left(mq_connection *connection, uint32_t bytes)
{
    connection->vowed -= bytes < connection->vowed ? bytes : connection->vowed;
}

static void vows_look(mq_engine *engine)
{
    mq_list walked = engine->vowing;
    uint64_t done = engine->journal.vows ? synced(engine) : UINT64_MAX;
    engine->vowing = engine->passing;
    for (uint32_t i = 0; i < walked.count; i++) {
        mq_connection *connection = mq_slab_get(&engine->connections, walked.at[i]);
        if (connection == NULL)
            continue;
        connection->is_vowing = false;
        if (connection->vow_at <= done)
            mq_connection_touch(engine, connection);
        else
            await(engine, connection);
    }
    walked.count = 0;
    engine->passing = walked;
}

/* ---- records ---- */

/* Let the ring's log take records below `position`; 0: all. */
static void held_store(const mq_source *source, uint64_t position)
{
    /* pairs with the acquire in is_held() of reader.c: the record is committed after this store, and its
     * reader loads `held` after the commit */
    atomic_store_explicit(&source->writer->header->held, position, memory_order_release);
}

void mq_hold_record(mq_engine *engine, mq_source *source)
{
    if (!engine->journal.vows || source->level.gate == MQ_GATE_NONE)
        return;
    uint64_t needs = engine->journal.writer->tail;
    if (source->held_for == 0) {
        held_store(source, source->writer->tail + 1);
        source->held_for = needs;
        engine->held_sources++;
    } else if (source->next_for == 0) {
        source->next_held = source->writer->tail + 1;
    }
    source->next_for = source->held_for == needs ? source->next_for : needs;
}

static void let_go(mq_engine *engine, uint32_t index, uint64_t done)
{
    mq_source *source = engine->sources[index];
    if (source->kind != MQ_SOURCE_OWN || source->held_for == 0 || source->held_for > done)
        return;
    bool all = source->next_for <= done;
    held_store(source, all ? 0 : source->next_held);
    source->held_for = all ? 0 : source->next_for;
    source->next_for = 0;
    engine->held_sources -= all;
    rb_end_publish(source->writer); /* its log may have new records to take */
}

static void held_look(mq_engine *engine)
{
    uint64_t done = engine->journal.vows ? synced(engine) : UINT64_MAX;
    for (uint32_t i = 1; i < engine->source_count; i++)
        let_go(engine, i, done);
}

void mq_vows_look(mq_engine *engine)
{
    if (engine->vowing.count > 0)
        vows_look(engine);
    if (engine->held_sources > 0)
        held_look(engine);
}
