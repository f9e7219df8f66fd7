/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the engine: memory, handles, rings, time, and the life of a connection.
 */
#include "mqtt/mqtt.h"
#include "mqtt/transport/layer.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_BLOCKS 64u
#define SPARE_SMALLS 1024u
#define RETRY_MS 5         /* interval of retries of paused publishers: readers cannot wake the loop */

/* ---- buffers: those of two sizes are kept for reuse ---- */

static uint8_t *spare_take(mq_spares *spares, uint32_t capacity)
{
    uint8_t *at = spares->first;
    if (at == NULL)
        return malloc(capacity);
    memcpy(&spares->first, at, sizeof spares->first);
    spares->count--;
    return at;
}

static void spare_give(mq_spares *spares, uint32_t spares_max, uint8_t *at)
{
    if (spares->count == spares_max) {
        free(at);
        return;
    }
    memcpy(at, &spares->first, sizeof spares->first);
    spares->first = at;
    spares->count++;
}

static void spares_free(mq_spares *spares)
{
    while (spares->first != NULL)
        free(spare_take(spares, 0));
}

static uint8_t *bytes_take(mq_engine *engine, uint32_t capacity)
{
    return capacity == MQ_SMALL_BYTES   ? spare_take(&engine->smalls, capacity)
           : capacity == MQ_BLOCK_BYTES ? spare_take(&engine->blocks, capacity)
                                        : malloc(capacity);
}

void mq_bytes_free(mq_engine *engine, mq_bytes *bytes)
{
    if (bytes->at == NULL)
        return;
    if (bytes->capacity == MQ_SMALL_BYTES)
        spare_give(&engine->smalls, SPARE_SMALLS, bytes->at);
    else if (bytes->capacity == MQ_BLOCK_BYTES)
        spare_give(&engine->blocks, SPARE_BLOCKS, bytes->at);
    else
        free(bytes->at);
    *bytes = (mq_bytes){0};
}

bool mq_bytes_reserve(mq_engine *engine, mq_bytes *bytes, uint32_t more)
{
    uint32_t live = bytes->end - bytes->start;
    if (bytes->capacity - bytes->end >= more)
        return true;
    if (bytes->capacity - live >= more) {
        memmove(bytes->at, bytes->at + bytes->start, live);
        bytes->start = 0;
        bytes->end = live;
        return true;
    }
    uint32_t wanted = live + more;
    uint32_t capacity = wanted > MQ_BLOCK_BYTES   ? wanted + live / 2
                        : wanted > MQ_SMALL_BYTES ? MQ_BLOCK_BYTES
                                                  : MQ_SMALL_BYTES;
    uint8_t *at = bytes_take(engine, capacity);
    if (at == NULL)
        return false;
    if (live > 0)
        memcpy(at, bytes->at + bytes->start, live);
    mq_bytes_free(engine, bytes);
    *bytes = (mq_bytes){.at = at, .end = live, .capacity = capacity};
    return true;
}

void mq_bytes_shrink(mq_engine *engine, mq_bytes *bytes)
{
    uint32_t live = bytes->end - bytes->start;
    uint8_t *at;
    if (live > bytes->capacity / 2 || (at = malloc(live)) == NULL)
        return;
    memcpy(at, bytes->at + bytes->start, live);
    mq_bytes_free(engine, bytes);
    *bytes = (mq_bytes){.at = at, .end = live, .capacity = live};
}

/* ---- the engine ---- */

mq_engine *mq_engine_new(const mq_limits *limits, const uint64_t seed[2])
{
    mq_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return NULL;
    engine->limits = *limits;
    if (limits->topics_max > MQ_TOPICS_MAX)
        engine->limits.topics_max = MQ_TOPICS_MAX;
    engine->seed[0] = seed[0];
    engine->seed[1] = seed[1];
    engine->next_deadline_ms = engine->limited_due_ms = engine->refusal_due_ms = MQ_NEVER;
    engine->read_bytes = MQ_READ_BYTES;
    engine->turn_work_max = MQ_TURN_WORK;
    engine->ring_count = 1; /* ring 0 is the store of copies */
    engine->topics.item_bytes = sizeof(mq_topic);
    engine->sessions.item_bytes = sizeof(mq_session);
    engine->connections.item_bytes = sizeof(mq_connection);
    engine->subscription_ids.item_bytes = sizeof(mq_subscription_ids);
    engine->owners.item_bytes = sizeof(mq_owner);
    engine->subscriptions.item_bytes = sizeof(mq_subscription);
    engine->receive = malloc(MQ_CARRY_BYTES + MQ_READ_BYTES);
    if (engine->receive == NULL || !mq_trie_open(&engine->trie)) {
        mq_trie_free(&engine->trie);
        free(engine->receive);
        free(engine);
        return NULL;
    }
    return engine;
}

static void connection_release(mq_engine *engine, mq_connection *connection)
{
    engine->counters.acks_waiting -= connection->acks_count;
    connection->acks_count = connection->acks_capacity = 0;
    connection->acl_count = connection->acl_capacity = 0;
    free(connection->acks);
    free(connection->acl_cache);
    free(connection->acl_rules);
    connection->acl_rules = NULL;
    mq_aliases_free(connection);
    free(connection->aliases_out);
    connection->aliases_out = NULL;
    connection->acks = NULL;
    connection->acl_cache = NULL;
    mq_input_free(engine, connection);
}

void mq_engine_free(mq_engine *engine)
{
    for (uint32_t i = 0; i < engine->connections.created; i++) {
        mq_connection *connection = mq_slab_at(&engine->connections, i);
        if (connection->item.generation & 1) {
            connection_release(engine, connection);
            mq_bytes_free(engine, &connection->out);
        }
    }
    for (uint32_t i = 0; i < engine->sessions.created; i++) {
        mq_session *session = mq_slab_at(&engine->sessions, i);
        if (session->item.generation & 1)
            mq_session_clear(engine, session);
    }
    for (uint32_t i = 0; i < engine->topics.created; i++) {
        mq_topic *topic = mq_slab_at(&engine->topics, i);
        if (topic->item.generation & 1)
            mq_topic_free(engine, topic);
    }
    for (uint32_t i = 1; i < engine->ring_count; i++)
        if (engine->rings[i] != NULL) {
            free(engine->rings[i]->requested_topic);
            free(engine->rings[i]->ack_gate.hidden_records);
            free(engine->rings[i]);
        }
    spares_free(&engine->blocks);
    spares_free(&engine->smalls);
    mq_spare_chunks_free(engine);
    mq_slab_free(&engine->connections);
    mq_slab_free(&engine->sessions);
    mq_slab_free(&engine->topics);
    mq_slab_free(&engine->subscription_ids);
    mq_owners_free(engine);
    mq_tenants_free(engine);
    mq_subscriptions_free(engine);
    mq_streams_free(engine->streams, engine->stream_count);
    mq_trie_free(&engine->trie);
    free(engine->retained_changed.at);
    free(engine->retained_saving.at);
    mq_journal_close(engine);
    mq_spill_free(engine);
    mq_table_free(&engine->topic_table, NULL);
    mq_table_free(&engine->ids_table, NULL);
    free(engine->scratch);
    free(engine->producer_properties);
    free(engine->receive);
    free(engine);
}

/* ---- rings ---- */

int mq_ring_add(mq_engine *engine, mq_ring ring)
{
    uint32_t index = 1;
    while (index < engine->ring_count && engine->rings[index] != NULL &&
           engine->rings[index]->kind != MQ_RING_NONE)
        index++;
    if (index == MQ_RINGS_MAX)
        return RB_FULL;
    if (engine->rings[index] == NULL)
        engine->rings[index] = malloc(sizeof ring);
    if (engine->rings[index] == NULL)
        return RB_FULL;
    ring.blocked.from = ring.next_blocked.from = RB_NO_POSITION;
    *engine->rings[index] = ring;
    if (index == engine->ring_count)
        engine->ring_count++;
    engine->producers_pending |= ring.kind == MQ_RING_OF_PRODUCER;
    engine->visible_when_durable |= ring.ack_gate.visible_when_durable;
    return (int)index;
}

void mq_ring_remove(mq_engine *engine, uint32_t index)
{
    mq_ring *ring = index < engine->ring_count ? engine->rings[index] : NULL;
    if (ring == NULL || ring->kind == MQ_RING_NONE)
        return;
    for (uint32_t i = 0; i < engine->sessions.created; i++) {
        mq_session *session = mq_slab_at(&engine->sessions, i);
        if (!(session->item.generation & 1))
            continue;
        mq_session_forget_ring(engine, session, index);
        if (session->connection != NULL) /* its window may be open again, and no other event reports it */
            mq_connection_touch(engine, session->connection);
    }
    mq_fifo_leave(&ring->stale_end);
    free(ring->requested_topic);
    free(ring->ack_gate.hidden_records);
    *ring = (mq_ring){.kind = MQ_RING_NONE};
}

void mq_announce_ends(mq_engine *engine)
{
    for (mq_link *link; (link = mq_fifo_take(&engine->rings_to_announce)) != NULL;)
        rb_announce_end(MQ_LINKED(link, mq_ring, stale_end)->writer);
}

/* ---- connections ---- */

mq_listener *mq_engine_listener(mq_engine *engine, int number)
{
    return number >= 0 && number < MQ_LISTENERS_MAX ? &engine->listeners[number] : NULL;
}

const mq_violation *mq_engine_violation(const mq_engine *engine)
{
    return &engine->violation;
}

static uint32_t or_else(uint32_t own, uint32_t common)
{
    return own != 0 ? own : common;
}

mq_connection *mq_connection_open(mq_engine *engine, int fd, int listener)
{
    mq_connection *connection = mq_slab_take(&engine->connections);
    if (connection == NULL)
        return NULL;
    connection->fd = fd;
    connection->listener = (uint8_t)listener;
    connection->packet_max_bytes = or_else(engine->listeners[listener].connect_max_bytes,
                                           engine->limits.connect_max_bytes);
    engine->listeners[listener].connections++;
    connection->out_chunk = MQ_BLOCK_BYTES;
    connection->last_seen_ms = engine->now_ms;
    connection->idle_max_ms = engine->limits.connect_timeout_ms;
    if (engine->now_ms + connection->idle_max_ms < engine->next_deadline_ms)
        engine->next_deadline_ms = engine->now_ms + connection->idle_max_ms;
    engine->counters.connections_opened++;
    return connection;
}

void mq_connection_attach(mq_engine *engine, mq_connection *connection, mq_session *session,
                          const mq_connection_settings *settings)
{
    connection->version = settings->version;
    connection->trusted = settings->trusted;
    connection->send_max_bytes = settings->send_max_bytes;
    connection->alias_max = settings->alias_max;
    connection->policy = engine->policy;
    connection->packet_max_bytes = or_else(engine->listeners[connection->listener].packet_max_bytes,
                                           engine->limits.packet_max_bytes);
    connection->last_seen_ms = engine->now_ms;
    connection->idle_max_ms = settings->idle_max_ms;
    if (settings->idle_max_ms > 0 && engine->now_ms + settings->idle_max_ms < engine->next_deadline_ms)
        engine->next_deadline_ms = engine->now_ms + settings->idle_max_ms;
    connection->tenant = settings->tenant;
    mq_rate_begin(engine, connection);
    connection->session = session;
    mq_connection_owned(engine, connection, mq_owner_reference(session->owner), MQ_OWNED_CONNECTIONS);
    session->window = settings->window;
    session->connection = connection;
    mq_session_return(session);
    mq_connection_touch(engine, connection);
}

/* Close a connection.  Its buffers stay until mq_connection_over(), because the parser may be using them. */
void mq_connection_close(mq_engine *engine, mq_connection *connection, uint32_t cause)
{
    if (connection->stop == MQ_STOP_CLOSING)
        return;
    connection->stop = MQ_STOP_CLOSING;
    mq_disconnect_packet(engine, connection, cause);
    connection->cause = (uint8_t)cause;
    mq_session *session = connection->session;
    connection->session = NULL;
    if (session != NULL) {
        session->connection = NULL;
        if (session->shared)
            mq_share_return(engine, session);
    }
    engine->counters.closed[cause]++;
    mq_fifo_add(&engine->closing, &connection->turn);
}

bool mq_connection_over(mq_engine *engine, mq_connection *connection)
{
    bool not_reported = !connection->known || connection->cause == MQ_CLOSE_SERVER ||
                        mq_event_add(engine, connection,
                                     (mq_event){.kind = MQ_EVENT_CLOSED, .detail = connection->cause});
    if (not_reported)
        connection_release(engine, connection);
    return not_reported;
}

void mq_connection_forget(mq_engine *engine, mq_connection *connection)
{
    mq_link *links[] = {&connection->turn,      &connection->touched,  &connection->ack_wait,
                        &connection->sync_wait, &connection->log_wait, &connection->socket};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        mq_fifo_leave(links[i]);
    connection_release(engine, connection);
    mq_layers_free(connection->layer);
    mq_bytes_free(engine, &connection->out);
    engine->listeners[connection->listener].connections--;
    mq_connection_owned(engine, connection, NULL, MQ_OWNED_OPENING);
    mq_slab_give(&engine->connections, &connection->item);
}

void mq_connection_touch(mq_engine *engine, mq_connection *connection)
{
    if (connection->touched.fifo == NULL)
        mq_fifo_add(&engine->touched, &connection->touched);
}

void mq_connection_ready(mq_engine *engine, mq_connection *connection)
{
    if (connection->turn.fifo == NULL)
        mq_fifo_add(&engine->ready, &connection->turn);
}

/* ---- time ---- */

void mq_share_work(mq_engine *engine, uint32_t connections)
{
    uint32_t part = connections > 0 ? MQ_ROUND_WORK / connections : MQ_TURN_WORK;
    engine->turn_work_max = part > MQ_TURN_WORK ? MQ_TURN_WORK : part < MQ_LAG_WORK ? MQ_LAG_WORK : part;
}

/* Continue the connections of `fifo`; those added meanwhile wait for the next call.  Returns false if others
 * wait for it too, because MQ_ROUND_WORK was used: they are the first in the FIFO. */
static bool continue_connections(mq_engine *engine, mq_fifo *fifo)
{
    mq_link *link;
    uint32_t work = 0, left = fifo->count;
    mq_share_work(engine, left);
    for (; left > 0 && work < MQ_ROUND_WORK && (link = mq_fifo_take(fifo)) != NULL; left--) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, turn);
        if (connection->stop == MQ_STOP_FULL || connection->stop == MQ_STOP_RATE) {
            connection->stop = MQ_RUN;
            connection->last_seen_ms = engine->now_ms;
        }
        engine->turn_work = 0;
        mq_continue(engine, connection);
        work += engine->turn_work;
    }
    return left == 0 || fifo->count == 0;
}

/* End connections without a socket when an event for Python has room; the loop closes others first. */
static void detached_over(mq_engine *engine)
{
    mq_link *link;
    while ((link = engine->closing.first) != NULL) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, turn);
        if (connection->fd >= 0 || !mq_connection_over(engine, connection))
            return;
        mq_fifo_leave(link);
    }
}

void mq_engine_step(mq_engine *engine)
{
    if (engine->producers_moved)
        mq_producers_store_progress(engine);
    if (engine->producers_pending)
        mq_producers_read(engine);
    if (engine->visible_when_durable)
        mq_make_durable_visible(engine);
    mq_refusals_step(engine);
    if (engine->ack_waiters.count > 0)
        mq_acks_release(engine);
    mq_reap_barrier(engine);
    mq_event_waiters_continue(engine);
    continue_connections(engine, &engine->ready);
    engine->blocked_left = !continue_connections(engine, &engine->blocked);
    if (engine->now_ms >= engine->limited_due_ms) {
        engine->limited_due_ms = MQ_NEVER;
        /* The first one goes to the end: otherwise it would get all that a shared bucket has, each time.  Not
         * before all were continued: others would never be the first. */
        if (engine->limited.count > 1 && !engine->limited_left)
            mq_fifo_add(&engine->limited, engine->limited.first);
        engine->limited_left = !continue_connections(engine, &engine->limited);
        if (engine->limited_left)
            engine->limited_due_ms = engine->now_ms;
    }
    if (engine->input_read_ms >= engine->next_deadline_ms)
        mq_keep_alive_expire(engine);
    mq_input_step(engine);
    detached_over(engine);
    mq_announce_ends(engine);
    if (mq_journal_written(engine))
        mq_spill_maintain(engine);
    mq_counters_refresh(engine);
}

/* Update counters that are kept elsewhere; called before the counters are read. */
void mq_counters_refresh(mq_engine *engine)
{
    engine->counters.connections = engine->connections.live;
    engine->counters.sessions = engine->sessions.live - engine->share_queues;
    engine->counters.blocked = engine->blocked.count;
}

uint64_t mq_engine_due(const mq_engine *engine)
{
    if (engine->journal.stalled)
        return RETRY_MS;
    if (mq_events_waiting(engine) || engine->producers_pending || engine->visible_pending ||
        engine->ready.count || engine->blocked_left || engine->touched.count ||
        engine->closing.first != NULL || engine->event_waiters[0].first != NULL ||
        engine->event_waiters[1].first != NULL || engine->log_waiters.count)
        return 0;
    uint64_t at = engine->next_deadline_ms < engine->limited_due_ms ? engine->next_deadline_ms
                                                                    : engine->limited_due_ms;
    uint64_t others[] = {engine->refusal_due_ms, mq_requests_due_ms(engine), mq_input_due_ms(engine)};
    for (int i = 0; i < 3; i++)
        at = others[i] < at ? others[i] : at;
    uint64_t due = at == MQ_NEVER ? MQ_NEVER : at <= engine->now_ms ? 0 : at - engine->now_ms,
             spill_due = mq_spill_due(engine);
    due = spill_due < due ? spill_due : due;
    return engine->blocked.count > 0 && due > RETRY_MS ? RETRY_MS : due;
}
