/* SPDX-License-Identifier: Apache-2.0
 *
 * Keep-alive: closes a client that was silent for longer than its interval, or that sent no CONNECT in time.
 *
 * The interval (idle_max_ms) is 1.5 times the Keep Alive of the client: edge/broker/broker_limits.py sets it.
 *
 * A connection expires by the time until which all input has been read (engine->input_read_ms), never only by
 * the clock: after a pause of the process, input that waits in the sockets counts.
 */
#include "mqtt/mqtt.h"

#define EXPIRE_STEP_MS 250 /* shortest interval of deadline checks */

/* True if the client was silent for too long.  Input of a client that waits for the broker is not read, so it
 * cannot expire. */
static bool is_expired(const mq_engine *engine, const mq_connection *connection)
{
    bool waits = connection->turn.fifo != NULL || connection->stop == MQ_STOP_DEFERRED ||
                 connection->stop == MQ_STOP_ACKS;
    return connection->idle_max_ms > 0 && !(waits && connection->version != 0) &&
           connection->last_seen_ms + connection->idle_max_ms < engine->input_read_ms;
}

/* Record that sockets readable at `began_ms` have been read, `all` of them.  Input sent before is then known,
 * even if the process was stopped in between.  If more input arrives than a round reads, every connection has
 * had its turn after a number of rounds. */
void mq_input_was_read(mq_engine *engine, uint64_t began_ms, bool all)
{
    if (engine->journal.full) /* no socket is read */
        return;
    if (engine->unread_rounds == 0)
        engine->unread_since_ms = began_ms;
    all = all && !mq_events_full(engine, false);
    if (!all && ++engine->unread_rounds <= engine->connections.live / 16 + 1)
        return;
    engine->input_read_ms = all ? began_ms : engine->unread_since_ms;
    engine->unread_rounds = 0;
}

/* Close expired connections.  Before CONNECT, last_seen_ms stays at the time of accept: single bytes do not
 * extend the time. */
void mq_keep_alive_expire(mq_engine *engine)
{
    uint64_t next = MQ_NEVER;
    for (uint32_t i = 0; i < engine->connections.created; i++) {
        mq_connection *connection = mq_slab_at(&engine->connections, i);
        if (!(connection->item.generation & 1) || connection->stop == MQ_STOP_CLOSING ||
            connection->idle_max_ms == 0)
            continue;
        if (is_expired(engine, connection))
            mq_connection_close(engine, connection,
                                connection->version == 0 ? MQ_CLOSE_CONNECT_TIMEOUT : MQ_CLOSE_KEEP_ALIVE);
        else if (connection->last_seen_ms + connection->idle_max_ms + 1 < next)
            next = connection->last_seen_ms + connection->idle_max_ms + 1;
    }
    uint64_t soonest = engine->now_ms + EXPIRE_STEP_MS;
    engine->next_deadline_ms = next < soonest ? soonest : next;
}
