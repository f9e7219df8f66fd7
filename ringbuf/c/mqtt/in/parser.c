/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser: splits the bytes of a connection into packets and passes each to the file for its type (packets.h),
 * or to Python.
 *
 * The parser stops at each packet other than PUBLISH, acknowledgements and PINGREQ, and at a topic that only
 * Python can make or authorize for this client.  It queues an event for Python, and continues at the next
 * poll.  Packets after a SUBSCRIBE are therefore handled after it.  Input that is not consumed stays in
 * connection->in, from the first byte of the packet at which the parser stopped.
 *
 * All input is in [at, end); each step checks the bounds before it reads.
 */
#include "mqtt/in/packets.h"
#include "mqtt/transport/proxy_layer.h"
#include "mqtt/transport/websocket_layer.h"

/* ---- events for Python ---- */

bool mq_yield_to_python(mq_engine *engine, mq_connection *connection, mq_event event, uint32_t skip)
{
    bool others_wait = engine->event_waiters[connection->version != 0].first != NULL;
    if ((others_wait && !engine->serves_waiter) || !mq_event_add(engine, connection, event)) {
        mq_event_wait(engine, connection);
        return false;
    }
    connection->event = engine->event_next - 1;
    connection->stop = MQ_STOP_PYTHON;
    connection->known = true;
    connection->answered = false;
    connection->handled_bytes = skip;
    return false;
}

bool mq_refuse(mq_engine *engine, mq_connection *connection, uint32_t cause)
{
    mq_connection_close(engine, connection, cause);
    return false;
}

/* ---- packets ---- */

/* Queued output for the client is sent first, so that PINGRESP means: all earlier output was sent, except
 * what waits for a sync.  This happens once per turn, to bound the work that a client can cause. */
static bool on_ping(mq_engine *engine, mq_connection *connection)
{
    static const uint8_t pong[2] = {MQ_PINGRESP << 4, 0};
    if (connection->session->needs_delivery && !connection->pinged)
        mq_fill_output(engine, connection);
    connection->pinged = true;
    return connection->stop != MQ_STOP_CLOSING && mq_write_ahead(engine, connection, pong, sizeof pong);
}

/* Serve a packet in C or pass it to Python.  True if it was consumed. */
static bool serve(mq_engine *engine, mq_connection *connection, const mq_packet *packet)
{
    uint32_t kind = packet->first >> 4;
    if (connection->version != 0) {
        if (kind == MQ_PUBLISH)
            return mq_on_publish(engine, connection, packet);
        if (kind >= MQ_PUBACK && kind <= MQ_PUBCOMP)
            return mq_on_acknowledgement(engine, connection, packet);
        if (kind == MQ_PINGREQ && packet->first == MQ_PINGREQ << 4 && packet->length == 0)
            return on_ping(engine, connection);
    }
    uint32_t length = (uint32_t)(packet->body - packet->start) + packet->length;
    return mq_yield_to_python(engine, connection, (mq_event){.kind = MQ_EVENT_PACKET, .length = length},
                              length);
}

/* Longest permitted packet of this type.  Before CONNECT is accepted, one limit applies to all types. */
static uint32_t longest(const mq_engine *engine, const mq_connection *connection, uint32_t kind)
{
    uint32_t any = connection->packet_max_bytes, control = engine->limits.control_max_bytes;
    return kind == MQ_PUBLISH || connection->version == 0 || any < control ? any : control;
}

/* Parse the packet at `at`, if it is complete.  False: more input is needed, or the connection was
 * refused. */
static bool packet_at(mq_engine *engine, mq_connection *connection, const uint8_t *at, const uint8_t *end,
                      mq_packet *out)
{
    if (connection->version == 0 && !connection->conversing && at[0] >> 4 != MQ_CONNECT) /* 3.1.0-1 */
        return mq_refuse(engine, connection, MQ_CLOSE_PROTOCOL);
    uint32_t length = 0;
    for (uint32_t i = 1; i <= 4; i++) {
        if (at + i == end)
            return false;
        length |= (uint32_t)(at[i] & 0x7f) << 7 * (i - 1);
        if (at[i] & 0x80)
            continue;
        if (connection->version == 5 && i > 1 && at[i] == 0) /* 1.5.5-1: the shortest form */
            break;
        if (1 + i + length > longest(engine, connection, at[0] >> 4))
            return mq_refuse(engine, connection, MQ_CLOSE_TOO_LARGE);
        *out = (mq_packet){.start = at, .body = at + 1 + i, .length = length, .first = at[0]};
        connection->need = 1 + i + length;
        return connection->need <= (size_t)(end - at);
    }
    return mq_refuse(engine, connection, MQ_CLOSE_MALFORMED);
}

/* Serve the complete packets in `length` bytes at `bytes`.  Returns the number of bytes consumed. */
static uint32_t parse(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length)
{
    const uint8_t *at = bytes, *end = bytes + length;
    mq_packet packet;
    if (connection->proxying) {
        mq_proxy_header(engine, connection, length);
        return 0;
    }
    if (connection->upgrading) {
        mq_websocket_request(engine, connection, bytes, length);
        return 0;
    }
    connection->pinged = false;
    engine->turn_work = 0;
    uint32_t work_max = engine->lags ? MQ_LAG_WORK : engine->turn_work_max;
    while (connection->stop == MQ_RUN && at < end) {
        if (engine->turn_work >= work_max) { /* other connections have their turn first */
            mq_connection_ready(engine, connection);
            break;
        }
        connection->need = 0;
        if (!packet_at(engine, connection, at, end, &packet))
            break;
        if (!serve(engine, connection, &packet))
            break;
        engine->counters.packets_in++;
        engine->turn_work++;
        at = packet.body + packet.length;
    }
    return (uint32_t)(at - bytes);
}

/* ---- input that is not consumed: input.c keeps it ---- */

static uint32_t carried(const mq_connection *connection)
{
    return connection->in.end - connection->in.start;
}

/* Process `count` bytes that were written to the place of mq_receive_buffer(). */
void mq_received(mq_engine *engine, mq_connection *connection, uint32_t count)
{
    uint32_t have = carried(connection);
    engine->counters.bytes_in += count;
    mq_input_promised(engine, connection, count);
    if (connection->version != 0)
        connection->last_seen_ms = engine->now_ms;
    if (have > MQ_CARRY_BYTES) {
        connection->in.end += count;
        mq_continue(engine, connection);
        return;
    }
    uint32_t used = parse(engine, connection, engine->receive, have + count);
    if (used > 0 || have == 0)
        mq_input_begins(engine, connection);
    mq_input_keep(engine, connection, engine->receive + used, have + count - used);
}

/* Continue with the remaining input, after the bytes that Python has processed. */
void mq_continue(mq_engine *engine, mq_connection *connection)
{
    mq_bytes *in = &connection->in;
    if (connection->stop != MQ_RUN)
        return;
    in->start += connection->handled_bytes;
    connection->handled_bytes = 0;
    if (carried(connection) > 0) {
        uint32_t used = parse(engine, connection, in->at + in->start, carried(connection));
        in->start += used;
        if (used > 0)
            mq_input_begins(engine, connection);
    }
    if (carried(connection) == 0)
        mq_input_free(engine, connection);
}
