/* SPDX-License-Identifier: Apache-2.0
 *
 * Delivery: selects the next messages for a connection.  First come messages that were in flight when the
 * last connection ended, then queued ones, within the limits of window and output.  frame.c builds each
 * PUBLISH, and finds messages that have expired or are too large for the client: they are dropped here, and
 * counted (drop_cause).
 */
#include "mqtt/out/frame.h"
#include "mqtt/in/packets.h"

#define RETAINED_SHARE 1024u /* retained messages sent before the queue gets its turn */

/* Reserve room in the output for `length` bytes.  MQ_OUTPUT_FULL: the existing output must be sent first. */
static mq_built reserve_output(mq_engine *engine, mq_connection *connection, uint32_t length)
{
    mq_bytes *out = &connection->out;
    uint32_t waiting = out->end - out->start;
    if (waiting > 0 && waiting + length > connection->out_chunk)
        return MQ_OUTPUT_FULL;
    return mq_bytes_reserve(engine, out, length) ? MQ_BUILT : MQ_NO_MEMORY;
}

static mq_built prepare(mq_engine *engine, mq_connection *connection, const mq_entry *entry, bool again,
                        mq_frame *frame)
{
    mq_built planned = mq_frame_plan(engine, connection, entry, again, frame);
    return planned == MQ_BUILT ? reserve_output(engine, connection, mq_frame_bytes(frame)) : planned;
}

/* Cause under which an undelivered message is counted: no memory, overwritten, expired, or too large for the
 * client.  A message that is too large counts as delivered [MQTT-3.1.2-25]. */
static uint32_t drop_cause(mq_built result)
{
    switch (result) {
    case MQ_NO_MEMORY:
        return MQ_DROP_MEMORY;
    case MQ_FORGED:
        return MQ_DROP_FORGED;
    case MQ_EXPIRED:
        return MQ_DROP_EXPIRED;
    case MQ_TOO_LARGE:
        return MQ_DROP_TOO_LARGE;
    default:
        return MQ_DROP_OVERRUN;
    }
}

static void count_drop(mq_engine *engine, mq_session *session, mq_built result)
{
    engine->counters.dropped[drop_cause(result)]++;
    session->dropped[drop_cause(result)]++;
}

/* True if the entry was left unchanged and is tried again later. */
static bool stops(mq_built result)
{
    return result == MQ_OUTPUT_FULL || result == MQ_NO_MEMORY || result == MQ_ONLY_IN_LOG;
}

/* Send `entry`, whose references this function takes over, and add it to the window if needed.  `result`: of
 * prepare(); `queued`: the entry was in the queue. */
static mq_built deliver(mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                        const mq_frame *frame, mq_built result, bool queued)
{
    mq_session *session = connection->session;
    mq_entry *sent = NULL;
    uint16_t identifier = 0;
    if (result == MQ_BUILT && entry->options & MQ_OPTION_QOS &&
        (sent = mq_sent_add(engine, session, &identifier)) == NULL)
        result = MQ_NO_MEMORY;
    if (sent != NULL) {
        *sent = *entry; /* takes over the references */
        mq_sent_measured(session, sent, mq_frame_bytes(frame));
    }
    if (session->kept || entry->options & MQ_OPTION_SHARED) {
        mq_journal_sent(engine, session, entry, sent != NULL, queued);
        if (sent != NULL && (entry->options & MQ_OPTION_QOS) == 2)
            mq_output_barrier(engine, connection); /* with another identifier the client would get it twice */
    }
    if (result == MQ_BUILT)
        result = mq_frame_put(engine, connection, entry, frame, identifier, false);
    if (result == MQ_BUILT && queued && entry->where != MQ_NOWHERE)
        mq_delivery_sample(engine, frame->timestamp_ns);
    if (result != MQ_BUILT && result != MQ_DENIED)
        count_drop(engine, session, result);
    if (sent == NULL)
        mq_entry_done(engine, entry);
    else if (result != MQ_BUILT)
        mq_sent_done(engine, session, sent);
    return result;
}

/* Fast path for most deliveries: QoS 0, from an own ring, without properties, with room in the output, and
 * without tenants, whose names frame.c changes.  False: not applicable, and nothing was done. */
static bool deliver_plain(mq_engine *engine, mq_connection *connection, const mq_entry *entry)
{
    mq_bytes *out = &connection->out;
    bool is_v5 = connection->version == 5;
    if (entry->options & ~(uint32_t)MQ_OPTION_RETAIN || entry->where == MQ_NOWHERE ||
        engine->tenant_count > 0 || (is_v5 && (connection->alias_max | connection->send_max_bytes)))
        return false;
    const mq_ring *ring = engine->rings[mq_where_ring(entry->where)];
    uint64_t position = mq_where_position(entry->where);
    if (ring == NULL || ring->kind != MQ_RING_OWN || !rb_writer_keeps(ring->writer, position))
        return false;
    const rb_record *record = rb_writer_record(ring->writer, position);
    uint32_t at = rb_payload_position(record->key_length, 0), payload_length = record->length - at,
             length = 2 + record->key_length + is_v5 + payload_length, waiting = out->end - out->start;
    if (record->flags & RB_FLAG_PROPERTIES || out->capacity - out->end < MQ_FRAME_HEAD_MAX + length ||
        (waiting > 0 && waiting + MQ_FRAME_HEAD_MAX + length > connection->out_chunk))
        return false;
    uint8_t *to = out->at + out->end;
    *to++ = (uint8_t)(MQ_PUBLISH << 4 | (entry->options & MQ_OPTION_RETAIN ? 1 : 0));
    to = mq_variable_put(to, length);
    *to++ = (uint8_t)(record->key_length >> 8);
    *to++ = (uint8_t)record->key_length;
    memcpy(to, record + 1, record->key_length);
    to += record->key_length;
    if (is_v5)
        *to++ = 0; /* length of its properties */
    memcpy(to, (const uint8_t *)record + at, payload_length);
    out->end = (uint32_t)(to + payload_length - out->at);
    engine->counters.delivered++;
    engine->counters.delivered_bytes += payload_length;
    connection->session->delivered++;
    mq_delivery_sample(engine, record->timestamp_ns);
    return true;
}

static mq_built deliver_next(mq_engine *engine, mq_connection *connection, mq_session *session)
{
    mq_frame frame;
    mq_entry entry = mq_queue_front(session);
    if (deliver_plain(engine, connection, &entry)) {
        mq_queue_pop(engine, session);
        return MQ_BUILT;
    }
    mq_built result = prepare(engine, connection, &entry, false, &frame);
    if (stops(result))
        return result;
    mq_queue_pop(engine, session);
    return deliver(engine, connection, &entry, &frame, result, true);
}

/* Resend a message that was in flight when the last connection ended, in order: PUBLISH with DUP, or
 * PUBREL. */
static mq_built deliver_again(mq_engine *engine, mq_connection *connection, mq_session *session)
{
    mq_frame frame;
    mq_entry *entry = &session->sent[session->resend & (session->sent_capacity - 1)];
    uint16_t identifier = (uint16_t)(session->resend % 65535 + 1);
    mq_built result = MQ_BUILT;
    if (entry->options & MQ_OPTION_RELEASED) {
        uint8_t pubrel[4] = {MQ_PUBREL << 4 | 2, 2, (uint8_t)(identifier >> 8), (uint8_t)identifier};
        if ((result = reserve_output(engine, connection, sizeof pubrel)) != MQ_BUILT)
            return result;
        memcpy(connection->out.at + connection->out.end, pubrel, sizeof pubrel);
        connection->out.end += sizeof pubrel;
    } else if (entry->where != MQ_NOWHERE) {
        result = prepare(engine, connection, entry, true, &frame);
        if (result == MQ_BUILT)
            result = mq_frame_put(engine, connection, entry, &frame, identifier, true);
        if (result == MQ_BUILT)
            mq_sent_measured(session, entry, mq_frame_bytes(&frame));
        if (stops(result))
            return result;
        engine->counters.redelivered += result == MQ_BUILT;
    }
    session->unsent -= entry->where != MQ_NOWHERE || entry->options & MQ_OPTION_RELEASED;
    session->resend++;
    if (result != MQ_BUILT) {
        count_drop(engine, session, result);
        if (entry->options & MQ_OPTION_SHARED)
            mq_journal_gone(engine, entry);
        mq_sent_done(engine, session, entry);
    }
    return result;
}

/* Send at most `limit` retained messages.  MQ_FULL_WINDOW: an acknowledgement will touch the connection;
 * MQ_LATER: the search must continue. */
static mq_built deliver_retained(mq_engine *engine, mq_connection *connection, mq_session *session,
                                 uint32_t limit)
{
    mq_built result = MQ_BUILT;
    for (uint32_t i = 0; session->retained_deliveries != NULL && i < limit && !stops(result); i++) {
        mq_entry entry;
        mq_frame frame;
        mq_found planned = mq_retained_delivery_find(engine, session, &entry);
        if (planned != MQ_FOUND)
            return planned == MQ_FOUND_LATER ? MQ_LATER : MQ_BUILT;
        if (!mq_window_permits(engine, session, entry.options))
            return MQ_FULL_WINDOW;
        result = prepare(engine, connection, &entry, false, &frame);
        if (stops(result))
            break;
        mq_retained_delivery_advance(engine, session, &entry);
        result = deliver(engine, connection, &entry, &frame, result, false);
    }
    return result;
}

static mq_built deliver_queued(mq_engine *engine, mq_connection *connection, mq_session *session)
{
    mq_built result = MQ_BUILT;
    do {
        while (session->queue_count > 0 && !stops(result)) {
            if (!mq_window_permits(engine, session, mq_queue_front(session).options))
                return MQ_FULL_WINDOW;
            result = deliver_next(engine, connection, session);
        }
    } while (!stops(result) && session->queue_count == 0 && session->shares.count > 0 &&
             mq_share_pull(engine, session));
    return result;
}

bool mq_fill_output(mq_engine *engine, mq_connection *connection)
{
    mq_session *session = connection->session;
    if (session == NULL || session->waits_for_log)
        return false;
    mq_built result = MQ_BUILT;
    while (session->resend < session->sent_next && !stops(result)) {
        if (!mq_window_permits_resend(session))
            return false; /* the delivery waits until an acknowledgement frees its window */
        result = deliver_again(engine, connection, session);
    }
    if (session->retained_deliveries != NULL && !stops(result))
        result = deliver_retained(engine, connection, session, RETAINED_SHARE);
    if (!stops(result))
        result = deliver_queued(engine, connection, session);
    if (session->retained_deliveries != NULL && !stops(result) && result != MQ_FULL_WINDOW)
        result = deliver_retained(engine, connection, session, UINT32_MAX);
    if (result == MQ_NO_MEMORY)
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
    if (result == MQ_ONLY_IN_LOG)
        mq_wait_for_log(engine, session);
    if (result == MQ_OUTPUT_FULL || result == MQ_LATER)
        return true;
    if (!stops(result) && result != MQ_FULL_WINDOW) /* otherwise an acknowledgement or the log continues it */
        session->needs_delivery = false;
    return false;
}
