/* SPDX-License-Identifier: Apache-2.0
 *
 * Session state in addition to the queue (queue.c): the in-flight window of delivered messages without
 * acknowledgement.  in/received_ids.c has the identifiers of received messages.
 *
 * The window is a circular buffer in the order of sending, because redelivery uses that order [MQTT-4.6.0-1].
 * Number n is at n modulo the capacity and has the packet identifier n % 65535 + 1, so neither needs a table.
 * An acknowledgement out of order leaves a gap until all earlier ones are acknowledged.  inflight.h checks
 * that the window permits another message; deliver.c sends the window again after a reconnect.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define IDENTIFIERS 65535u

void mq_entry_done(mq_engine *engine, const mq_entry *entry)
{
    if (entry->options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_drop(engine, entry->options >> MQ_OPTION_IDS_SHIFT);
    if (entry->where == MQ_NOWHERE || mq_where_ring(entry->where) != 0)
        return;
    mq_blob_done(engine, mq_where_blob(entry->where));
}

void mq_entry_drop(mq_engine *engine, mq_session *session, const mq_entry *entry, uint32_t cause)
{
    engine->counters.dropped[cause]++;
    session->dropped[cause]++;
    mq_entry_done(engine, entry);
}

/* ---- window ---- */

static bool sent_grow(const mq_engine *engine, mq_session *session)
{
    uint32_t capacity = session->sent_capacity ? session->sent_capacity * 2 : MQ_WINDOW_MIN;
    mq_entry *sent = malloc(capacity * sizeof *sent);
    uint32_t *bytes = engine->limits.in_flight_max_bytes ? calloc(capacity, sizeof *bytes) : NULL;
    if (sent == NULL || (bytes == NULL && engine->limits.in_flight_max_bytes)) {
        free(sent);
        free(bytes);
        return false;
    }
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        sent[n & (capacity - 1)] = session->sent[n & (session->sent_capacity - 1)];
        if (bytes != NULL)
            bytes[n & (capacity - 1)] = session->sent_bytes[n & (session->sent_capacity - 1)];
    }
    free(session->sent);
    free(session->sent_bytes);
    session->sent_bytes = bytes;
    session->sent = sent;
    session->sent_capacity = capacity;
    return true;
}

mq_entry *mq_sent_add(mq_engine *engine, mq_session *session, uint16_t *identifier)
{
    if (session->sent_next - session->sent_first == session->sent_capacity && !sent_grow(engine, session))
        return NULL;
    if (session->sent_bytes != NULL)
        session->sent_bytes[session->sent_next & (session->sent_capacity - 1)] = 0;
    *identifier = (uint16_t)(session->sent_next % IDENTIFIERS + 1);
    session->in_flight++;
    session->resend = session->sent_next + 1;
    return &session->sent[session->sent_next++ & (session->sent_capacity - 1)];
}

void mq_sent_measured(mq_session *session, const mq_entry *entry, uint32_t bytes)
{
    uint32_t *known = session->sent_bytes == NULL ? NULL : &session->sent_bytes[entry - session->sent];
    if (known == NULL || *known != 0)
        return;
    *known = bytes;
    session->in_flight_bytes += bytes;
}

mq_entry *mq_sent_find(mq_session *session, uint16_t identifier)
{
    uint64_t ahead = (identifier - 1u + IDENTIFIERS - session->sent_first % IDENTIFIERS) % IDENTIFIERS;
    if (identifier == 0 || ahead >= session->sent_next - session->sent_first)
        return NULL;
    mq_entry *entry = &session->sent[(session->sent_first + ahead) & (session->sent_capacity - 1)];
    return entry->where == MQ_NOWHERE && !(entry->options & MQ_OPTION_RELEASED) ? NULL : entry;
}

void mq_sent_done(mq_engine *engine, mq_session *session, mq_entry *entry)
{
    uint64_t place = (uint64_t)(entry - session->sent);
    uint64_t number = session->sent_first + ((place - session->sent_first) & (session->sent_capacity - 1));
    session->unsent -= number >= session->resend;
    if (session->kept)
        mq_journal_word(engine, MQ_J_ACKED, session, (uint32_t)(number % IDENTIFIERS + 1));
    mq_entry_done(engine, entry);
    *entry = (mq_entry){.where = MQ_NOWHERE};
    session->in_flight--;
    if (session->sent_bytes != NULL) {
        session->in_flight_bytes -= session->sent_bytes[place];
        session->sent_bytes[place] = 0;
    }
    while (session->sent_first < session->sent_next) {
        const mq_entry *first = &session->sent[session->sent_first & (session->sent_capacity - 1)];
        if (first->where != MQ_NOWHERE || first->options & MQ_OPTION_RELEASED)
            return;
        session->sent_first++;
        if (session->resend < session->sent_first)
            session->resend = session->sent_first;
    }
    if (session->sent_capacity > MQ_WINDOW_MIN) {
        free(session->sent);
        free(session->sent_bytes);
        session->sent_bytes = NULL;
        session->sent = NULL;
        session->sent_capacity = 0;
    }
}

void mq_session_return(mq_session *session)
{
    session->resend = session->sent_first;
    session->unsent = session->in_flight;
    session->needs_delivery = true; /* the connection is touched anyway */
    session->waits_for_log = false;
}

/* ---- the end ---- */

/* Forget a ring whose number may be reused: no entry may point to it any more.  Unacknowledged messages
 * cannot be sent again.  Queued entries are counted as overrun in their turn. */
void mq_session_forget_ring(mq_engine *engine, mq_session *session, uint32_t ring)
{
    mq_receipts_forget(session, ring);
    mq_walk walk = {0};
    while (mq_queue_next(session, &walk))
        if (mq_where_ring(mq_entry_at(walk.at).where) == ring)
            mq_entry_move(walk.at, MQ_NOWHERE);
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        if (n < session->sent_first) /* a gap that was removed with earlier entries, perhaps with the array */
            continue;
        mq_entry *entry = &session->sent[n & (session->sent_capacity - 1)];
        if (entry->where != MQ_NOWHERE && mq_where_ring(entry->where) == ring)
            mq_sent_done(engine, session, entry);
    }
}

/* Routes to the session become dead by its generation; they are removed in the next iteration. */
void mq_session_clear(mq_engine *engine, mq_session *session)
{
    mq_fifo_leave(&session->needing_copies);
    mq_share_clear(engine, session);
    mq_retained_deliveries_clear(engine, session);
    mq_queue_clear(engine, session);
    for (uint64_t n = session->sent_first; n < session->sent_next; n++)
        mq_entry_done(engine, &session->sent[n & (session->sent_capacity - 1)]);
    mq_session_lasts(engine, session, false);
    mq_session_filters(engine, session, 0);
    mq_session_owned(engine, session, NULL);
    mq_author_drop(engine, session->author);
    session->author = NULL;
    free(session->sent);
    free(session->sent_bytes);
    free(session->received);
    mq_receipts_forget(session, 0);
    session->sent_bytes = NULL;
    session->sent = NULL;
    session->received = NULL;
}
