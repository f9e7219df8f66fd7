/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast one client may publish: a bucket of messages that its listener fills, so many a second, and that
 * holds what one second brings.  Who has emptied it is not read until there is some in it again: nothing is
 * lost, and TCP tells the client.
 *
 * A PUBLISH that is read again, because Python was asked or the ring was full, is paid for once, when it is
 * consumed.
 */
#include "packets.h"

#define MESSAGE                                                                                 \
    1000u /* what one costs: the bucket counts thousandths, a millisecond brings `rate` of them \
           */
#define PAUSE_MIN_MS 10 /* so that a fast client is not woken for each message */

static void fill(const mq_engine *engine, mq_connection *connection)
{
    uint64_t most = (uint64_t)connection->publish_rate_max * MESSAGE,
             passed_ms = engine->now_ms - connection->rate_seen_ms;
    connection->rate_seen_ms = engine->now_ms;
    /* a second fills it; what more has passed must not overflow */
    connection->rate_credit += (passed_ms < 1000 ? passed_ms : 1000) * connection->publish_rate_max;
    if (connection->rate_credit > most)
        connection->rate_credit = most;
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
