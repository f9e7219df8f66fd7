/* SPDX-License-Identifier: Apache-2.0
 *
 * Ages of records that do not depend on steps of the wall clock: see record_age.c.
 */
#ifndef BRIM_MQTT_RECORD_AGE_H
#define BRIM_MQTT_RECORD_AGE_H

#include <stdint.h>

#define MQ_CLOCK_SPANS 8 /* the current one, and one for each of the last 7 steps of the wall clock */

typedef struct mq_clock_span { /* time between two steps of the wall clock */
    uint64_t begin_ns, end_ns; /* wall; 0, 0: unused */
    uint64_t ahead_ns;         /* wall minus boot-time clock, modulo 2^64 */
} mq_clock_span;

typedef struct mq_clock {
    uint64_t boot_ns;                    /* now */
    uint64_t begun_ns;                   /* boot_ns when the engine began; 0: not yet */
    uint64_t suspended_ns;               /* boot-time clock minus monotonic clock */
    mq_clock_span spans[MQ_CLOCK_SPANS]; /* the latest first */
} mq_clock;

struct mq_engine;

/* Set the time of the engine: `steady_ns` of CLOCK_MONOTONIC, `now_ns` of the wall clock. */
void mq_clock_set(struct mq_engine *engine, uint64_t steady_ns, uint64_t now_ns);

/* Nanoseconds since the wall clock had the value `timestamp_ns`; 0 for a time in the future. */
uint64_t mq_age_ns(const struct mq_engine *engine, uint64_t timestamp_ns);

#endif
