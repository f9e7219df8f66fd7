/* SPDX-License-Identifier: Apache-2.0
 *
 * Durability of records, as seen by clients.  Records of a ring pass these points; each is a number that
 * only grows:
 *
 *   committed   in the ring: delivered to subscribers, unless the ring shows only durable records
 *   durable     synced by the log: a position in the ring's header, stored by the log's thread
 *   upstream    in the sinks: an offset reported by Python.  Offsets lost in transit are reported before
 *
 * A gate selects the point that PUBACK and PUBREC wait for.  A record lost in transit is never acknowledged:
 * not by an acknowledgement that waits, and not when its client repeats the message (receipts.c).
 *
 * A ring that shows only durable records: they are retained and routed when durable, in the order of commits.
 * Until then a list has the position and publisher of each record.  The log blocks the writer at the durable
 * position, so the list is never longer than the ring.  mq_hidden_reserve() ensures that no record is
 * overwritten before it is routed.
 *
 * While the log of a ring takes no records, publishes wait for queue_timeout_ms and are then refused.  An
 * acknowledgement that waits for the log then gets the refusal as its reason if the protocol has reasons
 * (MQTT 5).  An acknowledgement that waits for the sinks continues to wait.  The record may still become
 * durable later, as any record whose publisher got no acknowledgement.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define HIDDEN_MIN 64u
#define VISIBLE_MAX 4096u /* records of one ring in one turn */

/* ---- refusals ---- */

/* Time at which publishers to the ring are refused.  MQ_NEVER: its log takes records. */
static uint64_t refusal_ms(const mq_ring *ring)
{
    return ring->ack_gate.refusal != 0 ? ring->ack_gate.refused_since_ms + ring->queue_timeout_ms : MQ_NEVER;
}

uint8_t mq_refusal(const mq_engine *engine, const mq_ring *ring)
{
    return engine->now_ms >= refusal_ms(ring) ? ring->ack_gate.refusal : 0;
}

void mq_refuse_publishers(mq_engine *engine, uint32_t index, uint8_t reason)
{
    mq_ring *ring = engine->rings[index];
    if (ring->ack_gate.refusal == 0)
        ring->ack_gate.refused_since_ms = engine->now_ms;
    ring->ack_gate.refusal = reason;
    uint64_t due_ms = refusal_ms(ring);
    engine->refusal_due_ms = due_ms < engine->refusal_due_ms ? due_ms : engine->refusal_due_ms;
}

void mq_refusals_step(mq_engine *engine)
{
    if (engine->now_ms < engine->refusal_due_ms)
        return;
    engine->refusal_due_ms = MQ_NEVER;
    for (uint32_t i = 1; i < engine->ring_count; i++) {
        uint64_t due_ms = refusal_ms(engine->rings[i]);
        if (due_ms > engine->now_ms && due_ms < engine->refusal_due_ms)
            engine->refusal_due_ms = due_ms;
    }
}

/* ---- acknowledgements ---- */

uint64_t mq_ack_waits_for(const mq_ring *ring)
{
    return ring->ack_gate.event == MQ_GATE_UPSTREAM ? ring->writer->offset : ring->writer->tail;
}

static uint64_t durable_of(const mq_ring *ring)
{
    /* pairs with the release in rb_durable_store() */
    return atomic_load_explicit(&ring->writer->header->durable, memory_order_acquire);
}

mq_ack_status mq_ack_status_of(const mq_engine *engine, const mq_ring *ring, uint64_t waits_for)
{
    const mq_ack_gate *gate = &ring->ack_gate;
    if (gate->event == MQ_GATE_UPSTREAM) {
        if (waits_for == MQ_NEVER)
            return MQ_ACK_LOST;
        return gate->upstream_reported && gate->upstream_end >= waits_for ? MQ_ACK_DONE : MQ_ACK_WAITS;
    }
    if (durable_of(ring) >= waits_for)
        return MQ_ACK_DONE;
    return mq_refusal(engine, ring) ? MQ_ACK_REFUSED : MQ_ACK_WAITS;
}

bool mq_moves_are_durable(mq_engine *engine)
{
    for (uint32_t i = 1; engine->topics_moved && i < engine->ring_count; i++) {
        const mq_ring *ring = engine->rings[i];
        if (ring->kind == MQ_RING_OWN && ring->ack_gate.event == MQ_GATE_DURABLE &&
            durable_of(ring) < ring->moved_end)
            return false;
    }
    engine->topics_moved = false;
    return true;
}

void mq_upstream_progress(mq_engine *engine, uint32_t index, uint64_t end)
{
    mq_ack_gate *gate = &engine->rings[index]->ack_gate;
    if (gate->upstream_reported && end <= gate->upstream_end)
        return;
    gate->upstream_reported = true;
    gate->upstream_end = end;
    mq_receipts_drop_stored(engine, index);
}

void mq_upstream_lost(mq_engine *engine, uint32_t index, uint64_t from, uint64_t to)
{
    mq_acks_lost(engine, index, from, to);
    mq_receipts_lost(engine, index, from, to);
}

/* ---- hidden records ---- */

static mq_hidden_record *hidden_at(const mq_ack_gate *gate, uint32_t number)
{
    return &gate->hidden_records[(gate->hidden_first + number) & (gate->hidden_capacity - 1)];
}

static bool hidden_grow(mq_ack_gate *gate)
{
    uint32_t capacity = gate->hidden_capacity ? gate->hidden_capacity * 2 : HIDDEN_MIN;
    mq_hidden_record *bigger = malloc(capacity * sizeof *bigger);
    if (bigger == NULL)
        return false;
    for (uint32_t i = 0; i < gate->hidden_count; i++)
        bigger[i] = *hidden_at(gate, i);
    free(gate->hidden_records);
    gate->hidden_records = bigger;
    gate->hidden_first = 0;
    gate->hidden_capacity = capacity;
    return true;
}

uint64_t mq_visible_position(const mq_ring *ring)
{
    return ring->ack_gate.hidden_count > 0 ? hidden_at(&ring->ack_gate, 0)->position : ring->writer->tail;
}

/* Route one hidden record.  It is unchanged in the ring: only this thread writes the ring. */
static void make_visible(mq_engine *engine, uint32_t index, const mq_ring *ring,
                         const mq_hidden_record *hidden)
{
    const rb_record *record = rb_writer_record(ring->writer, hidden->position);
    const uint8_t *bytes = (const uint8_t *)record;
    mq_topic *topic = mq_slab_get(&engine->topics, hidden->topic);
    rb_parts parts;
    if (topic == NULL || rb_record_parts(record, bytes, record->length, &parts) != RB_OK)
        return; /* both impossible: a topic with hidden records is kept */
    topic->hidden_records--;
    mq_message message = {.payload = bytes + parts.payload_position,
                          .payload_length = parts.payload_length,
                          .properties = parts.properties_length ? bytes + parts.properties_position : NULL,
                          .properties_length = parts.properties_length,
                          .flags = record->flags,
                          .timestamp_ns = record->timestamp_ns,
                          .publisher = mq_slab_get(&engine->sessions, hidden->publisher),
                          .owner = hidden->owner,
                          .author = hidden->author};
    if (message.flags & RB_FLAG_RETAIN) {
        mq_retained_promise(engine, topic, &message, -1);
        mq_retain(engine, topic, &message, mq_where(index, hidden->position));
    }
    mq_owner_drop(engine, hidden->owner);
    mq_author_drop(engine, hidden->author);
    if (topic->route_count > 0)
        mq_route_record(engine, topic, mq_where(index, hidden->position), &message);
}

static void make_some_visible(mq_engine *engine, uint32_t index, mq_ring *ring)
{
    mq_ack_gate *gate = &ring->ack_gate;
    uint64_t durable = durable_of(ring);
    for (uint32_t i = 0; gate->hidden_count > 0; i++) {
        mq_hidden_record hidden = *hidden_at(gate, 0);
        if (hidden.position >= durable)
            return;
        if (i == VISIBLE_MAX) {
            engine->visible_pending = true;
            return;
        }
        gate->hidden_first = (gate->hidden_first + 1) & (gate->hidden_capacity - 1);
        gate->hidden_count--;
        make_visible(engine, index, ring, &hidden);
    }
    if (gate->hidden_capacity > HIDDEN_MIN) { /* after a burst, or a pause of the disk */
        free(gate->hidden_records);
        gate->hidden_records = NULL;
        gate->hidden_capacity = gate->hidden_first = 0;
    }
}

void mq_make_durable_visible(mq_engine *engine)
{
    engine->visible_pending = false;
    for (uint32_t i = 1; i < engine->ring_count; i++) {
        mq_ring *ring = engine->rings[i];
        if (ring->kind == MQ_RING_OWN && ring->ack_gate.hidden_count > 0)
            make_some_visible(engine, i, ring);
    }
}

int mq_hidden_reserve(mq_engine *engine, uint32_t index, uint64_t overwrite_bytes)
{
    mq_ring *ring = engine->rings[index];
    mq_ack_gate *gate = &ring->ack_gate;
    const rb_writer *writer = ring->writer;
    if (gate->hidden_count > 0 &&
        writer->tail + overwrite_bytes > hidden_at(gate, 0)->position + writer->capacity) {
        make_some_visible(engine, index, ring);
        if (gate->hidden_count > 0 &&
            writer->tail + overwrite_bytes > hidden_at(gate, 0)->position + writer->capacity)
            return RB_FULL;
    }
    if (gate->hidden_count == gate->hidden_capacity && !hidden_grow(gate))
        return RB_FULL;
    return RB_OK;
}

void mq_hidden_add(mq_engine *engine, mq_ring *ring, mq_topic *topic, const mq_message *message)
{
    mq_ack_gate *gate = &ring->ack_gate;
    *hidden_at(gate, gate->hidden_count++) = (mq_hidden_record){
        .position = ring->writer->claim_at,
        .topic = mq_handle(&topic->item),
        .publisher = message->publisher ? mq_handle(&message->publisher->item) : 0,
        .owner = mq_owner_reference(message->flags & RB_FLAG_RETAIN ? message->owner : NULL),
        .author = mq_author_reference(message->flags & RB_FLAG_RETAIN ? message->author : NULL)};
    topic->hidden_records++;
    if (message->flags & RB_FLAG_RETAIN)
        mq_retained_promise(engine, topic, message, 1);
    engine->matched = topic->route_count; /* approximate: subscribers at the time of routing get it */
}
