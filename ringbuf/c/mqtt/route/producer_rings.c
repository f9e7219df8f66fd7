/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer rings: records that other processes write to their rings are read and routed in place.  A producer
 * may overwrite its ring at any time, so names and properties are copied before they are checked.
 */
#include "mqtt/in/packets.h"

#include <stdlib.h>
#include <string.h>

#define PUMP_MAX 4096u /* records read from one source in its turn */

/* Pass the name of an unknown topic of a source to Python.  The name is copied because the ring may
 * change. */
static void source_asks(mq_engine *engine, mq_ring *source, const uint8_t *name, uint32_t length)
{
    free(source->name);
    source->name = malloc(length ? length : 1);
    source->name_length = source->name == NULL ? 0 : length;
    if (source->name != NULL)
        memcpy(source->name, name, length);
    source->waiting = engine->sources_waiting = engine->sources_asking = true;
    source->answered = source->reported = false;
}

static void name_forget(mq_ring *source)
{
    free(source->name);
    source->name = NULL;
}

/* True if Python got a request for this topic and did not create it. */
static bool source_refused(const mq_ring *source, const uint8_t *name, uint32_t length)
{
    return source->name != NULL && !source->answered && source->name_length == length &&
           memcmp(source->name, name, length) == 0;
}

/* Message of a view; payload and properties are still in the ring. */
static mq_message source_message(const rb_view *view)
{
    uint32_t flags = view->header.flags & (RB_FLAG_QOS | RB_FLAG_RETAIN);
    return (mq_message){.payload = view->bytes + view->parts.payload_position,
                        .payload_length = view->parts.payload_length,
                        .flags = (flags & RB_FLAG_QOS) == 3 ? flags ^ 1 : flags,
                        .timestamp_ns = view->header.timestamp_ns};
}

/* Retain the message of a source's record if the record requests it.  A copy of its properties is checked as
 * for a client.  Errors are counted when the record itself is delivered. */
static void source_retain(mq_engine *engine, uint32_t index, mq_topic *topic, const rb_view *view,
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
    if (!rb_reader_holds(engine->sources[index]->reader, view->position))
        mq_retained_forget(engine, topic);
}

/* Route one record of a source.  False: its topic is unknown.  The ring may change at any time, so only
 * copies are used; rb_reader_holds() or a different key at delivery reveals a change. */
static bool source_route(mq_engine *engine, uint32_t index, mq_ring *source, const rb_view *view)
{
    uint8_t *name = engine->receive; /* not in use now, and longer than any key */
    uint32_t length = view->header.key_length;
    memcpy(name, view->bytes + RB_RECORD_HEADER_BYTES, length);
    if (!rb_reader_holds(source->reader, view->position)) {
        engine->counters.source_lost++;
        return true;
    }
    mq_topic *topic = mq_topic_find(engine, name, length);
    if (topic == NULL && !source_refused(source, name, length)) {
        source_asks(engine, source, name, length);
        return false;
    }
    name_forget(source);
    if (topic == NULL || topic->reserved) {
        engine->counters.dropped[topic == NULL ? MQ_DROP_TOPICS : MQ_DROP_DENIED]++;
        return true;
    }
    mq_message message = source_message(view);
    topic->used = true;
    engine->counters.sourced++;
    engine->appended_bytes += view->header.length;
    if (view->header.flags & RB_FLAG_RETAIN)
        source_retain(engine, index, topic, view, message);
    mq_route_record(engine, topic, mq_where(index, view->position), &message);
    return true;
}

static void source_pump(mq_engine *engine, uint32_t index, mq_ring *source)
{
    rb_reader *reader = source->reader;
    for (uint32_t i = 0; i < PUMP_MAX; i++) {
        uint64_t cursor = reader->cursor, offset = reader->offset, lost = reader->lost;
        rb_view view;
        int result = rb_read(reader, &view);
        if (result == RB_EMPTY)
            return;
        engine->sources_moved = source->moved = true;
        if (result == RB_OVERRUN) {
            engine->counters.source_lost += reader->lost - lost;
            continue;
        }
        if (result == RB_EVICTED) { /* evicted as too slow: continue as a plain reader */
            engine->counters.source_evictions++;
            reader->gating = false;
            continue;
        }
        if (result != RB_OK) {
            source->bad = engine->sources_asking = true;
            source->reported = false;
            return;
        }
        if (view.position >= source->resume_at && !source_route(engine, index, source, &view)) {
            reader->cursor = cursor;
            reader->offset = offset;
            return;
        }
    }
    engine->sources_pending = true;
}

/* Store the read positions of sources, so that writers blocked by this reader continue.  Called after routed
 * records had a chance to be sent, because a blocked writer overwrites them soon. */
void mq_rings_tell(mq_engine *engine)
{
    engine->sources_moved = false;
    for (uint32_t i = 1; i < engine->source_count; i++) {
        mq_ring *source = engine->sources[i];
        if (source->moved)
            rb_reader_tell(source->reader, source->reader->cursor);
        source->moved = false;
    }
}

void mq_rings_pump(mq_engine *engine)
{
    engine->sources_pending = false;
    for (uint32_t i = 1; i < engine->source_count; i++) {
        mq_ring *source = engine->sources[i];
        if (source->kind == MQ_SOURCE_FOREIGN && !source->waiting && !source->bad)
            source_pump(engine, i, source);
        if (source->kind == MQ_SOURCE_FOREIGN && source->reader->cursor > source->copy_at) {
            mq_spill_foreign(engine, i);
            mq_journal_mark(engine, i);
        }
    }
}
