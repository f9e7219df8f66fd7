/* SPDX-License-Identifier: Apache-2.0
 *
 * Log backfill: records that are only in the log, because their ring has overwritten them while a session of
 * QoS 1 or 2 still waited for them.
 *
 * They use no memory until they are read.  When such a record is the next one to be delivered, delivery to
 * that session stops and Python receives MQ_EVENT_BACKFILL (events.c).  Other sessions continue.  Python
 * reads the log on another thread and returns a run of records, as in the ring, with mq_restore_records().
 * The entries of these records then point to copies.  Entries at positions that the log does not have are
 * dropped, and counted as overrun.  mq_resume_delivery() resumes the delivery.
 *
 * A session gets RESTORE_MAX_BYTES at a time, or less if copies for other sessions use much memory.  This
 * bounds the memory of records from the log.
 */
#include "mqtt/mqtt.h"

#define RESTORE_MAX_BYTES (256u << 10)
#define RESTORE_MIN_BYTES (16u << 10)

typedef struct run { /* a run of records from the log */
    uint32_t ring;
    uint64_t wanted; /* begin of the read: the log has no record from here to `position` */
    uint64_t position; /* position of the first byte in the ring */
    const uint8_t *bytes;
    uint64_t length, at; /* at: byte position of the last record found */
    uint64_t bytes_left; /* bytes that may still be copied */
} run;

typedef enum fate {
    FATE_STAYS,
    FATE_RESTORED,
    FATE_LOST,
    FATE_BEYOND /* after the run, as are later entries */
} fate;

/* ---- request ---- */

bool mq_is_only_in_log(const mq_engine *engine, const mq_entry *entry)
{
    uint32_t index = mq_where_ring(entry->where);
    if (entry->where == MQ_NOWHERE || index == 0 || !(entry->options & MQ_OPTION_QOS))
        return false;
    const mq_ring *ring = engine->rings[index];
    uint64_t position = mq_where_position(entry->where);
    if (position >= ring->logged_to)
        return false;
    return ring->kind == MQ_RING_ENDED ||
           (ring->kind == MQ_RING_OWN && !rb_writer_keeps(ring->writer, position));
}

void mq_wait_for_log(mq_engine *engine, mq_session *session)
{
    session->waits_for_log = true;
    mq_fifo_add(&engine->log_waiters, &session->connection->log_wait);
}

/* Get the next record to be sent, if only the log has it. */
bool mq_next_log_position(const mq_engine *engine, const mq_session *session, uint64_t *where)
{
    mq_entry next = {.where = MQ_NOWHERE};
    for (uint64_t n = session->resend; n < session->sent_next && next.where == MQ_NOWHERE; n++)
        next = session->sent[n & (session->sent_capacity - 1)];
    if (next.where == MQ_NOWHERE && session->queue_count > 0)
        next = mq_queue_front(session);
    *where = next.where;
    return mq_is_only_in_log(engine, &next);
}

/* ---- restored records ---- */

/* Move to the record at `position`; false: no record begins there. */
static bool run_seek(run *run, uint64_t position)
{
    uint64_t wanted = position - run->position;
    if (wanted < run->at)
        run->at = 0;
    while (run->at < wanted) {
        rb_record header;
        rb_parts parts;
        uint64_t bad, span = rb_record_at(run->bytes + run->at, run->length - run->at, &header, &parts, &bad);
        if (span == 0)
            return false;
        run->at += span;
    }
    return run->at == wanted;
}

static fate fate_of(mq_engine *engine, run *run, const mq_entry *entry, mq_blob **blob)
{
    rb_record header;
    rb_parts parts;
    uint64_t bad, position = mq_where_position(entry->where);
    if (entry->where == MQ_NOWHERE || mq_where_ring(entry->where) != run->ring ||
        !(entry->options & MQ_OPTION_QOS) || position < run->wanted)
        return FATE_STAYS;
    if (!mq_is_only_in_log(engine, entry))
        return FATE_BEYOND;
    if (position < run->position)
        return FATE_LOST;
    if (position >= run->position + run->length || run->bytes_left == 0)
        return FATE_BEYOND;
    if (!run_seek(run, position) ||
        rb_record_at(run->bytes + run->at, run->length - run->at, &header, &parts, &bad) == 0)
        return FATE_LOST;
    *blob = mq_blob_of(engine, run->bytes + run->at, header.length);
    if (*blob == NULL)
        return FATE_BEYOND;
    (*blob)->references = 1;
    (*blob)->origin = entry->where;
    run->bytes_left -= run->bytes_left < header.length ? run->bytes_left : header.length;
    engine->counters.restored++;
    return FATE_RESTORED;
}

/* Restore records of the window.  False: no room is left. */
static bool restore_window(mq_engine *engine, mq_session *session, run *run)
{
    for (uint64_t n = session->resend; n < session->sent_next; n++) {
        if (n < session->sent_first) /* dropped entries have closed the gap */
            continue;
        mq_entry *entry = &session->sent[n & (session->sent_capacity - 1)];
        mq_blob *blob = NULL;
        fate fate = fate_of(engine, run, entry, &blob);
        if (fate == FATE_BEYOND && !session->disordered)
            return run->bytes_left > 0;
        if (fate == FATE_RESTORED)
            entry->where = (uint64_t)(uintptr_t)blob;
        if (fate == FATE_LOST) {
            engine->counters.dropped[MQ_DROP_OVERRUN]++;
            session->dropped[MQ_DROP_OVERRUN]++;
            mq_sent_done(engine, session, entry);
        }
    }
    return run->bytes_left > 0;
}

static void restore_queue(mq_engine *engine, mq_session *session, run *run)
{
    mq_walk walk = {0};
    while (mq_queue_next(session, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        mq_blob *blob = NULL;
        fate fate = fate_of(engine, run, &entry, &blob);
        if (fate == FATE_BEYOND && !session->disordered)
            return;
        if (fate == FATE_RESTORED)
            mq_entry_move(walk.at, (uint64_t)(uintptr_t)blob);
        if (fate == FATE_LOST)
            mq_entry_move(walk.at, MQ_NOWHERE); /* counted when its turn comes */
    }
}

void mq_restore_records(mq_engine *engine, mq_session *session, uint64_t wanted, uint64_t position,
                        const uint8_t *bytes, uint64_t length)
{
    uint64_t used = engine->counters.spilled_bytes, bytes_max = engine->limits.spill_max_bytes;
    uint64_t bytes_left = (bytes_max > used ? bytes_max - used : 0) / 16;
    run run = {.ring = mq_where_ring(wanted),
               .wanted = mq_where_position(wanted),
               .position = position,
               .bytes = bytes,
               .length = length,
               .bytes_left = bytes_left < RESTORE_MIN_BYTES   ? RESTORE_MIN_BYTES
                             : bytes_left > RESTORE_MAX_BYTES ? RESTORE_MAX_BYTES
                                                              : bytes_left};
    if (restore_window(engine, session, &run))
        restore_queue(engine, session, &run);
}

void mq_resume_delivery(mq_engine *engine, mq_session *session)
{
    session->waits_for_log = false;
    session->needs_delivery = true;
    if (session->connection != NULL)
        mq_connection_touch(engine, session->connection);
}
