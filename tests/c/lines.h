/* SPDX-License-Identifier: Apache-2.0
 *
 * Check of the lines of an engine (mqtt/lists.h), for targets of the fuzzer.
 */
#ifndef BRIM_TESTS_LINES_H
#define BRIM_TESTS_LINES_H

#include "mqtt/mqtt.h"
#include "must.h"

static void line_holds(const mq_line *line)
{
    const mq_link *previous = NULL;
    uint32_t count = 0;
    for (const mq_link *link = line->first; link != NULL; link = link->next) {
        must(link->line == line, "a link is in its line");
        must(link->previous == previous, "a link knows the one before it");
        previous = link;
        count++;
    }
    must(line->last == previous && line->count == count, "a line knows its end");
}

/* A paused publisher is in the line that continues it. */
static void turn_holds(const mq_engine *engine, const mq_connection *connection)
{
    bool waits = connection != NULL && connection->stop == MQ_STOP_FULL;
    must(connection == NULL || waits == (connection->turn.line == &engine->blocked),
         "a connection is in the line for room exactly while it waits for room");
}

static void lines_hold(const mq_engine *engine)
{
    const mq_line *lines[] = {&engine->ready,         &engine->blocked,           &engine->limited,
                              &engine->closing,       &engine->touched,           &engine->ack_waiters,
                              &engine->log_waiters,   &engine->sync_waiters,      &engine->event_waiters[0],
                              &engine->copy_sessions, &engine->rings_to_announce, &engine->event_waiters[1],
                              &engine->lines[0],      &engine->lines[1],          &engine->lines[2]};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        line_holds(lines[i]);
}

#endif
