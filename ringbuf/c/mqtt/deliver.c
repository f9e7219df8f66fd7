/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions -> PUBLISH frames.  A frame is built from ring memory right into the connection's output: the one
 * copy a delivery makes before the socket.
 *
 * What a position names is looked at three ways:
 *   own ring    written by this thread, so nothing changes while it is copied; gone when the ring has been
 * given up that far (overrun) foreign     another process writes it, and may be hostile: the header is copied
 * before it is used, lengths are checked against the ring, and after copying it must still be held, and its
 * key must still be the topic it was routed by; else the frame is taken back blob        a copy in our own
 * memory
 */
#include "mqtt.h"

#include <string.h>

#define FRAME_HEAD_MAX 5u /* first byte and the longest remaining length */

typedef enum built {
    BUILT,
    NO_ROOM, /* what is in the output should be sent first */
    NO_MEMORY,
    OVERRUN, /* the record is gone */
    FORGED   /* a foreign record is not what it was when it was routed */
} built;

typedef struct message {
    const uint8_t *topic, *payload;
    uint32_t topic_length, payload_length;
    const mq_source *foreign; /* whose record must be looked at again after copying; NULL: not foreign */
} message;

static built look_own(const rb_record *record, const uint8_t *bytes, message *out)
{
    out->topic = bytes + RB_RECORD_HEADER_BYTES;
    out->topic_length = record->key_length;
    uint32_t payload = rb_payload_position(record->key_length, 0);
    if (record->flags & RB_FLAG_PROPERTIES) { /* written in this process: lengths hold */
        rb_parts parts;
        if (rb_record_parts(record, bytes, record->length, &parts) != RB_OK)
            return FORGED;
        payload = parts.payload_position;
    }
    out->payload = bytes + payload;
    out->payload_length = record->length - payload;
    out->foreign = NULL;
    return BUILT;
}

static built look_foreign(const mq_source *source, uint64_t position, message *out)
{
    const rb_reader *reader = source->reader;
    const uint8_t *bytes = reader->data + (position & reader->mask);
    rb_record header;
    rb_parts parts;
    memcpy(&header, bytes, sizeof header);
    if (!rb_reader_holds(reader, position))
        return OVERRUN;
    if (header.length < RB_RECORD_HEADER_BYTES ||
        rb_record_parts(&header, bytes, reader->capacity - (position & reader->mask), &parts) != RB_OK)
        return FORGED;
    *out = (message){.topic = bytes + RB_RECORD_HEADER_BYTES,
                     .topic_length = header.key_length,
                     .payload = bytes + parts.payload_position,
                     .payload_length = parts.payload_length,
                     .foreign = source};
    return BUILT;
}

static built look(const mq_engine *engine, const mq_entry *entry, message *out)
{
    uint32_t index = mq_where_source(entry->where);
    if (entry->where == MQ_NOWHERE)
        return OVERRUN;
    if (index == 0) {
        const rb_record *record = &mq_where_blob(entry->where)->record;
        return look_own(record, (const uint8_t *)record, out);
    }
    const mq_source *source = engine->sources[index];
    uint64_t position = mq_where_position(entry->where);
    if (source->kind == MQ_SOURCE_FOREIGN)
        return look_foreign(source, position, out);
    if (!rb_writer_keeps(source->writer, position))
        return OVERRUN;
    const rb_record *record = rb_writer_record(source->writer, position);
    return look_own(record, (const uint8_t *)record, out);
}

/* After copying: is `topic`, in our own memory by now, still the one the record was routed by? */
static built look_again(const mq_engine *engine, const mq_entry *entry, const message *message,
                        const uint8_t *topic)
{
    const mq_topic *routed = mq_slab_at(&engine->topics, entry->topic);
    if (!rb_reader_holds(message->foreign->reader, mq_where_position(entry->where)))
        return OVERRUN;
    if (!(routed->item.generation & 1) || routed->length != message->topic_length ||
        memcmp(routed->name, topic, routed->length) != 0)
        return FORGED;
    return BUILT;
}

static uint8_t *put_remaining_length(uint8_t *to, uint32_t length)
{
    while (length > 0x7f) {
        *to++ = (uint8_t)(length | 0x80);
        length >>= 7;
    }
    *to++ = (uint8_t)length;
    return to;
}

static uint8_t *put_uint16(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)(value >> 8);
    to[1] = (uint8_t)value;
    return to + 2;
}

/* Room in the output for the frame of a message, or NO_ROOM when what is there should be sent first. */
static built frame_room(mq_engine *engine, mq_connection *connection, uint32_t length)
{
    mq_bytes *out = &connection->out;
    uint32_t waiting = out->end - out->start;
    if (waiting > 0 && waiting + length > connection->out_chunk)
        return NO_ROOM;
    return mq_bytes_reserve(engine, out, length) ? BUILT : NO_MEMORY;
}

static built put_frame(mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                       const message *message, uint16_t identifier, bool again)
{
    mq_bytes *out = &connection->out;
    uint32_t qos = entry->tag & MQ_TAG_QOS;
    uint8_t *to = out->at + out->end;
    *to++ = (uint8_t)(0x30 | (again ? 8 : 0) | qos << 1 | (entry->tag & MQ_TAG_RETAIN ? 1 : 0));
    to = put_remaining_length(to, 2 + message->topic_length + (qos ? 2 : 0) + message->payload_length);
    to = put_uint16(to, message->topic_length);
    memcpy(to, message->topic, message->topic_length);
    built still = message->foreign == NULL ? BUILT : look_again(engine, entry, message, to);
    if (still != BUILT)
        return still;
    to += message->topic_length;
    if (qos)
        to = put_uint16(to, identifier);
    memcpy(to, message->payload, message->payload_length);
    to += message->payload_length;
    if (message->foreign != NULL &&
        !rb_reader_holds(message->foreign->reader, mq_where_position(entry->where)))
        return OVERRUN;
    out->end = (uint32_t)(to - out->at);
    engine->counters.delivered++;
    connection->session->delivered++;
    return BUILT;
}

/* Looks, and makes room. */
static built prepare(mq_engine *engine, mq_connection *connection, const mq_entry *entry, message *message)
{
    built found = look(engine, entry, message);
    if (found != BUILT)
        return found;
    return frame_room(engine, connection,
                      FRAME_HEAD_MAX + 4 + message->topic_length + message->payload_length);
}

/* Memory is counted when it cannot be had, as is what is no longer there. */
static uint32_t drop_cause(built result)
{
    return result == NO_MEMORY ? MQ_DROP_MEMORY : result == FORGED ? MQ_DROP_FORGED : MQ_DROP_OVERRUN;
}

/* The front of the queue, with what it needs of the window. */
static built deliver_next(mq_engine *engine, mq_connection *connection, mq_session *session)
{
    message message;
    mq_entry entry = mq_queue_front(session), *sent = NULL;
    uint16_t identifier = 0;
    built result = prepare(engine, connection, &entry, &message);
    if (result == NO_ROOM || result == NO_MEMORY)
        return result;
    mq_queue_pop(engine, session);
    if (result == BUILT && entry.tag & MQ_TAG_QOS && (sent = mq_sent_add(session, &identifier)) == NULL)
        result = NO_MEMORY;
    if (sent != NULL)
        *sent = entry; /* the reference goes along */
    if (result == BUILT)
        result = put_frame(engine, connection, &entry, &message, identifier, false);
    if (result != BUILT) {
        engine->counters.dropped[drop_cause(result)]++;
        session->dropped[drop_cause(result)]++;
    }
    if (sent == NULL)
        mq_entry_done(engine, &entry);
    else if (result != BUILT)
        mq_sent_done(engine, session, sent);
    return result;
}

/* What was in flight when the last connection ended, in its order: PUBLISH with DUP, or PUBREL. */
static built deliver_again(mq_engine *engine, mq_connection *connection, mq_session *session)
{
    message message;
    mq_entry *entry = &session->sent[session->resend & (session->sent_room - 1)];
    uint16_t identifier = (uint16_t)(session->resend % 65535 + 1);
    built result = BUILT;
    if (entry->tag & MQ_TAG_RELEASED) {
        uint8_t pubrel[4] = {0x62, 2, (uint8_t)(identifier >> 8), (uint8_t)identifier};
        if ((result = frame_room(engine, connection, sizeof pubrel)) != BUILT)
            return result;
        memcpy(connection->out.at + connection->out.end, pubrel, sizeof pubrel);
        connection->out.end += sizeof pubrel;
    } else if (entry->where != MQ_NOWHERE) {
        result = prepare(engine, connection, entry, &message);
        if (result == BUILT)
            result = put_frame(engine, connection, entry, &message, identifier, true);
        if (result == NO_ROOM || result == NO_MEMORY)
            return result;
        engine->counters.redelivered += result == BUILT;
    }
    session->resend++;
    if (result != BUILT) {
        engine->counters.dropped[drop_cause(result)]++;
        session->dropped[drop_cause(result)]++;
        mq_sent_done(engine, session, entry);
    }
    return result;
}

/* Whether the window lets the front of the queue go.  Its span is bounded too: a client that never
 * acknowledges one message must not make us keep the gaps of all after it. */
static bool window_open(const mq_session *session)
{
    uint64_t span = session->sent_next - session->sent_first, span_max = 4ull * session->window;
    return !(mq_queue_front(session).tag & MQ_TAG_QOS) ||
           (session->in_flight < session->window && span < (span_max < 65535 ? span_max : 65535));
}

bool mq_fill(mq_engine *engine, mq_connection *connection)
{
    mq_session *session = connection->session;
    if (session == NULL)
        return false;
    built result = BUILT;
    while (session->resend < session->sent_next && result != NO_ROOM && result != NO_MEMORY)
        result = deliver_again(engine, connection, session);
    while (session->queue_count > 0 && result != NO_ROOM && result != NO_MEMORY) {
        if (!window_open(session))
            return false; /* still dirty: an acknowledgement will touch the connection */
        result = deliver_next(engine, connection, session);
    }
    if (result == NO_MEMORY)
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
    if (result == NO_ROOM || result == NO_MEMORY)
        return result == NO_ROOM;
    session->dirty = false;
    return false;
}
