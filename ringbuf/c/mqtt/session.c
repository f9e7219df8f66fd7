/* SPDX-License-Identifier: Apache-2.0
 *
 * What a session has and a connection has not: the queue of positions still to be delivered, the window of
 * what was delivered and is not acknowledged, and the QoS 2 identifiers it has received.
 *
 * The window is a ring in the order of sending, because that is the order of redelivery [MQTT-4.6.0-1]:
 * number n stands at n modulo its room and has the packet identifier n % 65535 + 1, so that neither needs a
 * table.  What is acknowledged out of order leaves a gap until everything before it is acknowledged, too.
 */
#include "mqtt.h"

#include <stdlib.h>
#include <string.h>

#define IDENTIFIERS 65535u
#define RECEIVED_BYTES 8192u
#define GROWTH 4u /* a burst should not pay for ten growths */

void mq_entry_done(mq_engine *engine, const mq_entry *entry)
{
    if (entry->tag >> MQ_TAG_GRANT_SHIFT)
        mq_grant_drop(engine, entry->tag >> MQ_TAG_GRANT_SHIFT);
    if (entry->where == MQ_NOWHERE || mq_where_source(entry->where) != 0)
        return;
    mq_blob *blob = mq_where_blob(entry->where);
    if (--blob->references == 0)
        free(blob);
}

void mq_entry_drop(mq_engine *engine, mq_session *session, const mq_entry *entry, uint32_t cause)
{
    engine->counters.dropped[cause]++;
    session->dropped[cause]++;
    mq_entry_done(engine, entry);
}

/* ---- queue ---- */

static void queue_resize(mq_engine *engine, mq_session *session, mq_entry *queue, uint32_t room)
{
    for (uint32_t i = 0; i < session->queue_count; i++)
        queue[i] = session->queue[(session->queue_first + i) & (session->queue_room - 1)];
    free(session->queue);
    engine->counters.queues_bytes += ((uint64_t)room - session->queue_room) * sizeof *queue;
    session->queue = queue;
    session->queue_first = 0;
    session->queue_room = room;
    session->queue_limit = room < session->queue_max ? room : session->queue_max;
}

/* A longer queue, as far as the limits go.  False: *cause says which was in the way. */
static bool queue_grow(mq_engine *engine, mq_session *session, uint32_t *cause)
{
    uint32_t room = session->queue_room ? session->queue_room * GROWTH : MQ_QUEUE_MIN;
    *cause = MQ_DROP_QUEUE;
    if (session->queue_count >= session->queue_max)
        return false;
    *cause = MQ_DROP_MEMORY;
    if (engine->counters.queues_bytes + (uint64_t)(room - session->queue_room) * sizeof(mq_entry) >
        engine->limits.queues_max_bytes)
        return false;
    mq_entry *queue = malloc(room * sizeof *queue);
    if (queue == NULL)
        return false;
    queue_resize(engine, session, queue, room);
    return true;
}

/* Makes room for one more entry: by growing, or by dropping the oldest.  False: the new one is dropped. */
bool mq_queue_make_room(mq_engine *engine, mq_session *session)
{
    uint32_t cause;
    if (queue_grow(engine, session, &cause))
        return true;
    if (session->drop_newest || session->queue_count == 0) {
        engine->counters.dropped[cause]++;
        session->dropped[cause]++;
        return false;
    }
    mq_entry oldest = session->queue[session->queue_first];
    session->queue_first = (session->queue_first + 1) & (session->queue_room - 1);
    session->queue_count--;
    mq_entry_drop(engine, session, &oldest, cause);
    return true;
}

/* The oldest entry, whose reference passes to the caller.  An empty queue keeps no more than its first
 * memory. */
mq_entry mq_queue_pop(mq_engine *engine, mq_session *session)
{
    mq_entry entry = session->queue[session->queue_first];
    session->queue_first = (session->queue_first + 1) & (session->queue_room - 1);
    if (--session->queue_count == 0 && session->queue_room > MQ_QUEUE_MIN) {
        mq_entry *queue = realloc(session->queue, MQ_QUEUE_MIN * sizeof *queue);
        if (queue != NULL) {
            session->queue = NULL; /* nothing in it: only the memory changes hands */
            queue_resize(engine, session, queue, MQ_QUEUE_MIN);
        }
    }
    return entry;
}

/* ---- window ---- */

static bool sent_grow(mq_session *session)
{
    uint32_t room = session->sent_room ? session->sent_room * 2 : MQ_QUEUE_MIN;
    mq_entry *sent = malloc(room * sizeof *sent);
    if (sent == NULL)
        return false;
    for (uint64_t n = session->sent_first; n < session->sent_next; n++)
        sent[n & (room - 1)] = session->sent[n & (session->sent_room - 1)];
    free(session->sent);
    session->sent = sent;
    session->sent_room = room;
    return true;
}

mq_entry *mq_sent_add(mq_session *session, uint16_t *identifier)
{
    if (session->sent_next - session->sent_first == session->sent_room && !sent_grow(session))
        return NULL;
    *identifier = (uint16_t)(session->sent_next % IDENTIFIERS + 1);
    session->in_flight++;
    session->resend = session->sent_next + 1;
    return &session->sent[session->sent_next++ & (session->sent_room - 1)];
}

mq_entry *mq_sent_find(mq_session *session, uint16_t identifier)
{
    uint64_t ahead = (identifier - 1u + IDENTIFIERS - session->sent_first % IDENTIFIERS) % IDENTIFIERS;
    if (identifier == 0 || ahead >= session->sent_next - session->sent_first)
        return NULL;
    mq_entry *entry = &session->sent[(session->sent_first + ahead) & (session->sent_room - 1)];
    return entry->where == MQ_NOWHERE && !(entry->tag & MQ_TAG_RELEASED) ? NULL : entry;
}

void mq_sent_done(mq_engine *engine, mq_session *session, mq_entry *entry)
{
    mq_entry_done(engine, entry);
    *entry = (mq_entry){.where = MQ_NOWHERE};
    session->in_flight--;
    while (session->sent_first < session->sent_next) {
        const mq_entry *first = &session->sent[session->sent_first & (session->sent_room - 1)];
        if (first->where != MQ_NOWHERE || first->tag & MQ_TAG_RELEASED)
            return;
        session->sent_first++;
        if (session->resend < session->sent_first)
            session->resend = session->sent_first;
    }
    if (session->sent_room > MQ_QUEUE_MIN) {
        free(session->sent);
        session->sent = NULL;
        session->sent_room = 0;
    }
}

void mq_session_return(mq_session *session)
{
    session->resend = session->sent_first;
    session->dirty = true; /* the connection is touched anyway */
}

/* ---- identifiers received with QoS 2 ---- */

bool mq_received_mark(mq_session *session, uint16_t identifier, bool *again)
{
    if (session->received == NULL && (session->received = calloc(1, RECEIVED_BYTES)) == NULL)
        return false;
    uint8_t *byte = &session->received[identifier >> 3], bit = (uint8_t)(1u << (identifier & 7));
    *again = *byte & bit;
    *byte |= bit;
    return true;
}

void mq_received_free(mq_session *session, uint16_t identifier)
{
    if (session->received != NULL)
        session->received[identifier >> 3] &= (uint8_t)~(1u << (identifier & 7));
}

/* ---- the end ---- */

/* A source goes, and its number may be given to another: nothing may point to it any more.  What was sent and
 * not acknowledged cannot be sent again; what waits is counted as overrun when its turn comes. */
void mq_session_forget_source(mq_engine *engine, mq_session *session, uint32_t source)
{
    for (uint32_t i = 0; i < session->queue_count; i++) {
        mq_entry *entry = &session->queue[(session->queue_first + i) & (session->queue_room - 1)];
        if (mq_where_source(entry->where) == source)
            entry->where = MQ_NOWHERE;
    }
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        mq_entry *entry = &session->sent[n & (session->sent_room - 1)];
        if (entry->where != MQ_NOWHERE && mq_where_source(entry->where) == source)
            mq_sent_done(engine, session, entry);
    }
}

/* Routes to it are found dead by their generation, and removed when they are next walked. */
void mq_session_clear(mq_engine *engine, mq_session *session)
{
    for (uint32_t i = 0; i < session->queue_count; i++)
        mq_entry_done(engine, &session->queue[(session->queue_first + i) & (session->queue_room - 1)]);
    for (uint64_t n = session->sent_first; n < session->sent_next; n++)
        mq_entry_done(engine, &session->sent[n & (session->sent_room - 1)]);
    engine->counters.queues_bytes -= session->queue_room * sizeof(mq_entry);
    free(session->queue);
    free(session->sent);
    free(session->received);
    session->queue = session->sent = NULL;
    session->received = NULL;
}
