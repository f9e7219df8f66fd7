/* SPDX-License-Identifier: Apache-2.0
 *
 * Acknowledgements: of messages that a client publishes, which may wait for the disk or for a sink
 * (ack_gate.c), and from a client for messages delivered to it.
 *
 *   byte 1   type << 4 | flags
 *   byte 2   remaining length: 2; MQTT 5 only: 3 and more
 *   2 bytes  packet identifier
 *   1 byte   MQTT 5: reason code; omitted, with the rest, if it is 0
 *   n bytes  MQTT 5: properties; omitted if there are none
 *
 * An exchange is open from the PUBLISH until the packet that ends it is sent: PUBACK, PUBREC with a failure,
 * or PUBCOMP.  connection->unfinished counts the open ones of this connection.  MQTT 5 permits at most
 * limits.receive_max [MQTT-3.3.4-7].  QoS 2 identifiers received on an earlier connection do not count: the
 * quota restarts with each connection [MQTT-4.9.0-1].  Their PUBREL reduces the count, but not below 0, as it
 * raises the client's quota up to its limit (section 4.9).
 */
#include "mqtt/in/packets.h"

#include <stdlib.h>

static void put_ack(mq_engine *engine, mq_connection *connection, uint8_t first_byte, uint16_t identifier,
                    uint8_t reason)
{
    bool has_reason = reason != MQ_REASON_SUCCESS && connection->version == 5;
    uint8_t bytes[5] = {first_byte, has_reason ? 3 : 2, (uint8_t)(identifier >> 8), (uint8_t)identifier,
                        reason};
    mq_write_output(engine, connection, bytes, has_reason ? 5 : 4);
}

/* ---- waiting acknowledgements, in the order of their PUBLISHes ---- */

/* The waiting acknowledgement `number`, from 0 on. */
static mq_ack *ack_at(const mq_connection *connection, uint32_t number)
{
    return &connection->acks[(connection->acks_first + number) & (connection->acks_capacity - 1)];
}

static bool acks_grow(mq_connection *connection)
{
    uint32_t capacity = connection->acks_capacity ? connection->acks_capacity * 2 : 16;
    mq_ack *acks = malloc(capacity * sizeof *acks);
    if (acks == NULL)
        return false;
    for (uint32_t i = 0; i < connection->acks_count; i++)
        acks[i] = *ack_at(connection, i);
    free(connection->acks);
    connection->acks = acks;
    connection->acks_first = 0;
    connection->acks_capacity = capacity;
    return true;
}

/* An MQTT 5 client knows its Receive Maximum and is not paused within it.  Twice as many are reached only by
 * repeating the same packets. */
uint32_t mq_acks_max(const mq_engine *engine, const mq_connection *connection)
{
    return engine->limits.receive_max * (connection->version == 5 ? 2 : 1);
}

/* True if sending this acknowledgement ends its exchange. */
static bool ends(const mq_ack *ack)
{
    return ack->first_byte == MQ_PUBACK << 4 || ack->reason >= MQ_REASON_UNSPECIFIED_ERROR;
}

static void wait_for_release(mq_engine *engine, mq_connection *connection)
{
    if (connection->ack_wait.fifo == NULL)
        mq_fifo_add(&engine->ack_waiters, &connection->ack_wait);
}

void mq_acks_retry(mq_engine *engine, mq_connection *connection)
{
    if (connection->stop == MQ_STOP_ACKS)
        wait_for_release(engine, connection);
}

static void queue_ack(mq_engine *engine, mq_connection *connection, mq_ack ack)
{
    if (connection->acks_count == connection->acks_capacity && !acks_grow(connection)) {
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
        return;
    }
    uint32_t at = (connection->acks_first + connection->acks_count++) & (connection->acks_capacity - 1);
    connection->acks[at] = ack;
    connection->unfinished += ends(&ack);
    engine->counters.acks_waiting++;
    if (connection->acks_count >= mq_acks_max(engine, connection) && connection->stop == MQ_RUN)
        connection->stop = MQ_STOP_ACKS;
    wait_for_release(engine, connection);
}

/* State of the acknowledged record.  A refusal or a loss is stored as the reason if the client's version has
 * reasons.  A client without reasons waits while publishers are refused. */
static mq_ack_status status_of(const mq_engine *engine, const mq_connection *connection, mq_ack *ack)
{
    const mq_ring *ring = engine->rings[ack->ring];
    if (!ack->waits || ring->kind != MQ_RING_OWN)
        return MQ_ACK_DONE;
    mq_ack_status status = mq_ack_status_of(engine, ring, ack->waits_for);
    if (status == MQ_ACK_DONE || status == MQ_ACK_WAITS)
        return status;
    if (connection->version != 5)
        return status == MQ_ACK_LOST ? status : MQ_ACK_WAITS;
    ack->reason = status == MQ_ACK_LOST ? MQ_REASON_IMPLEMENTATION_SPECIFIC_ERROR : mq_refusal(engine, ring);
    return status;
}

/* Send the acknowledgements of one connection up to the first that still waits. */
static void send_until_waiting(mq_engine *engine, mq_connection *connection)
{
    while (connection->acks_count > 0) {
        mq_ack ack = connection->acks[connection->acks_first];
        bool ended = ends(&ack);
        mq_ack_status status = status_of(engine, connection, &ack);
        if (status == MQ_ACK_WAITS)
            break;
        if (status == MQ_ACK_LOST && connection->version != 5) { /* no reason: it sends again */
            mq_connection_close(engine, connection, MQ_CLOSE_FULL);
            return;
        }
        connection->acks_first = (connection->acks_first + 1) & (connection->acks_capacity - 1);
        connection->acks_count--;
        connection->unfinished -= ended && connection->unfinished > 0;
        engine->counters.acks_waiting--;
        if (!ended && status == MQ_ACK_REFUSED) /* a PUBREC with a failure frees its identifier */
            mq_exchange_end(engine, connection, ack.identifier);
        put_ack(engine, connection, ack.first_byte, ack.identifier, ack.reason);
        if (connection->stop == MQ_STOP_CLOSING) /* no memory for the packet: it has no session any more */
            return;
    }
    if (connection->acks_count > 0)
        wait_for_release(engine, connection);
    if (connection->stop == MQ_STOP_ACKS && connection->acks_count < mq_acks_max(engine, connection)) {
        connection->stop = MQ_RUN;
        connection->last_seen_ms = engine->now_ms;
        mq_connection_ready(engine, connection);
    }
}

/* Send the acknowledgements whose records are durable, or refused.  One sync may release many. */
void mq_acks_release(mq_engine *engine)
{
    mq_link *link;
    uint32_t left = engine->ack_waiters.count;
    for (; left > 0 && (link = mq_fifo_take(&engine->ack_waiters)) != NULL; left--) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, ack_wait);
        if (connection->stop != MQ_STOP_CLOSING)
            send_until_waiting(engine, connection);
    }
}

/* Find the acknowledgements of lost records.  Those of QoS 2 have receipts (mq_received_lost). */
void mq_acks_lost(mq_engine *engine, uint32_t ring, uint64_t from, uint64_t to)
{
    for (const mq_link *link = engine->ack_waiters.first; link != NULL; link = link->next) {
        const mq_connection *connection = MQ_LINKED(link, const mq_connection, ack_wait);
        for (uint32_t i = 0; i < connection->acks_count; i++) {
            mq_ack *ack = ack_at(connection, i);
            bool is_lost = from < ack->waits_for && ack->waits_for <= to; /* waits_for: offset + 1 */
            if (ack->ring == ring && ack->first_byte == MQ_PUBACK << 4 && is_lost)
                ack->waits_for = MQ_NEVER;
        }
    }
}

bool mq_ack_waits(const mq_connection *connection, uint16_t identifier)
{
    for (uint32_t i = 0; i < connection->acks_count; i++)
        if (ack_at(connection, i)->identifier == identifier)
            return true;
    return false;
}

/* Acknowledge at once, or when the record is durable; never before an earlier one of this connection. */
void mq_acknowledge(mq_engine *engine, mq_connection *connection, mq_ack ack)
{
    ack.waits = ack.ring != 0 && engine->rings[ack.ring]->ack_gate.event != MQ_GATE_NONE;
    if (ack.waits || connection->acks_count > 0)
        queue_ack(engine, connection, ack);
    else
        put_ack(engine, connection, ack.first_byte, ack.identifier, ack.reason);
}

bool mq_exchange_end(mq_engine *engine, mq_connection *connection, uint16_t identifier)
{
    bool open = mq_received_free(connection->session, identifier);
    if (open && connection->session->kept) {
        mq_journal_word(engine, MQ_J_FREED, connection->session, identifier);
        mq_output_barrier(engine, connection); /* the next message with this identifier is a new one */
    }
    connection->unfinished -= open && connection->unfinished > 0;
    return open;
}

void mq_received_lost(mq_engine *engine, mq_session *session, uint16_t identifier)
{
    mq_connection *connection = session->connection;
    if (connection == NULL) {
        if (mq_received_free(session, identifier) && session->kept)
            mq_journal_word(engine, MQ_J_FREED, session, identifier);
        return;
    }
    mq_exchange_end(engine, connection, identifier);
    mq_acks_retry(engine, connection);
    for (uint32_t i = 0; i < connection->acks_count; i++) {
        mq_ack *ack = ack_at(connection, i);
        if (ack->identifier == identifier && ack->first_byte == MQ_PUBREC << 4)
            ack->waits_for = MQ_NEVER;
    }
}

/* ---- from a client ---- */

/* True if an acknowledgement may have this reason code: sections 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1. */
static bool is_allowed_reason(uint32_t kind, uint8_t reason)
{
    static const uint8_t published[] = {MQ_REASON_NO_MATCHING_SUBSCRIBERS,
                                        MQ_REASON_UNSPECIFIED_ERROR,
                                        MQ_REASON_IMPLEMENTATION_SPECIFIC_ERROR,
                                        MQ_REASON_NOT_AUTHORIZED,
                                        MQ_REASON_TOPIC_NAME_INVALID,
                                        MQ_REASON_PACKET_IDENTIFIER_IN_USE,
                                        MQ_REASON_QUOTA_EXCEEDED,
                                        MQ_REASON_PAYLOAD_FORMAT_INVALID};
    if (reason == MQ_REASON_SUCCESS)
        return true;
    if (kind == MQ_PUBREL || kind == MQ_PUBCOMP)
        return reason == MQ_REASON_PACKET_IDENTIFIER_NOT_FOUND;
    for (size_t i = 0; i < sizeof published; i++)
        if (published[i] == reason)
            return true;
    return false;
}

/* Check the flags.  In MQTT 3.1, section 3.6, PUBREL has DUP, and does not use RETAIN. */
static bool flags_fit(const mq_connection *connection, uint8_t first)
{
    uint32_t flags = first & 15, ignored = connection->version == 3 ? 9 : 0;
    return first >> 4 == MQ_PUBREL ? (flags & ~ignored) == 2 : flags == 0;
}

/* Read identifier and reason.  0, or MQ_CLOSE_*. */
static uint32_t ack_read(const mq_connection *connection, const mq_packet *packet, mq_ack *out)
{
    uint32_t kind = packet->first >> 4;
    const uint8_t *body = packet->body;
    if (packet->length < 2 || (connection->version != 5 && packet->length != 2) ||
        !flags_fit(connection, packet->first) || mq_uint16_at(body) == 0)
        return MQ_CLOSE_MALFORMED;
    *out = (mq_ack){.identifier = (uint16_t)mq_uint16_at(body)};
    if (packet->length == 2)
        return 0;
    out->reason = body[2];
    if (!is_allowed_reason(kind, out->reason))
        return MQ_CLOSE_PROTOCOL;
    return packet->length == 3 ? 0 : mq_properties_of_ack(body + 3, body + packet->length);
}

/* PUBREC: the client has the message, or refuses it; after a refusal no PUBREL follows [MQTT-4.3.3-4]. */
static void on_pubrec(mq_engine *engine, mq_connection *connection, mq_entry *entry, const mq_ack *ack)
{
    bool known = entry != NULL, failed = ack->reason >= MQ_REASON_UNSPECIFIED_ERROR;
    bool released = known && entry->options & MQ_OPTION_RELEASED;
    if (known && failed) {
        mq_sent_done(engine, connection->session, entry);
        mq_connection_touch(engine, connection);
    } else if (known && !released) {
        mq_entry_done(engine, entry);
        *entry = (mq_entry){.where = MQ_NOWHERE, .options = MQ_OPTION_RELEASED | 2};
        if (connection->session->kept) {
            mq_journal_word(engine, MQ_J_RELEASED, connection->session, ack->identifier);
            mq_output_barrier(engine, connection); /* after PUBREL, a repetition would be a new message */
        }
    }
    if (!failed)
        put_ack(engine, connection, MQ_PUBREL << 4 | 2, ack->identifier,
                known ? MQ_REASON_SUCCESS : MQ_REASON_PACKET_IDENTIFIER_NOT_FOUND);
}

/* True if the message in flight waits for this type of acknowledgement.  Otherwise client and server mean
 * different exchanges, and neither can know what has arrived [MQTT-4.13.1-1]. */
static bool fits(uint32_t kind, uint32_t options)
{
    uint32_t qos = options & MQ_OPTION_QOS;
    if (kind == MQ_PUBCOMP)
        return (options & MQ_OPTION_RELEASED) != 0;
    return kind == MQ_PUBACK ? qos == 1 : qos == 2;
}

/* An acknowledgement for an identifier that is not in flight changes nothing.  It is still answered, so that
 * a client with more state than the server can finish its exchange. */
bool mq_on_acknowledgement(mq_engine *engine, mq_connection *connection, const mq_packet *packet)
{
    mq_ack ack;
    uint32_t kind = packet->first >> 4, cause = ack_read(connection, packet, &ack);
    if (cause != 0)
        return mq_refuse(engine, connection, cause);
    mq_session *session = connection->session;
    if (kind == MQ_PUBREL) {
        bool known = mq_exchange_end(engine, connection, ack.identifier);
        put_ack(engine, connection, MQ_PUBCOMP << 4, ack.identifier,
                known ? MQ_REASON_SUCCESS : MQ_REASON_PACKET_IDENTIFIER_NOT_FOUND);
        return connection->stop != MQ_STOP_CLOSING;
    }
    mq_entry *entry = mq_sent_find(session, ack.identifier);
    if (entry != NULL && !fits(kind, entry->options))
        return mq_refuse(engine, connection, MQ_CLOSE_PROTOCOL);
    if (kind == MQ_PUBREC) {
        on_pubrec(engine, connection, entry, &ack);
    } else if (entry != NULL) {
        if (kind == MQ_PUBACK && entry->options & MQ_OPTION_SHARED)
            mq_journal_gone(engine, entry);
        mq_sent_done(engine, session, entry);
        mq_connection_touch(engine, connection);
    }
    return connection->stop != MQ_STOP_CLOSING;
}
