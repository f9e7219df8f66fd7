/* SPDX-License-Identifier: Apache-2.0
 *
 * One PUBLISH frame, built from ring memory directly in a connection's output: the only copy of a delivery
 * before the socket.
 *
 * The record at a position is read in one of three ways:
 *   own ring  written by this thread, so the record cannot change during the copy; it is lost when the ring
 *             has released that position for overwriting (overrun)
 *   producer  written by another process that may be hostile: header and properties are copied before use,
 *             and lengths are checked against the ring.  After the copy the record must still be valid, and
 *             its key must still be the topic it was routed by; otherwise the frame is removed
 *   blob      a copy in this process's memory
 *
 * Properties of an MQTT 5 frame: the remaining expiry interval, a topic alias, subscription identifiers, and
 * then those of the message.  A subscriber with MQTT 3.1.1 gets none of them.
 */
#include "mqtt/out/frame.h"

#include "base/clock.h"
#include "mqtt/in/packets.h"

#include <stdlib.h>

#define PACKET_MAX_BYTES 268435460u
#define EXPIRY_BYTES 5u
#define ALIAS_BYTES 3u
#define NS_PER_S 1000000000u

enum {
    MESSAGE_EXPIRY = 0x02,
    TOPIC_ALIAS = 0x23
};

/* ---- the message ---- */

static uint32_t uint32_at(const uint8_t *at)
{
    return mq_uint16_at(at) << 16 | mq_uint16_at(at + 2);
}

/* Take `properties` in the form of a record, in memory that no other process writes.  An interval of 0 lasts
 * until the end of its second. */
static mq_built take_properties(uint64_t age_ns, bool may_be_late, const uint8_t *properties, uint32_t length,
                                uint32_t flags, mq_frame *out)
{
    while (length > 0 && *properties & 0x80)
        properties++, length--;
    properties++, length--;
    if (flags & RB_FLAG_EXPIRY && length >= EXPIRY_BYTES && *properties == MESSAGE_EXPIRY) {
        uint64_t interval = uint32_at(properties + 1);
        if (age_ns >= (interval ? interval : 1) * NS_PER_S && !may_be_late)
            return MQ_EXPIRED;
        out->expires = true;
        out->remaining_s = age_ns / NS_PER_S < interval ? (uint32_t)(interval - age_ns / NS_PER_S) : 0;
        properties += EXPIRY_BYTES;
        length -= EXPIRY_BYTES;
    }
    out->properties = properties;
    out->properties_length = length;
    return MQ_BUILT;
}

static mq_built plan_in_memory(const mq_engine *engine, const rb_record *record, bool again, mq_frame *out)
{
    const uint8_t *bytes = (const uint8_t *)record;
    uint32_t payload = rb_payload_position(record->key_length, 0);
    out->timestamp_ns = record->timestamp_ns;
    out->topic = bytes + RB_RECORD_HEADER_BYTES;
    out->topic_length = record->key_length;
    out->producer = NULL;
    if (record->flags & RB_FLAG_PROPERTIES) { /* written by this process: lengths are valid */
        rb_parts parts;
        if (rb_record_parts(record, bytes, record->length, &parts) != RB_OK)
            return MQ_FORGED;
        payload = parts.payload_position;
        uint64_t age_ns = mq_age_ns(engine, record->timestamp_ns);
        mq_built result = take_properties(age_ns, again, bytes + parts.properties_position,
                                          parts.properties_length, record->flags, out);
        if (result != MQ_BUILT)
            return result;
    }
    out->payload = bytes + payload;
    out->payload_length = record->length - payload;
    return MQ_BUILT;
}

/* Find the properties of a producer's record, checked in a copy. */
static mq_built plan_producer_properties(mq_engine *engine, const mq_ring *ring, uint64_t position,
                                         const rb_record *header, const rb_parts *parts, bool again,
                                         mq_frame *out)
{
    const rb_reader *reader = ring->reader;
    if (parts->properties_length > MQ_READ_BYTES)
        return MQ_FORGED;
    if (engine->producer_properties == NULL && (engine->producer_properties = malloc(MQ_READ_BYTES)) == NULL)
        return MQ_NO_MEMORY;
    uint8_t *copy =
        engine->producer_properties; /* not engine->receive, which may hold input of a client now */
    memcpy(copy, reader->data + (position & reader->mask) + parts->properties_position,
           parts->properties_length);
    if (!rb_reader_holds(reader, position))
        return MQ_OVERRUN;
    mq_properties checked;
    if (mq_properties_of_publish(engine, copy, copy + parts->properties_length, &checked) != 0 ||
        checked.subscriptions || checked.end != copy + parts->properties_length)
        return MQ_FORGED;
    if (checked.stored == NULL)
        return MQ_BUILT;
    return take_properties(mq_age_ns(engine, header->timestamp_ns), again, checked.stored,
                           checked.stored_length, checked.flags, out);
}

static mq_built plan_from_producer(mq_engine *engine, const mq_ring *ring, uint64_t position, bool again,
                                   mq_frame *out)
{
    const rb_reader *reader = ring->reader;
    const uint8_t *bytes = reader->data + (position & reader->mask);
    rb_record header;
    rb_parts parts;
    memcpy(&header, bytes, sizeof header);
    if (!rb_reader_holds(reader, position))
        return MQ_OVERRUN;
    if (header.length < RB_RECORD_HEADER_BYTES ||
        rb_record_parts(&header, bytes, reader->capacity - (position & reader->mask), &parts) != RB_OK)
        return MQ_FORGED;
    out->timestamp_ns = header.timestamp_ns;
    out->topic = bytes + RB_RECORD_HEADER_BYTES;
    out->topic_length = header.key_length;
    out->payload = bytes + parts.payload_position;
    out->payload_length = parts.payload_length;
    out->producer = ring;
    return header.flags & RB_FLAG_PROPERTIES
               ? plan_producer_properties(engine, ring, position, &header, &parts, again, out)
               : MQ_BUILT;
}

bool mq_is_expired(const mq_engine *engine, const rb_record *record)
{
    mq_frame unused;
    return record->flags & RB_FLAG_EXPIRY && plan_in_memory(engine, record, false, &unused) == MQ_EXPIRED;
}

mq_built mq_message_plan(mq_engine *engine, const mq_entry *entry, bool again, mq_frame *out)
{
    uint32_t index = mq_where_ring(entry->where);
    out->properties_length = 0;
    out->expires = false;
    if (entry->where == MQ_NOWHERE)
        return entry->options & MQ_OPTION_RELEASED ? MQ_DENIED : MQ_OVERRUN;
    if (index == 0)
        return plan_in_memory(engine, &mq_where_blob(entry->where)->record, again, out);
    const mq_ring *ring = engine->rings[index];
    uint64_t position = mq_where_position(entry->where);
    if (ring->kind == MQ_RING_ENDED)
        return mq_is_only_in_log(engine, entry) ? MQ_ONLY_IN_LOG : MQ_OVERRUN;
    if (ring->kind == MQ_RING_OF_PRODUCER)
        return plan_from_producer(engine, ring, position, again, out);
    if (!rb_writer_keeps(ring->writer, position))
        return mq_is_only_in_log(engine, entry) ? MQ_ONLY_IN_LOG : MQ_OVERRUN;
    return plan_in_memory(engine, rb_writer_record(ring->writer, position), again, out);
}

/* Check, after the copy, that the record is still valid and that `topic` is the one it was routed by, from
 * byte `hidden` on.  `topic` is in this process's memory, unless it was omitted. */
static mq_built check_producer_record(const mq_engine *engine, const mq_entry *entry, const mq_frame *frame,
                                      const uint8_t *topic, uint32_t hidden)
{
    const mq_topic *routed = mq_slab_at(&engine->topics, entry->topic);
    if (!rb_reader_holds(frame->producer->reader, mq_where_position(entry->where)))
        return MQ_OVERRUN;
    if (!(routed->item.generation & 1) || routed->length != hidden + frame->topic_length ||
        memcmp(routed->name + hidden, topic, frame->topic_length) != 0)
        return MQ_FORGED;
    return MQ_BUILT;
}

/* ---- the frame ---- */

static uint32_t bytes_max_of(const mq_connection *connection)
{
    return connection->send_max_bytes ? connection->send_max_bytes : PACKET_MAX_BYTES;
}

/* Add the length of the properties. */
static void measure_properties(mq_frame *out)
{
    out->added = out->properties_length + (out->expires ? EXPIRY_BYTES : 0) + (out->alias ? ALIAS_BYTES : 0) +
                 (out->ids ? out->ids->length : 0);
    out->length += mq_variable_bytes(out->added) + out->added;
}

static void plan_properties(const mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                            mq_frame *out)
{
    uint32_t number = entry->options >> MQ_OPTION_IDS_SHIFT, length = out->length;
    out->ids = number ? mq_subscription_ids_at(engine, number) : NULL;
    out->alias = 0;
    out->alias_is_known = false;
    if (connection->alias_max > 0)
        mq_alias_choose(engine, connection, entry, out);
    measure_properties(out);
    if (out->alias_is_known)
        out->length -= out->topic_length;
    if (out->alias && mq_frame_bytes(out) > bytes_max_of(connection)) { /* maybe it fits without an alias */
        out->alias = 0;
        out->alias_is_known = false;
        out->length = length;
        measure_properties(out);
    }
}

/* Remove the prefix of the client's tenant from the topic.  False: the topic is in another name space, so the
 * route to this client is wrong. */
static bool hide_prefix(const mq_tenant *tenant, mq_frame *frame)
{
    if (tenant == NULL)
        return !mq_is_of_tenants(frame->topic, frame->topic_length);
    if (frame->topic_length <= tenant->prefix_length ||
        memcmp(frame->topic, tenant->prefix, tenant->prefix_length) != 0)
        return false;
    frame->topic += tenant->prefix_length;
    frame->topic_length -= tenant->prefix_length;
    return true;
}

mq_built mq_frame_plan(mq_engine *engine, mq_connection *connection, const mq_entry *entry, bool again,
                       mq_frame *out)
{
    mq_built found = mq_message_plan(engine, entry, again, out);
    if (found != MQ_BUILT)
        return found;
    if (engine->tenant_count > 0 && !hide_prefix(connection->tenant, out))
        return MQ_FORGED;
    out->length = 2 + out->topic_length + (entry->options & MQ_OPTION_QOS ? 2 : 0) + out->payload_length;
    if (connection->version == 5)
        plan_properties(engine, connection, entry, out);
    /* [MQTT-3.1.2-24] */
    return mq_frame_bytes(out) > bytes_max_of(connection) ? MQ_TOO_LARGE : MQ_BUILT;
}

static uint8_t *put_uint16(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)(value >> 8);
    to[1] = (uint8_t)value;
    return to + 2;
}

static uint8_t *put_bytes(uint8_t *to, const uint8_t *from, uint32_t length)
{
    if (length > 0)
        memcpy(to, from, length);
    return to + length;
}

static uint8_t *put_properties(uint8_t *to, const mq_frame *frame)
{
    to = mq_variable_put(to, frame->added);
    if (frame->expires) {
        *to++ = MESSAGE_EXPIRY;
        to = put_uint16(put_uint16(to, frame->remaining_s >> 16), frame->remaining_s);
    }
    if (frame->alias) {
        *to++ = TOPIC_ALIAS;
        to = put_uint16(to, frame->alias);
    }
    if (frame->ids != NULL)
        to = put_bytes(to, frame->ids->identifiers, frame->ids->length);
    return put_bytes(to, frame->properties, frame->properties_length);
}

void mq_delivery_measure(mq_engine *engine, uint64_t timestamp_ns)
{
    mq_times *times = &engine->counters.delivery;
    uint64_t now_ns = (uint64_t)rb_clock_ns(CLOCK_REALTIME),
             age_ns = now_ns > timestamp_ns ? now_ns - timestamp_ns : 0, age_us = age_ns / 1000;
    uint32_t most = sizeof times->counts / sizeof *times->counts - 1, bucket = 0;
    while (bucket < most && age_us >> bucket != 0)
        bucket++;
    times->counts[bucket]++;
    times->count++;
    times->total_ns += age_ns;
    if (age_ns > times->max_ns)
        times->max_ns = age_ns;
    engine->measured_ns = engine->now_ns;
}

mq_built mq_frame_put(mq_engine *engine, mq_connection *connection, const mq_entry *entry,
                      const mq_frame *frame, uint16_t identifier, bool again)
{
    mq_bytes *out = &connection->out;
    uint32_t qos = entry->options & MQ_OPTION_QOS;
    bool is_v5 = connection->version == 5, is_named = !is_v5 || !frame->alias_is_known;
    uint8_t *to = out->at + out->end;
    *to++ = (uint8_t)(MQ_PUBLISH << 4 | (again ? 8 : 0) | qos << 1 |
                      (entry->options & MQ_OPTION_RETAIN ? 1 : 0));
    to = mq_variable_put(to, frame->length);
    to = put_uint16(to, is_named ? frame->topic_length : 0);
    const uint8_t *topic = is_named ? to : frame->topic;
    if (is_named)
        to = put_bytes(to, frame->topic, frame->topic_length);
    mq_built still = frame->producer == NULL ? MQ_BUILT
                                             : check_producer_record(engine, entry, frame, topic,
                                                                     mq_hidden_bytes(connection));
    if (still != MQ_BUILT)
        return still;
    if (qos)
        to = put_uint16(to, identifier);
    if (is_v5)
        to = put_properties(to, frame);
    to = put_bytes(to, frame->payload, frame->payload_length);
    if (frame->producer != NULL && !rb_reader_holds(frame->producer->reader, mq_where_position(entry->where)))
        return MQ_OVERRUN;
    out->end = (uint32_t)(to - out->at);
    if (is_v5 && frame->alias)
        mq_alias_given(engine, connection, entry, frame);
    engine->counters.delivered++;
    engine->counters.delivered_bytes += frame->payload_length;
    connection->session->delivered++;
    return MQ_BUILT;
}
