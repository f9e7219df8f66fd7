/* SPDX-License-Identifier: Apache-2.0
 *
 * PUBLISH -> record: work for every incoming message.
 *
 *   2 bytes, n   topic; in MQTT 5 it may be empty, with a topic alias among the properties
 *   2 bytes      packet identifier, at QoS 1 and 2
 *   properties   in MQTT 5
 *   payload      the rest
 *
 * A packet is read again from its beginning after an answer of Python, or when the ring has room.  Until it
 * is consumed nothing is counted, and state taken from it (an alias) is the same the second time.
 *
 * A message that is not stored: At QoS 0 it is counted.  In MQTT 5 its acknowledgement has the reason.  MQTT
 * 3.1.1 has no way to refuse a message [MQTT-3.3.5-2]: one that can never be stored is acknowledged and
 * counted.  For one that could be stored later, the connection is closed, and the client sends it again
 * [MQTT-4.8.0-2].
 *
 * A message that cannot be retained is refused completely if its acknowledgement can report that.  Any other
 * is stored without RETAIN (append.c).
 */
#include "mqtt/in/packets.h"

#include <string.h>

typedef struct publish {
    mq_message message;
    const uint8_t *name;
    uint32_t name_length; /* 0: only an alias was given */
    uint32_t qos;
    uint16_t identifier, alias;
    bool is_text; /* the payload is declared as UTF-8 */
} publish;

/* ---- reading ---- */

/* Read the properties and the fields that depend on them.  0, or MQ_CLOSE_*. */
static uint32_t read_properties(mq_engine *engine, const uint8_t *at, const uint8_t *end, publish *out)
{
    mq_properties properties;
    uint32_t cause = mq_properties_of_publish(engine, at, end, &properties);
    if (cause == 0 && properties.alias > engine->limits.alias_max) /* 3.3.2-9 */
        cause = MQ_CLOSE_ALIAS;
    if (cause == 0 && properties.subscriptions) /* 3.3.4-6 */
        cause = MQ_CLOSE_PROTOCOL;
    if (cause != 0) /* a malformed name has precedence; otherwise it is found with a new topic */
        return mq_is_string(out->name, out->name_length) ? cause : MQ_CLOSE_MALFORMED;
    out->alias = properties.alias;
    out->is_text = properties.text;
    out->message.properties = properties.stored;
    out->message.properties_length = properties.stored_length;
    out->message.flags |= properties.flags;
    out->message.payload = properties.end;
    out->message.payload_length = (uint32_t)(end - properties.end);
    return 0;
}

/* Read the bytes after the identifier in MQTT 5, in at .. end.  0, or MQ_CLOSE_*. */
static uint32_t read_version_5(mq_engine *engine, const uint8_t *at, const uint8_t *end, publish *out)
{
    if (at < end && *at == 0) { /* no properties */
        out->message.payload = at + 1;
        out->message.payload_length--;
    } else {
        uint32_t cause = read_properties(engine, at, end, out);
        if (cause != 0)
            return cause;
    }
    return out->name_length == 0 && out->alias == 0 ? MQ_CLOSE_PROTOCOL : 0;
}

/* Give a topic of a tenant's client its full name.  0, or MQ_CLOSE_*. */
static uint32_t complete_name(mq_engine *engine, const mq_connection *connection, publish *out)
{
    if (out->name_length == 0) /* an alias, which stands for a full name */
        return 0;
    const mq_tenant *tenant = connection->tenant;
    out->name_length = mq_tenant_full_name(engine, tenant, out->name, out->name_length, &out->name);
    return out->name_length == 0 ? MQ_CLOSE_TOO_LARGE : 0;
}

/* Read the packet.  0, or MQ_CLOSE_*. */
static inline uint32_t read_publish(mq_engine *engine, const mq_connection *connection,
                                    const mq_packet *packet, publish *out)
{
    const uint8_t *body = packet->body;
    uint32_t qos = packet->first >> 1 & 3, name_length = packet->length < 2 ? 0 : mq_uint16_at(body);
    uint32_t head = 2 + name_length + (qos ? 2 : 0);
    /* 3.3.1-2: no DUP at QoS 0; 3.3.1-4: no QoS 3 */
    if (head > packet->length || qos == 3 || (qos == 0 && packet->first & 8))
        return MQ_CLOSE_MALFORMED;
    uint16_t identifier = qos ? (uint16_t)mq_uint16_at(body + 2 + name_length) : 0;
    if (qos && identifier == 0) /* 2.3.1-1 */
        return MQ_CLOSE_PROTOCOL;
    out->message = (mq_message){.payload = body + head,
                                .payload_length = packet->length - head,
                                .flags = (packet->first & 1 ? RB_FLAG_RETAIN : 0) | qos,
                                .publisher = connection->session,
                                .owner = connection->session->owner,
                                .author = connection->session->author};
    out->name = body + 2;
    out->name_length = name_length;
    out->qos = qos;
    out->identifier = identifier;
    out->alias = 0;
    out->is_text = false;
    uint32_t cause = connection->version == 5
                         ? read_version_5(engine, body + head, body + packet->length, out)
                     : name_length == 0 ? MQ_CLOSE_MALFORMED /* 4.7.3-1: no empty topic */
                                        : 0;
    return cause == 0 && connection->tenant != NULL ? complete_name(engine, connection, out) : cause;
}

/* ---- acknowledgement ---- */

static void acknowledge(mq_engine *engine, mq_connection *connection, const publish *publish, uint16_t ring,
                        uint64_t waits_for, uint8_t reason)
{
    mq_acknowledge(engine, connection,
                   (mq_ack){.waits_for = waits_for,
                            .ring = ring,
                            .identifier = publish->identifier,
                            .first_byte = publish->qos == 1 ? MQ_PUBACK << 4 : MQ_PUBREC << 4,
                            .reason = reason});
}

/* Drop a message that will not be stored.  In MQTT 5 a PUBREC with the reason frees its identifier. */
static bool drop(mq_engine *engine, mq_connection *connection, const publish *publish, uint32_t cause,
                 uint8_t reason)
{
    engine->counters.dropped[cause]++;
    if (publish->qos == 2 && connection->version == 5)
        mq_exchange_end(engine, connection, publish->identifier);
    if (publish->qos > 0)
        acknowledge(engine, connection, publish, 0, 0, reason);
    return true;
}

static void full_ring_clear(mq_connection *connection, const mq_topic *topic)
{
    if (connection->full_ring == topic->ring)
        connection->full_ring = 0;
}

static bool pause_for_room(mq_engine *engine, mq_connection *connection)
{
    connection->stop = MQ_STOP_FULL;
    engine->counters.full_waits++;
    mq_fifo_add(&engine->blocked, &connection->turn);
    return false;
}

/* True if the client may wait for room in a full ring: each client may wait for the queue timeout, also if
 * the ring was full before.  Otherwise the flood of one client would cost others their messages or
 * connections.  Later messages of a client that waited for so long do not wait, so that its other packets are
 * served. */
static bool may_wait(const mq_engine *engine, mq_connection *connection, uint16_t index)
{
    const mq_ring *ring = engine->rings[index];
    if (connection->full_ring == 0)
        connection->full_since_ms = engine->now_ms;
    connection->full_ring = index;
    return ring->blocks && engine->now_ms - connection->full_since_ms < ring->queue_timeout_ms;
}

/* Handle an append that failed because of the ring. */
static bool append_failed(mq_engine *engine, mq_connection *connection, const mq_topic *topic,
                          const publish *publish, int result)
{
    bool large = result == RB_TOO_LARGE;
    uint8_t refusal = mq_refusal(engine, engine->rings[topic->ring]);
    bool waits = !large && refusal == 0 && may_wait(engine, connection, topic->ring);
    if (waits || result == RB_FULL || result == RB_PENDING)
        return pause_for_room(engine, connection);
    if (publish->qos == 0 || connection->version == 5)
        return drop(engine, connection, publish, large ? MQ_DROP_TOO_LARGE : MQ_DROP_FULL,
                    large     ? MQ_REASON_IMPLEMENTATION_SPECIFIC_ERROR
                    : refusal ? refusal
                              : MQ_REASON_QUOTA_EXCEEDED);
    return mq_refuse(engine, connection, large ? MQ_CLOSE_TOO_LARGE : MQ_CLOSE_FULL);
}

/* ---- storing ---- */

/* True if the sinks must report a loss of the topic's records: then a receipt is needed. */
static bool needs_receipt(const mq_engine *engine, const mq_topic *topic)
{
    return engine->rings[topic->ring]->ack_gate.event == MQ_GATE_UPSTREAM;
}

/* Mark the identifier of a message that will be the next record of its ring.  The journal of a kept session
 * gets the identifier first, with the position that the record will have.  A restart ignores an identifier
 * whose record is missing.  False: no memory, or no room in the journal. */
static bool mark_once(mq_engine *engine, mq_session *session, const mq_topic *topic, const publish *publish)
{
    bool has_receipt = needs_receipt(engine, topic);
    mq_ring *ring = engine->rings[topic->ring];
    mq_receipt receipt = {
        .offset = ring->writer->offset, .ring = topic->ring, .identifier = publish->identifier};
    if (!mq_received_mark(session, publish->identifier))
        return false;
    if ((has_receipt && !mq_receipt_add(engine, session, receipt)) ||
        (session->kept && !mq_journal_received(engine, session, mq_where(topic->ring, ring->writer->tail),
                                               publish->identifier, has_receipt ? &receipt : NULL))) {
        mq_received_free(session, publish->identifier);
        return false;
    }
    if (session->kept)
        mq_block_log(engine, ring);
    return true;
}

/* Acknowledge a repeated QoS 2 message.  Without a receipt, the position of its record is unknown: the
 * acknowledgement waits until everything now in the ring is durable.  If its topic has moved to that ring,
 * its record may be in the earlier one, which is durable by now (store_once). */
static void acknowledge_again(mq_engine *engine, mq_connection *connection, const mq_topic *topic,
                              const publish *publish)
{
    const mq_receipt *receipt = mq_receipt_find(connection->session, publish->identifier);
    uint16_t ring = receipt == NULL ? topic->ring : receipt->ring;
    uint64_t waits_for = receipt == NULL ? mq_ack_waits_for(engine->rings[ring]) : receipt->offset + 1;
    if (mq_ack_status_of(engine, engine->rings[ring], waits_for) == MQ_ACK_DONE)
        ring = 0; /* acknowledge now: after a pause in store_once(), maybe no later sync sends it */
    acknowledge(engine, connection, publish, ring, waits_for, MQ_REASON_SUCCESS);
}

/* True if a new QoS 2 message must wait: the session has the maximum of receipts, from earlier connections,
 * too. */
static bool exceeds_receipts(const mq_engine *engine, const mq_connection *connection, const mq_topic *topic)
{
    const mq_receipts *receipts = connection->session->receipts;
    return receipts != NULL && receipts->count >= mq_acks_max(engine, connection) &&
           needs_receipt(engine, topic);
}

/* Store a QoS 2 message once; a repeated one is only acknowledged again.  A message that must wait for room
 * leaves no trace: while it waits, other records may take its position.  PUBREC may report that there are no
 * subscribers; as in Mosquitto, it does not. */
static bool store_once(mq_engine *engine, mq_connection *connection, mq_topic *topic, const publish *publish)
{
    if (mq_received_has(connection->session, publish->identifier)) {
        if (!mq_moves_are_durable(engine))
            return pause_for_room(engine, connection);
        acknowledge_again(engine, connection, topic, publish);
        return true;
    }
    if (exceeds_receipts(engine, connection, topic)) {
        connection->stop = MQ_STOP_ACKS;
        return false;
    }
    int result = mq_append_check(engine, topic, &publish->message);
    if (result != RB_OK)
        return append_failed(engine, connection, topic, publish, result);
    if (!mark_once(engine, connection->session, topic, publish))
        return pause_for_room(engine, connection);
    uint64_t waits_for = mq_append_checked(engine, topic, &publish->message);
    full_ring_clear(connection, topic);
    connection->unfinished++;
    acknowledge(engine, connection, publish, topic->ring, waits_for, MQ_REASON_SUCCESS);
    return true;
}

/* True for a repeated QoS 2 message.  It is only acknowledged again, so no limit applies to it. */
static bool is_repeated(const mq_connection *connection, const publish *publish)
{
    return publish->qos == 2 && mq_received_has(connection->session, publish->identifier);
}

/* True if the payload exceeds the limit for clients. */
static bool exceeds_payload(const mq_engine *engine, const mq_connection *connection, const publish *publish)
{
    return engine->limits.payload_max_bytes != 0 &&
           publish->message.payload_length > engine->limits.payload_max_bytes &&
           !is_repeated(connection, publish);
}

/* True if the acknowledgement must report that the message cannot be retained. */
static bool refuses_retained(mq_engine *engine, const mq_connection *connection, const mq_topic *topic,
                             const publish *publish)
{
    return publish->message.flags & RB_FLAG_RETAIN && publish->qos > 0 && connection->version == 5 &&
           !is_repeated(connection, publish) && !mq_retained_fits(engine, topic, &publish->message);
}

/* One caller, so that the compiler inlines it: this saves 20 of 900 instructions per message. */
static bool store(mq_engine *engine, mq_connection *connection, mq_topic *topic, const publish *publish)
{
    uint64_t waits_for;
    if (publish->qos == 2)
        return store_once(engine, connection, topic, publish);
    int result = mq_append(engine, topic, &publish->message, &waits_for);
    if (result != RB_OK)
        return append_failed(engine, connection, topic, publish, result);
    full_ring_clear(connection, topic);
    if (publish->qos == 1)
        acknowledge(engine, connection, publish, topic->ring, waits_for,
                    engine->matched == 0 ? MQ_REASON_NO_MATCHING_SUBSCRIBERS : MQ_REASON_SUCCESS);
    return true;
}

/* True for a delayed message of a tenant with a quota of them. */
static bool has_delay_quota(const mq_connection *connection, const mq_topic *topic, const publish *publish)
{
    const mq_tenant *tenant = connection->tenant;
    return topic->delayed_from > 0 && tenant != NULL &&
           (tenant->max[MQ_OWNED_DELAYED] | tenant->max[MQ_OWNED_DELAYED_BYTES]) != 0 &&
           !is_repeated(connection, publish);
}

/* Apply the quota of a tenant to a delayed message.  False: it may be stored.  True: it waits, was dropped or
 * ended the connection; `consumed` is the result of serve_publish().  It waits until the messages from before
 * the start are counted, unless their store refuses all messages. */
static bool held_by_quota(mq_engine *engine, mq_connection *connection, mq_topic *topic,
                          const publish *publish, bool *consumed)
{
    uint64_t bytes = mq_delayed_bytes(topic, &publish->message);
    if (!engine->delayed_counted && mq_refusal(engine, engine->rings[topic->ring]) == 0)
        *consumed = pause_for_room(engine, connection);
    else if (mq_owner_may_delay(engine, connection->session->owner, connection->tenant, bytes))
        return false;
    else if (publish->qos == 0 || connection->version == 5)
        *consumed = drop(engine, connection, publish, MQ_DROP_DELAYED_FULL, MQ_REASON_QUOTA_EXCEEDED);
    else
        *consumed = mq_refuse(engine, connection, MQ_CLOSE_FULL);
    return true;
}

/* ---- decision ---- */

/* True if this message would exceed the client's limit of open exchanges. */
static bool exceeds_receive_max(const mq_engine *engine, const mq_connection *connection,
                                const publish *publish)
{
    return publish->qos > 0 && connection->version == 5 &&
           connection->unfinished >= engine->limits.receive_max &&
           !mq_received_has(connection->session, publish->identifier) &&
           !mq_ack_waits(connection, publish->identifier);
}

/* Drop the message after Python has refused to create its topic. */
static bool drop_refused(mq_engine *engine, mq_connection *connection, const publish *publish)
{
    uint8_t reason = connection->refusal_reason;
    connection->refusal_reason = 0;
    mq_alias *alias = publish->alias == 0 ? NULL : mq_alias_find(connection, publish->alias);
    if (reason == MQ_REASON_TOPIC_NAME_INVALID && alias != NULL)
        mq_alias_refuse(alias, reason);
    return drop(engine, connection, publish,
                reason == MQ_REASON_TOPIC_NAME_INVALID ? MQ_DROP_TOPIC_NAME : MQ_DROP_TOPICS, reason);
}

/* Make a topic without Python, for a client whose permission needs no Python.  NULL: Python must decide, or
 * the message must be dropped (connection->refusal_reason). */
static mq_topic *make_topic(mq_engine *engine, mq_connection *connection, mq_alias *alias,
                            const publish *publish)
{
    bool exceeds_quota = false;
    const uint8_t *name = alias == NULL ? publish->name : alias->name;
    uint32_t length = alias == NULL ? publish->name_length : alias->length;
    if (!mq_decides_permission(engine, connection) ||
        mq_topic_new(engine, connection->session, name, length, &exceeds_quota) == NULL) {
        connection->refusal_reason = exceeds_quota ? MQ_REASON_QUOTA_EXCEEDED : 0;
        return NULL;
    }
    return alias == NULL ? mq_topic_named(engine, connection, name, length)
                         : mq_alias_topic(engine, connection, alias);
}

/* Find or make the topic, or queue an event for Python: with the name in the packet, or the name of its
 * alias. */
static mq_topic *find_or_request_topic(mq_engine *engine, mq_connection *connection, const mq_packet *packet,
                                       const publish *publish)
{
    mq_alias *alias = publish->alias == 0 ? NULL : mq_alias_find(connection, publish->alias);
    mq_topic *topic = alias == NULL ? mq_topic_named(engine, connection, publish->name, publish->name_length)
                                    : mq_alias_topic(engine, connection, alias);
    if (topic == NULL)
        topic = make_topic(engine, connection, alias, publish);
    if (topic == NULL && connection->refusal_reason == 0)
        mq_yield_to_python(engine, connection,
                           (mq_event){.kind = MQ_EVENT_TOPIC,
                                      .detail = publish->alias,
                                      .at = (uint32_t)(packet->body + 2 - packet->start),
                                      .length = mq_uint16_at(packet->body)},
                           0);
    return topic;
}

/* As find_or_request_topic(), with a shortcut: devices repeat topics. */
static inline mq_topic *cached_topic(mq_engine *engine, mq_connection *connection, const mq_packet *packet,
                                     const publish *publish)
{
    mq_topic *last = connection->last_topic;
    if (mq_is_last(engine, connection, last) && last->length == publish->name_length &&
        memcmp(last->name, publish->name, publish->name_length) == 0)
        return last;
    return find_or_request_topic(engine, connection, packet, publish);
}

/* Look up or set the alias of the packet.  0, or MQ_CLOSE_*. */
static uint32_t alias_learn(mq_connection *connection, const publish *publish)
{
    if (publish->name_length == 0)
        return mq_alias_find(connection, publish->alias) == NULL ? MQ_CLOSE_PROTOCOL : 0;
    return mq_alias_set(connection, publish->alias, publish->name, publish->name_length) ? 0
                                                                                         : MQ_CLOSE_MEMORY;
}

static bool is_refused(const mq_connection *connection, uint32_t alias)
{
    return alias != 0 && mq_alias_find(connection, alias)->reason != 0;
}

static inline bool serve_publish(mq_engine *engine, mq_connection *connection, const mq_packet *packet)
{
    publish publish;
    uint32_t cause = read_publish(engine, connection, packet, &publish);
    if (cause == 0 && publish.alias != 0)
        cause = alias_learn(connection, &publish);
    if (cause == 0 && exceeds_receive_max(engine, connection, &publish))
        cause = MQ_CLOSE_RECEIVE_MAXIMUM;
    if (cause == 0 && packet->first & 1 && engine->limits.retained_max == 0 && connection->version == 5)
        cause = MQ_CLOSE_RETAIN; /* 3.2.2-14 */
    if (cause == 0 && publish.qos > engine->limits.qos_max)
        cause = MQ_CLOSE_QOS; /* 3.2.2-11 */
    if (cause != 0)
        return mq_refuse(engine, connection, cause);
    if (connection->refusal_reason != 0)
        return drop_refused(engine, connection, &publish);
    if (is_refused(connection, publish.alias))
        return drop(engine, connection, &publish, MQ_DROP_TOPIC_NAME, MQ_REASON_TOPIC_NAME_INVALID);
    if (exceeds_payload(engine, connection, &publish))
        return drop(engine, connection, &publish, MQ_DROP_TOO_LARGE, MQ_REASON_QUOTA_EXCEEDED);
    mq_topic *topic = cached_topic(engine, connection, packet, &publish);
    if (topic == NULL)
        return connection->refusal_reason != 0 && drop_refused(engine, connection, &publish);
    if (!connection->last_allowed)
        return drop(engine, connection, &publish, MQ_DROP_DENIED, MQ_REASON_NOT_AUTHORIZED);
    if (publish.is_text && !rb_is_utf8(publish.message.payload, publish.message.payload_length))
        return drop(engine, connection, &publish, MQ_DROP_PAYLOAD_FORMAT, MQ_REASON_PAYLOAD_FORMAT_INVALID);
    if (refuses_retained(engine, connection, topic, &publish))
        return drop(engine, connection, &publish, MQ_DROP_RETAINED_FULL, MQ_REASON_QUOTA_EXCEEDED);
    bool consumed;
    if (has_delay_quota(connection, topic, &publish) &&
        held_by_quota(engine, connection, topic, &publish, &consumed))
        return consumed;
    return store(engine, connection, topic, &publish);
}

bool mq_on_publish(mq_engine *engine, mq_connection *connection, const mq_packet *packet)
{
    if (connection->rate_limited && !mq_rate_admits(engine, connection))
        return false;
    bool consumed = serve_publish(engine, connection, packet);
    if (connection->rate_limited && consumed)
        mq_rate_pay(connection);
    return consumed;
}
