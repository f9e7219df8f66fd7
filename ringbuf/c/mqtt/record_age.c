/* SPDX-License-Identifier: Apache-2.0
 *
 * Ages of records that do not depend on steps of the wall clock.
 *
 * Records have times of the wall clock.  A machine without a battery begins in 1970 or at its last stop, and
 * gets the time from the network later.  Such a step must not end the interval of a message early.  The
 * engine therefore keeps the last steps, as spans: in each the difference between the wall clock and the
 * boot-time clock is the same.  The age of a record is counted by the boot-time clock, from the span in which
 * its time lies; if more than one has it, from the latest.
 *
 * A time that no span has is of an earlier run.  Its age is counted by the wall clock, and from the start of
 * this run if the time is before CLOCK_SET_NS.  Times up to STEP_MIN_NS ahead belong to the current span:
 * local producers read the clock themselves.
 */
#include "mqtt/mqtt.h"

#include "base/clock.h"

#include <string.h>

#define STEP_MIN_NS 1000000000ull /* clocks drift: a smaller step is ignored */
#define CLOCK_SET_NS (RB_CLOCK_SET_S * 1000000000ull)

/* Time in which the machine slept: CLOCK_MONOTONIC stops then. */
static uint64_t suspended_ns(void)
{
    return (uint64_t)(rb_clock_ns(CLOCK_BOOTTIME) - rb_now_ns());
}

static bool differs(uint64_t one_ns, uint64_t other_ns)
{
    return one_ns - other_ns + STEP_MIN_NS > 2 * STEP_MIN_NS;
}

/* True if the wall clock has stepped, and the machine has not only slept. */
static bool has_stepped(mq_clock *clock, uint64_t ahead_of_steady_ns)
{
    uint64_t before_ns = clock->spans[0].ahead_ns;
    if (!differs(ahead_of_steady_ns - clock->suspended_ns, before_ns))
        return false;
    uint64_t now_suspended_ns = suspended_ns();
    if (differs(now_suspended_ns, clock->suspended_ns))
        clock->suspended_ns = now_suspended_ns;
    return differs(ahead_of_steady_ns - clock->suspended_ns, before_ns);
}

/* The step happened at any time since the last reading: both spans have all times that it may have had. */
static void begin_span(mq_clock *clock, uint64_t boot_ns, uint64_t now_ns)
{
    mq_clock_span *span = clock->spans;
    uint64_t passed_ns = boot_ns - clock->boot_ns;
    span->end_ns = boot_ns + span->ahead_ns;
    memmove(span + 1, span, (MQ_CLOCK_SPANS - 1) * sizeof *span);
    span->begin_ns = now_ns > passed_ns ? now_ns - passed_ns : 0;
}

void mq_clock_set(mq_engine *engine, uint64_t steady_ns, uint64_t now_ns)
{
    mq_clock *clock = &engine->clock;
    mq_clock_span *span = clock->spans;
    if (clock->begun_ns == 0) {
        clock->suspended_ns = suspended_ns();
        clock->begun_ns = steady_ns + clock->suspended_ns;
        span->begin_ns = now_ns < CLOCK_SET_NS ? 0 : CLOCK_SET_NS;
    } else if (has_stepped(clock, now_ns - steady_ns)) {
        begin_span(clock, steady_ns + clock->suspended_ns, now_ns);
    }
    engine->now_ms = steady_ns / 1000000;
    engine->now_ns = now_ns;
    clock->boot_ns = steady_ns + clock->suspended_ns;
    span->ahead_ns = now_ns - clock->boot_ns;
    span->end_ns = now_ns + STEP_MIN_NS;
}

uint64_t mq_age_ns(const mq_engine *engine, uint64_t timestamp_ns)
{
    const mq_clock *clock = &engine->clock;
    uint64_t then_ns = engine->now_ns; /* the wall clock now, without the steps since the record */
    if (timestamp_ns < CLOCK_SET_NS)
        then_ns = timestamp_ns + clock->boot_ns - clock->begun_ns;
    for (const mq_clock_span *span = clock->spans; span < clock->spans + MQ_CLOCK_SPANS; span++)
        if (timestamp_ns >= span->begin_ns && timestamp_ns < span->end_ns) {
            then_ns = clock->boot_ns + span->ahead_ns;
            break;
        }
    return then_ns > timestamp_ns ? then_ns - timestamp_ns : 0;
}
