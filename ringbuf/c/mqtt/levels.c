/* SPDX-License-Identifier: Apache-2.0
 *
 * Durability of records, as seen by clients.  Records of a source pass these points; each is a number that
 * only grows:
 *
 *   committed   in the ring: delivered to subscribers, unless the ring hides records that are not durable
 *   durable     synced by the log: a position in the ring's header, stored by the log's thread
 *   upstream    in the sinks: an offset reported by Python, with the offsets lost in transit
 *
 * A gate selects the point that PUBACK and PUBREC wait for.  A record lost in transit is never acknowledged.
 *
 * A ring that hides: its records are retained and routed when they are durable, in the order of commits.
 * Until then each record's position and publisher are remembered.  The log gates the ring up to the durable
 * position, so the remembered ones never exceed the ring.  mq_unshown_reserve() ensures that none is
 * overwritten before it is routed.
 *
 * While the log of a ring takes no records, publishes wait for queue_timeout_ms and are then refused.  A held
 * acknowledgement then gets the refusal as its reason if the protocol has reasons (MQTT 5).  The record may
 * still become durable later, as any record whose publisher got no acknowledgement.
 */
#include "mqtt.h"

#include <stdlib.h>

#define UNSHOWN_MIN 64u
#define SHOW_MAX 4096u /* records of one source in one turn */

/* ---- acknowledgements ---- */

uint8_t mq_level_refusal(const mq_engine *engine, const mq_source *source)
{
    const mq_level *level = &source->level;
    bool over = level->refusal != 0 && engine->now_ms - level->refused_since_ms >= source->queue_timeout_ms;
    return over ? level->refusal : 0;
}

uint64_t mq_level_end(const mq_source *source)
{
    return source->level.gate == MQ_GATE_UPSTREAM ? source->writer->offset : source->writer->tail;
}

static uint64_t durable_of(const mq_source *source)
{
    /* pairs with the release in rb_durable_store() */
    return atomic_load_explicit(&source->writer->header->durable, memory_order_acquire);
}

mq_reach mq_level_reach(const mq_engine *engine, const mq_source *source, uint64_t durable)
{
    const mq_level *level = &source->level;
    if (level->gate == MQ_GATE_UPSTREAM) {
        if (level->upstream < durable)
            return MQ_REACH_WAITS;
        return level->lost_from < durable && durable <= level->lost_to ? MQ_REACH_LOST : MQ_REACH_DONE;
    }
    if (durable_of(source) >= durable)
        return MQ_REACH_DONE;
    return mq_level_refusal(engine, source) ? MQ_REACH_REFUSED : MQ_REACH_WAITS;
}

void mq_level_refuse(mq_engine *engine, uint32_t index, uint8_t reason)
{
    mq_source *source = engine->sources[index];
    if (reason != 0 && source->level.refusal == 0) {
        uint64_t due = engine->now_ms + source->queue_timeout_ms;
        source->level.refused_since_ms = engine->now_ms;
        engine->refusal_due_ms = due < engine->refusal_due_ms ? due : engine->refusal_due_ms;
    }
    source->level.refusal = reason;
}

/* Two lost ranges become the range that covers both, until no acknowledgement waits.  Sending a record again
 * that had arrived does no harm. */
void mq_level_upstream(mq_engine *engine, uint32_t index, uint64_t offset, uint64_t lost_from,
                       uint64_t lost_to)
{
    mq_level *level = &engine->sources[index]->level;
    if (engine->holding.count == 0)
        level->lost_from = level->lost_to = 0;
    if (lost_to > lost_from) {
        bool first = level->lost_to == level->lost_from;
        level->lost_from = first || lost_from < level->lost_from ? lost_from : level->lost_from;
        level->lost_to = first || lost_to > level->lost_to ? lost_to : level->lost_to;
    }
    if (offset > level->upstream)
        level->upstream = offset;
}

/* ---- hidden records ---- */

static mq_unshown *unshown_at(const mq_level *level, uint32_t number)
{
    return &level->unshown[(level->unshown_first + number) & (level->unshown_room - 1)];
}

static bool unshown_grow(mq_level *level)
{
    uint32_t room = level->unshown_room ? level->unshown_room * 2 : UNSHOWN_MIN;
    mq_unshown *bigger = malloc(room * sizeof *bigger);
    if (bigger == NULL)
        return false;
    for (uint32_t i = 0; i < level->unshown_count; i++)
        bigger[i] = *unshown_at(level, i);
    free(level->unshown);
    level->unshown = bigger;
    level->unshown_first = 0;
    level->unshown_room = room;
    return true;
}

uint64_t mq_level_shown(const mq_source *source)
{
    return source->level.unshown_count > 0 ? unshown_at(&source->level, 0)->position : source->writer->tail;
}

/* Route one hidden record.  It is unchanged in the ring: only this thread writes the ring. */
static void show(mq_engine *engine, uint32_t index, const mq_source *source, const mq_unshown *it)
{
    const rb_record *record = rb_writer_record(source->writer, it->position);
    const uint8_t *bytes = (const uint8_t *)record;
    mq_topic *topic = mq_slab_get(&engine->topics, it->topic);
    rb_parts parts;
    if (topic == NULL || rb_record_parts(record, bytes, record->length, &parts) != RB_OK)
        return; /* both impossible: a topic with hidden records is kept */
    topic->unshown--;
    mq_message message = {.payload = bytes + parts.payload_position,
                          .payload_length = parts.payload_length,
                          .properties = parts.properties_length ? bytes + parts.properties_position : NULL,
                          .properties_length = parts.properties_length,
                          .flags = record->flags,
                          .timestamp_ns = record->timestamp_ns,
                          .publisher = mq_slab_get(&engine->sessions, it->publisher),
                          .owner = it->owner,
                          .author = it->author};
    if (message.flags & RB_FLAG_RETAIN) {
        mq_retained_promise(engine, topic, &message, -1);
        mq_retain(engine, topic, &message, mq_where(index, it->position));
    }
    mq_owner_drop(engine, it->owner);
    mq_author_drop(engine, it->author);
    if (topic->route_count > 0)
        mq_route_record(engine, topic, mq_where(index, it->position), &message);
}

static void show_some(mq_engine *engine, uint32_t index, mq_source *source)
{
    mq_level *level = &source->level;
    uint64_t durable = durable_of(source);
    for (uint32_t i = 0; level->unshown_count > 0; i++) {
        mq_unshown it = *unshown_at(level, 0);
        if (it.position >= durable)
            return;
        if (i == SHOW_MAX) {
            engine->show_pending = true;
            return;
        }
        level->unshown_first = (level->unshown_first + 1) & (level->unshown_room - 1);
        level->unshown_count--;
        show(engine, index, source, &it);
    }
    if (level->unshown_room > UNSHOWN_MIN) { /* after a burst, or a pause of the disk */
        free(level->unshown);
        level->unshown = NULL;
        level->unshown_room = level->unshown_first = 0;
    }
}

void mq_show(mq_engine *engine)
{
    engine->show_pending = false;
    for (uint32_t i = 1; i < engine->source_count; i++) {
        mq_source *source = engine->sources[i];
        if (source->kind == MQ_SOURCE_OWN && source->level.unshown_count > 0)
            show_some(engine, i, source);
    }
}

int mq_unshown_reserve(mq_engine *engine, uint32_t index, uint64_t room)
{
    mq_source *source = engine->sources[index];
    mq_level *level = &source->level;
    const rb_writer *writer = source->writer;
    if (level->unshown_count > 0 && writer->tail + room > unshown_at(level, 0)->position + writer->capacity) {
        show_some(engine, index, source);
        if (level->unshown_count > 0 &&
            writer->tail + room > unshown_at(level, 0)->position + writer->capacity)
            return RB_FULL;
    }
    if (level->unshown_count == level->unshown_room && !unshown_grow(level))
        return RB_FULL;
    return RB_OK;
}

void mq_unshown_add(mq_engine *engine, mq_source *source, mq_topic *topic, const mq_message *message)
{
    mq_level *level = &source->level;
    *unshown_at(level, level->unshown_count++) = (mq_unshown){
        .position = source->writer->claim_at,
        .topic = mq_handle(&topic->item),
        .publisher = message->publisher ? mq_handle(&message->publisher->item) : 0,
        .owner = mq_owner_again(message->flags & RB_FLAG_RETAIN ? message->owner : NULL),
        .author = mq_author_again(message->flags & RB_FLAG_RETAIN ? message->author : NULL)};
    topic->unshown++;
    if (message->flags & RB_FLAG_RETAIN)
        mq_retained_promise(engine, topic, message, 1);
    engine->matched = topic->route_count; /* approximate: subscribers at the time of routing get it */
}
