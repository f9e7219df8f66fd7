/* SPDX-License-Identifier: Apache-2.0
 *
 * Publish rate limits: a bucket of messages for each client, and one for all clients of a tenant.  The rate
 * of the listener or the tenant fills a bucket, which holds the messages of one second.  Reading from a
 * client pauses while one of its buckets is empty.  No message is lost; TCP slows the client down.
 *
 * A PUBLISH that is read again, after an answer of Python or with a full ring, is charged once, when it is
 * consumed.
 */
#include "mqtt/in/packets.h"

/* Cost of one message.  The bucket counts thousandths; a millisecond adds `rate` of them. */
#define MESSAGE \
    1000u
#define PAUSE_MIN_MS 10 /* so that a fast client is not woken for each message */

void mq_rate_set(const mq_engine *engine, mq_rate *bucket, uint32_t rate_max)
{
    if (bucket->rate_max != rate_max)
        *bucket = (mq_rate){
            .rate_max = rate_max, .credit = (uint64_t)rate_max * MESSAGE, .seen_ms = engine->now_ms};
}

static void fill(const mq_engine *engine, mq_rate *bucket)
{
    uint64_t credit_max = (uint64_t)bucket->rate_max * MESSAGE, passed_ms = engine->now_ms - bucket->seen_ms;
    bucket->seen_ms = engine->now_ms;
    /* one second fills the bucket; a longer time must not overflow */
    bucket->credit += (passed_ms < 1000 ? passed_ms : 1000) * bucket->rate_max;
    if (bucket->credit > credit_max)
        bucket->credit = credit_max;
}

/* Milliseconds until the bucket has a message; 0: now. */
static uint64_t pause_of(const mq_engine *engine, mq_rate *bucket)
{
    if (bucket->rate_max == 0)
        return 0;
    fill(engine, bucket);
    return bucket->credit >= MESSAGE ? 0
                                     : (MESSAGE - bucket->credit + bucket->rate_max - 1) / bucket->rate_max;
}

void mq_rate_begin(const mq_engine *engine, mq_connection *connection)
{
    mq_rate_set(engine, &connection->bucket, engine->listeners[connection->listener].publish_rate_max);
    connection->rate_limited = connection->bucket.rate_max > 0 || connection->tenant != NULL;
}

bool mq_rate_admits(mq_engine *engine, mq_connection *connection)
{
    mq_tenant *tenant = connection->tenant;
    uint64_t own_ms = pause_of(engine, &connection->bucket),
             pause_ms = tenant == NULL ? 0 : pause_of(engine, &tenant->bucket);
    if (own_ms == 0 && pause_ms == 0)
        return true;
    if (pause_ms > 0)
        tenant->rate_waits++;
    if (pause_ms < own_ms)
        pause_ms = own_ms;
    uint64_t due_ms = engine->now_ms + (pause_ms < PAUSE_MIN_MS ? PAUSE_MIN_MS : pause_ms);
    if (due_ms < engine->limited_due_ms)
        engine->limited_due_ms = due_ms;
    connection->stop = MQ_STOP_RATE;
    engine->counters.rate_waits++;
    mq_fifo_add(&engine->limited, &connection->turn);
    return false;
}

static void pay(mq_rate *bucket)
{
    bucket->credit -= bucket->rate_max == 0 || bucket->credit < MESSAGE ? 0 : MESSAGE;
}

void mq_rate_pay(mq_connection *connection)
{
    pay(&connection->bucket);
    if (connection->tenant != NULL) {
        pay(&connection->tenant->bucket);
        connection->tenant->published++;
    }
}
