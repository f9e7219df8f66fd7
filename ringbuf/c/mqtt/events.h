/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: requests of the engine to Python (events.c).  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_EVENTS_H
#define BRIM_MQTT_EVENTS_H

/* Add an event of a connection.  False: no room. */
bool mq_event_add(mq_engine *engine, const mq_connection *connection, mq_event event);
/* Get the next event for Python; false if there is no other.  Of queued events, only those with a number
 * below `end`.  *ring is 0 before the first call. */
bool mq_event_take(mq_engine *engine, uint64_t end, uint32_t *ring, mq_event *out);
/* approximate number of events that mq_event_take() gives now */
uint32_t mq_events_waiting(const mq_engine *engine);
void mq_events_resume(mq_engine *engine);            /* resume the connections of taken events only */
/* Let the connection wait for room for an event, behind others of its kind. */
void mq_event_wait(mq_engine *engine, mq_connection *connection);
void mq_event_waiters_continue(mq_engine *engine); /* those for whose event there is room */
void mq_request_sent(const mq_engine *engine, mq_request *request);
uint64_t mq_requests_due_ms(const mq_engine *engine); /* time at which a request must be sent or repeated */

/* True if there is no room for an event: for a packet of an accepted client, or for any other event. */
static inline bool mq_events_full(const mq_engine *engine, bool of_client)
{
    return engine->event_next - engine->event_done == MQ_EVENTS ||
           engine->events_of[of_client] >= MQ_EVENTS - MQ_EVENTS_SPARE;
}

#endif
