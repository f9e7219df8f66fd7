/* SPDX-License-Identifier: Apache-2.0
 *
 * Append: a message of a client or of the broker becomes a record in the ring of its topic, and is routed and
 * retained.  Local producers write their own rings (producer_rings.c).  Before the ring overwrites records
 * that are still needed, they are copied.
 */
#include "base/clock.h"
#include "mqtt/mqtt.h"

/* Handle a full ring.  RB_FULL: wait; RB_TIMEOUT: refuse.  A reader in another process that blocks for the
 * queue timeout is evicted; the broker's own readers never are.  `has_hidden`: the space has records that are
 * not durable yet, and these are never overwritten. */
static int append_full(mq_engine *engine, mq_ring *ring, uint32_t prefix, const mq_message *message,
                       bool has_hidden)
{
    if (ring->full_since_ms == 0)
        ring->full_since_ms = engine->now_ms;
    if (engine->now_ms - ring->full_since_ms < ring->queue_timeout_ms)
        return ring->blocks ? RB_FULL : RB_TIMEOUT;
    if (!has_hidden && rb_evict_stalled(ring->writer, message->payload_length, prefix) > 0 &&
        rb_can_claim(ring->writer, message->payload_length, prefix) == RB_OK)
        return RB_OK;
    return RB_TIMEOUT;
}

/* Upper limit of the bytes behind the tail that the append of one record may overwrite: the span of the
 * record, as much again to fill the end of the ring, and one chunk that the writer takes in advance.  The 7
 * bytes align the payload. */
static uint64_t overwrite_max(const rb_writer *writer, uint64_t prefix, uint64_t payload)
{
    return 2 * rb_span(RB_RECORD_HEADER_BYTES + prefix + 7 + payload) + RB_RECORD_ALIGN + writer->chunk;
}

/* Before the ring overwrites records: copy those that sessions need, and journal their routes.  A restart
 * then finds every session that waits for a copy.  RB_FULL: wait; RB_TIMEOUT: refuse. */
static int save_before_overwrite(mq_engine *engine, uint32_t index, uint64_t overwrite_bytes)
{
    mq_ring *ring = engine->rings[index];
    mq_journal_mark(engine, index);
    mq_retained_due(engine, ring);
    if (!mq_journal_written(engine))
        return RB_FULL;
    if (mq_spill_own(engine, index, overwrite_bytes))
        return RB_OK;
    engine->counters.spill_refused++;
    if (ring->full_since_ms == 0)
        ring->full_since_ms = engine->now_ms;
    bool waits = ring->blocks && engine->now_ms - ring->full_since_ms < ring->queue_timeout_ms;
    return waits ? RB_FULL : RB_TIMEOUT;
}

int mq_append_check(mq_engine *engine, const mq_topic *topic, const mq_message *message)
{
    mq_ring *ring = engine->rings[topic->ring];
    uint32_t prefix = topic->length + message->properties_length;
    uint64_t overwrite_bytes = overwrite_max(ring->writer, prefix, message->payload_length);
    if (mq_refusal(engine, ring) != 0)
        return RB_TIMEOUT;
    int saved = ring->writer->tail + overwrite_bytes > ring->copy_at
                    ? save_before_overwrite(engine, topic->ring, overwrite_bytes)
                    : RB_OK;
    if (saved != RB_OK)
        return saved;
    bool has_hidden = ring->ack_gate.visible_when_durable &&
                      mq_hidden_reserve(engine, topic->ring, overwrite_bytes) != RB_OK;
    int result = has_hidden ? RB_FULL : rb_can_claim(ring->writer, message->payload_length, prefix);
    return result == RB_FULL ? append_full(engine, ring, prefix, message, has_hidden) : result;
}

static uint64_t append(mq_engine *engine, mq_topic *topic, const mq_message *message)
{
    mq_ring *ring = engine->rings[topic->ring];
    rb_key key = {.bytes = topic->name,
                  .length = topic->length,
                  .hash = topic->key_hash,
                  .properties = message->properties,
                  .properties_length = message->properties_length};
    /* engine->now_ns is older: the delay of a message must not begin before its arrival. */
    uint64_t now_ns = topic->delayed_from > 0 ? (uint64_t)rb_clock_ns(CLOCK_REALTIME) : engine->now_ns;
    rb_append(ring->writer, &key, message->payload, message->payload_length, (uint16_t)message->flags,
              now_ns);
    if (topic->delayed_from > 0)
        mq_tenant_delays(engine, topic, message);
    ring->full_since_ms = 0;
    topic->used = true;
    engine->appended_bytes += RB_RECORD_HEADER_BYTES + topic->length + message->properties_length +
                              message->payload_length;
    engine->counters.published++;
    engine->counters.published_bytes += message->payload_length;
    if (ring->stale_end.fifo == NULL)
        mq_fifo_add(&engine->rings_to_announce, &ring->stale_end);
    if (ring->ack_gate.visible_when_durable) {
        mq_hidden_add(engine, ring, topic, message);
        return mq_ack_waits_for(ring);
    }
    if (message->flags & RB_FLAG_RETAIN)
        mq_retain(engine, topic, message, mq_where(topic->ring, ring->writer->claim_at));
    engine->matched = 0;
    if (topic->route_count > 0)
        engine->matched = mq_route_record(engine, topic, mq_where(topic->ring, ring->writer->claim_at),
                                          message);
    engine->turn_work += engine->matched;
    return mq_ack_waits_for(ring);
}

/* A message that cannot be retained is stored without RETAIN: current subscribers get it, and a restart does
 * not retain it from the ring. */
uint64_t mq_append_checked(mq_engine *engine, mq_topic *topic, const mq_message *message)
{
    if (!(message->flags & RB_FLAG_RETAIN) || mq_retained_fits(engine, topic, message))
        return append(engine, topic, message);
    mq_message plain = *message;
    plain.flags &= ~(uint32_t)RB_FLAG_RETAIN;
    engine->counters.retained_refused++;
    return append(engine, topic, &plain);
}

int mq_append(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t *waits_for)
{
    int result = mq_append_check(engine, topic, message);
    if (result == RB_OK)
        *waits_for = mq_append_checked(engine, topic, message);
    return result;
}
