/* SPDX-License-Identifier: Apache-2.0
 *
 * In-flight window of a session: the messages of QoS 1 and 2 that were sent and not acknowledged, and the
 * limits for more of them: the client's Receive Maximum, and limits.in_flight_max_bytes.  inflight.c has the
 * layout of the window.  Included by queue.h.
 */
#ifndef BRIM_INFLIGHT_H
#define BRIM_INFLIGHT_H

void mq_session_clear(mq_engine *engine, mq_session *session);
void mq_session_forget_ring(mq_engine *engine, mq_session *session, uint32_t ring);
void mq_session_return(mq_session *session); /* after a connection was attached: redeliver */
void mq_entry_drop(mq_engine *engine, mq_session *session, const mq_entry *entry, uint32_t cause);
void mq_entry_done(mq_engine *engine, const mq_entry *entry); /* release its blob and subscription ids */
mq_entry *mq_sent_add(mq_engine *engine, mq_session *session, uint16_t *identifier); /* NULL: no memory */
/* Store the size of an entry in flight, if it was not known. */
void mq_sent_measured(mq_session *session, const mq_entry *entry, uint32_t bytes);
mq_entry *mq_sent_find(mq_session *session, uint16_t identifier); /* NULL: not in flight */
void mq_sent_done(mq_engine *engine, mq_session *session, mq_entry *entry);

/* True if the window permits the next redelivery: the client may have reconnected with a smaller Receive
 * Maximum [MQTT-3.3.4-9].  PUBREL needs no room in the window [4.9]. */
static inline bool mq_window_permits_resend(const mq_session *session)
{
    const mq_entry *entry = &session->sent[session->resend & (session->sent_capacity - 1)];
    return entry->where == MQ_NOWHERE || session->in_flight - session->unsent < session->window;
}

/* True if the window permits another message.  Its span is also bounded: a client that never acknowledges one
 * message must not keep the gaps of all later ones in memory. */
static inline bool mq_window_permits(const mq_engine *engine, const mq_session *session, uint32_t options)
{
    uint64_t limit = engine->limits.in_flight_max_bytes;
    if (options & MQ_OPTION_QOS && limit != 0 && session->in_flight_bytes >= limit)
        return false;
    uint64_t span = session->sent_next - session->sent_first, span_max = 4ull * session->window;
    return !(options & MQ_OPTION_QOS) ||
           (session->in_flight < session->window && span < (span_max < 65535 ? span_max : 65535));
}

#endif
