/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer rings: records that other processes write to their rings are read and routed in place.  A producer
 * may overwrite its ring at any time, so names and properties are copied before they are checked.
 */
#include "mqtt/in/packets.h"

#include <stdlib.h>
#include <string.h>

#define READ_MAX 4096u /* records read from one ring in its turn */

/* Pass the name of an unknown topic to Python.  The name is copied because the ring may change. */
static void request_topic(mq_engine *engine, mq_ring *ring, const uint8_t *name, uint32_t length)
{
    free(ring->requested_topic);
    ring->requested_topic = malloc(length ? length : 1);
    ring->requested_topic_length = ring->requested_topic == NULL ? 0 : length;
    if (ring->requested_topic != NULL)
        memcpy(ring->requested_topic, name, length);
    ring->waiting = engine->producers_waiting = engine->producers_to_report = true;
    ring->answered = ring->reported = false;
}

static void forget_requested_topic(mq_ring *ring)
{
    free(ring->requested_topic);
    ring->requested_topic = NULL;
}

/* True if Python got a request for this topic and did not create it. */
static bool was_refused(const mq_ring *ring, const uint8_t *name, uint32_t length)
{
    return ring->requested_topic != NULL && !ring->answered && ring->requested_topic_length == length &&
           memcmp(ring->requested_topic, name, length) == 0;
}

/* Message of a view; payload and properties are still in the ring. */
static mq_message message_of(const rb_view *view)
{
    uint32_t flags = view->header.flags & (RB_FLAG_QOS | RB_FLAG_RETAIN);
    return (mq_message){.payload = view->bytes + view->parts.payload_position,
                        .payload_length = view->parts.payload_length,
                        .flags = (flags & RB_FLAG_QOS) == 3 ? flags ^ 1 : flags,
                        .timestamp_ns = view->header.timestamp_ns};
}

/* Retain the message of a record if the record requests it.  A copy of its properties is checked as
 * for a client.  Errors are counted when the record itself is delivered. */
static void retain_record(mq_engine *engine, uint32_t index, mq_topic *topic, const rb_view *view,
                          mq_message message)
{
    uint32_t length = view->parts.properties_length;
    mq_properties checked = {0};
    if (length > MQ_READ_BYTES)
        return;
    if (length > 0) {
        uint8_t *copy = engine->receive + MQ_CARRY_BYTES; /* behind the name */
        memcpy(copy, view->bytes + view->parts.properties_position, length);
        if (mq_properties_of_publish(engine, copy, copy + length, &checked) != 0 || checked.subscriptions ||
            checked.end != copy + length)
            return;
    }
    message.properties = checked.stored;
    message.properties_length = checked.stored_length;
    message.flags |= checked.flags;
    if (!mq_retained_fits(engine, topic, &message)) {
        engine->counters.retained_refused++;
        return;
    }
    mq_retain(engine, topic, &message, mq_where(index, view->position));
    if (!rb_reader_holds(engine->rings[index]->reader, view->position))
        mq_retained_forget(engine, topic);
}

/* Route one record.  False: its topic is unknown.  The ring may change at any time, so only copies are used;
 * rb_reader_holds() or a different key at delivery reveals a change. */
static bool route_record(mq_engine *engine, uint32_t index, mq_ring *ring, const rb_view *view)
{
    uint8_t *name = engine->receive; /* not in use now, and longer than any key */
    uint32_t length = view->header.key_length;
    memcpy(name, view->bytes + RB_RECORD_HEADER_BYTES, length);
    if (!rb_reader_holds(ring->reader, view->position)) {
        engine->counters.producer_lost++;
        return true;
    }
    mq_topic *topic = mq_topic_find(engine, name, length);
    if (topic == NULL && !was_refused(ring, name, length)) {
        request_topic(engine, ring, name, length);
        return false;
    }
    forget_requested_topic(ring);
    if (topic == NULL || topic->reserved || topic->delayed_from > 0 || topic->tenant != 0) {
        engine->counters.dropped[topic == NULL ? MQ_DROP_TOPICS : MQ_DROP_DENIED]++;
        return true;
    }
    mq_message message = message_of(view);
    topic->used = true;
    topic->produced = mq_where(index, view->position);
    engine->counters.from_producers++;
    engine->appended_bytes += view->header.length;
    if (view->header.flags & RB_FLAG_RETAIN)
        retain_record(engine, index, topic, view, message);
    mq_route_record(engine, topic, mq_where(index, view->position), &message);
    return true;
}

static void read_producer(mq_engine *engine, uint32_t index, mq_ring *ring)
{
    rb_reader *reader = ring->reader;
    for (uint32_t i = 0; i < READ_MAX; i++) {
        uint64_t cursor = reader->cursor, offset = reader->offset, lost = reader->lost;
        rb_view view;
        int result = rb_read(reader, &view);
        if (result == RB_EMPTY)
            return;
        engine->producers_moved = ring->moved = true;
        if (result == RB_OVERRUN) {
            engine->counters.producer_lost += reader->lost - lost;
            continue;
        }
        if (result == RB_EVICTED) { /* evicted as too slow: continue as a plain reader */
            engine->counters.producer_evictions++;
            reader->blocks_writer = false;
            continue;
        }
        if (result != RB_OK) {
            ring->bad = engine->producers_to_report = true;
            ring->reported = false;
            return;
        }
        if (view.position >= ring->resume_at && !route_record(engine, index, ring, &view)) {
            reader->cursor = cursor;
            reader->offset = offset;
            return;
        }
    }
    engine->producers_pending = true;
}

/* Store the read positions of producer rings, so that writers blocked by this reader continue.  Called
 * after routed records had a chance to be sent, because a blocked writer overwrites them soon. */
void mq_producers_store_progress(mq_engine *engine)
{
    engine->producers_moved = false;
    for (uint32_t i = 1; i < engine->ring_count; i++) {
        mq_ring *ring = engine->rings[i];
        if (ring->moved)
            rb_reader_store_progress(ring->reader, ring->reader->cursor);
        ring->moved = false;
    }
}

void mq_producers_read(mq_engine *engine)
{
    engine->producers_pending = false;
    for (uint32_t i = 1; i < engine->ring_count; i++) {
        mq_ring *ring = engine->rings[i];
        if (ring->kind == MQ_RING_OF_PRODUCER && !ring->waiting && !ring->bad)
            read_producer(engine, i, ring);
        if (ring->kind == MQ_RING_OF_PRODUCER && ring->reader->cursor > ring->copy_at) {
            mq_spill_producer(engine, i);
            mq_journal_mark(engine, i);
        }
    }
}
