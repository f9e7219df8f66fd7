/* SPDX-License-Identifier: Apache-2.0
 *
 * Check of the FIFOs of an engine (mqtt/lists.h), for targets of the fuzzer.
 */
#ifndef BRIM_TESTS_FIFOS_H
#define BRIM_TESTS_FIFOS_H

#include "mqtt/mqtt.h"
#include "must.h"

static void fifo_holds(const mq_fifo *fifo)
{
    const mq_link *previous = NULL;
    uint32_t count = 0;
    for (const mq_link *link = fifo->first; link != NULL; link = link->next) {
        must(link->fifo == fifo, "a link is in its FIFO");
        must(link->previous == previous, "a link knows the one before it");
        previous = link;
        count++;
    }
    must(fifo->last == previous && fifo->count == count, "a FIFO knows its end");
}

/* A paused publisher is in the FIFO that continues it. */
static void turn_holds(const mq_engine *engine, const mq_connection *connection)
{
    bool waits = connection != NULL && connection->stop == MQ_STOP_FULL;
    must(connection == NULL || waits == (connection->turn.fifo == &engine->blocked),
         "a connection is in the FIFO for room exactly while it waits for room");
}

static void fifos_hold(const mq_engine *engine)
{
    const mq_fifo *fifos[] = {&engine->ready,
                              &engine->blocked,
                              &engine->limited,
                              &engine->closing,
                              &engine->touched,
                              &engine->ack_waiters,
                              &engine->log_waiters,
                              &engine->sync_waiters,
                              &engine->event_waiters[0],
                              &engine->event_waiters[1],
                              &engine->copy_sessions,
                              &engine->rings_to_announce,
                              &engine->memory_waiters[0],
                              &engine->memory_waiters[1],
                              &engine->memory_waiters[2]};
    for (size_t i = 0; i < sizeof fifos / sizeof *fifos; i++)
        fifo_holds(fifos[i]);
}

#endif
