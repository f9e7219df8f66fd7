/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of a connection -> packets -> records and acknowledgements.
 *
 * The parser stops at whatever is not PUBLISH, an acknowledgement or PINGREQ, and at a topic that is unknown
 * or that this client was not judged for.  It leaves exactly that to Python, as an event, and goes on at the
 * next poll: what a client sent after a SUBSCRIBE is handled after it.  What it cannot finish stays in
 * connection->in, from the first byte of the packet it stopped at.
 *
 * Everything that is read lies in [at, end); each step checks before it reads.
 */
#include "mqtt.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONNECT = 1,
    PUBLISH = 3,
    PUBACK,
    PUBREC,
    PUBREL,
    PUBCOMP,
    PINGREQ = 12
};

typedef struct packet {
    const uint8_t *start, *body;
    uint32_t length; /* of the body */
    uint8_t first;
} packet;

/* ---- output ---- */

bool mq_put(mq_engine *engine, mq_connection *connection, const void *bytes, uint32_t length)
{
    mq_bytes *out = &connection->out;
    if (!mq_bytes_reserve(engine, out, length)) {
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
        return false;
    }
    memcpy(out->at + out->end, bytes, length);
    out->end += length;
    if (out->end - out->start > MQ_OUT_MAX_BYTES && connection->stop == MQ_RUN)
        connection->stop = MQ_STOP_OUT;
    mq_connection_touch(engine, connection);
    return true;
}

static void put_ack(mq_engine *engine, mq_connection *connection, uint8_t first, uint16_t identifier)
{
    uint8_t bytes[4] = {first, 2, (uint8_t)(identifier >> 8), (uint8_t)identifier};
    mq_put(engine, connection, bytes, sizeof bytes);
}

/* ---- acknowledgements that wait for the disk, in the order of their PUBLISHes ---- */

static bool held_grow(mq_connection *connection)
{
    uint32_t room = connection->held_room ? connection->held_room * 2 : 16;
    mq_ack *held = malloc(room * sizeof *held);
    if (held == NULL)
        return false;
    for (uint32_t i = 0; i < connection->held_count; i++)
        held[i] = connection->held[(connection->held_first + i) & (connection->held_room - 1)];
    free(connection->held);
    connection->held = held;
    connection->held_first = 0;
    connection->held_room = room;
    return true;
}

static void hold(mq_engine *engine, mq_connection *connection, mq_ack ack)
{
    if (connection->held_count == connection->held_room && !held_grow(connection)) {
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
        return;
    }
    connection->held[(connection->held_first + connection->held_count++) & (connection->held_room - 1)] = ack;
    engine->counters.held++;
    if (connection->held_count >= engine->limits.receive_max && connection->stop == MQ_RUN)
        connection->stop = MQ_STOP_ACKS;
    if (!connection->is_holding) {
        connection->is_holding = true;
        mq_list_add(&engine->holding, mq_handle(&connection->item));
    }
}

static bool is_durable(const mq_engine *engine, const mq_ack *ack)
{
    const mq_source *source = engine->sources[ack->source];
    if (ack->durable == 0 || source->kind != MQ_SOURCE_OWN)
        return true;
    /* pairs with the release in rb_durable_store() */
    return atomic_load_explicit(&source->writer->header->durable, memory_order_acquire) >= ack->durable;
}

static void release(mq_engine *engine, mq_connection *connection)
{
    connection->is_holding = false;
    while (connection->held_count > 0) {
        mq_ack ack = connection->held[connection->held_first];
        if (!is_durable(engine, &ack))
            break;
        connection->held_first = (connection->held_first + 1) & (connection->held_room - 1);
        connection->held_count--;
        engine->counters.held--;
        put_ack(engine, connection, ack.first, ack.identifier);
    }
    if (connection->held_count > 0) {
        connection->is_holding = true;
        mq_list_add(&engine->holding, mq_handle(&connection->item));
    }
    if (connection->stop == MQ_STOP_ACKS && connection->held_count < engine->limits.receive_max) {
        connection->stop = MQ_RUN;
        connection->last_seen_ms = engine->now_ms;
        mq_connection_ready(engine, connection);
    }
}

/* Sends the acknowledgements whose rings have been synced that far: group commit. */
void mq_held_release(mq_engine *engine)
{
    mq_list walked = engine->holding;
    engine->holding = engine->passing;
    for (uint32_t i = 0; i < walked.count; i++) {
        mq_connection *connection = mq_slab_get(&engine->connections, walked.at[i]);
        if (connection != NULL && connection->stop != MQ_STOP_CLOSING)
            release(engine, connection);
    }
    walked.count = 0;
    engine->passing = walked;
}

/* PUBACK or PUBREC for what ends at `end` of its ring: at once, or when it is durable, and never before an
 * earlier one of this connection.  `source` 0: nothing was stored. */
static void acknowledge(mq_engine *engine, mq_connection *connection, uint32_t qos, uint16_t identifier,
                        uint16_t source, uint64_t end)
{
    uint8_t first = qos == 1 ? PUBACK << 4 : PUBREC << 4;
    bool waits = source != 0 && engine->sources[source]->durable;
    if (waits || connection->held_count > 0)
        hold(
            engine, connection,
            (mq_ack){.durable = waits ? end : 0, .source = source, .identifier = identifier, .first = first});
    else
        put_ack(engine, connection, first, identifier);
}

/* ---- what Python decides ---- */

/* False, always: the packet was not consumed. */
static bool leave(mq_engine *engine, mq_connection *connection, uint32_t kind, uint32_t at, uint32_t length,
                  uint32_t skip)
{
    if (!mq_event_add(engine, kind, 0, mq_handle(&connection->item), at, length)) {
        mq_connection_ready(engine, connection);
        return false;
    }
    connection->stop = MQ_STOP_PYTHON;
    connection->known = true;
    connection->judged = false;
    connection->skip = skip;
    return false;
}

static bool refuse(mq_engine *engine, mq_connection *connection, uint32_t cause)
{
    mq_connection_close(engine, connection, cause);
    return false;
}

/* ---- topics that were judged for this connection ---- */

static mq_verdict *verdict_place(const mq_connection *connection, uint32_t topic)
{
    uint32_t mask = connection->verdict_room - 1, at = topic * 0x9e3779b1u & mask;
    while (connection->verdicts[at].topic != 0 && connection->verdicts[at].topic != topic + 1)
        at = (at + 1) & mask;
    return &connection->verdicts[at];
}

/* New rules: nobody is trusted any more. */
static void verdicts_forget(mq_engine *engine, mq_connection *connection)
{
    connection->trusted &= connection->policy == engine->policy;
    free(connection->verdicts);
    connection->verdicts = NULL;
    connection->verdict_count = connection->verdict_room = 0;
    connection->policy = engine->policy;
    connection->last_topic = NULL;
}

static bool verdicts_grow(mq_engine *engine, mq_connection *connection)
{
    mq_verdict *old = connection->verdicts;
    uint32_t old_room = connection->verdict_room;
    if (old_room == MQ_VERDICTS_MAX) {
        verdicts_forget(engine, connection);
        old = NULL;
        old_room = 0;
    }
    uint32_t room = old_room ? old_room * 2 : 4;
    mq_verdict *verdicts = calloc(room, sizeof *verdicts);
    if (verdicts == NULL)
        return false;
    connection->verdicts = verdicts;
    connection->verdict_room = room;
    for (uint32_t i = 0; i < old_room; i++)
        if (old[i].topic != 0)
            *verdict_place(connection, old[i].topic - 1) = old[i];
    free(old);
    return true;
}

/* Out of memory: it is only not remembered. */
void mq_judge(mq_engine *engine, mq_connection *connection, const mq_topic *topic, bool allowed)
{
    connection->judged = true;
    if (connection->policy != engine->policy)
        verdicts_forget(engine, connection);
    connection->last_topic = mq_slab_at(&engine->topics, topic->item.index);
    connection->last_generation = topic->item.generation;
    connection->last_allowed = allowed && !topic->reserved;
    if (connection->trusted)
        return;
    if (connection->verdict_count >= connection->verdict_room / 4 * 3 && !verdicts_grow(engine, connection))
        return;
    mq_verdict *place = verdict_place(connection, topic->item.index);
    connection->verdict_count += place->topic == 0;
    *place = (mq_verdict){.topic = topic->item.index + 1,
                          .generation = (topic->item.generation & ~1u) | allowed};
}

/* The topic that `name` is for this connection, with connection->last_allowed; NULL: Python must say. */
static mq_topic *topic_of(mq_engine *engine, mq_connection *connection, const uint8_t *name, uint32_t length)
{
    mq_topic *topic = connection->last_topic;
    if (topic != NULL && topic->item.generation == connection->last_generation && topic->length == length &&
        connection->policy == engine->policy && memcmp(topic->name, name, length) == 0)
        return topic;
    if ((topic = mq_topic_find(engine, name, length)) == NULL)
        return NULL;
    if (connection->policy != engine->policy)
        verdicts_forget(engine, connection);
    bool allowed = connection->trusted;
    if (!allowed) {
        const mq_verdict *verdict = connection->verdict_room ? verdict_place(connection, topic->item.index)
                                                             : NULL;
        if (verdict == NULL || verdict->topic == 0 || (verdict->generation | 1) != topic->item.generation)
            return NULL;
        allowed = verdict->generation & 1;
    }
    connection->last_topic = topic;
    connection->last_generation = topic->item.generation;
    connection->last_allowed = allowed && !topic->reserved;
    return topic;
}

/* ---- packets ---- */

static uint32_t uint16_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

static bool pause_for_room(mq_engine *engine, mq_connection *connection)
{
    connection->stop = MQ_STOP_FULL;
    engine->counters.full_waits++;
    mq_list_add(&engine->blocked, mq_handle(&connection->item));
    return false;
}

/* A message that will not be stored is acknowledged all the same: MQTT 3.1.1 has no way to refuse one
 * [MQTT-3.3.5-2]. */
static bool drop(mq_engine *engine, mq_connection *connection, uint32_t cause, uint32_t qos,
                 uint16_t identifier)
{
    engine->counters.dropped[cause]++;
    if (qos > 0)
        acknowledge(engine, connection, qos, identifier, 0, 0);
    return true;
}

/* The ring would not have it.  A QoS 0 message may be lost, and is counted.  A higher one may not, and
 * MQTT 3.1.1 has no word for "later": a transient error closes the connection [MQTT-4.8.0-2], and the client
 * sends again. */
static bool append_failed(mq_engine *engine, mq_connection *connection, int result, uint32_t qos)
{
    if (result == RB_FULL || result == RB_PENDING)
        return pause_for_room(engine, connection);
    uint32_t cause = result == RB_TOO_LARGE ? MQ_DROP_TOO_LARGE : MQ_DROP_FULL;
    if (qos > 0)
        return refuse(engine, connection, cause == MQ_DROP_FULL ? MQ_CLOSE_FULL : MQ_CLOSE_TOO_LARGE);
    engine->counters.dropped[cause]++;
    return true;
}

/* QoS 2: what has been received is only acknowledged again.  Not before it can be durable: its end is not
 * known any more, the end of the ring is not before it. */
static bool store_once(mq_engine *engine, mq_connection *connection, mq_topic *topic, const packet *packet,
                       const uint8_t *payload, uint16_t identifier)
{
    bool again;
    uint64_t end = 0;
    mq_message message = {.payload = payload,
                          .payload_length = (uint32_t)(packet->body + packet->length - payload),
                          .flags = (packet->first & 1 ? RB_FLAG_RETAIN : 0) | 2,
                          .publisher = connection->session};
    if (!mq_received_mark(connection->session, identifier, &again))
        return refuse(engine, connection, MQ_CLOSE_MEMORY);
    if (again) {
        end = engine->sources[topic->source]->writer->tail;
    } else {
        int result = mq_append(engine, topic, &message, &end);
        if (result != RB_OK) {
            mq_received_free(connection->session, identifier);
            return append_failed(engine, connection, result, 2);
        }
    }
    acknowledge(engine, connection, 2, identifier, topic->source, end);
    return true;
}

static bool on_publish(mq_engine *engine, mq_connection *connection, const packet *packet)
{
    const uint8_t *body = packet->body;
    uint32_t qos = packet->first >> 1 & 3, name_length = packet->length < 2 ? 0 : uint16_at(body);
    uint32_t head = 2 + name_length + (qos ? 2 : 0);
    /* 3.3.1-2: no DUP at QoS 0; 3.3.1-4: no QoS 3; 4.7.3-1: no empty topic */
    if (head > packet->length || qos == 3 || name_length == 0 || (qos == 0 && packet->first & 8))
        return refuse(engine, connection, MQ_CLOSE_MALFORMED);
    uint16_t identifier = qos ? (uint16_t)uint16_at(body + 2 + name_length) : 0;
    if (qos && identifier == 0) /* 2.3.1-1 */
        return refuse(engine, connection, MQ_CLOSE_MALFORMED);
    if (connection->skip_packet) {
        connection->skip_packet = false;
        return drop(engine, connection, MQ_DROP_TOPICS, qos, identifier);
    }
    mq_topic *topic = topic_of(engine, connection, body + 2, name_length);
    if (topic == NULL)
        return leave(engine, connection, MQ_EVENT_TOPIC, (uint32_t)(body + 2 - packet->start), name_length,
                     0);
    if (!connection->last_allowed)
        return drop(engine, connection, MQ_DROP_DENIED, qos, identifier);
    if (qos == 2)
        return store_once(engine, connection, topic, packet, body + head, identifier);
    uint64_t end;
    mq_message message = {.payload = body + head,
                          .payload_length = packet->length - head,
                          .flags = (packet->first & 1 ? RB_FLAG_RETAIN : 0) | qos,
                          .publisher = connection->session};
    int result = mq_append(engine, topic, &message, &end);
    if (result != RB_OK)
        return append_failed(engine, connection, result, qos);
    if (qos == 1)
        acknowledge(engine, connection, 1, identifier, topic->source, end);
    return true;
}

/* Acknowledgements of what was delivered, and PUBREL.  One for an identifier that is not in flight changes
 * nothing, but is answered, so that a client that remembers more than we do comes to an end. */
static bool on_acknowledgement(mq_engine *engine, mq_connection *connection, const packet *packet)
{
    uint32_t kind = packet->first >> 4;
    if (packet->length != 2 || (packet->first & 15) != (kind == PUBREL ? 2 : 0))
        return refuse(engine, connection, MQ_CLOSE_MALFORMED);
    uint16_t identifier = (uint16_t)uint16_at(packet->body);
    if (identifier == 0)
        return refuse(engine, connection, MQ_CLOSE_MALFORMED);
    mq_session *session = connection->session;
    mq_entry *entry = kind == PUBREL ? NULL : mq_sent_find(session, identifier);
    uint32_t qos = entry == NULL ? 0 : entry->tag & MQ_TAG_QOS;
    bool released = entry != NULL && entry->tag & MQ_TAG_RELEASED;
    if ((kind == PUBACK && qos == 1) || (kind == PUBCOMP && released)) {
        mq_sent_done(engine, session, entry);
        mq_connection_touch(engine, connection);
    } else if (kind == PUBREC) {
        if (qos == 2 && !released) {
            mq_entry_done(engine, entry);
            *entry = (mq_entry){.where = MQ_NOWHERE, .tag = MQ_TAG_RELEASED | 2};
        }
        put_ack(engine, connection, PUBREL << 4 | 2, identifier);
    } else if (kind == PUBREL) {
        mq_received_free(session, identifier);
        put_ack(engine, connection, PUBCOMP << 4, identifier);
    }
    return connection->stop != MQ_STOP_CLOSING;
}

/* True: the packet was consumed. */
static bool serve(mq_engine *engine, mq_connection *connection, const packet *packet)
{
    static const uint8_t pong[2] = {0xd0, 0};
    uint32_t kind = packet->first >> 4;
    if (connection->version != 0) {
        if (kind == PUBLISH)
            return on_publish(engine, connection, packet);
        if (kind >= PUBACK && kind <= PUBCOMP)
            return on_acknowledgement(engine, connection, packet);
        if (kind == PINGREQ && packet->first == PINGREQ << 4 && packet->length == 0)
            return mq_put(engine, connection, pong, sizeof pong);
    }
    uint32_t length = (uint32_t)(packet->body - packet->start) + packet->length;
    return leave(engine, connection, MQ_EVENT_PACKET, 0, length, length);
}

/* The packet at `at`, if all of it is there.  False: more is needed, or the connection was refused. */
static bool packet_at(mq_engine *engine, mq_connection *connection, const uint8_t *at, const uint8_t *end,
                      packet *out)
{
    if (connection->version == 0 && at[0] >> 4 != CONNECT) /* 3.1.0-1 */
        return refuse(engine, connection, MQ_CLOSE_PROTOCOL);
    uint32_t length = 0;
    for (uint32_t i = 1; i <= 4; i++) {
        if (at + i == end)
            return false;
        length |= (uint32_t)(at[i] & 0x7f) << 7 * (i - 1);
        if (at[i] & 0x80)
            continue;
        if (1 + i + length > connection->packet_max_bytes)
            return refuse(engine, connection, MQ_CLOSE_TOO_LARGE);
        *out = (packet){.start = at, .body = at + 1 + i, .length = length, .first = at[0]};
        connection->need = 1 + i + length;
        return connection->need <= (size_t)(end - at);
    }
    return refuse(engine, connection, MQ_CLOSE_MALFORMED);
}

/* Serves what is whole in `length` bytes at `bytes`; how many were consumed. */
static uint32_t parse(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length)
{
    const uint8_t *at = bytes, *end = bytes + length;
    packet packet;
    while (connection->stop == MQ_RUN && at < end) {
        connection->need = 0;
        if (!packet_at(engine, connection, at, end, &packet))
            break;
        if (!serve(engine, connection, &packet))
            break;
        engine->counters.packets_in++;
        at = packet.body + packet.length;
    }
    return (uint32_t)(at - bytes);
}

/* ---- what is not consumed ---- */

/* Keeps `length` bytes that lie outside connection->in. */
static void keep(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length)
{
    mq_bytes *in = &connection->in;
    if (length == 0 || connection->stop == MQ_STOP_CLOSING) {
        mq_bytes_free(engine, in);
        return;
    }
    if (in->room < length || in->room / 4 > length) {
        mq_bytes_free(engine, in);
        in->room = (length + 63) & ~63u;
        if ((in->at = malloc(in->room)) == NULL) {
            in->room = 0;
            mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
            return;
        }
    }
    memcpy(in->at, bytes, length);
    in->start = 0;
    in->end = length;
}

static uint32_t carried(const mq_connection *connection)
{
    return connection->in.end - connection->in.start;
}

/* Where to put what is received next: the shared buffer, behind what was left over; or, for a packet that is
 * longer than is worth carrying along, the connection's own, which grows with what really comes.  NULL: no
 * memory. */
uint8_t *mq_receive_room(mq_engine *engine, mq_connection *connection, uint32_t *room)
{
    mq_bytes *in = &connection->in;
    uint32_t have = carried(connection);
    if (have <= MQ_CARRY_BYTES) {
        if (have > 0)
            memcpy(engine->receive, in->at + in->start, have);
        *room = MQ_READ_BYTES;
        return engine->receive + have;
    }
    uint32_t wanted = connection->need > have ? connection->need - have : 1;
    *room = wanted < MQ_READ_BYTES ? wanted : MQ_READ_BYTES;
    return mq_bytes_reserve(engine, in, *room) ? in->at + in->end : NULL;
}

/* `count` bytes have been put where mq_receive_room() said. */
void mq_received(mq_engine *engine, mq_connection *connection, uint32_t count)
{
    uint32_t have = carried(connection);
    engine->counters.bytes_in += count;
    if (connection->version != 0)
        connection->last_seen_ms = engine->now_ms;
    if (have > MQ_CARRY_BYTES) {
        connection->in.end += count;
        mq_continue(engine, connection);
        return;
    }
    uint32_t used = parse(engine, connection, engine->receive, have + count);
    keep(engine, connection, engine->receive + used, have + count - used);
}

/* Goes on with what was left over, behind what Python has dealt with. */
void mq_continue(mq_engine *engine, mq_connection *connection)
{
    mq_bytes *in = &connection->in;
    if (connection->stop != MQ_RUN)
        return;
    in->start += connection->skip;
    connection->skip = 0;
    if (carried(connection) > 0)
        in->start += parse(engine, connection, in->at + in->start, carried(connection));
    if (carried(connection) == 0)
        mq_bytes_free(engine, in);
}
