/* SPDX-License-Identifier: Apache-2.0
 *
 * Output of the server's own packets: acknowledgements, PINGRESP, answers of Python, DISCONNECT.  deliver.c
 * adds the frames of messages, and the event loop sends all of it.
 */
#include "mqtt/in/packets.h"

#include <string.h>

bool mq_write_output(mq_engine *engine, mq_connection *connection, const void *bytes, uint32_t length)
{
    mq_bytes *out = &connection->out;
    if (!mq_bytes_reserve(engine, out, length)) {
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
        return false;
    }
    memcpy(out->at + out->end, bytes, length);
    out->end += length;
    engine->counters.packets_out++;
    if (out->end - out->start > MQ_OUT_MAX_BYTES && connection->stop == MQ_RUN)
        connection->stop = MQ_STOP_OUT;
    mq_connection_touch(engine, connection);
    return true;
}

/* Reason code of the DISCONNECT to an MQTT 5 client; 0: none is sent, or Python has sent it. */
static uint8_t reason_of(uint32_t cause)
{
    static const uint8_t reasons[MQ_CLOSE_CAUSES] = {
        [MQ_CLOSE_MALFORMED] = MQ_REASON_MALFORMED_PACKET,
        [MQ_CLOSE_PROTOCOL] = MQ_REASON_PROTOCOL_ERROR,
        [MQ_CLOSE_TOO_LARGE] = MQ_REASON_PACKET_TOO_LARGE,
        [MQ_CLOSE_KEEP_ALIVE] = MQ_REASON_KEEP_ALIVE_TIMEOUT,
        [MQ_CLOSE_FULL] = MQ_REASON_QUOTA_EXCEEDED,
        [MQ_CLOSE_MEMORY] = MQ_REASON_SERVER_BUSY,
        [MQ_CLOSE_NOT_AUTHORIZED_YET] = MQ_REASON_UNSPECIFIED_ERROR,
        [MQ_CLOSE_ALIAS] = MQ_REASON_TOPIC_ALIAS_INVALID,
        [MQ_CLOSE_RECEIVE_MAXIMUM] = MQ_REASON_RECEIVE_MAXIMUM_EXCEEDED,
        [MQ_CLOSE_RETAIN] = MQ_REASON_RETAIN_NOT_SUPPORTED,
        [MQ_CLOSE_QOS] = MQ_REASON_QOS_NOT_SUPPORTED,
        [MQ_CLOSE_UNFINISHED] = MQ_REASON_QUOTA_EXCEEDED,
    };
    return reasons[cause];
}

void mq_disconnect_packet(mq_engine *engine, mq_connection *connection, uint32_t cause)
{
    uint8_t bytes[3] = {MQ_DISCONNECT << 4, 1, reason_of(cause)};
    mq_bytes *out = &connection->out;
    if (connection->version != 5 || bytes[2] == 0 || !mq_bytes_reserve(engine, out, sizeof bytes))
        return;
    memcpy(out->at + out->end, bytes, sizeof bytes);
    out->end += (uint32_t)sizeof bytes;
}
