/* SPDX-License-Identifier: Apache-2.0
 *
 * Publish rate limit of a client: a bucket of messages.  The listener's rate fills it, and it holds the
 * messages of one second.  Reading from a client with an empty bucket pauses until the bucket fills again.
 * No message is lost; TCP slows the client down.
 *
 * A PUBLISH that is read again, after an answer of Python or with a full ring, is charged once, when it is
 * consumed.
 */
#include "mqtt/in/packets.h"

/* Cost of one message.  The bucket counts thousandths; a millisecond adds `rate` of them. */
#define MESSAGE \
    1000u
#define PAUSE_MIN_MS 10 /* so that a fast client is not woken for each message */

static void fill(const mq_engine *engine, mq_connection *connection)
{
    uint64_t credit_max = (uint64_t)connection->publish_rate_max * MESSAGE,
             passed_ms = engine->now_ms - connection->rate_seen_ms;
    connection->rate_seen_ms = engine->now_ms;
    /* one second fills the bucket; a longer time must not overflow */
    connection->rate_credit += (passed_ms < 1000 ? passed_ms : 1000) * connection->publish_rate_max;
    if (connection->rate_credit > credit_max)
        connection->rate_credit = credit_max;
}

void mq_rate_begin(const mq_engine *engine, mq_connection *connection)
{
    connection->publish_rate_max = engine->listeners[connection->listener].publish_rate_max;
    connection->rate_credit = (uint64_t)connection->publish_rate_max * MESSAGE;
    connection->rate_seen_ms = engine->now_ms;
}

bool mq_rate_admits(mq_engine *engine, mq_connection *connection)
{
    fill(engine, connection);
    if (connection->rate_credit >= MESSAGE)
        return true;
    uint64_t wanting = MESSAGE - connection->rate_credit, rate = connection->publish_rate_max,
             pause_ms = (wanting + rate - 1) / rate;
    uint64_t due_ms = engine->now_ms + (pause_ms < PAUSE_MIN_MS ? PAUSE_MIN_MS : pause_ms);
    if (due_ms < engine->limited_due_ms)
        engine->limited_due_ms = due_ms;
    connection->stop = MQ_STOP_RATE;
    engine->counters.rate_waits++;
    mq_list_add(&engine->limited, mq_handle(&connection->item));
    return false;
}

void mq_rate_pay(mq_connection *connection)
{
    connection->rate_credit -= MESSAGE;
}
