/* SPDX-License-Identifier: Apache-2.0
 *
 * Receipts: a QoS 2 message has one until the sinks have its record, at durability `upstream`.
 *
 * Without a receipt, a repeated PUBLISH would only be known by its packet identifier.  Its record may be
 * lost, also while the client is away: then the identifier is freed, and the repetition is stored as a new
 * message.  If the record is not lost, the repetition waits for it, and is not stored again.
 *
 * A receipt lasts from the append of its record until the sinks have the record, or it is lost, or its
 * identifier is freed.  A session has at most as many as acknowledgements may wait (mq_acks_max): they are
 * counted over all its connections.  The journal has the receipts of kept sessions.
 */
#include "mqtt/mqtt.h"

#include "mqtt/in/packets.h"

#include <stdlib.h>

#define ROOM_MIN 4u

static bool grow(mq_engine *engine, mq_session *session)
{
    mq_receipts *old = session->receipts;
    uint32_t capacity = old == NULL ? ROOM_MIN : 2 * old->capacity;
    mq_receipts *receipts = realloc(old, sizeof *receipts + capacity * sizeof receipts->at[0]);
    if (receipts == NULL)
        return false;
    if (old == NULL) {
        *receipts = (mq_receipts){.session = session, .next = engine->receipts, .link = &engine->receipts};
        if (receipts->next != NULL)
            receipts->next->link = &receipts->next;
    }
    receipts->capacity = capacity;
    *receipts->link = receipts;
    if (receipts->next != NULL)
        receipts->next->link = &receipts->next;
    session->receipts = receipts;
    return true;
}

static void receipts_free(mq_session *session)
{
    mq_receipts *receipts = session->receipts;
    *receipts->link = receipts->next;
    if (receipts->next != NULL)
        receipts->next->link = receipts->link;
    free(receipts);
    session->receipts = NULL;
}

bool mq_receipt_add(mq_engine *engine, mq_session *session, mq_receipt receipt)
{
    if ((session->receipts == NULL || session->receipts->count == session->receipts->capacity) &&
        !grow(engine, session))
        return false;
    session->receipts->at[session->receipts->count++] = receipt;
    return true;
}

const mq_receipt *mq_receipt_find(const mq_session *session, uint16_t identifier)
{
    const mq_receipts *receipts = session->receipts;
    for (uint32_t i = 0; receipts != NULL && i < receipts->count; i++)
        if (receipts->at[i].identifier == identifier)
            return &receipts->at[i];
    return NULL;
}

static void drop(mq_session *session, uint32_t number)
{
    mq_receipts *receipts = session->receipts;
    mq_receipt *at = &receipts->at[number];
    memmove(at, at + 1, (--receipts->count - number) * sizeof *at);
    if (receipts->count == 0)
        receipts_free(session);
}

void mq_receipt_drop(mq_session *session, uint16_t identifier)
{
    const mq_receipt *receipt = mq_receipt_find(session, identifier);
    if (receipt != NULL)
        drop(session, (uint32_t)(receipt - session->receipts->at));
}

/* The last one is dropped first: with the first one, the memory is freed. */
void mq_receipts_forget(mq_session *session, uint32_t ring)
{
    for (uint32_t i = session->receipts == NULL ? 0 : session->receipts->count; i-- > 0;)
        if (ring == 0 || session->receipts->at[i].ring == ring)
            drop(session, i);
}

/* ---- reports of the sinks ---- */

static void drop_stored(mq_engine *engine, mq_receipts *receipts, uint32_t ring)
{
    uint64_t end = engine->rings[ring]->ack_gate.upstream_end;
    uint32_t count = receipts->count, kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (receipts->at[i].ring != ring || receipts->at[i].offset >= end)
            receipts->at[kept++] = receipts->at[i];
    receipts->count = kept;
    mq_session *session = receipts->session;
    if (kept < count && session->connection != NULL)
        mq_acks_retry(engine, session->connection);
    if (kept == 0)
        receipts_free(session);
}

void mq_receipts_drop_stored(mq_engine *engine, uint32_t ring)
{
    for (mq_receipts *receipts = engine->receipts, *next; receipts != NULL; receipts = next) {
        next = receipts->next;
        drop_stored(engine, receipts, ring);
    }
}

void mq_receipts_lost(mq_engine *engine, uint32_t ring, uint64_t from, uint64_t to)
{
    for (mq_receipts *receipts = engine->receipts, *next; receipts != NULL; receipts = next) {
        next = receipts->next;
        for (uint32_t i = receipts->count; i-- > 0;) /* as in mq_receipts_forget() */
            if (receipts->at[i].ring == ring && from <= receipts->at[i].offset && receipts->at[i].offset < to)
                mq_received_lost(engine, receipts->session, receipts->at[i].identifier);
    }
}
