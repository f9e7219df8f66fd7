/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: requests of the engine to Python, with guaranteed delivery.
 *
 * There are two kinds.  Neither can be lost between two polls, in any order of actions of C and Python.
 *
 *   queued    PACKET, TOPIC, CLOSED, UPGRADE, PROXY.  Each has a number, its place in a circular buffer.
 *
 *                 event_done <= event_taken <= event_next <= event_done + MQ_EVENTS
 *
 *             mq_event_add() advances event_next.  mq_event_take(), with which Python receives an event,
 *             advances event_taken.  mq_events_resume() advances event_done up to event_taken, never further.
 *             An event added after Python has taken the others therefore stays for the next time.
 *             While there is no room, a connection waits in event_waiters, in the order of their packets.
 *             Packets of accepted clients leave some room for new and closed connections, and these for them:
 *             otherwise one kind would wait as long as many of the other kind come again and again.
 *   derived   PRODUCER_TOPIC, PRODUCER_BAD, BACKFILL, JOURNAL.  They are not queued.  Each is computed in
 *             each round from the state that causes it, while that state lasts.  A request that Python did
 *             not satisfy is repeated after REMIND_MS (mq_request).  A failure in Python delays it but does
 *             not end it.
 */
#include "mqtt/mqtt.h"

#define REMIND_MS 1000u

/* ---- requests ---- */

static uint64_t request_due_ms(const mq_request *request)
{
    return request->sent ? request->sent_ms + REMIND_MS : 0;
}

static bool is_due(const mq_engine *engine, bool needed, const mq_request *request)
{
    return needed && engine->now_ms >= request_due_ms(request);
}

void mq_request_sent(const mq_engine *engine, mq_request *request)
{
    *request = (mq_request){.sent = true, .sent_ms = engine->now_ms};
}

uint64_t mq_requests_due_ms(const mq_engine *engine)
{
    uint64_t journal = mq_journal_needs(engine) ? request_due_ms(&engine->journal.request) : MQ_NEVER;
    uint64_t retained = engine->retained_due ? request_due_ms(&engine->retained_request) : MQ_NEVER;
    return journal < retained ? journal : retained;
}

/* ---- reporting ---- */

bool mq_event_add(mq_engine *engine, const mq_connection *connection, mq_event event)
{
    event.handle = mq_handle(&connection->item);
    event.of_client = connection->version != 0 && event.kind != MQ_EVENT_CLOSED;
    if (mq_events_full(engine, event.of_client))
        return false;
    engine->events_of[event.of_client]++;
    engine->events[engine->event_next++ % MQ_EVENTS] = event;
    return true;
}

void mq_event_wait(mq_engine *engine, mq_connection *connection)
{
    if (connection->turn.fifo != NULL) /* it is parsed again anyway */
        return;
    engine->counters.event_waits++;
    mq_fifo_add(&engine->event_waiters[connection->version != 0], &connection->turn);
}

static void waiters_continue(mq_engine *engine, bool of_client)
{
    mq_link *link;
    while (!mq_events_full(engine, of_client) &&
           (link = mq_fifo_take(&engine->event_waiters[of_client])) != NULL) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, turn);
        if (of_client) /* its input was not read meanwhile */
            connection->last_seen_ms = engine->now_ms;
        mq_continue(engine, connection);
    }
}

/* Each waiter is parsed once for an event, however many wait. */
void mq_event_waiters_continue(mq_engine *engine)
{
    engine->serves_waiter = true;
    mq_share_work(engine, MQ_EVENTS);
    waiters_continue(engine, true);
    waiters_continue(engine, false);
    engine->serves_waiter = false;
}

uint32_t mq_events_waiting(const mq_engine *engine)
{
    return (uint32_t)(engine->event_next - engine->event_taken) + engine->log_waiters.count +
           engine->producers_to_report + is_due(engine, mq_journal_needs(engine), &engine->journal.request) +
           is_due(engine, engine->retained_due, &engine->retained_request);
}

/* Get the next producer ring, from *at on, that waits for Python and is not reported. */
static bool producer_event_take(mq_engine *engine, uint32_t *at, mq_event *out)
{
    for (; *at < engine->ring_count; ++*at) {
        mq_ring *ring = engine->rings[*at];
        if (ring == NULL || ring->reported || !(ring->waiting || ring->bad))
            continue;
        ring->reported = true;
        *out = (mq_event){.kind = ring->bad ? MQ_EVENT_PRODUCER_BAD : MQ_EVENT_PRODUCER_TOPIC,
                          .detail = *at,
                          .length = ring->requested_topic_length};
        return true;
    }
    engine->producers_to_report = false;
    return false;
}

/* Get the next connection whose session waits for the log. */
static bool backfill_take(mq_engine *engine, mq_event *out)
{
    for (mq_link *link; (link = mq_fifo_take(&engine->log_waiters)) != NULL;) {
        const mq_connection *connection = MQ_LINKED(link, mq_connection, log_wait);
        *out = (mq_event){.kind = MQ_EVENT_BACKFILL, .handle = mq_handle(&connection->item)};
        if (connection->session != NULL && connection->session->waits_for_log)
            return true;
    }
    return false;
}

static bool request_take(mq_engine *engine, bool needed, mq_request *request, uint32_t detail, mq_event *out)
{
    if (!is_due(engine, needed, request))
        return false;
    mq_request_sent(engine, request);
    *out = (mq_event){.kind = MQ_EVENT_JOURNAL, .detail = detail};
    return true;
}

bool mq_event_take(mq_engine *engine, uint64_t end, uint32_t *ring, mq_event *out)
{
    if (engine->event_taken < engine->event_next && engine->event_taken < end) {
        *out = engine->events[engine->event_taken++ % MQ_EVENTS];
        return true;
    }
    return (engine->producers_to_report && producer_event_take(engine, ring, out)) ||
           backfill_take(engine, out) ||
           request_take(engine, mq_journal_needs(engine), &engine->journal.request, 0, out) ||
           request_take(engine, engine->retained_due, &engine->retained_request, 1, out);
}

/* ---- resuming ---- */

static void producers_resume(mq_engine *engine)
{
    for (uint32_t i = 1; i < engine->ring_count; i++) {
        mq_ring *ring = engine->rings[i];
        if (ring == NULL || !ring->waiting || !ring->reported)
            continue;
        ring->waiting = ring->reported = false;
        engine->producers_pending = true;
    }
}

/* Resume a connection.  One that was resumed before and stopped again waits for a later event than this. */
static void connection_resume(mq_engine *engine, const mq_event *event, uint64_t number)
{
    mq_connection *connection = mq_slab_get(&engine->connections, event->handle);
    if (connection == NULL || connection->stop != MQ_STOP_PYTHON || connection->event != number)
        return;
    connection->stop = MQ_RUN;
    if (event->kind == MQ_EVENT_TOPIC && !connection->answered)
        mq_connection_close(engine, connection, MQ_CLOSE_NOT_AUTHORIZED_YET);
    else
        mq_continue(engine, connection);
}

/* Resume the connections of taken events.  They may add events: these are after event_taken, and wait for
 * Python. */
void mq_events_resume(mq_engine *engine)
{
    uint64_t taken = engine->event_taken;
    mq_share_work(engine, MQ_EVENTS);
    if (engine->producers_waiting)
        producers_resume(engine);
    while (engine->event_done < taken) {
        uint64_t number = engine->event_done++;
        mq_event event = engine->events[number % MQ_EVENTS];
        engine->events_of[event.of_client]--;
        connection_resume(engine, &event, number);
    }
}
